"""A step's sampling as a whole: what a row gets, whatever stands beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.implementations import library_or_skip
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_server.sampling import Sampler, SampleResult, SampleRow, SamplingParameters, is_faulty

LARGEST_SEED = 2**64 - 1


@pytest.fixture(params=["torch", "native"], scope="module")
def sampler(request: pytest.FixtureRequest) -> Sampler:
    if request.param == "torch":
        return Sampler(CpuOps())
    library = library_or_skip()
    return Sampler(NativeCpuOps(library, 2, library.instruction_sets[0]))


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def rows_of(result: SampleResult, num_rows: int) -> list[tuple[int, float, list[tuple[int, float]]]]:
    """Each row's token, log-probability and most likely tokens; equal only if equal to the bit."""
    counts = result.top.counts if result.top else (0,) * num_rows
    top = iter(zip(result.top.token_ids, result.top.logprobs, strict=True) if result.top else ())
    return [
        (token_id, logprob, [next(top) for _ in range(count)])
        for token_id, logprob, count in zip(
            result.read_token_ids(), result.read_numbers()["logprobs"], counts, strict=True
        )
    ]


parameters_of_any_kind = st.builds(
    SamplingParameters,
    do_sample=st.booleans(),
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 40, 10**6]),
    top_p=st.sampled_from([1.0, 0.5, 0.95]),
    typical_p=st.sampled_from([1.0, 0.3, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 1.5, -0.5]),
    watermark=st.booleans(),
    seed=st.integers(0, LARGEST_SEED),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=st.lists(
        st.tuples(parameters_of_any_kind, st.integers(1, 60), st.sampled_from([0, 1, 5])), min_size=2, max_size=9
    ),
    vocab_size=st.sampled_from([5, 257, 4099]),
    seed=st.integers(0, 1000),
)
def test_a_row_gets_the_same_bits_alone_and_in_any_batch(
    sampler: Sampler, wanted: list[tuple[SamplingParameters, int, int]], vocab_size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [
        SampleRow(p, length, torch.randint(vocab_size, (length,), generator=generator), n) for p, length, n in wanted
    ]
    check_alone_and_in_batches(sampler, random_logits(len(rows), vocab_size, seed), rows)


def check_alone_and_in_batches(sampler: Sampler, logits: Tensor, rows: list[SampleRow]) -> None:
    untouched = logits.clone()
    together = rows_of(sampler.sample(logits, rows), len(rows))
    assert torch.equal(logits, untouched)
    for index, row in enumerate(rows):
        alone = rows_of(sampler.sample(logits[index : index + 1].clone(), [row]), 1)
        assert alone == together[index : index + 1]
    some = list(range(len(rows)))[::-2]
    assert rows_of(sampler.sample(logits[some], [rows[i] for i in some]), len(some)) == [together[i] for i in some]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("vocab_size", [49152, 50257])  # torch splits more than 32,768 elements over threads
def test_threads_do_not_make_a_row_depend_on_its_neighbours(sampler: Sampler, vocab_size: int) -> None:
    history = torch.arange(300) * 7
    kinds = [
        SamplingParameters(),
        SamplingParameters(do_sample=True, seed=1),
        SamplingParameters(do_sample=True, top_p=0.9, seed=2),
        SamplingParameters(do_sample=True, top_k=50, top_p=0.9, repetition_penalty=1.2, seed=3),
        SamplingParameters(do_sample=True, typical_p=0.9, frequency_penalty=0.5, seed=4),
        SamplingParameters(watermark=True),
    ]
    rows = [SampleRow(parameters, 300, history, 3) for parameters in kinds]
    check_alone_and_in_batches(sampler, random_logits(len(rows), vocab_size), rows)


def test_frequencies_over_positions_are_the_softmax(sampler: Sampler) -> None:
    logits = random_logits(1, 12, seed=4) / 2
    count = 6000
    parameters = SamplingParameters(do_sample=True, temperature=1.3, seed=LARGEST_SEED)
    result = sampler.sample(logits.expand(count, -1).contiguous(), [SampleRow(parameters, i) for i in range(count)])
    observed = torch.bincount(torch.tensor(result.read_token_ids()), minlength=12).double()
    expected = (logits[0].double() / 1.3).softmax(-1) * count
    assert expected.min() > 5
    assert float(((observed - expected) ** 2 / expected).sum()) < 31.3  # the 99.9 % point for 11 degrees of freedom


def test_the_best_of_equal_tokens_is_the_first(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    assert sampler.sample(logits, [SampleRow(SamplingParameters(), 0)] * 2).read_token_ids() == [1, 0]


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-38])
def test_a_tiny_temperature_gives_the_greedy_token_and_finite_logprobs(sampler: Sampler, temperature: float) -> None:
    """G14."""
    logits = random_logits(20, 500)
    parameters = SamplingParameters(do_sample=True, temperature=temperature, top_p=0.5, top_k=7, seed=1)
    result = sampler.sample(logits, [SampleRow(parameters, i, None, 3) for i in range(20)])
    assert result.read_token_ids() == logits.argmax(-1).tolist()
    assert all(map(math.isfinite, result.read_numbers()["logprobs"]))


