"""The native generating routes over real HTTP."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from tests.router.api.scripted import ANSWERS, EOS_ID, ids
from tests.router.api.streams import events, stream
from tests.support.router_server import RouterServer
from tests.support.shard_model import scripted_logprob
from text_generation_router.api.schema import GenerateResponse, StreamResponse, TextToken

CAPITAL = ANSWERS["capital"].removesuffix("</s>")


def generate(client: httpx.Client, prompt: str, **parameters: Any) -> dict[str, Any]:
    answer = client.post("/generate", json={"inputs": prompt, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def strictly(model: type[BaseModel], content: Any) -> None:
    """The content has the model's keys and no others, at any depth."""
    parsed = TypeAdapter(model).validate_python(content)
    assert json.loads(parsed.model_dump_json(exclude_unset=True)) == content


def test_an_answer_without_details_is_its_text_alone(client: httpx.Client) -> None:
    assert generate(client, "capital") == {"generated_text": CAPITAL}


def test_slash_answers_a_list_or_a_stream(client: httpx.Client) -> None:
    body: dict[str, Any] = {"inputs": "capital", "parameters": {}}
    assert client.post("/", json=body).json() == [{"generated_text": CAPITAL}]
    assert client.post("/", json={**body, "stream": None}).json() == [{"generated_text": CAPITAL}]
    streamed = client.post("/", json={**body, "stream": True})
    assert streamed.headers["content-type"] == "text/event-stream"
    assert events(streamed.content)[-1]["generated_text"] == CAPITAL
    # The path decides elsewhere.
    assert client.post("/generate", json={**body, "stream": True}).json() == {"generated_text": CAPITAL}


def test_details_list_every_token_and_the_eos_token_too(client: httpx.Client) -> None:
    details = generate(client, "capital", details=True)["details"]
    expected = ids(ANSWERS["capital"])
    assert [token["id"] for token in details["tokens"]] == list(expected)
    assert details["generated_tokens"] == len(expected)
    assert details["finish_reason"] == "eos_token"
    assert details["seed"] is None
    assert details["prefill"] == []
    assert details["tokens"][-1] == {
        "id": EOS_ID,
        "text": "</s>",
        "logprob": pytest.approx(scripted_logprob(EOS_ID)),
        "special": True,
    }
    assert not details.keys() & {"best_of_sequences", "top_tokens"}


def test_a_stream_has_the_tokens_of_the_plain_answer_and_ends_with_its_text(client: httpx.Client) -> None:
    plain = generate(client, "capital", details=True)
    streamed = stream(client, "capital", details=True)
    assert [event["token"] for event in streamed] == plain["details"]["tokens"]
    assert [event["index"] for event in streamed] == list(range(1, len(streamed) + 1))
    assert all(event["generated_text"] is None and event["details"] is None for event in streamed[:-1])
    assert all(event.keys() == {"index", "token", "generated_text", "details"} for event in streamed)
    assert streamed[-1]["generated_text"] == plain["generated_text"]
    assert streamed[-1]["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": len(streamed),
        "seed": None,
        "input_length": len(ids("capital")),
    }
    text = "".join(event["token"]["text"] for event in streamed if not event["token"]["special"])
    assert text == plain["generated_text"]


def test_stream_details_are_null_unless_asked_for(client: httpx.Client) -> None:
    last = stream(client, "capital")[-1]
    assert last["details"] is None
    assert last["generated_text"] == CAPITAL


def test_characters_arrive_whole_and_escaped(client: httpx.Client) -> None:
    """G17: U+2028 and U+0085 would end a line for some clients, so `events` also checks for ASCII."""
    streamed = stream(client, "emoji")
    assert "".join(event["token"]["text"] for event in streamed[:-1]) == "a😀é\u2028\u0085b한"
    assert not any("\ufffd" in event["token"]["text"] for event in streamed)
    assert generate(client, "emoji")["generated_text"] == "a😀é\u2028\u0085b한"


@pytest.mark.parametrize("num_tokens", [2, 3, 4])
def test_a_character_cut_off_by_the_length_is_flushed(client: httpx.Client, num_tokens: int) -> None:
    streamed = stream(client, "unfinished", max_new_tokens=num_tokens)
    text = "".join(event["token"]["text"] for event in streamed)
    assert text == streamed[-1]["generated_text"]
    assert text == ("x😀" if num_tokens == len(ids("x😀")) else "x\ufffd")


