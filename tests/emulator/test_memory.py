"""The books of the emulated cards: what is counted, what does not fit, and what is never counted wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import Machine, Refused, emulated_npu

MIB = 1 << 20


def megabytes(count: float) -> torch.Tensor:
    return torch.empty(int(count * MIB), dtype=torch.uint8, device="npu")


def test_freed_memory_is_no_longer_allocated_and_still_reserved(machine: Machine) -> None:
    npu = torch.npu  # type: ignore[attr-defined]
    x = megabytes(10)
    assert npu.memory_allocated() == 10 * MIB + 512  # 32 bytes of padding, in steps of 512
    view = x[:5]
    del x
    assert npu.memory_allocated() == 10 * MIB + 512
    del view
    assert (npu.memory_allocated(), npu.memory_reserved()) == (0, 10 * MIB + 512)
    assert npu.mem_get_info() == (4086 * MIB - 512, 4096 * MIB)
    npu.empty_cache()
    assert (npu.memory_reserved(), npu.mem_get_info()[0]) == (0, 4096 * MIB)


def test_peak_is_the_most_since_the_reset(machine: Machine) -> None:
    npu = torch.npu  # type: ignore[attr-defined]
    kept = megabytes(4)
    for _ in range(5):
        megabytes(20)
    assert npu.max_memory_allocated() == 24 * MIB + 1024
    npu.reset_peak_memory_stats()
    assert npu.max_memory_allocated() == 4 * MIB + 512
    megabytes(1)
    assert npu.memory_stats()["allocated_bytes.all.peak"] == 5 * MIB + 1024
    del kept


def test_too_much_is_out_of_memory_in_torch_npus_words(make_machine: MachineMaker) -> None:
    make_machine(memory_mb=64)
    kept = megabytes(40)
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate 30\.00 MiB"):
        megabytes(30)
    assert torch.npu.memory_stats()["num_ooms"] == 1  # type: ignore[attr-defined]
    del kept
    megabytes(60)


def test_fraction_is_a_cap_that_the_error_names(make_machine: MachineMaker) -> None:
    make_machine(memory_mb=64)
    torch.npu.set_per_process_memory_fraction(0.5)  # type: ignore[attr-defined]
    with pytest.raises(torch.OutOfMemoryError, match=r"32\.00 MiB allowed"):
        megabytes(33)
    megabytes(31)


def test_nothing_is_told_of_a_card_before_one_is_in_use(machine: Machine) -> None:
    npu = torch.npu  # type: ignore[attr-defined]
    for ask in (npu.mem_get_info, npu.get_device_properties):
        with pytest.raises(RuntimeError, match="error code is 107002"):
            ask(0)
    npu.set_device(0)
    assert npu.mem_get_info(0)[1] == npu.get_device_properties(0).total_memory


def test_what_others_hold_is_not_free(make_machine: MachineMaker) -> None:
    make_machine(memory_mb=64, others_mb=24)
    torch.npu.set_device(0)  # type: ignore[attr-defined]
    assert torch.npu.mem_get_info() == (40 * MIB, 64 * MIB)  # type: ignore[attr-defined]
    with pytest.raises(torch.OutOfMemoryError):
        megabytes(41)


def test_real_cards_sizes_are_told_and_not_needed(make_machine: MachineMaker) -> None:
    assert make_machine("Ascend910B4").soc.memory_bytes == 32 << 30
    torch.npu.set_device(0)  # type: ignore[attr-defined]
    assert torch.npu.get_device_properties(0).total_memory == 4096 * MIB  # type: ignore[attr-defined]


def test_full_mask_of_a_long_prompt_does_not_fit_twice(make_machine: MachineMaker) -> None:
    """A mask of 1024 x 1024 in float16 is 2 MiB, and the cast to FRACTAL_NZ needs as much again."""
    make_machine("Ascend310P3", memory_mb=3)
    mask = torch.zeros(1, 64, 1024, 16, dtype=torch.float16, device="npu")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ops.npu.npu_format_cast(mask, 29)


def test_allocator_settings_that_exclude_each_other_are_refused(make_machine: MachineMaker) -> None:
    for other in ("max_split_size_mb:32", "garbage_collection_threshold:0.6"):
        with pytest.raises(Refused, match="expandable_segments"):
            make_machine(environment={"PYTORCH_NPU_ALLOC_CONF": f"expandable_segments:True,{other}"})
    with pytest.raises(Refused, match="both set"):
        make_machine(environment={"PYTORCH_NPU_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "a:1"})
    make_machine(environment={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"})


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=40))
def test_books_agree_with_what_is_alive(steps: list[tuple[int, bool]]) -> None:
    """After any allocations and frees, allocated is the sum of what lives, and the peak its largest value."""
    with emulated_npu("Ascend910B4"):
        npu = torch.npu  # type: ignore[attr-defined]
        alive: list[torch.Tensor] = []
        peak = 0
        for size, frees in steps:
            if frees and alive:
                alive.pop(0)
            alive.append(torch.empty(size, dtype=torch.uint8, device="npu"))
            peak = max(peak, sum(-(-(t.numel() + 32) // 512) * 512 for t in alive))
        assert npu.memory_allocated() == sum(-(-(t.numel() + 32) // 512) * 512 for t in alive)
        assert npu.max_memory_allocated() == peak
        alive.clear()
        assert npu.memory_allocated() == 0
