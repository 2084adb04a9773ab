"""Every op but attention, on every backend, against the reference over odd shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.implementations import Backend
from tests.kernels.paged_steps import Heads, Row, build_step, filled_cache, on_device
from text_generation_kernels.reference import ReferenceOps

REFERENCE = ReferenceOps()
NUM_TOKENS = (0, 1, 15, 16, 17, 130)
SIZES = (16, 80, 576, 129)
PROPERTY = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 16), (960, 576), (33, 129)])
@pytest.mark.parametrize("has_bias", [False, True], ids=["", "bias"])
def test_linear(backend: Backend, num_tokens: int, out_features: int, in_features: int, has_bias: bool) -> None:
    x = randn(num_tokens, in_features)
    weight = randn(out_features, in_features, seed=1) * in_features**-0.5
    bias = randn(out_features, seed=2) if has_bias else None
    packed = backend.ops.pack_weight(weight)
    actual = backend.ops.linear(backend.put(x), packed, None if bias is None else backend.put(bias))
    expected = REFERENCE.linear(backend.rounded(x), REFERENCE.pack_weight(weight), bias)
    backend.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True], ids=["", "transposed"])
def test_weights_of_any_float_dtype_and_layout_can_be_packed(
    backend: Backend, dtype: torch.dtype, is_transposed: bool
) -> None:
    weight = (randn(24, 40).T if is_transposed else randn(40, 24)).to(dtype)
    packed = backend.ops.pack_weight(weight)
    assert (packed.out_features, packed.in_features) == weight.shape
    assert packed.nbytes >= weight.numel()
    x = randn(3, packed.in_features, seed=1)
    backend.assert_close(backend.ops.linear(backend.put(x), packed), x @ weight.float().T)


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embedding(backend: Backend, num_tokens: int, dtype: torch.dtype) -> None:
    backend.skip_without(dtype)
    weight = randn(50, 24).to(dtype)
    token_ids = torch.randint(50, (num_tokens,), generator=torch.Generator().manual_seed(0))
    actual = backend.ops.embedding(token_ids.to(backend.device.torch_device), weight.to(backend.device.torch_device))
    backend.assert_close(actual, REFERENCE.embedding(token_ids, weight))


@pytest.mark.parametrize("width", [24, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_embedding_in_a_packed_weight_is_that_in_the_weight(backend: Backend, width: int, dtype: torch.dtype) -> None:
    weight = randn(50, width).to(dtype)
    packed = backend.ops.pack_weight(weight)
    if not backend.ops.can_embed(packed):
        pytest.skip(f"no rows can be found in a weight packed as {packed.layout}")
    token_ids = torch.tensor([0, 49, 15, 16, 17, 49])
    actual = backend.ops.embedding(token_ids.to(backend.device.torch_device), packed)
    assert torch.equal(actual.cpu(), weight[token_ids].to(backend.ops.activation_dtype))


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rms_norm(backend: Backend, num_tokens: int, size: int, eps: float) -> None:
    x, weight = randn(num_tokens, size), randn(size, seed=1)
    given = backend.put(x).clone()
    actual = backend.ops.rms_norm(given, backend.put(weight), eps)
    backend.assert_close(actual, REFERENCE.rms_norm(backend.rounded(x), backend.rounded(weight), eps))
    assert torch.equal(given, backend.put(x))


def test_rms_norm_of_each_head(backend: Backend) -> None:
    fused = randn(5, 13, 16)
    q, weight = fused[:, 2:11], randn(16, seed=1)  # strided, as Qwen3 normalizes a view into its projection
    actual = backend.ops.rms_norm(backend.put(fused)[:, 2:11], backend.put(weight), 1e-6)
    backend.assert_close(actual, REFERENCE.rms_norm(backend.rounded(q), backend.rounded(weight), 1e-6))


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_rms_norm_of_small_and_large_values(backend: Backend, scale: float) -> None:
    x, weight = randn(3, 64) * scale, torch.ones(64)
    actual = backend.ops.rms_norm(backend.put(x), backend.put(weight), 1e-6)
    backend.assert_close(actual, REFERENCE.rms_norm(backend.rounded(x), weight, 1e-6))


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("size", SIZES)
def test_add_rms_norm(backend: Backend, num_tokens: int, size: int) -> None:
    x, residual, weight = randn(num_tokens, size), randn(num_tokens, size, seed=1), randn(size, seed=2)
    given = backend.put(x).clone()
    normed, total = backend.ops.add_rms_norm(given, backend.put(residual).clone(), backend.put(weight), 1e-5)
    expected_normed, expected_total = REFERENCE.add_rms_norm(
        backend.rounded(x), backend.rounded(residual), backend.rounded(weight), 1e-5
    )
    backend.assert_close(normed, expected_normed)
    backend.assert_close(total, expected_total)
    assert torch.equal(given, backend.put(x))


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize(
    ("heads", "rotary_dim"),
    [(Heads(9, 3, 64), 64), (Heads(4, 1, 16), 16), (Heads(4, 4, 80), 80), (Heads(4, 4, 80), 32), (Heads(4, 1, 16), 2)],
    ids=str,
)
@pytest.mark.parametrize("is_fused", [False, True], ids=["separate", "views_into_fused_qkv"])
def test_rotary(backend: Backend, num_tokens: int, heads: Heads, rotary_dim: int, is_fused: bool) -> None:
    sizes = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
    fused = randn(num_tokens, sum(sizes), heads.head_dim)
    angles = randn(num_tokens, rotary_dim // 2, seed=1) * 10
    cos, sin = angles.cos(), angles.sin()
    q, k, _ = torch.split(fused, sizes, dim=1)
    expected_q, expected_k = REFERENCE.rotary(backend.rounded(q), backend.rounded(k), cos, sin)

    given = backend.put(fused).clone()
    given_q, given_k, given_v = torch.split(given, sizes, dim=1)
    if not is_fused:
        given_q, given_k = given_q.contiguous(), given_k.contiguous()
    device = backend.device.torch_device
    actual_q, actual_k = backend.ops.rotary(given_q, given_k, cos.to(device), sin.to(device))
    backend.assert_close(actual_q, expected_q)
    backend.assert_close(actual_k, expected_k)
    assert torch.equal(given_v, backend.put(fused)[:, -heads.num_kv_heads :])


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("intermediate_size", [1, 16, 129, 1536])
def test_silu_and_mul(backend: Backend, num_tokens: int, intermediate_size: int) -> None:
    x = randn(num_tokens, 2 * intermediate_size)
    given = backend.put(x).clone()
    actual = backend.ops.silu_and_mul(given)
    backend.assert_close(actual, REFERENCE.silu_and_mul(backend.rounded(x)))
    assert torch.equal(given, backend.put(x))


def test_silu_and_mul_of_extreme_gates(backend: Backend) -> None:
    x = torch.tensor([[-200.0, -20.0, 0.0, 20.0, 200.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    backend.assert_close(backend.ops.silu_and_mul(backend.put(x)), torch.tensor([[0.0, -4.1223e-8, 0.0, 20.0, 200.0]]))


def test_a_cache_takes_what_its_blocks_are_said_to_take(backend: Backend) -> None:
    block_size = backend.device.default_block_size
    cache = backend.ops.new_kv_cache(num_blocks=5, block_size=block_size, num_kv_heads=3, head_dim=64)
    assert cache.block_size == block_size
    num_blocks = 5 + backend.ops.spare_kv_blocks
    assert cache.k.nbytes + cache.v.nbytes == num_blocks * backend.ops.kv_block_bytes(block_size, 3, 64)
    assert not cache.k.cpu().any()
    assert not cache.v.cpu().any()


def test_the_default_block_size_is_allowed(backend: Backend) -> None:
    backend.ops.check_block_size(backend.device.default_block_size)


@pytest.mark.parametrize("kept", [(), (0,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_tokens_at_slot_minus_one_are_not_stored(backend: Backend, kept: tuple[int, ...]) -> None:
    # The row holds 20 tokens; its last four are stored again with other contents, where they are kept.
    ops, device = backend.ops, backend.device.torch_device
    heads = backend.heads(Heads())
    step = build_step((Row(19, 1),), heads, backend.device.default_block_size)
    cache, reference_cache = filled_cache(ops, step, device), filled_cache(REFERENCE, step, torch.device("cpu"))
    fused = randn(4, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
    k, v = fused[:, 9:12], fused[:, 12:]  # strided, as a fused projection gives them
    slots = step.slots[-4:].clone()
    slots[[token for token in range(4) if token not in kept]] = -1
    given = backend.put(fused)
    ops.store_kv(given[:, 9:12], given[:, 12:], cache, slots.to(device))
    REFERENCE.store_kv(backend.rounded_kv(k), backend.rounded_kv(v), reference_cache, slots)
    actual = ops.attention(backend.put(step.q), cache, on_device(step.metadata, device), heads.scale)
    expected = REFERENCE.attention(backend.rounded(step.q), reference_cache, step.metadata, heads.scale)
    backend.assert_close(actual, expected)


def test_an_empty_step_stores_nothing(backend: Backend) -> None:
    ops, device = backend.ops, backend.device.torch_device
    cache = ops.new_kv_cache(2, backend.device.default_block_size, 3, 64)
    nothing = backend.put(torch.zeros(0, 3, 64))
    ops.store_kv(nothing, nothing, cache, torch.zeros(0, dtype=torch.int32, device=device))
    assert not cache.k.cpu().any()


@PROPERTY
@given(num_rows=st.integers(1, 70), row=st.integers(0, 69), shape=st.sampled_from([(960, 576), (33, 129), (80, 1200)]))
def test_a_row_of_a_linear_is_the_same_alone_and_in_any_batch(
    backend: Backend, num_rows: int, row: int, shape: tuple[int, int]
) -> None:
    row %= num_rows
    packed = backend.ops.pack_weight(randn(*shape, seed=1) * shape[1] ** -0.5)
    x = backend.put(randn(num_rows, shape[1], seed=num_rows))
    backend.assert_same_row(backend.ops.linear(x, packed)[row : row + 1], backend.ops.linear(x[row : row + 1], packed))


@PROPERTY
@given(num_rows=st.integers(1, 70), row=st.integers(0, 69), size=st.sampled_from(SIZES))
def test_a_row_of_a_norm_or_of_silu_is_the_same_alone_and_in_any_batch(
    backend: Backend, num_rows: int, row: int, size: int
) -> None:
    row %= num_rows
    ops, weight = backend.ops, backend.put(randn(size, seed=2))
    x, residual = backend.put(randn(num_rows, size, seed=num_rows)), backend.put(randn(num_rows, size, seed=99))
    alone = slice(row, row + 1)
    backend.assert_same_row(ops.rms_norm(x, weight, 1e-5)[alone], ops.rms_norm(x[alone], weight, 1e-5))
    whole = ops.add_rms_norm(x, residual.clone(), weight, 1e-5)
    for one, of_many in zip(ops.add_rms_norm(x[alone], residual[alone].clone(), weight, 1e-5), whole, strict=True):
        backend.assert_same_row(of_many[alone], one)
    gated = torch.cat([x, residual], dim=1)
    backend.assert_same_row(ops.silu_and_mul(gated)[alone], ops.silu_and_mul(gated[alone]))
