"""A recorded step gives what its function gives, to the last bit, for any rows; what cannot be replayed is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.implementations import library_or_skip
from tests.support.checkpoints import make_checkpoint
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import CaptureRefused, StepInputs, StepMetadata
from text_generation_kernels.native.capture import capture
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank

BLOCK_SIZE = 16


@dataclass
class Stepped:
    """A model with a cache of its own, on native ops with a number of threads."""

    model: CausalLM
    ops: NativeCpuOps

    def step(self, num_blocks: int = 40) -> Callable[[StepInputs], Tensor]:
        model = self.model
        caches = [
            self.ops.new_kv_cache(num_blocks, BLOCK_SIZE, model.num_kv_heads_local, model.head_dim)
            for _ in range(model.num_layers)
        ]

        return lambda inputs: model.sampled_logits(inputs, caches)


def stepped(folder: Path, num_threads: int) -> Stepped:
    library = library_or_skip()
    device = CpuDevice(native=True)
    ops = NativeCpuOps(library, num_threads, library.instruction_sets[0], torch.bfloat16)
    device.ops = ops
    return Stepped(load_model(folder, device, LoneRank(), on_progress=lambda done, total: None), ops)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(request.param), request.param, seed=5, tokenizer=False)


@pytest.fixture(scope="module")
def one_thread(folder: Path) -> Stepped:
    return stepped(folder, 1)


@pytest.fixture(scope="module")
def two_threads(folder: Path) -> Stepped:
    return stepped(folder, 2)


def inputs(lengths: list[int], sampled: list[int]) -> StepInputs:
    """Prompts of these lengths, each in blocks of its own."""
    total = sum(lengths)
    blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    slots: list[int] = []
    for row, length in enumerate(lengths):
        first = sum(blocks[:row])
        tables[row, : blocks[row]] = torch.arange(first, first + blocks[row])
        slots += range(first * BLOCK_SIZE, first * BLOCK_SIZE + length)
    step = StepMetadata(
        positions=torch.cat([torch.arange(length) for length in lengths]),
        slot_mapping=torch.tensor(slots, dtype=torch.int32),
        block_tables=tables,
        cu_seqlens_q=(0, *torch.tensor(lengths).cumsum(0).tolist()),
        kv_lens=tuple(lengths),
    )
    return StepInputs(torch.arange(total) * 7 % 320, step, torch.tensor([i % total for i in sampled]).long())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    sampled=st.lists(st.integers(0, 999), max_size=8),
)
def test_captured_and_eager_with_one_and_two_threads_are_equal_to_the_last_bit(
    one_thread: Stepped, two_threads: Stepped, lengths: list[int], sampled: list[int]
) -> None:
    eager = one_thread.step()
    given_inputs = inputs(lengths, sampled)
    expected = eager(given_inputs)
    assert expected.shape == (len(sampled), 320)
    for device in (one_thread, two_threads):
        captured = capture(device.ops, device.step(), max_tokens=600, max_sampled=8)
        assert torch.equal(captured(given_inputs), expected)


def test_capturing_writes_nothing_into_the_caches(one_thread: Stepped) -> None:
    ops = one_thread.ops
    caches = [ops.new_kv_cache(2, BLOCK_SIZE, 2, one_thread.model.head_dim) for _ in one_thread.model.layers]

    capture(ops, lambda inputs: one_thread.model.sampled_logits(inputs, caches), 8, 4)
    assert not any(cache.k.any() or cache.v.any() for cache in caches)


def test_a_step_larger_than_captured_is_refused(one_thread: Stepped) -> None:
    captured = capture(one_thread.ops, one_thread.step(), max_tokens=10, max_sampled=4)
    assert captured.fits(inputs([10], [0]))
    assert not captured.fits(inputs([11], [0]))
    assert not captured.fits(inputs([9], [0] * 5))
    with pytest.raises(ValueError, match="a step of 11 tokens, 1 of them sampled, was given to one captured for 10"):
        captured(inputs([11], [0]))


def refused(change: Callable[[NativeCpuOps, StepInputs], Tensor]) -> str:
    library = library_or_skip()
    ops = NativeCpuOps(library, 1, library.instruction_sets[0])
    with pytest.raises(CaptureRefused) as caught:
        capture(ops, lambda inputs: change(ops, inputs), 8, 4)
    assert ops.recorder is None
    return str(caught.value)


TABLE = torch.randn(320, 32, generator=torch.Generator().manual_seed(0))


def test_a_computation_that_is_no_op_is_refused_with_the_op_that_reads_it() -> None:
    def step(ops: NativeCpuOps, inputs: StepInputs) -> Tensor:
        return ops.rms_norm(ops.embedding(inputs.token_ids, TABLE) * 2, torch.ones(32), 1e-5)

    assert refused(step) == "rms_norm: x was computed by something that is not a native op"


@pytest.mark.parametrize("is_read_later", [False, True], ids=["read last by it", "read again"])
def test_a_step_is_the_same_with_results_in_the_place_of_what_their_ops_have_read(is_read_later: bool) -> None:
    library = library_or_skip()
    ops = NativeCpuOps(library, 2, library.instruction_sets[0], torch.float32)
    table, weight = torch.randn(320, 64), torch.randn(32)
    down, up = ops.pack_weight(torch.randn(32, 32)), ops.pack_weight(torch.randn(32, 64))

    def function(given_inputs: StepInputs) -> Tensor:
        wide = ops.embedding(given_inputs.token_ids, table)
        narrow = ops.silu_and_mul(wide)  # rows of 32 where rows of 64 were
        x = ops.linear(narrow, down)
        normed, total = ops.add_rms_norm(x, ops.linear(wide, up) if is_read_later else narrow, weight, 1e-5)
        return ops.linear(ops.add_rms_norm(normed, total, weight, 1e-5)[0], down)

    with torch.inference_mode():
        step = capture(ops, function, 64, 64)
        given_inputs = inputs([17, 30], sampled=[1])
        assert torch.equal(step(given_inputs), function(given_inputs))


def doubled_in_place(x: Tensor) -> Tensor:
    return x.mul_(2)


@pytest.mark.parametrize("double", [doubled_in_place, lambda x: x * 2], ids=["in place", "as a new tensor"])
def test_what_is_called_outside_is_called_again_in_its_place(double: Callable[[Tensor], Tensor]) -> None:
    library = library_or_skip()
    ops = NativeCpuOps(library, 1, library.instruction_sets[0])

    def step(inputs: StepInputs) -> Tensor:
        x = ops.outside(lambda ids: ops.embedding(319 - ids, TABLE), inputs.token_ids)  # ops of its own
        x = ops.silu_and_mul(ops.outside(double, x))
        return ops.outside(double, ops.embedding(inputs.sampled, x))

    captured = capture(ops, step, 600, 8)
    for given_inputs in (inputs([40, 3], [1, 42, 7]), inputs([1], [0]), inputs([5], [])):
        assert torch.equal(captured(given_inputs), step(given_inputs))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x: ops.outside(doubled_in_place, x + 1), "takes something that is not a native op's result"),
        (lambda ops, x: ops.outside(doubled_in_place, x[:, 4:]), "takes a part of a native op's result"),
        (lambda ops, x: ops.outside(lambda x: x[:1] * 2, x), "gives no float32 tensor with as many rows"),
        (lambda ops, x: ops.outside(Tensor.double, x), "gives no float32 tensor with as many rows"),
    ],
)
def test_what_cannot_be_called_again_is_refused(call: Callable[[NativeCpuOps, Tensor], Tensor], message: str) -> None:
    assert message in refused(lambda ops, inputs: call(ops, ops.embedding(inputs.token_ids, TABLE)))


def test_ids_that_are_computed_are_refused() -> None:
    assert refused(lambda ops, inputs: ops.embedding(inputs.token_ids + 1, TABLE)).startswith("embedding: the ids")


def test_a_result_that_is_computed_is_refused() -> None:
    assert refused(lambda ops, inputs: ops.embedding(inputs.token_ids, TABLE) * 2).startswith("the step's result")


def test_work_in_place_between_ops_is_noticed() -> None:
    def step(ops: NativeCpuOps, inputs: StepInputs) -> Tensor:
        x = ops.embedding(inputs.token_ids, TABLE)
        x.mul_(2)
        return ops.silu_and_mul(x)

    assert refused(step).startswith("the recorded step gives other numbers")


def test_plain_torch_ops_cannot_be_captured() -> None:
    with pytest.raises(CaptureRefused, match="plain torch ops cannot be replayed"):
        CpuDevice(native=False).capture(lambda inputs: inputs.token_ids, 8, 4, 1)
