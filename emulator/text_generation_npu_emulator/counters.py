"""What ran: calls by op, compilations by op, and shapes that a chip would be slow with. For tests to read."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class Counters:
    """Since the process started, or since `clear`."""

    calls: Counter[str] = field(default_factory=Counter)
    # Distinct argument shapes by op. On A1 and 310P each of them is a kernel of its own; the ones below were compiled.
    shapes: defaultdict[str, set[tuple[object, ...]]] = field(default_factory=lambda: defaultdict(set))
    compiled: defaultdict[str, set[tuple[object, ...]]] = field(default_factory=lambda: defaultdict(set))
    # Matrix products with a contiguous axis longer than 65,535: right, and slow.
    slow_matmuls: int = 0
    # Copies between host and card, each of which waits for the card.
    waits: int = 0

    @property
    def compilations(self) -> int:
        return sum(len(shapes) for shapes in self.compiled.values())

    def clear(self) -> None:
        self.calls.clear()
        self.shapes.clear()
        self.compiled.clear()
        self.slow_matmuls = 0
        self.waits = 0


def signature(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """What a compiled kernel depends on: shapes and dtypes of the tensors among an op's arguments."""
    found: list[object] = []
    for value in arguments:
        if isinstance(value, Tensor):
            found.append((tuple(value.shape), value.dtype))
        elif isinstance(value, (list, tuple)):
            found.append(signature(tuple(value)))
    return tuple(found)
