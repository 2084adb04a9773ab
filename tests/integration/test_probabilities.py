"""Reported probabilities and penalties, alone and among others, against transformers."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.support.asking import Answer, Question, ask, ask_at_once, client_of, prompt_of, stream
from tests.support.servers import Server
from tests.support.witness import TIE, Witness

PROMPT = prompt_of(23, seed=13)
NEIGHBOURS = [
    Question(prompt_of(3 + 17 * index, seed=14), {"max_new_tokens": 10 + 5 * index}, delay_s=0.01 * index)
    for index in range(8)
]


def among_others(server: Server, **parameters: Any) -> Answer:
    return ask_at_once(server, [Question(PROMPT, parameters, delay_s=0.05), *NEIGHBOURS])[0]


def test_prompt_details_are_those_of_transformers_alone_and_in_a_crowd(
    one_shard: Server, witness: Witness, tokenizer: Tokenizer
) -> None:
    """G13: every token, the first without a logprob; who does not ask gets an empty list."""
    ids = tokenizer.encode(PROMPT).ids
    expected = [float(row[i]) for row, i in zip(witness.logprobs(ids[:1], ids[1:]), ids[1:], strict=True)]
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 4, "decoder_input_details": True}}
    with client_of(one_shard) as client:

        def prefill() -> list[dict[str, Any]]:
            answer = client.post("/generate", json=body)
            assert answer.status_code == 200
            tokens: list[dict[str, Any]] = answer.json()["details"]["prefill"]
            return tokens

        alone = prefill()
        with ExitStack() as streams:
            for one in NEIGHBOURS:
                events = streams.enter_context(closing(stream(client, one.inputs, max_new_tokens=500)))
                next(events)
            crowded = prefill()
        plain = client.post("/generate", json={"inputs": PROMPT, "parameters": {"max_new_tokens": 4, "details": True}})
        refused = client.post("/generate_stream", json=body)
    for found in (alone, crowded):
        assert [token["id"] for token in found] == ids
        assert found[0]["logprob"] is None
        assert [token["logprob"] for token in found[1:]] == pytest.approx(expected, abs=TIE)
    assert plain.json()["details"]["prefill"] == []
    assert refused.status_code == 422


@pytest.mark.parametrize("temperature", [1.0, 1e-4, 1e-6])
def test_log_probabilities_survive_top_p(
    one_shard: Server, witness: Witness, tokenizer: Tokenizer, temperature: float
) -> None:
    """G14: three finite entries a token, those of transformers; a tiny temperature gives the greedy text."""
    parameters: dict[str, Any] = {"do_sample": True, "top_p": 0.5, "seed": 1, "top_n_tokens": 3, "max_new_tokens": 20}
    if temperature != 1.0:
        parameters["temperature"] = temperature
    body = {"inputs": PROMPT, "parameters": {"details": True, **parameters}}
    prompt_ids = tokenizer.encode(PROMPT).ids
    with client_of(one_shard) as client:
        answer = client.post("/generate", json=body).json()
        greedy = ask(client, PROMPT, max_new_tokens=20)
    details = answer["details"]
    ids = [token["id"] for token in details["tokens"]]
    rows = witness.logprobs(prompt_ids, ids)
    for token, top, row in zip(details["tokens"], details["top_tokens"], rows, strict=True):
        assert token["logprob"] == pytest.approx(float(row[token["id"]]), abs=TIE)
        assert [other["logprob"] for other in top] == pytest.approx(row.topk(3).values.tolist(), abs=TIE)
        assert all(math.isfinite(other["logprob"]) and other["logprob"] <= 0 for other in (*top, token))
    assert min(token["logprob"] for token in details["tokens"]) < -0.1  # not flattened
    if temperature != 1.0:
        assert (ids, answer["generated_text"]) == (greedy.ids, greedy.text)


def test_penalties_are_private_and_neutral_at_their_neutral_value(one_shard: Server) -> None:
    """G15: greedy, in one batch, with prompts of other lengths."""
    length = {"max_new_tokens": 40}
    penalties: dict[str, dict[str, float]] = {
        "none": {},
        "frequency": {"frequency_penalty": 1.5},
        "neutral": {"repetition_penalty": 1.0, "frequency_penalty": 0.0},
        "repetition": {"repetition_penalty": 1.5},
    }
    with client_of(one_shard) as client:
        alone = {name: ask(client, PROMPT, **length, **penalty) for name, penalty in penalties.items()}
    questions = [Question(PROMPT, {**length, **penalty}) for penalty in penalties.values()]
    together = ask_at_once(one_shard, [*questions, *NEIGHBOURS])[: len(questions)]
    for (name, expected), answer in zip(alone.items(), together, strict=True):
        assert answer.ids == expected.ids, name
    assert alone["neutral"].ids == alone["none"].ids
    assert alone["repetition"].ids != alone["none"].ids
    # What was said is what is penalized: fewer tokens come again.
    assert len(set(alone["repetition"].ids)) > len(set(alone["none"].ids))
    assert among_others(one_shard, **length).ids == alone["none"].ids
