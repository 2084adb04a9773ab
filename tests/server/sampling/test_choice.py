"""Filters and the choice, in both implementations: against transformers, against exact arithmetic, and each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

from text_generation_server.sampling import SamplingParameters, choice, host_choice

Choose = Callable[[Sequence[Tensor], Sequence[SamplingParameters], Sequence[float]], Tensor]
LAST_UNIFORM = 1 - 2.0**-53
MARGIN = 1e-5  # cases whose cut lies nearer than this to a token's edge may fall on either side of it in float32

both = pytest.mark.parametrize("choose", [choice.choose, host_choice.choose], ids=["tensors", "host"])


@st.composite
def sampled(draw: st.DrawFn) -> SamplingParameters:
    return SamplingParameters(
        do_sample=True,
        temperature=draw(st.sampled_from([0.05, 0.3, 1.0, 1.7, 30.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 10, 5000])),
        top_p=draw(st.sampled_from([1.0, 0.01, 0.5, 0.9, 0.999])),
        typical_p=draw(st.sampled_from([1.0, 0.05, 0.5, 0.95])),
    )


def random_logits(seed: int, vocab_size: int, scale: float) -> Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def warped_by_transformers(logits: Tensor, parameters: SamplingParameters) -> tuple[Tensor, float]:
    """The distribution that transformers samples from, in float64, and how near a cut came to a token's edge."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(parameters.temperature)(ids, logits.double()[None])
    margin = 1.0
    if parameters.top_k > 0:
        scores = TopKLogitsWarper(parameters.top_k)(ids, scores)
    if parameters.top_p < 1.0:
        cumulative = scores.softmax(-1).sort(descending=True).values.cumsum(-1)
        margin = min(margin, float((cumulative - parameters.top_p).abs().min()))
        scores = TopPLogitsWarper(parameters.top_p)(ids, scores)
    if parameters.typical_p < 1.0:
        logprobs = scores.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).nansum()
        distance = (-logprobs - entropy).abs()
        order = distance.argsort(-1)
        cumulative = logprobs.exp().gather(-1, order).cumsum(-1)
        margin = min(margin, float((cumulative - parameters.typical_p).abs().min()))
        gaps = distance.gather(-1, order).diff(dim=-1)
        margin = min([margin, *gaps[gaps.isfinite()].tolist()])
        scores = TypicalLogitsWarper(parameters.typical_p)(ids, scores)
    return scores.softmax(-1)[0], margin


