"""What the cache may take of a device's memory."""

from __future__ import annotations

import pytest

from text_generation_server.memory_budget import MemoryBudget, MemorySum, cache_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("kind", "total", "free", "used", "budget", "world_size", "expected"),
    [
        # On the CPU a quarter of what is free, shared by the ranks.
        ("cpu", 24, 20, 1, MemoryBudget(), 1, 5.0),
        ("cpu", 24, 20, 1, MemoryBudget(), 2, 2.5),
        # ... less where the cap is nearer: 8 - 2 used - 1 reserved.
        ("cpu", 24, 40, 2, MemoryBudget(max_bytes=8 * GIB, reserved_bytes=GIB), 1, 5.0),
        # More than there is is clamped.
        ("cpu", 24, 20, 1, MemoryBudget(max_bytes=28 * GIB), 1, 5.0),
        # On the NPU all of it but the reserve, the larger of 2 GiB and 6 %.
        ("npu", 32, 30, 14, MemoryBudget(), 1, 16.0),
        ("npu", 64, 60, 14, MemoryBudget(), 1, 50 - 0.06 * 64),
        ("npu", 32, 30, 14, MemoryBudget(fraction=0.75), 1, 8.0),
        ("npu", 32, 30, 14, MemoryBudget(max_bytes=29 * GIB, reserved_bytes=3 * GIB), 1, 12.0),
        ("npu", 32, 1, 31, MemoryBudget(), 1, 0.0),
    ],
)
def test_cache_gets_what_the_budget_leaves(
    *, kind: str, total: float, free: float, used: float, budget: MemoryBudget, world_size: int, expected: float
) -> None:
    found = cache_bytes(
        kind,
        total_bytes=int(total * GIB),
        free_bytes=int(free * GIB),
        used_bytes=int(used * GIB),
        budget=budget,
        world_size=world_size,
    )
    assert found == pytest.approx(expected * GIB, rel=1e-6)


def test_the_sum_is_one_line_that_adds_up() -> None:
    shown = MemorySum(
        total=32 * GIB,
        cap=29 * GIB,
        held=13 * GIB,
        outside=GIB // 2,
        step=3 * GIB // 2,
        held_back=2 * GIB,
        usable=12 * GIB,
    )
    assert shown.line(8 * GIB, 16384) == (
        "Memory in GiB: 32.00, of which 29.00 may be used: weights 13.00 + largest step 1.50 + HCCL's buffers and what "
        "else is outside torch 0.50 + held back 2.00 + KV cache 8.00 (16384 tokens) of 12.00 that it may take"
    )
