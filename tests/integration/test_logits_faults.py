"""A model that gives NaN behind one character: who uses it gets an error, everybody else the answer they always get."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.integration.conftest import serving_quietly
from tests.support.asking import Question, ask, ask_at_once, client_of, events_of, prompt_of
from tests.support.checkpoints import make_checkpoint
from tests.support.servers import Server

BROKEN = "@"
SEEN = (
    "Request failed during generation: Server error: the model gave NaN in 320 of 320 logits, by which no token can be"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint(tmp_path_factory.mktemp("broken"), "llama", seed=11)
    (token_id,) = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(BROKEN, add_special_tokens=False).ids
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][token_id] = math.nan
    weights["lm_head.weight"][token_id] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=[("--speculate", "2"), ("--num-shard", "2")], ids=["guessing", "two shards"])
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving_quietly("--model-id", str(folder), *request.param) as server:
        yield server


def test_who_meets_it_gets_an_error_and_all_others_their_answers(server: Server) -> None:
    questions = [
        Question(prompt_of(10 + 7 * n, n), {"max_new_tokens": 40, "do_sample": n % 2 == 1, "seed": n}) for n in range(6)
    ]
    before = ask_at_once(server, questions)
    bad = prompt_of(12, 9) + BROKEN + prompt_of(12, 8)

    with client_of(server) as client, ThreadPoolExecutor(4) as pool:

        def plain() -> httpx.Response:
            return client.post("/generate", json={"inputs": bad, "parameters": {"max_new_tokens": 20}})

        def streamed() -> list[dict[str, object]]:
            with client.stream("POST", "/generate_stream", json={"inputs": bad}) as response:
                assert response.status_code in (200, 424)
                if response.status_code == 424:
                    return [json.loads(response.read())]
                return list(events_of(response))

        def chat() -> httpx.Response:
            return client.post("/v1/completions", json={"model": "m", "prompt": bad, "max_tokens": 5})

        failing = [pool.submit(plain), pool.submit(plain)]
        streams, chats = pool.submit(streamed), pool.submit(chat)
        during = ask_at_once(server, questions)
        answers = [future.result() for future in failing]
        events, completion = streams.result(), chats.result()
        after = ask(client, questions[0].inputs, **questions[0].parameters)

    for first, second in zip(before, during, strict=True):
        assert first == second
    assert after == before[0]
    for answer in answers:
        assert answer.status_code == 424
        assert answer.json()["error_type"] == "generation"
        assert answer.json()["error"].startswith(SEEN)
    assert events[-1]["error_type"] == "generation"
    assert str(events[-1]["error"]).startswith(SEEN)
    assert completion.status_code == 424
    assert "the model gave NaN" in completion.text
    assert server.metric("tgi_logits_faults") == 4
    assert server.metric("tgi_batch_current_size") == 0
    assert server.log.count("A request was ended: the model gave NaN in 320 of 320 logits") == 4


def test_the_last_event_of_a_stream_that_meets_it_on_the_way_is_the_error(server: Server) -> None:
    """The character is all that a grammar allows, so the answer's second token is the first that fails."""
    parameters = {"max_new_tokens": 20, "grammar": {"type": "regex", "value": f"{BROKEN}{{9}}"}}
    body = {"inputs": "say it", "parameters": parameters}
    with client_of(server) as client, client.stream("POST", "/generate_stream", json=body) as response:
        assert response.status_code == 200
        first, last = events_of(response)
    assert first["token"]["text"] == BROKEN
    assert last["error_type"] == "generation"
    assert last["error"].startswith(SEEN)
    with client_of(server) as client:
        assert client.get("/health").status_code == 200
