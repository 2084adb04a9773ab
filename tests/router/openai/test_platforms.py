"""/v1/models, /invocations and /vertex."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.router.api.scripted import new_tokenizer
from tests.router.api.streams import events
from tests.router.openai.asking import chunks, content, post, text, user
from tests.router.openai.scripted import CHATS, PROMPTS, new_shard, shown
from tests.router.openai.shapes import strictly
from tests.support.router_server import router_server
from text_generation_router.openai.schema import Model, ModelList

CAPITAL = shown(PROMPTS["capital"])
CHAT_CAPITAL = shown(CHATS["capital"])


def test_the_one_model_is_listed(client: httpx.Client) -> None:
    """G43."""
    answer = client.get("/v1/models").json()
    strictly(ModelList, answer)
    assert answer["data"] == [{"id": "tiny", "object": "model", "created": 0, "owned_by": "tiny"}]
    assert client.head("/v1/models").status_code == 200
    one = client.get("/v1/models/tiny").json()
    strictly(Model, one)
    assert one == answer["data"][0]
    missing = client.get("/v1/models/gpt-4")
    assert missing.status_code == 404
    assert missing.json() == {"error": "Model gpt-4 is not served here; tiny is", "error_type": "not_found"}


@pytest.mark.parametrize("name", ["org/model", "/models/x"])
def test_a_model_may_have_slashes_in_its_name(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer(), model_id=name) as server, server.client() as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == name
        assert client.get(f"/v1/models/{name}").json()["id"] == name


def test_invocations_take_any_body(client: httpx.Client) -> None:
    greedy = {"temperature": 0}
    assert client.post("/invocations", json={"inputs": "capital", "parameters": {}}).json() == [
        {"generated_text": CAPITAL}
    ]
    chat = post(client, "/invocations", {"messages": user("capital"), **greedy})
    assert chat["choices"][0]["message"]["content"] == CHAT_CAPITAL
    assert post(client, "/invocations", {"prompt": "capital", **greedy})["choices"][0]["text"] == CAPITAL
    streamed = client.post("/invocations", json={"inputs": "capital", "parameters": {}, "stream": True})
    assert events(streamed.content)[-1]["generated_text"] == CAPITAL
    streamed = client.post("/invocations", json={"messages": user("capital"), "stream": True, **greedy})
    assert content(chunks(streamed.content)) == CHAT_CAPITAL
    streamed = client.post("/invocations", json={"prompt": "capital", "stream": True, **greedy})
    assert text(chunks(streamed.content)) == CAPITAL


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "inputs: Field required"),
        ({"inputs": None}, "inputs: Input should be a valid string"),
        ({"messages": 1}, "messages: Input should be a valid list"),
        ({"prompt": []}, "Empty array detected"),
        ([], "Input should be"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 0}}, "`max_new_tokens` must be strictly positive"),
    ],
)
def test_an_invocation_that_fits_none_is_refused(client: httpx.Client, body: Any, said: str) -> None:
    answer = client.post("/invocations", json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert said in answer.json()["error"]


def test_vertex_answers_several_at_once(client: httpx.Client) -> None:
    instances = [
        {"inputs": "capital", "parameters": {"max_new_tokens": 2, "seed": 1, "temperature": 9}},
        {"messages": user("capital"), "temperature": 0, "stop": " of"},
        {"inputs": "capital"},
    ]
    answer = post(client, "/vertex", {"instances": instances})
    assert answer == {"predictions": [CAPITAL[:5], CHAT_CAPITAL[: CHAT_CAPITAL.index(" of")], CAPITAL]}


def test_vertex_refuses_what_cannot_be_served(client: httpx.Client) -> None:
    answer = client.post("/vertex", json={"instances": []})
    assert answer.status_code == 422
    assert answer.json() == {"error": "Input validation error", "error_type": "Input validation error"}
    answer = client.post("/vertex", json={"instances": [{"inputs": "x"}, {"inputs": ""}]})
    assert answer.status_code == 422
    assert answer.json()["error"] == "Input validation error: `inputs` cannot be empty"
    assert client.post("/vertex", json={"instances": [{}]}).status_code == 422
