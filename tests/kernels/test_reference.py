"""The oracle itself, against code that we did not write."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from tests.kernels.paged_steps import HEADS, ROWS, Heads, Row, attend, build_step, contiguous_attention
from text_generation_kernels.reference import ReferenceOps

REFERENCE = ReferenceOps()


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_attention_is_torch_attention_over_the_contiguous_sequence(rows: tuple[Row, ...], heads: Heads) -> None:
    step = build_step(rows, heads)
    torch.testing.assert_close(attend(REFERENCE, step), contiguous_attention(step), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("block_size", [1, 3, 128])
def test_attention_takes_any_block_size(block_size: int) -> None:
    step = build_step(ROWS["mixed"], Heads(4, 2, 16), block_size)
    torch.testing.assert_close(attend(REFERENCE, step), contiguous_attention(step), atol=1e-6, rtol=1e-6)


def test_a_block_size_below_one_is_refused() -> None:
    REFERENCE.check_block_size(1)
    with pytest.raises(ValueError, match="block size 0 is not supported by the reference; use 1 or more"):
        REFERENCE.check_block_size(0)


def test_rms_norm_is_that_of_torch_and_of_transformers() -> None:
    x, weight = torch.randn(7, 96) * 3, torch.randn(96)
    ours = REFERENCE.rms_norm(x, weight, 1e-5)
    theirs = LlamaRMSNorm(96, eps=1e-5)
    theirs.weight.copy_(weight)
    torch.testing.assert_close(ours, F.rms_norm(x, (96,), weight, 1e-5))
    torch.testing.assert_close(ours, theirs(x))


def test_rms_norm_of_zeros_is_zero() -> None:
    assert not REFERENCE.rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-6).any()


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 32)])
def test_rotary_is_that_of_transformers(head_dim: int, rotary_dim: int) -> None:
    q, k = torch.randn(5, 6, head_dim), torch.randn(5, 2, head_dim)
    angles = torch.rand(5, rotary_dim // 2) * 100
    cos, sin = angles.cos(), angles.sin()
    ours_q, ours_k = REFERENCE.rotary(q, k, cos, sin)
    theirs_q, theirs_k = apply_rotary_pos_emb(
        q[..., :rotary_dim], k[..., :rotary_dim], torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    )
    torch.testing.assert_close(ours_q[..., :rotary_dim], theirs_q)
    torch.testing.assert_close(ours_k[..., :rotary_dim], theirs_k)
    assert torch.equal(ours_q[..., rotary_dim:], q[..., rotary_dim:])
    assert torch.equal(ours_k[..., rotary_dim:], k[..., rotary_dim:])


def test_silu_and_mul_is_torch_silu_of_the_first_half_times_the_second() -> None:
    x = torch.randn(3, 20) * 10
    torch.testing.assert_close(REFERENCE.silu_and_mul(x), F.silu(x[:, :10]) * x[:, 10:])


def test_linear_is_torch_linear() -> None:
    x, weight, bias = torch.randn(4, 33), torch.randn(5, 33), torch.randn(5)
    packed = REFERENCE.pack_weight(weight)
    torch.testing.assert_close(REFERENCE.linear(x, packed), F.linear(x, weight))
    torch.testing.assert_close(REFERENCE.linear(x, packed, bias), F.linear(x, weight, bias))


def test_embedding_is_torch_embedding_in_float32() -> None:
    weight = torch.randn(10, 6, dtype=torch.bfloat16)
    token_ids = torch.tensor([9, 0, 9])
    assert torch.equal(REFERENCE.embedding(token_ids, weight), F.embedding(token_ids, weight.float()))


def test_store_writes_each_token_to_its_slot_and_nothing_at_minus_one() -> None:
    cache = REFERENCE.new_kv_cache(num_blocks=3, block_size=4, num_kv_heads=1, head_dim=2)
    k, v = torch.ones(3, 1, 2), torch.full((3, 1, 2), 2.0)
    REFERENCE.store_kv(k, v, cache, torch.tensor([11, -1, 2], dtype=torch.int32))
    written = torch.zeros(12)
    written[[2, 11]] = 1
    assert torch.equal(cache.k.view(12, 2)[:, 0], written)
    assert torch.equal(cache.v.view(12, 2)[:, 1], 2 * written)
