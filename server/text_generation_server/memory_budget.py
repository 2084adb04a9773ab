"""How much of a device's memory the KV cache may take: arithmetic on bytes, without torch and without a device.

Warm-up calls it with what it has measured, the launcher's `doctor` with what is known before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
# On the CPU the memory is also everybody else's.
_CPU_SHARE = 4
_RESERVE = 0.06
_NPU_RESERVE_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What the user allows, in bytes; None where nothing was said."""

    fraction: float = 1.0  # of the device's memory
    max_bytes: int | None = None  # MAX_MEMORY_GB
    reserved_bytes: int | None = None  # RESERVED_MEMORY_GB

    @classmethod
    def from_gib(cls, fraction: float, most: float | None, reserved: float | None) -> MemoryBudget:
        """From the options' values, which are in GiB."""
        return cls(fraction, _bytes(most), _bytes(reserved))

    def cap_bytes(self, total_bytes: int) -> int:
        """What may be used of a device with so much memory."""
        cap = total_bytes if self.max_bytes is None else min(self.max_bytes, total_bytes)
        return min(cap, int(total_bytes * self.fraction))

    def held_back_bytes(self, device_kind: str, total_bytes: int) -> int:
        """What is left alone: workspaces of the runtime, fragments, what nobody has thought of."""
        if self.reserved_bytes is not None:
            return self.reserved_bytes
        share = int(total_bytes * _RESERVE)
        return share if device_kind == "cpu" else max(_NPU_RESERVE_BYTES, share)


@dataclass(frozen=True, slots=True)
class MemorySum:
    """Where one rank's share of a device goes, in bytes, as warm-up has found it."""

    total: int  # of the device
    cap: int  # of that, what may be used
    held: int  # by this process, before it has a cache: weights, mostly
    outside: int  # used, and no tensor of this process: HCCL's buffers, the runtime's own, other processes
    step: int  # the largest step's working memory, captured graphs and tables
    held_back: int
    usable: int  # what the cache may take

    def line(self, cache: int, cache_tokens: int) -> str:
        """All of it in one line, with the cache that was made of what is left."""
        parts = [f"weights {_gib(self.held)}", f"largest step {_gib(self.step)}"]
        if self.outside:
            parts.append(f"HCCL's buffers and what else is outside torch {_gib(self.outside)}")
        parts.append(f"held back {_gib(self.held_back)}")
        allowed = f", of which {_gib(self.cap)} may be used" if self.cap < self.total else ""
        return (
            f"Memory in GiB: {_gib(self.total)}{allowed}: {' + '.join(parts)} + KV cache {_gib(cache)} "
            f"({cache_tokens} tokens) of {_gib(self.usable)} that it may take"
        )


def cache_bytes(
    device_kind: str,
    budget: MemoryBudget,
    *,
    total_bytes: int,
    free_bytes: int,
    used_bytes: int,
    world_size: int = 1,
) -> int:
    """Bytes the KV cache of one rank may take.

    Args:
        total_bytes: of the device.
        free_bytes: of the device, with the largest step's working memory already subtracted.
        used_bytes: what this process holds, the largest step's working memory included.
        world_size: ranks of the group, which on the CPU share one memory.
    """
    reserve = budget.held_back_bytes(device_kind, total_bytes)
    usable = min(free_bytes, budget.cap_bytes(total_bytes) - used_bytes) - reserve
    if device_kind == "cpu":
        usable = min(usable, free_bytes // _CPU_SHARE) // world_size
    return max(usable, 0)


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f}"
