"""The card as a device: what it is, what it has of memory, and what it refuses."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from text_generation_kernels.devices import select_device
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE, UnsupportedSoc
from text_generation_kernels.npu_probe import load_torch_npu

TORCH_NPU = load_torch_npu()
MIB = 2**20


def test_it_is_the_chip_that_is_there(device: NpuDevice) -> None:
    assert device.kind == "npu"
    assert device.name == os.environ[EMULATOR_VARIABLE]
    assert device.torch_device == torch.device("npu", 0)
    assert device.process_group_backend == "hccl"
    assert device.default_block_size == 128


@pytest.mark.parametrize("requested", ["auto", "npu"])
def test_it_is_chosen(requested: str) -> None:
    assert select_device(requested, rank=0).kind == "npu"


def test_nothing_is_compiled_while_serving(device: NpuDevice) -> None:
    # Row 4 of the known-broken combinations.
    assert TORCH_NPU.npu.is_jit_compile_false()


def test_memory_counts_what_is_held_and_not_what_the_allocator_keeps(device: NpuDevice) -> None:
    before = device.memory()
    held = torch.zeros(64 * MIB, dtype=torch.uint8, device=device.torch_device)
    assert before.free_bytes - device.memory().free_bytes >= 64 * MIB
    assert device.used_memory_bytes() >= 64 * MIB
    del held
    assert device.memory() == before


def test_the_peak_is_that_since_the_reset(device: NpuDevice) -> None:
    kept = torch.zeros(32 * MIB, dtype=torch.uint8, device=device.torch_device)
    device.reset_peak_memory()
    assert device.peak_memory_bytes() == 0
    torch.zeros(64 * MIB, dtype=torch.uint8, device=device.torch_device)
    assert 64 * MIB <= device.peak_memory_bytes() < 96 * MIB
    del kept


def test_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shard 2 wants an NPU of its own, and 2 are visible; use fewer shards"):
        NpuDevice(TORCH_NPU, 2)


def test_bfloat16_is_refused_where_the_chip_lacks_it(device: NpuDevice) -> None:
    # Case G46.
    options = NpuOptions(dtype=torch.bfloat16)
    if device.has_bfloat16:
        assert NpuDevice(TORCH_NPU, 0, options).ops.activation_dtype == torch.bfloat16
    else:
        with pytest.raises(ValueError, match=rf"{device.name} has no bfloat16; use --dtype float16"):
            NpuDevice(TORCH_NPU, 0, options)


def test_keys_and_values_have_the_type_of_activations() -> None:
    assert select_device("npu", 0, kv_dtype=torch.float16).kind == "npu"
    with pytest.raises(ValueError, match="keys and values are kept in float16, as activations are"):
        select_device("npu", 0, kv_dtype=torch.bfloat16)


def test_a_chip_can_be_treated_as_a_lesser_one(device: NpuDevice) -> None:
    lesser = NpuDevice(TORCH_NPU, 0, NpuOptions(family="A1"))
    assert lesser.family.name == "A1"
    assert [c.name for c in lesser.ops.candidates("attention_decode")] == ["composed"]
    with pytest.raises(UnsupportedSoc, match="cannot be treated as A5"):
        NpuDevice(TORCH_NPU, 0, NpuOptions(family="A5"))


class BrokenAtb:
    """torch_npu on a machine whose NNAL does not fit."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.calls += 1
        raise RuntimeError("libatb.so: undefined symbol: _ZN3atb9OperationD1Ev\nmore")


def test_atb_that_cannot_be_called_is_left_out_as_a_whole(device: NpuDevice) -> None:
    # Row 18 of the known-broken combinations: the error comes at the first call, so one is made at start.
    store = device.ops.choices["store_kv"].available[0]
    if not store.name.startswith("_npu_"):
        pytest.skip(f"{device.name} uses nothing of ATB")
    refused_before = {c.name for op in device.ops.choices for c in device.ops.candidates(op) if c.refused}
    broken = BrokenAtb()
    object.__setattr__(store, "run", broken)
    reason = device.ops.check_atb()
    assert reason == "ATB cannot be called (libatb.so: undefined symbol: _ZN3atb9OperationD1Ev)"
    assert broken.calls == 1
    for op in device.ops.choices:
        for candidate in device.ops.candidates(op):
            if candidate.name not in refused_before:
                assert (candidate.refused == reason) == candidate.name.startswith("_npu_")
    assert device.ops.new_kv_cache(1, 128, 3, 64).layout == "nd"


@pytest.mark.parametrize("block_size", [16, 48, 128, 1024])
def test_block_sizes_that_some_attention_takes_are_allowed(device: NpuDevice, block_size: int) -> None:
    device.ops.check_block_size(block_size)


@pytest.mark.parametrize("block_size", [0, 8, 100, 2048])
def test_other_block_sizes_are_refused(device: NpuDevice, block_size: int) -> None:
    with pytest.raises(ValueError, match=f"block size {block_size} is not supported on the NPU; use a multiple of 16"):
        device.ops.check_block_size(block_size)
