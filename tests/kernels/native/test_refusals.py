"""What the native ops cannot compute is an error that names the op and the argument; no memory is read first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.kernels.filters import Wanted
from tests.kernels.implementations import library_or_skip
from tests.kernels.paged_steps import ROWS, Heads, build_step
from text_generation_kernels.interface import CaptureRefused, KVCache, Ops, StepInputs, StepMetadata
from text_generation_kernels.native import library as c
from text_generation_kernels.native.capture import capture
from text_generation_kernels.native.library import KernelError
from text_generation_kernels.native.ops import NativeCpuOps


@pytest.fixture(scope="module")
def ops() -> NativeCpuOps:
    library = library_or_skip()
    return NativeCpuOps(library, 1, library.instruction_sets[0])


def f(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


REFUSALS: dict[str, tuple[Callable[[NativeCpuOps], object], str]] = {
    "weight of ints": (lambda ops: ops.pack_weight(torch.zeros(4, 4, dtype=torch.int64)), "pack_weight: a int64"),
    "weight of one dimension": (lambda ops: ops.pack_weight(f(4)), "pack_weight: .* is not a matrix"),
    "x too wide": (lambda ops: ops.linear(f(2, 17), ops.pack_weight(f(8, 16))), r"linear: x has shape \[2, 17\]"),
    "x in bfloat16": (lambda ops: ops.linear(f(2, 16).bfloat16(), ops.pack_weight(f(8, 16))), "linear: x is bfloat16"),
    "x of one dimension": (lambda ops: ops.linear(f(16), ops.pack_weight(f(8, 16))), r"linear: x has shape \[16\]"),
    "x transposed": (lambda ops: ops.linear(f(16, 2).T, ops.pack_weight(f(8, 16))), "linear: x is not contiguous"),
    "bias too short": (lambda ops: ops.linear(f(2, 16), ops.pack_weight(f(8, 16)), f(7)), "linear: bias has shape"),
    "id past the table": (lambda ops: ops.embedding(torch.tensor([1, 5]), f(5, 8)), "embedding: id 5 at 1 is outside"),
    "negative id": (lambda ops: ops.embedding(torch.tensor([-1]), f(5, 8)), "embedding: id -1 at 0 is outside"),
    "ids in int32": (lambda ops: ops.embedding(torch.tensor([1]).int(), f(5, 8)), "embedding: token_ids is int32"),
    "ids with a stride": (lambda ops: ops.embedding(torch.tensor([1, 2, 3])[::2], f(5, 8)), "token_ids is not contig"),
    "table in float64": (lambda ops: ops.embedding(torch.tensor([1]), f(5, 8).double()), "embedding: weight is fl"),
    "norm of another size": (lambda ops: ops.rms_norm(f(2, 8), f(9), 1e-5), "rms_norm: weight has shape"),
    "norm of one dimension": (lambda ops: ops.rms_norm(f(8), f(8), 1e-5), "rms_norm: x has 1 dimensions"),
    "residual of another shape": (lambda ops: ops.add_rms_norm(f(2, 8), f(3, 8), f(8), 1e-5), "residual has shape"),
    "residual transposed": (lambda ops: ops.add_rms_norm(f(2, 8), f(8, 2).T, f(8), 1e-5), "residual is not contiguous"),
    "heads apart": (lambda ops: ops.rotary(f(2, 4, 8, 2)[..., 0], f(2, 1, 8), f(2, 4), f(2, 4)), "rotary: q is not"),
    "heads with gaps": (lambda ops: ops.rotary(f(2, 4, 9)[..., :8], f(2, 1, 8), f(2, 4), f(2, 4)), "side by side"),
    "too few angles": (lambda ops: ops.rotary(f(2, 4, 8), f(2, 1, 8), f(1, 4), f(1, 4)), "rotary: cos has shape"),
    "too wide angles": (lambda ops: ops.rotary(f(2, 4, 8), f(2, 1, 8), f(2, 5), f(2, 5)), "more than half of head_dim"),
    "odd gate": (lambda ops: ops.silu_and_mul(f(2, 7)), "silu_and_mul: x has 7 columns"),
    "best of none": (lambda ops: ops.top_k(f(2, 7), [0], 0), "top_k: the 0 best of 7"),
    "best of too few": (lambda ops: ops.top_k(f(2, 7), [0], 8), "top_k: the 8 best of 7"),
    "best of less than none": (lambda ops: ops.top_k(f(2, 7), [0], -1), "top_k: the -1 best of 7"),
    "best of another row": (lambda ops: ops.top_k(f(2, 7), [0, 2], 1), "top_k: id 2 at 1 is outside"),
    "no vocabulary": (lambda ops: ops.most_likely(f(2, 0)), "most_likely: a vocabulary of 0"),
    "nothing to draw from": (lambda ops: ops.draw(f(2, 0), [0], [Wanted()], [0.5]), "draw: a vocabulary of 0"),
    "draw from another row": (lambda ops: ops.draw(f(2, 7), [-1], [Wanted()], [0.5]), "draw: id -1 at 0 is outside"),
    "draw without noise": (lambda ops: ops.draw(f(2, 7), [0], [Wanted()], []), "1 filters and 0 uniforms for 1 rows"),
    "no temperature": (lambda ops: ops.draw(f(2, 7), [0], [Wanted(0.0)], [0.5]), "row 0 has no temperature above 0"),
    "block size 8": (lambda ops: ops.new_kv_cache(1, 8, 1, 8), "block size 8 is not supported"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSALS.values(), ids=REFUSALS)
def test_wrong_arguments_are_refused(ops: NativeCpuOps, call: Callable[[NativeCpuOps], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(ops)


@pytest.mark.parametrize("x_parts", [-1, 0, 1, 4])
def test_a_linear_of_any_other_number_of_parts_is_refused(ops: NativeCpuOps, x_parts: int) -> None:
    instruction = c.Instruction(op=c.Op.LINEAR)
    instruction.arguments.linear = c.Linear(x_parts=x_parts)
    with pytest.raises(KernelError, match=f"^linear: x_parts is {x_parts}; use 2 or 3$"):
        ops.team.run(instruction, 1, c.Step(num_tokens=1))


@pytest.fixture
def cache(ops: NativeCpuOps) -> KVCache:
    return ops.new_kv_cache(4, 16, 3, 64)


@pytest.mark.parametrize("slot", [-2, 64, 2**31 - 1])
def test_a_slot_outside_the_cache_is_refused(ops: NativeCpuOps, cache: KVCache, slot: int) -> None:
    slots = torch.tensor([0, slot], dtype=torch.int32)
    with pytest.raises(KernelError, match=f"store_kv: slot {slot} of token 1 is outside the cache's 64"):
        ops.store_kv(torch.ones(2, 3, 64), torch.ones(2, 3, 64), cache, slots)
    assert not cache.k.any()


def test_a_cache_of_another_kind_is_refused(ops: NativeCpuOps, cache: KVCache) -> None:
    slots = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(KernelError, match=r"store_kv: cache\.k has shape"):
        ops.store_kv(f(1, 2, 64), f(1, 2, 64), cache, slots)
    half = KVCache(cache.k.bfloat16(), cache.v.bfloat16(), 16)
    with pytest.raises(KernelError, match=r"store_kv: cache\.k is bfloat16"):
        ops.store_kv(f(1, 3, 64), f(1, 3, 64), half, slots)


STEP = build_step(ROWS["mixed"], Heads())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"block_tables": torch.full_like(STEP.metadata.block_tables, 99)}, "attention: block 99 of row 0 is outside"),
        ({"block_tables": STEP.metadata.block_tables - 100}, "attention: block -"),
        ({"block_tables": STEP.metadata.block_tables[:, :2].contiguous()}, "needs 3 blocks, block_tables has 2"),
        ({"block_tables": STEP.metadata.block_tables.long()}, "step: block_tables is int64"),
        ({"block_tables": STEP.metadata.block_tables[:, :4]}, "step: block_tables is not contiguous"),
        ({"kv_lens": (0, *STEP.metadata.kv_lens[1:])}, "attention: row 0 has 1 new tokens and kv_len 0"),
        ({"cu_seqlens_q": (0, 40, *STEP.metadata.cu_seqlens_q[2:])}, "attention: row 1 has -6 new tokens"),
        ({"cu_seqlens_q": STEP.metadata.cu_seqlens_q[:-1]}, "attention: q has shape"),
        ({"slot_mapping": STEP.metadata.slot_mapping[1:]}, "step: slot_mapping has shape"),
    ],
)  # fmt: skip
def test_a_step_that_leads_outside_is_refused(ops: NativeCpuOps, changed: dict[str, object], message: str) -> None:
    cache = ops.new_kv_cache(STEP.num_blocks, 16, 3, 64)
    metadata: StepMetadata = replace(STEP.metadata, **changed)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match=message):
        ops.attention(STEP.q, cache, metadata, 0.125)


def test_heads_that_do_not_divide_are_refused(ops: NativeCpuOps) -> None:
    cache = ops.new_kv_cache(STEP.num_blocks, 16, 2, 64)
    with pytest.raises(KernelError, match="attention: 9 query heads do not divide over 2 key/value heads"):
        ops.attention(STEP.q, cache, STEP.metadata, 0.125)


def test_keys_and_values_in_float16_are_refused() -> None:
    library = library_or_skip()
    with pytest.raises(
        ValueError, match="keys and values cannot be kept in float16 on the CPU; use float32 or bfloat1"
    ):
        NativeCpuOps(library, 1, library.instruction_sets[0], torch.float16)


CACHE_SHAPE = (STEP.num_blocks, 3, 16, 64)
# Every tensor that an op takes, in a form that it accepts.
ACCEPTED: dict[str, tuple[Callable[..., object], dict[str, torch.Tensor]]] = {
    "linear": (
        lambda ops, x, bias: ops.linear(x, ops.pack_weight(f(8, 16)), bias),
        {"x": f(2, 16), "bias": f(8)},
    ),
    "embedding": (
        lambda ops, token_ids, weight: ops.embedding(token_ids, weight),
        {"token_ids": torch.tensor([1, 0]), "weight": f(3, 8)},
    ),
    "rms_norm": (lambda ops, x, weight: ops.rms_norm(x, weight, 1e-5), {"x": f(2, 8), "weight": f(8)}),
    "add_rms_norm": (
        lambda ops, x, residual, weight: ops.add_rms_norm(x, residual, weight, 1e-5),
        {"x": f(2, 8), "residual": f(2, 8), "weight": f(8)},
    ),
    "rotary": (
        lambda ops, q, k, cos, sin: ops.rotary(q, k, cos, sin),
        {"q": f(2, 4, 8), "k": f(2, 1, 8), "cos": f(2, 4), "sin": f(2, 4)},
    ),
    "silu_and_mul": (lambda ops, x: ops.silu_and_mul(x), {"x": f(2, 8)}),
    "store_kv": (
        lambda ops, k, v, slot_mapping, cache_k, cache_v: ops.store_kv(
            k, v, KVCache(cache_k, cache_v, 16), slot_mapping
        ),
        {
            "k": f(2, 3, 64),
            "v": f(2, 3, 64),
            "slot_mapping": torch.zeros(2, dtype=torch.int32),
            "cache_k": f(*CACHE_SHAPE),
            "cache_v": f(*CACHE_SHAPE),
        },
    ),
    "attention": (
        lambda ops, q, positions, slot_mapping, block_tables, cache_k, cache_v: ops.attention(
            q,
            KVCache(cache_k, cache_v, 16),
            replace(STEP.metadata, positions=positions, slot_mapping=slot_mapping, block_tables=block_tables),
            0.125,
        ),
        {
            "q": STEP.q,
            "positions": STEP.metadata.positions,
            "slot_mapping": STEP.metadata.slot_mapping,
            "block_tables": STEP.metadata.block_tables,
            "cache_k": f(*CACHE_SHAPE),
            "cache_v": f(*CACHE_SHAPE),
        },
    ),
    "most_likely": (lambda ops, logits: ops.most_likely(logits), {"logits": f(2, 7)}),
    "top_k": (lambda ops, logits: ops.top_k(logits, [1], 3), {"logits": f(2, 7)}),
    "draw": (lambda ops, logits: ops.draw(logits, [1], [Wanted()], [0.5]), {"logits": f(2, 7)}),
}
SPOILT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another dtype": lambda x: x.double() if x.is_floating_point() else x.to(torch.int16),
    "one dimension more": lambda x: x[None, None],
    "one dimension less": lambda x: x[0],
    "not contiguous": lambda x: torch.stack([x, x], dim=-1)[..., 0],
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize(("op", "name"), [(op, name) for op, (_, tensors) in ACCEPTED.items() for name in tensors])
def test_every_tensor_of_every_op_must_have_its_dtype_dimensions_and_strides(
    ops: NativeCpuOps, op: str, name: str, spoil: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    call, tensors = ACCEPTED[op]
    call(ops, **{key: tensor.clone() for key, tensor in tensors.items()})
    with pytest.raises(KernelError, match=rf"^({op}|step): .*{name.removeprefix('cache_')}"):
        call(ops, **tensors | {name: spoil(tensors[name])})


def test_every_op_is_in_that_table() -> None:
    services = {"can_embed", "pack_weight", "new_kv_cache", "kv_block_bytes", "check_block_size"}
    assert set(ACCEPTED) == Ops.__abstractmethods__ - services


def test_choosing_tokens_is_no_part_of_a_step(ops: NativeCpuOps) -> None:
    def step(inputs: StepInputs) -> torch.Tensor:
        return ops.most_likely(ops.embedding(inputs.token_ids, f(320, 8))).values

    with pytest.raises(CaptureRefused, match="most_likely: tokens are chosen between steps, not in one"):
        capture(ops, step, 8, 4)
