"""Spaces of a tokenizer that has them in its tokens, as Llama 2's and Mistral's: none is lost, none is invented."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.router.api.streams import stream
from tests.router.openai.asking import complete, stream_completion, text
from tests.support.router_server import answering, router_server
from tests.support.scripted_shard import ScriptedShard
from tests.support.tokenizers import byte_fallback_tokenizer
from text_generation_router.tokenizer import Tokenizer

PACKAGE = byte_fallback_tokenizer()
# What the prompt is (none begins another), and the tokens that follow. `▁` is the space that a token begins with.
ANSWERS = {
    "the": ["▁a", "▁b", "e", "a", "▁", "th", "e", "</s>"],  # after a whole word
    "a b": ["a", "th", "▁th", "e", "</s>"],  # in the middle of one
    "b ": ["a", "▁a", "</s>"],  # after a space
    "x": ["▁▁", "▁", "a", "▁▁", "b", "</s>"],  # several at once
    "y": ["▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁", "é", "</s>"],  # around a character in four pieces
}
TEXTS = {
    "the": " a bea the",
    "a b": "ath the",
    "b ": "a a",
    "x": "   a  b",
    "y": " 😀 é",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    answers = {
        tuple(PACKAGE.encode(prompt).ids): [PACKAGE.token_to_id(token) or 0 for token in tokens]
        for prompt, tokens in ANSWERS.items()
    }
    size = PACKAGE.get_vocab_size()
    path = tmp_path_factory.mktemp("shard") / "s-0"
    shard = ScriptedShard(str(path), next_token=answering(answers, size), vocab_size=size)
    with router_server(shard, Tokenizer(PACKAGE, frozenset({2}))) as server, server.client() as client:
        yield client


def test_tokens_are_what_they_are_meant_to_be() -> None:
    assert all(PACKAGE.token_to_id(token) is not None for tokens in ANSWERS.values() for token in tokens)


@pytest.mark.parametrize("prompt", ANSWERS)
def test_streamed_pieces_join_to_the_plain_text_with_its_spaces(client: httpx.Client, prompt: str) -> None:
    """G18: and a prompt that ends within a word goes on within it."""
    body = {"inputs": prompt, "parameters": {"return_full_text": False}}
    assert client.post("/generate", json=body).json() == {"generated_text": TEXTS[prompt]}
    streamed = stream(client, prompt)
    assert "".join(event["token"]["text"] for event in streamed[:-1]) == TEXTS[prompt]
    assert streamed[-1]["generated_text"] == TEXTS[prompt]
    assert complete(client, prompt)["choices"][0]["text"] == TEXTS[prompt]
    assert text(stream_completion(client, prompt)) == TEXTS[prompt]


@pytest.mark.parametrize("prompt", ANSWERS)
def test_prompt_and_text_together_are_what_the_tokenizer_makes_of_all_tokens(client: httpx.Client, prompt: str) -> None:
    """G18."""
    body = {"inputs": prompt, "parameters": {"return_full_text": True, "details": True}}
    answer = client.post("/generate", json=body).json()
    answer_ids = [token["id"] for token in answer["details"]["tokens"]]
    assert answer["generated_text"] == PACKAGE.decode(PACKAGE.encode(prompt).ids + answer_ids)
