"""The ops that choose tokens, on every backend: against transformers, the reference, and themselves in a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

from tests.kernels.filters import Wanted
from tests.kernels.implementations import IMPLEMENTATIONS, Implementation
from text_generation_kernels import sampling
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.interface import Filters, Ops
from text_generation_kernels.reference import ReferenceOps, surviving

REFERENCE = ReferenceOps()
LAST_UNIFORM = 1 - 2.0**-53
MARGIN = 1e-5  # cases whose cut lies nearer than this to a token's edge may fall on either side of it in float32
PROPERTY = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


class TensorOps(CpuOps):
    """What a device without a way of its own to draw tokens has."""

    def draw(
        self, logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]
    ) -> Tensor:
        return sampling.draw(logits, rows, filters, uniforms)


@pytest.fixture(params=["reference", "tensors", *IMPLEMENTATIONS], ids=lambda p: getattr(p, "name", p), scope="module")
def ops(request: pytest.FixtureRequest) -> Ops:
    if isinstance(request.param, Implementation):
        return request.param.make().ops
    return REFERENCE if request.param == "reference" else TensorOps()


@st.composite
def wanted_filters(draw: st.DrawFn) -> Wanted:
    return Wanted(
        temperature=draw(st.sampled_from([0.05, 0.3, 1.0, 1.7, 30.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 10, 1500, 5000])),
        top_p=draw(st.sampled_from([1.0, 0.01, 0.5, 0.9, 0.999])),
        typical_p=draw(st.sampled_from([1.0, 0.05, 0.5, 0.95])),
    )


def random_logits(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def evenly_spaced(count: int) -> list[float]:
    return [(i + 0.5) / count for i in range(count)]


def warped_by_transformers(logits: Tensor, wanted: Wanted) -> tuple[Tensor, float]:
    """The distribution that transformers samples from, in float64, and how near a cut came to a token's edge."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(wanted.temperature)(ids, logits.double()[None])
    margin = 1.0
    if wanted.top_k > 0:
        scores = TopKLogitsWarper(wanted.top_k)(ids, scores)
    if wanted.top_p < 1.0:
        cumulative = scores.softmax(-1).sort(descending=True).values.cumsum(-1)
        margin = min(margin, float((cumulative - wanted.top_p).abs().min()))
        scores = TopPLogitsWarper(wanted.top_p)(ids, scores)
    if wanted.typical_p < 1.0:
        logprobs = scores.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).nansum()
        distance = (-logprobs - entropy).abs()
        order = distance.argsort(-1)
        cumulative = logprobs.exp().gather(-1, order).cumsum(-1)
        margin = min(margin, float((cumulative - wanted.typical_p).abs().min()))
        gaps = distance.gather(-1, order).diff(dim=-1)
        gaps = gaps[(cumulative[:, 1:] - wanted.typical_p).abs() < 0.02]  # others do not change what is kept
        margin = min([margin, *(10 * gaps[gaps.isfinite()]).tolist()])
        scores = TypicalLogitsWarper(wanted.typical_p)(ids, scores)
    return scores.softmax(-1)[0], margin


@PROPERTY
@given(
    wanted=wanted_filters(),
    seed=st.integers(0, 10_000),
    vocab_size=st.sampled_from([2, 50, 257, 1000, 3001]),
    scale=st.sampled_from([0.5, 2.0, 6.0]),
)
def test_draw_inverts_the_distribution_of_transformers(
    ops: Ops, wanted: Wanted, seed: int, vocab_size: int, scale: float
) -> None:
    vocab_size = min(vocab_size, 257) if ops is REFERENCE else vocab_size
    logits = random_logits(1, vocab_size, seed=seed, scale=scale)
    probs, margin = warped_by_transformers(logits[0], wanted)
    assume(margin > MARGIN)
    assert_inverts(ops, logits, wanted, probs)


def assert_inverts(ops: Ops, logits: Tensor, wanted: Wanted, probs: Tensor) -> None:
    cumulative = probs.cumsum(-1)
    count = 5 if ops is REFERENCE else 60
    # Not at the very edge between two tokens, where the float32 probabilities of two kernels may part.
    uniforms = [u for u in evenly_spaced(count) if float((cumulative - u).abs().min()) > MARGIN]
    drawn = ops.draw(logits, [0] * len(uniforms), [wanted] * len(uniforms), uniforms)
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == [int((cumulative <= u).sum()) for u in uniforms]


