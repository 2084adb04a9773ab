"""Every switch of --compat, in every generation, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.support.router_server import RouterServer, router_server
from text_generation_router.compat import Compat, compat_for

GENERATIONS = ("default", "v3", "0.9")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RouterServer]]:
    """One of each generation."""
    folder = tmp_path_factory.mktemp
    with (
        router_server(new_shard(folder("s")), new_tokenizer()) as default,
        router_server(new_shard(folder("s")), new_tokenizer(), compat="v3") as v3,
        router_server(new_shard(folder("s")), new_tokenizer(), compat="0.9") as v0_9,
    ):
        yield {"default": default, "v3": v3, "0.9": v0_9}


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(servers: dict[str, RouterServer], generation: str) -> Iterator[httpx.Client]:
    with servers[generation].client() as client:
        yield client


def post(client: httpx.Client, path: str, **body: Any) -> httpx.Response:
    return client.post(path, json={"inputs": "capital", **body})


def test_space_after_data(client: httpx.Client, generation: str) -> None:
    answer = post(client, "/generate_stream", parameters={"max_new_tokens": 2, "details": True})
    first, last, rest = answer.content.split(b"\n\n")
    assert rest == b""
    prefix = b'data:{"' if generation == "0.9" else b'data: {"'
    assert first.startswith(prefix)
    assert last.startswith(prefix)


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
def test_errors_before_a_stream_begins(client: httpx.Client, generation: str, path: str) -> None:
    answer = post(client, path, parameters={"temperature": -1}, stream=True)
    error = {
        "error": "Input validation error: `temperature` must be strictly positive",
        "error_type": "validation",
    }
    if generation == "default":
        assert (answer.status_code, answer.json()) == (422, error)
        return
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    prefix = "data:" if generation == "0.9" else "data: "
    assert answer.text == f"{prefix}{json.dumps(error)}\n\n"


def test_bodies_that_cannot_be_read_have_a_status_in_every_generation(client: httpx.Client) -> None:
    assert client.post("/generate_stream", content=b"{").status_code == 400
    assert client.post("/generate_stream", json={"inputs": 3}).status_code == 422
    # Plain requests too.
    assert post(client, "/generate", parameters={"temperature": -1}).status_code == 422


def test_prompt_in_front_of_the_answer_by_default(client: httpx.Client, generation: str) -> None:
    # The scripted shard's model is a local folder, so 0.9.4 would not know its pipeline tag.
    prompt = "capital" if generation == "v3" else ""
    for parameters in ({"max_new_tokens": 1}, {"max_new_tokens": 1, "return_full_text": None}):
        assert post(client, "/", parameters=parameters).json() == [{"generated_text": f"{prompt} the"}]
        (event,) = post(client, "/", parameters=parameters, stream=True).text.split("\n\n")[:-1]
        assert json.loads(event.removeprefix("data:"))["generated_text"] == f"{prompt} the"
        # Elsewhere it is off in every generation.
        assert post(client, "/generate", parameters=parameters).json() == {"generated_text": " the"}
    for wanted, text in ((True, "capital the"), (False, " the")):
        answer = post(client, "/", parameters={"max_new_tokens": 1, "return_full_text": wanted})
        assert answer.json() == [{"generated_text": text}]


def test_models_of_a_hub_show_the_prompt_in_both_generations_of_tgi() -> None:
    assert compat_for("0.9", from_hub=True).full_text_by_default
    assert compat_for("v3", from_hub=True).full_text_by_default
    assert not compat_for("default", from_hub=True).full_text_by_default


def test_length_of_an_answer_that_is_not_limited(client: httpx.Client, generation: str) -> None:
    for parameters in ({"details": True}, {"details": True, "max_new_tokens": None}):
        details = client.post("/generate", json={"inputs": "x", "parameters": parameters}).json()["details"]
        assert details["finish_reason"] == "length"
        assert details["generated_tokens"] == (20 if generation == "0.9" else 1023)


def test_more_tokens_than_fit(client: httpx.Client, generation: str, servers: dict[str, RouterServer]) -> None:
    """1,024 fit; the prompt has 7."""
    given = {"max_new_tokens": 1018}
    answer = post(client, "/generate", parameters=given)
    assert answer.status_code == 422
    assert answer.json()["error"].endswith("Given: 7 `inputs` tokens and 1018 `max_new_tokens`")
    answer = post(client, "/generate", parameters={"max_new_tokens": 5000})
    counted = 5000 if generation == "0.9" else 1024
    assert answer.json()["error"].endswith(f"Given: 7 `inputs` tokens and {counted} `max_new_tokens`")


def test_more_than_a_slice_that_does_not_fit_is_cut_or_refused(
    generation: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shard = new_shard(tmp_path_factory.mktemp("s"))
    shard.max_total_tokens = 1100
    with router_server(shard, new_tokenizer(), compat=generation) as server, server.client() as client:
        answer = post(client, "/generate", parameters={"max_new_tokens": 5000, "stop": ["."]})
        assert answer.status_code == (422 if generation == "0.9" else 200)


def test_parameters_that_are_absent(client: httpx.Client, generation: str) -> None:
    """The seed shows whether an answer was sampled; without parameters it shows in nothing but the log."""
    compat = compat_for(generation)
    assert bool(compat.parameters(None).do_sample) == (generation != "0.9")
    answer = client.post("/generate", json={"inputs": "capital"})
    assert answer.status_code == 200
    assert answer.headers["x-generated-tokens"] == ("20" if generation == "0.9" else "27")


def test_compute_time(client: httpx.Client, generation: str) -> None:
    header = post(client, "/generate", parameters={"max_new_tokens": 1}).headers["x-compute-time"]
    assert header.isdecimal() == (generation == "0.9")
    assert 0 <= float(header) < 5000


@pytest.mark.parametrize("flag", [False, True])
def test_prefill(generation: str, flag: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    shard = new_shard(tmp_path_factory.mktemp("s"))
    with (
        router_server(shard, new_tokenizer(), compat=generation, enable_prefill_logprobs=flag) as server,
        server.client() as client,
    ):
        parameters = {"max_new_tokens": 1, "decoder_input_details": True}
        details = post(client, "/generate", parameters=parameters).json()["details"]
        is_empty = generation == "v3" and not flag
        assert [token["text"] for token in details["prefill"]] == ([] if is_empty else list("capital"))
        assert len(details["tokens"]) == 1
        assert post(client, "/generate_stream", parameters=parameters).text.count("when streaming tokens") == 1


def test_openai_routes_are_strict_in_v3_alone() -> None:
    assert [compat_for(name).lenient_openai for name in GENERATIONS] == [True, False, True]


def test_default_is_what_the_record_says_without_arguments() -> None:
    assert compat_for("default", prefill_logprobs=True, from_hub=True) == Compat()
