"""The token that begins a text: there is one, whoever writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from transformers import AutoTokenizer

from tests.router.openai.asking import CHAT, post, user
from tests.support.checkpoints import BOS_ID, DEFAULT_VOCAB_SIZE, make_tokenizer
from tests.support.router_server import router_server
from tests.support.scripted_shard import ScriptedShard
from text_generation_router.openai.templates import ChatTemplates
from text_generation_router.tokenizer import Tokenizer

WITH_BOS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
WITHOUT = WITH_BOS.removeprefix("{{ bos_token }}")


@contextmanager
def serving(folder: Path, template: str) -> Iterator[httpx.Client]:
    make_tokenizer(folder, add_bos=True)
    shard = ScriptedShard(str(folder / "s-0"), vocab_size=DEFAULT_VOCAB_SIZE)
    templates = ChatTemplates({"default": template}, {"bos_token": "<s>"})
    with router_server(shard, Tokenizer.from_folder(folder), templates) as server, server.client() as client:
        yield client


@pytest.mark.parametrize(("template", "num_bos"), [(WITH_BOS, 1), (WITHOUT, 0)], ids=["written", "not written"])
def test_a_chat_has_the_bos_that_its_template_writes(tmp_path: Path, template: str, num_bos: int) -> None:
    """G22: the tokenizer would add another; transformers counts as many tokens."""
    with serving(tmp_path, template) as client:
        body = {"messages": user("one two"), "max_tokens": 1}
        ids = [token["id"] for token in post(client, "/chat_tokenize", body)["tokenize_response"]]
        usage = post(client, CHAT, body)["usage"]
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        user("one two"), chat_template=template, return_dict=False
    )
    assert ids == expected
    assert ids.count(BOS_ID) == num_bos
    assert usage["prompt_tokens"] == len(ids)


def test_a_prompt_has_the_bos_that_the_tokenizer_adds(tmp_path: Path) -> None:
    """G22: once, on every route that takes a text."""
    with serving(tmp_path, WITH_BOS) as client:
        parameters = {"decoder_input_details": True, "max_new_tokens": 1}
        answer = post(client, "/generate", {"inputs": "one two", "parameters": parameters})
        ids = [token["id"] for token in answer["details"]["prefill"]]
        usage = post(client, "/v1/completions", {"prompt": "one two", "max_tokens": 1})["usage"]
    assert ids == AutoTokenizer.from_pretrained(tmp_path)("one two")["input_ids"]
    assert ids.count(BOS_ID) == 1
    assert usage["prompt_tokens"] == len(ids)