@PROPERTY
@given(wanted=wanted_filters(), seed=st.integers(0, 10_000), vocab_size=st.sampled_from([3, 40, 300]))
def test_many_tokens_that_tie_are_kept_and_dropped_as_the_reference_does(
    ops: Ops, wanted: Wanted, seed: int, vocab_size: int
) -> None:
    logits = random_logits(1, vocab_size, seed=seed).round()  # of about nine values
    probs = torch.zeros(vocab_size, dtype=torch.float64)
    for token_id, prob in surviving(logits[0].tolist(), wanted).items():
        probs[token_id] = prob
    assert_inverts(ops, logits, wanted, probs)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(top_k=2), {0, 1, 3, 5}),  # tied with the second: kept
        (Wanted(top_k=6), {0, 1, 2, 3, 4, 5}),
        (Wanted(top_k=1000), {0, 1, 2, 3, 4, 5}),  # above the vocabulary: all of it
        (Wanted(top_p=1e-6), {0}),  # of the best four, the lowest id
        (Wanted(top_p=0.3), {0, 1}),
        (Wanted(top_p=0.5), {0, 1, 3}),
        (Wanted(typical_p=0.3), {0, 1, 3, 5}),  # equally typical: all kept
        (Wanted(top_k=1, top_p=0.5), {0, 1}),
    ],
)
def test_ties_are_kept_by_top_k_and_typical_p_and_cut_by_id_in_top_p(
    ops: Ops, wanted: Wanted, expected: set[int]
) -> None:
    logits = torch.tensor([[2.0, 2.0, 0.5, 2.0, -1.0, 2.0]])
    assert set(ops.draw(logits, [0] * 200, [wanted] * 200, evenly_spaced(200)).tolist()) == expected


def test_scores_that_division_makes_equal_tie(ops: Ops) -> None:
    """The second best and its neighbour among float32 numbers, at a temperature that rounds both to one score."""
    logits = torch.tensor([[0.0, -1.99, 0.0, -5.0]])
    logits[0, 2] = torch.nextafter(logits[0, 1], logits[0, 3])
    temperatures = (1.9 + i / 1000 for i in range(90))
    temperature = next(t for t in temperatures if (logits[0, 1] / t).item() == (logits[0, 2] / t).item())
    if ops is REFERENCE:
        pytest.skip("the reference divides in float64")
    drawn = ops.draw(logits, [0] * 100, [Wanted(temperature, top_k=2)] * 100, evenly_spaced(100))
    assert set(drawn.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("wanted", [{}, {"top_k": 4}, {"top_p": 0.99}, {"typical_p": 0.99}], ids=str)
@pytest.mark.parametrize("temperature", [2e-4, 1.0, 1e30])
def test_masked_and_extreme_logits_are_no_trouble(ops: Ops, wanted: dict[str, float], temperature: float) -> None:
    lowest = torch.finfo(torch.float32).min
    logits = torch.tensor([[-torch.inf, 3.0, lowest, 3.0, -torch.inf]])
    filters = Wanted(temperature, **wanted)  # type: ignore[arg-type]
    assert set(ops.draw(logits, [0] * 50, [filters] * 50, evenly_spaced(50)).tolist()) == {1, 3}


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, LAST_UNIFORM])
@pytest.mark.parametrize("vocab_size", [6, 300, 777, 3000])
def test_the_ends_of_the_noise_never_reach_an_impossible_token(ops: Ops, vocab_size: int, uniform: float) -> None:
    logits = torch.full((1, vocab_size), -torch.inf)
    logits[0, 2 : vocab_size // 2] = 0.1
    end = 2 if uniform < 0.5 else vocab_size // 2 - 1
    assert ops.draw(logits, [0], [Wanted()], [uniform]).tolist() == [end]


@pytest.mark.parametrize("vocab_size", [32000, 50257])
@pytest.mark.parametrize(
    "wanted",
    [Wanted(0.8), Wanted(0.8, top_k=50), Wanted(0.8, top_k=3000), Wanted(1.3, top_p=0.95), Wanted(1.0, typical_p=0.9)],
    ids=str,
)
def test_a_large_vocabulary(ops: Ops, vocab_size: int, wanted: Wanted) -> None:
    if ops is REFERENCE:
        pytest.skip("the reference is too slow for one")
    logits = random_logits(1, vocab_size, seed=3)
    probs, _ = warped_by_transformers(logits[0], wanted)
    uniforms = evenly_spaced(8)
    drawn = ops.draw(logits, [0] * 8, [wanted] * 8, uniforms)
    cumulative = probs.cumsum(-1)
    for token_id, uniform in zip(drawn.tolist(), uniforms, strict=True):
        # Within rounding, the uniform number lies between the cumulative distribution before the token and at it.
        assert probs[token_id] > 0
        assert cumulative[token_id] - probs[token_id] - 2e-5 < uniform < cumulative[token_id] + 2e-5


def test_a_row_is_drawn_the_same_wherever_it_stands_and_whatever_is_drawn_beside_it(ops: Ops) -> None:
    logits = random_logits(9, 300 if ops is REFERENCE else 3001, seed=1)
    kinds = [
        Wanted(), Wanted(0.7), Wanted(top_k=40), Wanted(top_k=2000), Wanted(top_p=0.9), Wanted(typical_p=0.5),
        Wanted(2.0, 100, 0.9, 0.9), Wanted(0.3, top_p=0.99), Wanted(30.0, typical_p=0.99),
    ]  # fmt: skip
    uniforms = evenly_spaced(9)
    together = ops.draw(logits, range(9), kinds, uniforms).tolist()
    order = [7, 2, 5, 0]
    some = ops.draw(logits, order, [kinds[i] for i in order], [uniforms[i] for i in order])
    assert some.tolist() == [together[i] for i in order]
    for row in range(9):
        alone = ops.draw(logits[row : row + 1], [0], [kinds[row]], [uniforms[row]])
        assert alone.tolist() == [together[row]]


def test_no_rows_draw_nothing(ops: Ops) -> None:
    assert ops.draw(torch.zeros(2, 10), [], [], []).shape == (0,)


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 255, 257, 3001])
@pytest.mark.parametrize("scale", [0.0, 0.1, 4.0, 100.0])
def test_most_likely(ops: Ops, vocab_size: int, scale: float) -> None:
    logits = random_logits(7, vocab_size, seed=vocab_size, scale=scale) + 7.0
    actual, expected = ops.most_likely(logits), REFERENCE.most_likely(logits)
    assert torch.equal(actual.ids, expected.ids)
    assert torch.equal(actual.values, expected.values)
    torch.testing.assert_close(actual.log_sums, expected.log_sums, rtol=5e-7, atol=5e-7)
    assert (actual.log_sums >= 0).all()
    for row in range(7):
        for whole, alone in zip(actual, ops.most_likely(logits[row : row + 1]), strict=True):
            assert torch.equal(whole[row : row + 1], alone)
    assert all(out.shape == (0,) for out in ops.most_likely(logits[:0]))


