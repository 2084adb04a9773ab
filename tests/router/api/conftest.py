"""One router for the tests of this folder, with a scripted shard that gives known answers to known prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from text_generation_router.tokenizer import Tokenizer

from tests.support.router_server import RouterServer, answering, router_server
from tests.support.scripted_shard import ScriptedShard
from tests.support.tokenizers import byte_level_tokenizer

PACKAGE = byte_level_tokenizer()
EOS_ID = PACKAGE.token_to_id("</s>") or 0
VOCAB_SIZE = 256  # of the scripted shard's own answers: single bytes
ANSWERS = {
    "capital": " the city of Paris, in the north.</s>",
    "emoji": "a😀é\u2028\u0085b한</s>",
    "unfinished": "x😀",
    "long": "ab" * 400,
}


def ids(text: str) -> tuple[int, ...]:
    return tuple(PACKAGE.encode(text, add_special_tokens=False).ids)


def new_tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(), frozenset({EOS_ID}))


def new_shard(folder: Path, *, step_s: float = 0.0, fail_at_step: int | None = None) -> ScriptedShard:
    rule = answering({ids(prompt): ids(answer) for prompt, answer in ANSWERS.items()}, VOCAB_SIZE)
    return ScriptedShard(
        str(folder / "s-0"),
        next_token=rule,
        vocab_size=PACKAGE.get_vocab_size(),
        step_s=step_s,
        fail_at_step=fail_at_step,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    with router_server(new_shard(tmp_path_factory.mktemp("shard")), new_tokenizer(), max_input_tokens=512) as running:
        yield running


@pytest.fixture
def client(server: RouterServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
