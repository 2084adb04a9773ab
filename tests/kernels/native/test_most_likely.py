"""The most likely tokens that a captured step ends with: the same bits however pieces of rows are shared out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.kernels.implementations import library_or_skip
from text_generation_kernels.interface import MostLikelyOnHost, StepInputs
from text_generation_kernels.native.capture import NativeStep, capture, example
from text_generation_kernels.native.ops import NativeCpuOps

PIECE = 2048  # where the kernel cuts rows
SETS = ["avx2", "avx512", "amx", "neon"]


def made_ops(instruction_set: str, num_threads: int) -> NativeCpuOps:
    library = library_or_skip()
    if instruction_set not in library.instruction_sets:
        pytest.skip(f"this processor or this library has no {instruction_set}")
    return NativeCpuOps(library, num_threads, instruction_set)


def captured_logits(ops: NativeCpuOps, logits: Tensor) -> NativeStep:
    """A step whose result is rows of a table: those whose numbers are the step's token ids."""

    def step(inputs: StepInputs) -> Tensor:
        return ops.embedding(inputs.sampled, ops.embedding(inputs.token_ids, logits))

    return capture(ops, step, 40, 40)


def found_in(ops: NativeCpuOps, logits: Tensor, rows: list[int]) -> MostLikelyOnHost:
    given = example(tuple(1 for _ in rows), sampled=tuple(range(len(rows))))
    inputs = StepInputs(torch.tensor(rows), given.step, given.sampled)
    own, found = captured_logits(ops, logits).with_most_likely(inputs)
    torch.testing.assert_close(own, logits[rows], rtol=0, atol=0, equal_nan=True)
    assert found.vocab_size == logits.shape[1]
    assert found.ids == found.tensors.ids.tolist()
    torch.testing.assert_close(torch.tensor(found.log_sums), found.tensors.log_sums, rtol=0, atol=0, equal_nan=True)
    return found


def random_logits(num_rows: int, vocab_size: int) -> Tensor:
    """Of few different numbers, so that the best one is there several times, in several pieces."""
    generator = torch.Generator().manual_seed(vocab_size)
    return (torch.randn(num_rows, vocab_size, generator=generator) * 4).round() + 7


@pytest.mark.parametrize("vocab_size", [1, 15, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 777, 20011])
@pytest.mark.parametrize("instruction_set", SETS)
def test_bits_are_those_of_the_op_for_any_threads_and_rows(instruction_set: str, vocab_size: int) -> None:
    logits = random_logits(9, vocab_size)
    one_thread = made_ops(instruction_set, 1)
    expected = one_thread.most_likely(logits)
    exact = logits.double()
    best = exact.amax(-1)
    assert expected.ids.tolist() == [row.index(max(row)) for row in logits.tolist()]
    assert torch.equal(expected.values.double(), best)
    sums = (exact - best[:, None]).exp().sum(-1).log()
    torch.testing.assert_close(expected.log_sums.double(), sums, rtol=5e-7, atol=5e-7)
    for ops in (one_thread, made_ops(instruction_set, 2), made_ops(instruction_set, 3)):
        for rows in ([3], [8, 0], list(range(9))):
            found = found_in(ops, logits, rows).tensors
            for actual, all_expected in zip(found, expected, strict=True):
                assert torch.equal(actual, all_expected[rows])
        for actual, all_expected in zip(ops.most_likely(logits), expected, strict=True):
            assert torch.equal(actual, all_expected)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("instruction_set", SETS)
def test_of_equal_ones_in_several_pieces_the_first_is_found(instruction_set: str, num_threads: int) -> None:
    logits = torch.zeros(4, 3 * PIECE + 5)
    logits[0, [PIECE - 1, PIECE, 3 * PIECE + 4]] = 1.0
    logits[1, [2 * PIECE + 3, 3 * PIECE]] = 1.0
    logits[3, 3 * PIECE + 4] = 1.0
    assert found_in(made_ops(instruction_set, num_threads), logits, [0, 1, 2, 3]).ids == [
        PIECE - 1,
        2 * PIECE + 3,
        0,
        3 * PIECE + 4,
    ]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("instruction_set", SETS)
def test_pieces_of_nothing_count_as_nothing_and_nan_shows(instruction_set: str, num_threads: int) -> None:
    vocab_size = 3 * PIECE - 9
    logits = torch.full((7, vocab_size), -math.inf)
    logits[:2] = 0.0  # the rows that the capture is tried with
    logits[2, 2 * PIECE + 1] = 3.0  # nothing else is possible
    logits[4] = random_logits(1, vocab_size)[0]
    logits[4, 5] = math.nan
    logits[5, PIECE + 7] = math.nan  # in a piece of -inf
    logits[5, 3] = 1.0
    logits[6] = random_logits(1, vocab_size)[0]
    logits[6, PIECE] = math.inf
    found = found_in(made_ops(instruction_set, num_threads), logits, [2, 3, 4, 5, 6])
    assert found.ids[0] == 2 * PIECE + 1
    assert found.log_sums[0] == 0.0
    assert all(math.isnan(log_sum) for log_sum in found.log_sums[1:])
    assert all(0 <= token_id < vocab_size for token_id in found.ids)


def test_a_step_without_rows_finds_nothing() -> None:
    ops = NativeCpuOps(library_or_skip(), 2, library_or_skip().instruction_sets[0])
    given = example((2,), sampled=(1,))
    inputs = StepInputs(given.token_ids, given.step, given.sampled[:0])
    own, found = captured_logits(ops, random_logits(3, 300)).with_most_likely(inputs)
    assert own.shape == (0, 300)
    assert found.ids == [] == found.log_sums
