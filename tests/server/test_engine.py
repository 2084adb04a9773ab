"""The engine against transformers: ids, log-probabilities, top tokens and prompt scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from text_generation_router.scheduling.request import FinishReason, Request, SamplingParameters
from text_generation_server.engine import Engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama", seed=3)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load_engine(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(4, 320, (length,), generator=generator).tolist())


@torch.no_grad()
def log_softmax(oracle: Any, token_ids: tuple[int, ...]) -> torch.Tensor:
    """[len(token_ids), vocab_size]: row i is the distribution of the token after token_ids[: i + 1]."""
    return torch.log_softmax(oracle(torch.tensor([token_ids])).logits[0].double(), dim=-1)


def greedy(oracle: Any, token_ids: tuple[int, ...], count: int) -> list[int]:
    with torch.no_grad():
        output = oracle.generate(
            torch.tensor([token_ids]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=3
        )
    return list(output[0, len(token_ids) :].tolist())


def test_greedy_ids_and_logprobs_equal_transformers(engine: Engine, oracle: Any) -> None:
    replica = InProcessReplica(engine, max_step_tokens=64)
    requests = [Request(prompt(length, length), max_new_tokens=12) for length in (1, 2, 15, 16, 17, 31, 80)]
    sequences = [replica.submit(request) for request in requests]
    replica.run()
    for request, sequence in zip(requests, sequences, strict=True):
        events = replica.events[id(sequence)]
        ids = [event.token_id for event in events]
        assert ids == greedy(oracle, request.token_ids, 12)
        table = log_softmax(oracle, (*request.token_ids, *ids))
        for position, event in enumerate(events):
            expected = table[len(request.token_ids) - 1 + position, event.token_id]
            assert event.logprob == pytest.approx(float(expected), abs=1e-4)


def test_top_tokens_equal_transformers(engine: Engine, oracle: Any) -> None:
    request = Request(prompt(20, 1), max_new_tokens=6, top_n_tokens=5)
    events = InProcessReplica(engine).answer(request)
    ids = [event.token_id for event in events]
    table = log_softmax(oracle, (*request.token_ids, *ids))
    for position, event in enumerate(events):
        values, indices = table[len(request.token_ids) - 1 + position].topk(5)
        assert [token_id for token_id, _ in event.top_tokens] == indices.tolist()
        assert [logprob for _, logprob in event.top_tokens] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("max_step_tokens", [7, 512])
def test_prompt_logprobs_equal_transformers_whole_and_in_chunks(
    engine: Engine, oracle: Any, max_step_tokens: int
) -> None:
    replica = InProcessReplica(engine, max_step_tokens=max_step_tokens)
    request = Request(prompt(300 % 200, 2), max_new_tokens=2, prompt_logprobs=True)
    replica.submit(Request(prompt(9, 3), max_new_tokens=30))
    events = replica.answer(request)
    table = log_softmax(oracle, request.token_ids)
    expected = [float(table[index, token_id]) for index, token_id in enumerate(request.token_ids[1:])]
    assert events[0].prompt_logprobs == pytest.approx(expected, abs=1e-4)


def test_openai_penalties_bias_and_mask_change_the_choice_but_not_the_reported_logprob(
    engine: Engine, oracle: Any
) -> None:
    request_ids = prompt(12, 9)
    table = log_softmax(oracle, request_ids)[-1]
    best, second = table.topk(2).indices.tolist()
    biased = Request(request_ids, 1, sampling=SamplingParameters(logit_bias=((best, -100.0),)))
    event = InProcessReplica(engine).answer(biased)[0]
    assert event.token_id == second
    assert event.logprob == pytest.approx(float(table[second]), abs=1e-4)

    replica = InProcessReplica(engine)
    allowed = (1 << 7 | 1 << 300).to_bytes(40, "little")
    masked = replica.scheduler.submit(Request(request_ids, 1), allowed)
    replica.events[id(masked)] = []
    neighbour = replica.submit(Request(request_ids, 1))
    replica.run()
    assert replica.events[id(masked)][0].token_id == (7 if table[7] > table[300] else 300)
    assert replica.events[id(neighbour)][0].token_id == best

    presence = Request(request_ids, 30, sampling=SamplingParameters(presence_penalty=100.0))
    ids = [event.token_id for event in InProcessReplica(engine).answer(presence)]
    assert len(set(ids)) == 30, "no token of the output comes twice"
    counted = Request(request_ids, 30, sampling=SamplingParameters(count_penalty=100.0))
    assert [event.token_id for event in InProcessReplica(engine).answer(counted)] == ids


def test_end_token_ends_a_sequence(engine: Engine, oracle: Any) -> None:
    ids = greedy(oracle, prompt(10, 5), 8)
    position = next(index for index, token_id in enumerate(ids) if token_id not in ids[:index] and index > 2)
    request = Request(prompt(10, 5), max_new_tokens=20, eos_token_ids=frozenset({ids[position]}))
    events = InProcessReplica(engine).answer(request)
    assert [event.token_id for event in events] == ids[: position + 1]
    assert events[-1].finish_reason is FinishReason.EOS_TOKEN


def test_seed_and_position_fix_the_noise(engine: Engine) -> None:
    def sampled(seed: int) -> list[int]:
        sampling = SamplingParameters(do_sample=True, temperature=1.0, seed=seed)
        events = InProcessReplica(engine).answer(Request(prompt(10, 6), 20, sampling=sampling))
        return [event.token_id for event in events]

    assert sampled(42) == sampled(42)
    assert sampled(42) != sampled(43)
    assert len(sampled(2**64 - 1)) == 20
