"""Which weights end up in FRACTAL_NZ, and what is said of the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu.kv_cache import FRACTAL_NZ
from text_generation_kernels.npu.nz import WeightPacker
from text_generation_kernels.npu_probe import load_torch_npu

TORCH_NPU = load_torch_npu()


@pytest.fixture(autouse=True)
def _default_formats(device: NpuDevice) -> Iterator[None]:
    """The switch belongs to the process, and cannot be read."""
    yield
    TORCH_NPU.npu.config.allow_internal_format = device.family.keeps_formats


def packer(device: NpuDevice, wanted: str, seconds: tuple[float, ...] = (1.0,)) -> WeightPacker:
    """Timed by a stopwatch that shows these seconds in turn."""
    shown = iter(seconds * 1000)
    return WeightPacker(
        TORCH_NPU,
        device.torch_device,
        torch.float16,
        device.family,
        wanted=wanted,
        stopwatch=lambda call: next(shown),
    )


def test_by_default_the_family_decides(device: NpuDevice) -> None:
    packed = packer(device, "auto").pack(torch.randn(64, 128))
    assert packed.layout == ("nz" if device.family.tries_nz else "nd")
    assert packed.nbytes == 64 * 128 * 2


def test_nz_can_be_asked_for_and_is_really_there(device: NpuDevice) -> None:
    weights = packer(device, "nz")
    packed = weights.pack(torch.randn(64, 128))
    assert packed.layout == "nz"
    assert int(TORCH_NPU.get_npu_format(packed.data)) == FRACTAL_NZ
    assert weights.summary == "linear weights: NZ 1/1"


def test_nd_can_be_asked_for(device: NpuDevice) -> None:
    weights = packer(device, "nd")
    assert weights.pack(torch.randn(64, 128)).layout == "nd"
    assert weights.summary == "linear weights: ND 1/1"


def test_a_slower_product_keeps_nd_unless_nz_was_asked_for(device: NpuDevice) -> None:
    if device.family.tries_nz:
        weights = packer(device, "auto", seconds=(1e-6, 2e-6))  # ND, NZ, three times
        assert weights.pack(torch.randn(64, 128)).layout == "nd"
        assert weights.summary == "linear weights: NZ 0/1 (1 ND: products take 6 us instead of 3)"
    assert packer(device, "nz", seconds=(1e-6, 2e-6)).pack(torch.randn(64, 128)).layout == "nz"


def test_a_cast_that_is_ignored_is_noticed(device: NpuDevice, caplog: pytest.LogCaptureFixture) -> None:
    # Row 8 of the known-broken combinations: without this switch A2 and A3 give back ND, with a mere warning on stderr.
    if device.family.keeps_formats:
        pytest.skip(f"{device.name} casts whatever the switch says")
    caplog.set_level(logging.INFO)
    weights = packer(device, "nz")
    TORCH_NPU.npu.config.allow_internal_format = False
    assert weights.pack(torch.randn(64, 128)).layout == "nd"
    assert "weight [64, 128] stays in ND: the cast gave format 2, not 29" in caplog.text


@pytest.mark.parametrize(
    ("shape", "is_indexed", "reason"),
    [
        ((33, 128), False, "33 % 16 != 0"),
        ((64, 129), False, "129 % 16 != 0"),
        ((64, 128), True, "its rows are looked up, as embeddings"),
    ],
)
def test_a_weight_that_must_not_be_in_nz_stays_in_nd(
    device: NpuDevice, shape: tuple[int, int], is_indexed: bool, reason: str
) -> None:
    weights = packer(device, "nz")
    weights.pack(torch.randn(64, 128))
    assert weights.pack(torch.randn(*shape), is_indexed=is_indexed).layout == "nd"
    assert weights.summary == f"linear weights: NZ 1/2 (1 ND: {reason})"


class Distorting:
    """torch_npu whose cast to NZ goes wrong in one way."""

    def __init__(self, **changes: Any) -> None:
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return self._changes.get(name, getattr(TORCH_NPU, name))


def _raises(*arguments: object) -> torch.Tensor:
    raise RuntimeError("TransData failed\nwith more lines")


def _other_values(tensor: torch.Tensor, layout: int) -> torch.Tensor:
    cast: torch.Tensor = TORCH_NPU.npu_format_cast(tensor * 2 if layout == FRACTAL_NZ else tensor, layout)
    return cast


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"get_npu_format": lambda tensor: 2}, "the cast gave format 2, not 29"),
        ({"get_storage_size": lambda tensor: 7}, "its storage has 7 elements, not 8192"),
        ({"npu_format_cast": _other_values}, "cast there and back it has other values"),
        ({"npu_format_cast": _raises}, "the chip refuses it (TransData failed)"),
    ],
    ids=["format", "size", "values", "error"],
)
def test_a_cast_that_goes_wrong_keeps_nd(device: NpuDevice, change: dict[str, Any], reason: str) -> None:
    torch_npu = Distorting(**change)
    weights = WeightPacker(torch_npu, device.torch_device, torch.float16, device.family, wanted="nz")
    assert weights.pack(torch.randn(64, 128)).layout == "nd"
    assert weights.summary == f"linear weights: NZ 0/1 (1 ND: {reason})"


def test_values_beyond_float16_are_counted_and_clamped(device: NpuDevice, caplog: pytest.LogCaptureFixture) -> None:
    # Row 5 of the known-broken combinations.
    weight = torch.zeros(16, 16, dtype=torch.bfloat16)
    weight[0, 0], weight[1, 1] = 1e5, -3e38
    weights = packer(device, "nd")
    packed = weights.pack(weight).data.cpu()
    assert (packed[0, 0], packed[1, 1]) == (65504, -65504)
    assert weights.num_clamped == 2
    assert "2 of 256 weights are beyond float16 and set to +-65504" in caplog.text


def test_the_device_says_what_became_of_its_weights() -> None:
    device = NpuDevice(TORCH_NPU, 0, NpuOptions(weight_layout="nz"))
    device.ops.pack_weight(torch.randn(64, 128))
    assert device.ops.pack_table(torch.randn(64, 128)).layout == "nd"
    assert "linear weights: NZ 1/2 (1 ND: its rows are looked up" in device.ops.description