@pytest.mark.parametrize("stop", ["Pari", "ty of Par", "the", ",", " in the n"])
def test_a_stop_string_ends_the_text_at_its_own_place(client: httpx.Client, stop: str) -> None:
    """G01."""
    expected = CAPITAL[: CAPITAL.index(stop) + len(stop)]
    plain = generate(client, "capital", stop=["never", stop], details=True)
    assert plain["generated_text"] == expected
    assert plain["details"]["finish_reason"] == "stop_sequence"
    assert "".join(token["text"] for token in plain["details"]["tokens"]).startswith(expected)
    streamed = stream(client, "capital", stop=[stop], details=True)
    assert streamed[-1]["generated_text"] == expected
    assert streamed[-1]["details"]["finish_reason"] == "stop_sequence"
    assert [event["token"] for event in streamed] == plain["details"]["tokens"]


def test_stop_strings_are_per_request(client: httpx.Client) -> None:
    """G02."""
    stops: list[list[str]] = [["f"], ["zzz", "qq"], [], [""]]
    with ThreadPoolExecutor() as threads:
        texts = list(threads.map(lambda stop: generate(client, "capital", stop=stop)["generated_text"], stops))
    assert texts == [CAPITAL[: CAPITAL.index("f") + 1], CAPITAL, CAPITAL, CAPITAL]


def test_eos_on_the_last_allowed_token_is_length(client: httpx.Client) -> None:
    num_tokens = len(ids(ANSWERS["capital"]))
    answer = generate(client, "capital", max_new_tokens=num_tokens, details=True)
    assert answer["details"]["finish_reason"] == "length"
    assert answer["details"]["tokens"][-1]["special"]
    assert answer["generated_text"] == CAPITAL


@pytest.mark.parametrize("parameters", [{}, {"max_new_tokens": None}])
def test_without_a_length_the_answer_goes_on_until_the_limit(client: httpx.Client, parameters: dict[str, Any]) -> None:
    """G05."""
    details = generate(client, "no such prompt", details=True, **parameters)["details"]
    assert details["finish_reason"] == "length"
    assert details["generated_tokens"] == 1024 - len(ids("no such prompt"))


def test_full_text_is_the_prompt_as_sent_before_the_answer(client: httpx.Client) -> None:
    assert generate(client, "capital", return_full_text=True)["generated_text"] == "capital" + CAPITAL
    assert stream(client, "capital", return_full_text=True)[-1]["generated_text"] == "capital" + CAPITAL
    truncated = generate(client, "x capital", truncate=7, return_full_text=True)
    assert truncated["generated_text"] == "x capital" + CAPITAL


def test_prompt_details_list_the_last_tokens_after_truncation(client: httpx.Client) -> None:
    """G12 and G13."""
    parameters = {"truncate": 3, "decoder_input_details": True, "max_new_tokens": 1}
    details = generate(client, "q" * 3000 + "xyz", **parameters)["details"]
    assert details["prefill"] == [
        {"id": ids("x")[0], "text": "x", "logprob": None},
        {"id": ids("y")[0], "text": "y", "logprob": pytest.approx(scripted_logprob(ids("y")[0]))},
        {"id": ids("z")[0], "text": "z", "logprob": pytest.approx(scripted_logprob(ids("z")[0]))},
    ]


def test_top_tokens_are_listed_for_every_token(client: httpx.Client) -> None:
    details = generate(client, "capital", top_n_tokens=3, details=True)["details"]
    assert [len(tokens) for tokens in details["top_tokens"]] == [3] * details["generated_tokens"]
    assert all(tokens[0] == token for tokens, token in zip(details["top_tokens"], details["tokens"], strict=True))
    streamed = stream(client, "capital", top_n_tokens=3)
    assert [event["top_tokens"] for event in streamed] == details["top_tokens"]
    assert "top_tokens" not in generate(client, "capital", top_n_tokens=0, details=True)["details"]


def test_seeds_are_reported_when_they_matter(client: httpx.Client) -> None:
    def seed(**parameters: Any) -> int | None:
        result: int | None = generate(client, "capital", details=True, **parameters)["details"]["seed"]
        return result

    assert seed(seed=5) is None
    assert seed(seed=2**64 - 1, do_sample=True) == 2**64 - 1
    assert seed(temperature=0.7) is not None
    assert seed(do_sample=True) != seed(do_sample=True)
    assert stream(client, "capital", details=True, top_k=3, seed=7)[-1]["details"]["seed"] == 7


def test_best_of_returns_the_other_sequences_with_seeds_of_their_own(client: httpx.Client) -> None:
    answer = generate(client, "capital", best_of=2, do_sample=True, details=True, return_full_text=True)
    (other,) = answer["details"]["best_of_sequences"]
    assert other["seed"] != answer["details"]["seed"]
    assert other["generated_text"] == "capital" + CAPITAL
    assert "best_of_sequences" not in other
    strictly(GenerateResponse, answer)