@settings(deadline=None, max_examples=150)
@given(
    parameters=sampled(),
    seed=st.integers(0, 10_000),
    vocab_size=st.sampled_from([2, 50, 257, 1000]),
    scale=st.sampled_from([0.5, 2.0, 6.0]),
)
def test_both_sample_from_the_distribution_of_transformers(
    parameters: SamplingParameters, seed: int, vocab_size: int, scale: float
) -> None:
    logits = random_logits(seed, vocab_size, scale)
    expected, margin = warped_by_transformers(logits, parameters)
    assume(margin > (MARGIN if parameters.typical_p == 1.0 else MARGIN / 10))
    scores = (logits - logits.max()) / parameters.temperature

    ids, probs = host_choice.surviving(scores.numpy(), parameters)
    on_host = torch.zeros(vocab_size, dtype=torch.float64)
    on_host[torch.arange(vocab_size) if ids is None else torch.from_numpy(ids)] = torch.from_numpy(probs).double()
    on_host /= on_host.sum()
    torch.testing.assert_close(on_host, expected, rtol=1e-3, atol=1e-6)

    keep = choice.surviving(scores[None], [parameters])[0]
    with_tensors = scores.double().masked_fill(~keep, -torch.inf).softmax(-1)
    torch.testing.assert_close(with_tensors, expected, rtol=1e-3, atol=1e-6)
    assert torch.equal(keep & (expected > 1e-30), expected > 1e-30)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(sampled(), st.floats(0, LAST_UNIFORM)), min_size=1, max_size=6),
    seed=st.integers(0, 10_000),
    vocab_size=st.sampled_from([3, 255, 256, 257, 5000]),
)
def test_both_choose_the_same_tokens(rows: list[tuple[SamplingParameters, float]], seed: int, vocab_size: int) -> None:
    logits: list[Tensor] = []
    parameters: list[SamplingParameters] = []
    uniforms: list[float] = []
    for row, (wanted, uniform) in enumerate(rows):
        row_logits = random_logits(seed + row, vocab_size, 2.0)
        probs, margin = warped_by_transformers(row_logits, wanted)
        # Not at the very edge between two tokens either, where the float32 probabilities of two kernels may part.
        if margin > MARGIN / 10 and float((probs.cumsum(-1)[:-1] - uniform).abs().min()) > 1e-6:
            logits.append(row_logits)
            parameters.append(wanted)
            uniforms.append(uniform)
    assume(logits)
    assert torch.equal(choice.choose(logits, parameters, uniforms), host_choice.choose(logits, parameters, uniforms))


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1024, 3000])
def test_choice_is_the_inverse_of_the_cumulative_distribution(vocab_size: int) -> None:
    probs = random_logits(vocab_size, vocab_size, 2.0).softmax(-1)
    probs[torch.arange(vocab_size) % 7 == 3] = 0.0
    edges = np.cumsum(probs.double().numpy())
    for uniform in np.linspace(0, LAST_UNIFORM, 211).tolist():
        target = uniform * edges[-1]
        expected = next((index for index, edge in enumerate(edges) if edge > target), vocab_size)
        if np.abs(edges - target).min() > 1e-6:
            assert int(choice.invert(probs[None], [uniform])) == expected
            assert host_choice.invert(probs.numpy(), uniform) == expected


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, LAST_UNIFORM])
def test_the_ends_of_the_noise_never_reach_an_impossible_token(uniform: float) -> None:
    for vocab_size in (6, 300, 777):
        probs = torch.zeros(vocab_size)
        probs[2 : vocab_size // 2] = 0.1
        for index in (int(choice.invert(probs[None], [uniform])), host_choice.invert(probs.numpy(), uniform)):
            assert probs[index] > 0


@both
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"top_k": 2}, {0, 1, 3, 5}),  # tied with the second: kept
        ({"top_k": 6}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 1000}, {0, 1, 2, 3, 4, 5}),  # above the vocabulary: all of it
        ({"top_p": 1e-6}, {0}),  # of the best four, the lowest id
        ({"top_p": 0.3}, {0, 1}),
        ({"top_p": 0.5}, {0, 1, 3}),
        ({"typical_p": 0.3}, {0, 1, 3, 5}),  # equally typical: all kept
        ({"top_k": 1, "top_p": 0.5}, {0, 1}),
    ],
)
def test_ties_are_kept_by_top_k_and_typical_p_and_cut_by_id_in_top_p(
    choose: Choose, filters: dict[str, float], expected: set[int]
) -> None:
    logits = torch.tensor([2.0, 2.0, 0.5, 2.0, -1.0, 2.0])
    parameters = SamplingParameters(do_sample=True, **filters)  # type: ignore[arg-type]
    uniforms = [(i + 0.5) / 200 for i in range(200)]
    chosen = choose([logits] * 200, [parameters] * 200, uniforms)
    assert set(chosen.tolist()) == expected


@both
def test_masked_and_extreme_logits_are_no_trouble(choose: Choose) -> None:
    lowest = torch.finfo(torch.float32).min
    logits = torch.tensor([-torch.inf, 3.0, lowest, 3.0, -torch.inf])
    for filters in ({}, {"top_k": 4}, {"top_p": 0.99}, {"typical_p": 0.99}):
        for temperature in (2e-4, 1.0, 1e30):
            parameters = SamplingParameters(do_sample=True, temperature=temperature, **filters)
            chosen = choose([logits] * 50, [parameters] * 50, [i / 50 for i in range(50)])
            assert set(chosen.tolist()) == {1, 3}
