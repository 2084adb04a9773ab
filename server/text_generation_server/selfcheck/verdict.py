"""What a self-check found, in a form that can be kept, shown and acted on again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from text_generation_kernels.checks.findings import OpFinding, from_json

# Of the file's form, and of what is checked: a higher one makes all that was kept be checked again.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """One comparison of the whole model's parts, on the real weights."""

    part: str  # "layer 14", "the head"
    error: float  # as a share of what is allowed
    largest: float = 0.0  # magnitude of its activations
    saturated: float = 0.0  # share of them at the largest number that the dtype has
    wrong: str | None = None  # one line; None: it is right


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one rank's device and model."""

    chip: str
    versions: dict[str, str]
    ops: tuple[OpFinding, ...]
    model: tuple[ModelFinding, ...]  # empty on ranks other than 0, which compare nothing
    preferred: tuple[tuple[str, str], ...]  # (op, candidate) that the comparison of the model led to
    seconds: float
    checked_at: str  # ISO 8601, UTC

    @property
    def num_samples(self) -> int:
        return sum(finding.num_samples for finding in self.ops)

    @property
    def worst_error(self) -> float:
        """Of an op that is used, as a share of a row's size."""
        return max((finding.worst_error for finding in self.ops), default=0.0)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Raises: ValueError, KeyError, TypeError, for what is none of this form."""
        values: dict[str, Any] = json.loads(text)
        if values["format"] != FORMAT:
            raise ValueError(f"form {values['format']} is not {FORMAT}")
        return cls(
            chip=str(values["chip"]),
            versions={str(name): str(version) for name, version in values["versions"].items()},
            ops=tuple(from_json(finding) for finding in values["ops"]),
            model=tuple(ModelFinding(**finding) for finding in values["model"]),
            preferred=tuple((str(op), str(candidate)) for op, candidate in values["preferred"]),
            seconds=float(values["seconds"]),
            checked_at=str(values["checked_at"]),
        )