def test_answers_have_the_documented_shape(client: httpx.Client) -> None:
    details = {"details": True, "decoder_input_details": True, "top_n_tokens": 2}
    strictly(GenerateResponse, generate(client, "capital", **details))
    for event in stream(client, "capital", details=True, top_n_tokens=2):
        strictly(StreamResponse, event)
    for token in client.post("/tokenize", json={"inputs": "é"}).json():
        strictly(TextToken, token)


def test_plain_answers_have_timing_headers(client: httpx.Client) -> None:
    headers = client.post("/generate", json={"inputs": "é capital", "parameters": {"max_new_tokens": 4}}).headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == "9"
    assert headers["x-prompt-tokens"] == str(len(ids("é capital")))
    assert headers["x-generated-tokens"] == "4"
    assert 0 < float(headers["x-compute-time"]) < 10
    total = int(headers["x-total-time"])
    parts = [int(headers[f"x-{name}-time"]) for name in ("validation", "queue", "inference")]
    assert total - 3 <= sum(parts) <= total
    assert int(headers["x-time-per-token"]) <= total


def test_streams_have_their_headers_exactly(client: httpx.Client) -> None:
    headers = client.post("/generate_stream", json={"inputs": "capital"}).headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == "7"
    assert "x-total-time" not in headers


def test_nulls_and_unknown_fields_are_taken(client: httpx.Client) -> None:
    from text_generation_router.parameters import GenerateParameters

    nulls = dict.fromkeys(GenerateParameters.model_fields)
    body = {"inputs": "capital", "parameters": {**nulls, "stop_sequences": ["x"]}, "options": {"use_cache": False}}
    assert client.post("/generate", json=body).json() == {"generated_text": CAPITAL}
    assert client.post("/generate", json={"inputs": "capital", "parameters": None}).status_code == 200


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": ""}, "Input validation error: `inputs` cannot be empty"),
        ({"parameters": {"temperature": 0}}, "Input validation error: `temperature` must be strictly positive"),
        (
            {"parameters": {"stop": list("abcde")}},
            "Input validation error: `stop` supports up to 4 stop sequences. Given: 5",
        ),
        (
            {"parameters": {"truncate": 513}},
            "Input validation error: `truncate` must be strictly positive and less than 512. Given: 513",
        ),
        (
            {"parameters": {"grammar": {"type": "json", "value": {}}}},
            "Input validation error: grammar is not valid: Grammar must have a 'properties' field",
        ),
        ({"parameters": {"adapter_id": "x"}}, "Input validation error: `adapter_id` is not supported"),
        ({"inputs": ["a"]}, "inputs: Input should be a valid string"),
        ({"parameters": {"max_new_tokens": "ten"}}, "parameters.max_new_tokens: Input should be a valid integer"),
        (
            {"parameters": {"max_new_tokens": -1}},
            "parameters.max_new_tokens: Input should be greater than or equal to 0",
        ),
        ({"parameters": {"seed": 2**64}}, "parameters.seed"),
        ({"parameters": []}, "parameters: "),
    ],
)
def test_wrong_requests_are_refused_alike_on_every_route(
    client: httpx.Client, path: str, body: dict[str, Any], message: str
) -> None:
    """G03."""
    answer = client.post(path, json={"inputs": "x", **body})
    assert answer.status_code == 422
    assert answer.json().keys() == {"error", "error_type"}
    assert answer.json()["error_type"] == "validation"
    assert message in answer.json()["error"]


def test_streams_refuse_before_they_begin(client: httpx.Client) -> None:
    for parameters in ({"best_of": 2, "do_sample": True}, {"decoder_input_details": True}):
        answer = client.post("/generate_stream", json={"inputs": "x", "parameters": parameters})
        assert answer.status_code == 422
        assert "when streaming tokens" in answer.json()["error"]


def test_fifty_requests_for_one_token_end_like_any_other(server: RouterServer) -> None:
    """G20."""
    with server.client(limits=httpx.Limits(max_connections=50)) as client, ThreadPoolExecutor(50) as threads:
        plain = threads.map(lambda _: generate(client, "capital", max_new_tokens=1, details=True), range(25))
        streamed = threads.map(lambda _: stream(client, "capital", max_new_tokens=1, details=True), range(25))
        for answer, (event,) in zip(plain, streamed, strict=True):
            assert answer["details"]["finish_reason"] == event["details"]["finish_reason"] == "length"
            assert answer["generated_text"] == event["generated_text"] == " the"


def test_logprobs_are_finite_numbers(client: httpx.Client) -> None:
    details = generate(client, "capital", details=True, top_n_tokens=2)["details"]
    logprobs = [token["logprob"] for token in details["tokens"]]
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in logprobs)


def test_a_key_that_is_not_documented_is_noticed() -> None:
    """`strictly` would be no test if it let additional keys pass."""
    with pytest.raises(AssertionError):
        strictly(GenerateResponse, {"generated_text": "x", "more": 1})
