"""Every candidate of every op gives the reference's numbers, not only the one that is used first."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.paged_steps import ROWS, Heads, Row, attend, build_step
from text_generation_kernels.npu.attention_rows import HeadShape
from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu.kv_cache import Layout
from text_generation_kernels.reference import ReferenceOps

REFERENCE = ReferenceOps()
TOLERANCE = 4e-3
LONGEST = 2048
LAYOUTS: tuple[Layout, ...] = ("nd", "nz")
# Grouped heads of 64 (the demo model), heads of 128 with their own keys and grouped (Llama), and small ones.
HEADS = (Heads(9, 3, 64, torch.float16), Heads(8, 8, 128, torch.float16), Heads(4, 1, 16, torch.float16))
KINDS: dict[str, tuple[Row, ...]] = {
    "attention_prefill": (Row(0, 130, 1), Row(0, 17, 2), Row(0, 2, 3)),
    "attention_chunk": (Row(16, 20, 1), Row(127, 3, 2), Row(300, 130, 3)),
    "attention_decode": ROWS["decodes_of_many_lengths"],
}


def usable(device: NpuDevice, op: str) -> list[str]:
    return [candidate.name for candidate in device.ops.candidates(op) if candidate.refused is None]


def close(actual: Tensor, expected: Tensor, name: str) -> None:
    torch.testing.assert_close(
        actual.float().cpu(), expected, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("op", KINDS)
def test_attention(device: NpuDevice, op: str, heads: Heads) -> None:
    step = build_step(KINDS[op], heads, device.default_block_size)
    expected = attend(REFERENCE, step)
    choice = device.ops.choices[op]
    tried = set()
    for decode in usable(device, "attention_decode"):  # which decides the layout of the cache
        device.ops.use("attention_decode", decode)
        cache = device.ops.new_kv_cache(1, step.block_size, heads.num_kv_heads, heads.head_dim)
        shape = HeadShape(
            heads.num_heads, heads.num_kv_heads, heads.head_dim, step.block_size, cache.layout, torch.float16, LONGEST
        )
        for candidate in choice.available:
            if candidate.refusal(shape) is None:
                device.ops.use(op, candidate.name)
                assert choice.select(shape) is candidate
                close(attend(device.ops, step, device.torch_device), expected, f"{candidate.name}, {cache.layout}")
                tried.add(candidate.name)
    assert "composed" in tried
    # What was not tried takes such heads in neither layout.
    shapes = [replace(shape, layout=layout) for layout in LAYOUTS]
    for candidate in choice.available:
        assert candidate.name in tried or all(candidate.refusal(shape) for shape in shapes), candidate.name


@pytest.mark.parametrize("num_tokens", [1, 17, 130])
def test_add_rms_norm(device: NpuDevice, num_tokens: int) -> None:
    x, residual, weight = (torch.randn(*shape).half() for shape in ((num_tokens, 576), (num_tokens, 576), (576,)))
    expected = REFERENCE.add_rms_norm(x.float(), residual.float(), weight.float(), 1e-5)
    for norm in usable(device, "rms_norm"):
        device.ops.use("rms_norm", norm)
        for name in usable(device, "add_rms_norm"):
            device.ops.use("add_rms_norm", name)
            given_x, given_residual, given_weight = (t.to(device.torch_device) for t in (x, residual, weight))
            actual = device.ops.add_rms_norm(given_x, given_residual, given_weight, 1e-5)
            for found, wanted in zip(actual, expected, strict=True):
                close(found, wanted, f"{name}, {norm}")


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_rotary(device: NpuDevice, head_dim: int) -> None:
    fused = torch.randn(17, 15, head_dim).half()
    angles = torch.randn(17, head_dim // 2) * 10
    expected = REFERENCE.rotary(fused[:, :9].float(), fused[:, 9:12].float(), angles.cos(), angles.sin())
    for name in usable(device, "rotary"):
        device.ops.use("rotary", name)
        given = fused.to(device.torch_device)
        tables = angles.cos().to(device.torch_device), angles.sin().to(device.torch_device)
        actual = device.ops.rotary(given[:, :9], given[:, 9:12], *tables)
        for found, wanted in zip(actual, expected, strict=True):
            close(found, wanted, name)
        assert torch.equal(given[:, 12:].cpu(), fused[:, 12:])


def test_silu_and_mul(device: NpuDevice) -> None:
    x = torch.randn(17, 3072).half()
    for name in usable(device, "silu_and_mul"):
        device.ops.use("silu_and_mul", name)
        close(device.ops.silu_and_mul(x.to(device.torch_device)), REFERENCE.silu_and_mul(x.float()), name)


@pytest.mark.parametrize("has_bias", [False, True], ids=["", "bias"])
def test_linear(device: NpuDevice, has_bias: bool) -> None:
    x, weight, bias = torch.randn(17, 576).half(), torch.randn(192, 576) / 24, torch.randn(192).half()
    expected = REFERENCE.linear(x.float(), REFERENCE.pack_weight(weight), bias.float() if has_bias else None)
    packed = device.ops.pack_weight(weight)
    for name in usable(device, "linear"):
        device.ops.use("linear", name)
        given = bias.to(device.torch_device) if has_bias else None
        close(device.ops.linear(x.to(device.torch_device), packed, given), expected, name)


def test_store_kv(device: NpuDevice) -> None:
    heads = Heads(8, 8, 128, torch.float16)
    step = build_step((Row(0, 130, 1), Row(16, 1, 2)), heads, device.default_block_size)
    expected = attend(REFERENCE, step)
    for decode in usable(device, "attention_decode"):
        device.ops.use("attention_decode", decode)
        for name in usable(device, "store_kv"):
            device.ops.use("store_kv", name)
            close(attend(device.ops, step, device.torch_device), expected, f"{name}, {decode}")
