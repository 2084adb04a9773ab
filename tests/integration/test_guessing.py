"""`--speculate` changes how many steps a text takes, and nothing of the text.

A sample behind a guess is the one that a step of its own would have given: with the native kernels, to the last bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import EXACT, serving_quietly
from tests.kernels.implementations import library_or_skip
from tests.support.asking import client_of
from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from text_generation_router.scheduling.request import Request, SamplingParameters
from text_generation_server.engine import Engine

PROMPT = tuple(4 + (7 * position + position * position) % 300 for position in range(37))

# A model of random weights does not repeat itself, unless there are but three words.
FEW_WORDS = ((5, 50.0), (6, 50.0), (7, 50.0))


def request(top_n_tokens: int = 0, **sampling: Any) -> Request:
    return Request(PROMPT, 60, sampling=SamplingParameters(logit_bias=FEW_WORDS, **sampling), top_n_tokens=top_n_tokens)


REQUESTS = {
    "greedy": request(top_n_tokens=3),
    "seeded": request(do_sample=True, temperature=0.7, top_p=0.95, seed=42),
    "penalized": request(repetition_penalty=1.1, frequency_penalty=0.1),
    "watermarked": request(do_sample=True, temperature=0.7, watermark=True, seed=7),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("guessing") / "llama", seed=3)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    library_or_skip()
    return load_engine(folder)


@pytest.mark.parametrize("name", REQUESTS)
def test_guessed_tokens_have_the_bits_of_those_that_are_made_one_by_one(engine: Engine, name: str) -> None:
    expected = InProcessReplica(engine).answer(REQUESTS[name])
    replica = InProcessReplica(engine, max_guesses=4)
    events = replica.answer(REQUESTS[name])
    assert [event.token_id for event in events] == [event.token_id for event in expected]
    assert [event.logprob for event in events] == [event.logprob for event in expected]
    assert [event.top_tokens for event in events] == [event.top_tokens for event in expected]
    assert replica.scheduler.stats().guessed_right_tokens > 2
    assert replica.pool.counts().owned == 0


def test_guesses_in_a_crowd_with_little_cache_change_nothing(engine: Engine) -> None:
    """Preempted with guesses in flight, and guessing beside rows that do not."""
    expected = {name: InProcessReplica(engine).answer(request) for name, request in REQUESTS.items()}
    replica = InProcessReplica(engine, num_blocks=16, max_total_tokens=112, max_step_tokens=24, max_guesses=4)
    sequences = {name: replica.submit(request) for name, request in REQUESTS.items()}
    replica.run()
    stats = replica.scheduler.stats()
    assert stats.preemptions > 0
    assert stats.guessed_right_tokens > 2
    for name, sequence in sequences.items():
        events = replica.events[id(sequence)]
        assert [(event.token_id, event.logprob) for event in events] == [
            (event.token_id, event.logprob) for event in expected[name]
        ]


def test_two_shards_with_guesses_give_the_text_of_one_without(folder: Path) -> None:
    """Over HTTP; /metrics shows what guessing won."""
    arguments = ["--model-id", str(folder), *EXACT]
    asked = {
        "prompt": "Once upon a time",
        "max_tokens": 40,
        "temperature": 0,
        "logprobs": 1,
        "logit_bias": {str(token_id): bias for token_id, bias in FEW_WORDS},
    }
    answers = []
    for more in ([], ["--num-shard", "2", "--speculate", "3"]):
        with serving_quietly(*arguments, *more) as server, client_of(server) as client:
            answers.append(client.post("/v1/completions", json=asked).json()["choices"][0])
            metrics = client.get("/metrics").text
    assert answers[0]["text"] == answers[1]["text"]
    plain, guessed = (answer["logprobs"]["token_logprobs"] for answer in answers)
    assert guessed == pytest.approx(plain, abs=1e-4)
    samples = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert int(samples["tgi_request_skipped_tokens_sum"]) == int(samples["tgi_guessed_right_tokens"]) > 0
