"""What our code tells the ops of torch_npu, over every candidate of every op: nothing that matters is a default.

The emulated chip refuses what is wrong without an error on a real one. What is right, and means something else, it
takes as the real one does: a scale of 1, a layout of another release, a table of another model. Those are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.kernels.paged_steps import Heads, Row, attend, build_step
from text_generation_kernels.npu.attention_rows import HeadShape
from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu.ops import NpuOps
from text_generation_kernels.npu.schemas import registered_op
from text_generation_kernels.npu_probe import load_torch_npu

HEADS = (Heads(9, 3, 64, torch.float16), Heads(8, 4, 128, torch.float16))
ROWS = (Row(40, 1, 1), Row(130, 1, 2), Row(16, 20, 3), Row(0, 33, 4))
SCALES = ("scale", "softmax_scale", "scale_value", "qk_scale")


@dataclass(frozen=True)
class Call:
    """One call of an op of torch_npu."""

    op: str
    known: frozenset[str]  # the arguments of its schema
    args: tuple[Any, ...]
    named: dict[str, Any]


class Recorder:
    """Finds ops as the server does, and remembers what they are given."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def lookup(self, namespace: str, name: str, overload: str) -> Any:
        op = registered_op(namespace, name, overload)
        return None if op is None else _Recorded(self, name, op)


class _Recorded:
    def __init__(self, recorder: Recorder, name: str, op: Any) -> None:
        self._recorder = recorder
        self._name = name
        self._op = op
        self._schema = op._schema

    def __call__(self, *args: Any, **named: Any) -> Any:
        known = frozenset(argument.name for argument in self._schema.arguments)
        self._recorder.calls.append(Call(self._name, known, args, named))
        return self._op(*args, **named)


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """Those of every candidate of every op, for heads of two kinds and rows of every kind."""
    device = NpuDevice(load_torch_npu(), 0)
    recorder = Recorder()

    def fresh() -> NpuOps:
        return NpuOps(load_torch_npu(), device.family, device.torch_device, lookup=recorder.lookup)

    ops = fresh()
    for heads in HEADS:
        step = build_step(ROWS, heads, device.default_block_size)
        for decode in [c.name for c in ops.choices["attention_decode"].available]:
            ops.use("attention_decode", decode)
            cache = ops.new_kv_cache(1, step.block_size, heads.num_kv_heads, heads.head_dim)
            shape = HeadShape(
                heads.num_heads, heads.num_kv_heads, heads.head_dim, step.block_size, cache.layout, torch.float16, 2048
            )
            for op in ("attention_prefill", "attention_chunk", "store_kv"):
                for candidate in ops.choices[op].available:
                    if op == "store_kv" or candidate.refusal(shape) is None:
                        ops.use(op, candidate.name)
                        attend(ops, step, device.torch_device)
    x = torch.randn(17, 576).half().to(device.torch_device)
    for op in ("rms_norm", "add_rms_norm", "rotary", "silu_and_mul", "linear"):
        for candidate in ops.choices[op].available:
            ops.use(op, candidate.name)
            ops.add_rms_norm(x, x, x[0].contiguous(), 1e-5)
            ops.silu_and_mul(x)
            ops.linear(x, ops.pack_weight(torch.randn(64, 576)), x[0, :64].contiguous())
            for heads in HEADS:
                q = torch.randn(17, heads.num_heads, heads.head_dim).half().to(device.torch_device)
                angles = torch.randn(17, heads.head_dim // 2).to(device.torch_device)
                ops.rotary(q, q, angles.cos(), angles.sin())
    return recorder.calls


def test_arguments_are_passed_by_name(calls: list[Call]) -> None:
    """Signatures drift between releases: a place may mean something else in another."""
    assert calls
    assert not [call.op for call in calls if call.args]


def test_attention_is_told_its_scale(calls: list[Call]) -> None:
    """Fused infer attention without a scale takes 1.0, and gives other text."""
    told = {heads.scale for heads in HEADS}
    for call in calls:
        for name in call.known.intersection(SCALES):
            assert call.named[name] in told, call.op


def test_layouts_and_modes_are_told(calls: list[Call]) -> None:
    """The default layout of apply_rotary_pos_emb was BSH and is BSND; that of a cache's write is PA_NZ."""
    for call in calls:
        for name in call.known.intersection(("layout", "input_layout", "cache_mode", "sparse_mode", "inner_precise")):
            if (call.op, name) not in {("npu_prompt_flash_attention", "inner_precise")}:
                assert name in call.named, f"{call.op} is not told {name}"
    assert {call.named["layout"] for call in calls if call.op == "npu_apply_rotary_pos_emb"} <= {"BSND"}
    assert {call.named["cache_mode"] for call in calls if call.op == "npu_scatter_pa_kv_cache"} <= {"Norm"}


def test_lengths_behind_a_block_table_are_each_rows_own(calls: list[Call]) -> None:
    """Cumulative ones would make a row attend to its neighbours' keys."""
    own = {row.kv_len for row in ROWS} | {kv_len for row in ROWS for kv_len in range(row.cached + 1, row.kv_len + 1)}
    for call in calls:
        if call.named.get("block_table") is None:
            continue
        assert call.named["block_table"].dtype == torch.int32
        (name,) = call.known.intersection(("actual_seq_lengths_kv", "actual_seq_kvlen", "context_lens")) or {
            "actual_seq_lengths"
        }
        lengths = call.named[name]
        assert set(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths) <= own, call.op


def test_tables_that_an_op_keeps_are_not_given_to_it(calls: list[Call]) -> None:
    """_npu_rotary_embedding keeps the cos and sin of its first call, and ignores those of the next model."""
    assert not [call for call in calls if call.op == "_npu_rotary_embedding"]


def test_int8_products_are_not_used(calls: list[Call]) -> None:
    """npu_quant_matmul gives int8 unless it is told a type, and takes no axis beyond 65535: --quantize is refused."""
    assert not [call for call in calls if "quant" in call.op]


def test_a_chip_of_the_910a_class_is_not_asked_for_atb(calls: list[Call]) -> None:
    """A user's report: garbage without an error."""
    device = NpuDevice(load_torch_npu(), 0)
    atb = [call.op for call in calls if call.op.startswith("_npu_")]
    assert bool(atb) == (device.family.name in ("310P", "A2", "A3"))


def test_an_empty_step_writes_nothing(calls: list[Call]) -> None:
    """reshape_and_cache raises on a step without tokens."""
    device = NpuDevice(load_torch_npu(), 0)
    recorder = Recorder()
    ops = NpuOps(load_torch_npu(), device.family, device.torch_device, lookup=recorder.lookup)
    cache = ops.new_kv_cache(2, device.default_block_size, 2, 128)
    empty = torch.zeros(0, 2, 128, dtype=torch.float16, device=device.torch_device)
    ops.store_kv(empty, empty, cache, torch.zeros(0, dtype=torch.int32, device=device.torch_device))
    assert not recorder.calls
    for call in calls:
        for name in call.known.intersection(("slot_indices", "slot_mapping", "indices")):
            assert len(call.named[name])


def test_both_caches_have_the_same_format(calls: list[Call]) -> None:
    """With one in NZ and one in ND the write silently takes the way of ND, and a chip that gives back another format
    than was asked for is refused."""
    torch_npu = load_torch_npu()
    for call in calls:
        if {"key_cache", "value_cache"} <= call.named.keys():
            formats = {int(torch_npu.get_npu_format(call.named[name])) for name in ("key_cache", "value_cache")}
            assert len(formats) == 1, call.op