def test_logprobs_are_the_models_own_however_the_token_was_chosen(sampler: Sampler) -> None:
    """G14: filters leave one token, whose reported probability is not 1 for that; the top tokens are the model's."""
    logits = random_logits(30, 500)
    history = torch.arange(100)
    parameters = SamplingParameters(
        do_sample=True, temperature=0.4, top_k=1, top_p=0.5, repetition_penalty=1.5, watermark=True, seed=1
    )
    result = sampler.sample(logits, [SampleRow(parameters, 100, history, 3)] * 30)
    expected = logits.double().log_softmax(-1)
    logprobs = torch.tensor(result.read_numbers()["logprobs"])
    torch.testing.assert_close(
        logprobs.double(),
        expected.gather(-1, torch.tensor(result.read_token_ids())[:, None])[:, 0],
        rtol=1e-6,
        atol=1e-6,
    )
    assert result.top is not None
    assert result.top.counts == (3,) * 30
    assert list(result.top.token_ids) == expected.topk(3).indices.flatten().tolist()
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in result.top.logprobs)
    assert (logprobs < -1e-4).all()


def test_penalties_are_private_neutral_at_their_neutral_value_and_act_in_greedy_mode(sampler: Sampler) -> None:
    """G15."""
    logits = torch.tensor([[4.0, 3.9, 1.0, -1.0]] * 4)
    history = torch.tensor([0, 2, 0, 0])
    rows = [
        SampleRow(SamplingParameters(), 4, history),
        SampleRow(SamplingParameters(frequency_penalty=1.5), 2, history[:2]),  # another length, in the same batch
        SampleRow(SamplingParameters(repetition_penalty=1.0), 4, history),
        SampleRow(SamplingParameters(repetition_penalty=1.5), 4, history),
    ]
    assert sampler.sample(logits, rows).read_token_ids() == [0, 1, 0, 1]


def test_neutral_values_change_nothing_to_the_bit(sampler: Sampler) -> None:
    """G15: spelled out or left out, with a history or without, a sampled row gets the same."""
    logits = random_logits(40, 1000)
    plain = SamplingParameters(do_sample=True, temperature=1.0, seed=9)
    with_history = [SampleRow(plain, i, torch.arange(i)) for i in range(40)]
    bare = [SampleRow(plain, i) for i in range(40)]
    assert rows_of(sampler.sample(logits, with_history), 40) == rows_of(sampler.sample(logits, bare), 40)


def test_a_seed_means_the_same_at_any_place_in_any_step(sampler: Sampler) -> None:
    """G16: 64 positions drawn one by one, and drawn all at once in reverse order."""
    logits = random_logits(64, 300)
    for seed in (42, LARGEST_SEED):
        rows = [SampleRow(SamplingParameters(do_sample=True, seed=seed), position) for position in range(64)]
        one_by_one = [sampler.sample(logits[i : i + 1], rows[i : i + 1]).read_token_ids()[0] for i in range(64)]
        backwards = sampler.sample(logits.flip(0), rows[::-1]).read_token_ids()[::-1]
        assert backwards == one_by_one
    other = sampler.sample(logits, [SampleRow(SamplingParameters(do_sample=True, seed=43), i) for i in range(64)])
    assert other.read_token_ids() != one_by_one


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.9}, {"typical_p": 0.9}])
def test_a_row_of_nan_shows_and_leaves_its_neighbours_alone(sampler: Sampler, filters: dict[str, float]) -> None:
    logits = random_logits(3, 100)
    rows = [SampleRow(SamplingParameters(do_sample=True, seed=1, **filters), 5, None, 1)] * 3  # type: ignore[arg-type]
    sound = sampler.sample(logits, rows)
    broken_logits = logits.clone()
    broken_logits[1] = math.nan
    broken = sampler.sample(broken_logits, rows)
    broken_ids, sound_ids = broken.read_token_ids(), sound.read_token_ids()
    assert broken_ids[::2] == sound_ids[::2]
    assert 0 <= broken_ids[1] < 100
    assert is_faulty(broken.read_numbers()["logprobs"][1])
    assert not any(map(is_faulty, sound.read_numbers()["logprobs"]))


def test_no_rows_give_no_tokens(sampler: Sampler) -> None:
    result = sampler.sample(torch.empty(0, 100), [])
    assert result.read_token_ids() == []
    assert result.read_numbers() == {"logprobs": []}
    assert result.top is None
