"""Rows of logits that are no numbers to choose by are marked and described; what is put into them on purpose is not."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.kernels.implementations import library_or_skip
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_server.sampling import Sampler, SampleRow, SamplingParameters, describe, is_faulty

VOCAB = 300
FLOAT16_MAX = 65504.0
PARAMETERS = {
    "greedy": SamplingParameters(),
    "drawn": SamplingParameters(do_sample=True, seed=3),
    "filtered": SamplingParameters(do_sample=True, seed=3, top_k=20, top_p=0.9, typical_p=0.8),
    "penalized": SamplingParameters(repetition_penalty=1.3),
}


@pytest.fixture(params=["torch", "native"])
def sampler(request: pytest.FixtureRequest) -> Iterator[Sampler]:
    if request.param == "torch":
        yield Sampler(CpuOps())
    else:
        library = library_or_skip()
        yield Sampler(NativeCpuOps(library, 2, library.instruction_sets[0]))


def row_with(places: dict[int, float]) -> Tensor:
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    for place, value in places.items():
        row[place] = value
    return row


def faulty_rows(sampler: Sampler, rows: list[Tensor], parameters: SamplingParameters, **more: object) -> list[bool]:
    sample_row = SampleRow(parameters, position=2, history=torch.tensor([1, 2]), **more)  # type: ignore[arg-type]
    result = sampler.sample(torch.stack(rows), [sample_row] * len(rows))
    assert all(0 <= token_id < VOCAB for token_id in result.read_token_ids())
    return [is_faulty(logprob) for logprob in result.read_numbers()["logprobs"]]


BROKEN = {
    "NaN in 1 of 300 logits": row_with({257: math.nan}),
    "NaN in 300 of 300 logits": torch.full((VOCAB,), math.nan),
    "NaN in 2 of 300 logits": row_with({0: math.nan, 299: math.nan, 7: math.inf}),
    "+inf in 2 of 300 logits": row_with({33: math.inf, 34: math.inf}),
    "-inf in all 300 logits": torch.full((VOCAB,), -math.inf),
    "the same value in all 300 logits": torch.full((VOCAB,), 3.0),
}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("seen", BROKEN)
def test_a_row_without_numbers_is_marked_whatever_is_asked_and_its_neighbours_are_not(
    sampler: Sampler, seen: str, name: str
) -> None:
    sound = row_with({})
    assert faulty_rows(sampler, [sound, BROKEN[seen], sound], PARAMETERS[name]) == [False, True, False]
    assert describe(BROKEN[seen], math.inf) == seen


@pytest.mark.parametrize("name", PARAMETERS)
def test_infinities_put_in_on_purpose_are_no_fault(sampler: Sampler, name: str) -> None:
    """By a grammar's mask, a bias, or the model itself for tokens that it never says."""
    parameters = PARAMETERS[name]
    only_one = (1 << 5).to_bytes(40, "little")
    rows = [row_with({}), row_with(dict.fromkeys(range(6, VOCAB), -math.inf))]
    assert faulty_rows(sampler, rows, parameters, mask=only_one) == [False, False]
    assert faulty_rows(sampler, rows, parameters) == [False, False]
    banned = SamplingParameters(do_sample=parameters.do_sample, logit_bias=tuple((n, -1e38) for n in range(VOCAB)))
    assert faulty_rows(sampler, rows[:1], banned) == [False]


class SaturatingOps(CpuOps):
    """Of a chip whose overflows and NaN do not show."""

    saturates_at = FLOAT16_MAX


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        (row_with({9: FLOAT16_MAX}), "+-65504, which is what an overflow becomes there, in 1 of 300 logits"),
        (row_with({9: -FLOAT16_MAX, 8: -FLOAT16_MAX}), "+-65504, which is what an overflow becomes there, in 2 of 300"),
    ],
    ids=["up", "down"],
)
def test_a_chip_that_saturates_is_watched_for_what_it_makes_of_an_overflow(row: Tensor, seen: str) -> None:
    sound = row_with({})
    assert faulty_rows(Sampler(SaturatingOps()), [sound, row, sound], SamplingParameters()) == [False, True, False]
    assert describe(row, FLOAT16_MAX).startswith(seen)
    assert faulty_rows(Sampler(CpuOps()), [sound, row, sound], SamplingParameters()) == [False, False, False]
