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
    reserve = budget.reserved_bytes
    if reserve is None:
        reserve = int(total_bytes * _RESERVE)
        if device_kind != "cpu":
            reserve = max(_NPU_RESERVE_BYTES, reserve)
    usable = min(free_bytes, budget.cap_bytes(total_bytes) - used_bytes) - reserve
    if device_kind == "cpu":
        usable = min(usable, free_bytes // _CPU_SHARE) // world_size
    return max(usable, 0)


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)