def test_the_most_likely_of_equal_ones_is_the_first(ops: Ops) -> None:
    logits = torch.zeros(3, 700)
    logits[0, [300, 400, 699]] = 1.0
    logits[1, [0, 699]] = 1.0
    assert ops.most_likely(logits).ids.tolist() == [300, 0, 0]


def test_impossible_tokens_add_nothing_to_the_sum(ops: Ops) -> None:
    logits = torch.tensor([[-torch.inf, 3.0, -1e30], [torch.finfo(torch.float32).max, 0.0, -1e30]])
    found = ops.most_likely(logits)
    assert found.ids.tolist() == [1, 0]
    assert found.log_sums.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("vocab_size", [1, 6, 16, 33, 700])
@pytest.mark.parametrize("has_ties", [False, True], ids=["", "ties"])
def test_top_k(ops: Ops, vocab_size: int, has_ties: bool) -> None:
    logits = random_logits(6, vocab_size)
    logits = logits.round() if has_ties else logits
    rows = [4, 0, 0, 5]
    for k in sorted({1, min(2, vocab_size), min(6, vocab_size), vocab_size}):
        values, ids = ops.top_k(logits, rows, k)
        assert torch.equal(values, REFERENCE.top_k(logits, rows, k)[0])
        assert torch.equal(logits[rows].gather(1, ids), values)
        assert all(len(set(found)) == k for found in ids.tolist())


def test_a_row_of_nan_gets_tokens_and_leaves_others_alone(ops: Ops) -> None:
    if ops is REFERENCE:
        pytest.skip("the reference promises nothing about NaN")
    logits = random_logits(3, 100)
    sound = ops.most_likely(logits)
    logits[1] = math.nan
    found = ops.most_likely(logits)
    assert torch.equal(found.log_sums[[0, 2]], sound.log_sums[[0, 2]])
    assert torch.equal(found.ids[[0, 2]], sound.ids[[0, 2]])
    assert math.isnan(float(found.log_sums[1]))
    for wanted in (Wanted(), Wanted(top_k=3), Wanted(top_p=0.9), Wanted(typical_p=0.9), Wanted(2.0, 5, 0.5, 0.5)):
        assert 0 <= int(ops.draw(logits, [1], [wanted], [0.7])) < 100
    assert 0 <= int(found.ids[1]) < 100
    assert all(0 <= token_id < 100 for token_id in ops.top_k(logits, [1], 5)[1][0].tolist())
