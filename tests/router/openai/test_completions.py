"""/v1/completions over real HTTP, with a scripted shard."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.router.api.scripted import EOS_ID, ids
from tests.router.openai.asking import COMPLETIONS, complete, stream_completion, text
from tests.router.openai.scripted import PROMPTS, shown
from tests.router.openai.shapes import strictly
from tests.support.shard_model import scripted_logprob
from text_generation_router.openai.schema import Completion

CAPITAL, OTHER = shown(PROMPTS["capital"]), shown(PROMPTS["other"])


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_an_answer_has_openais_words(client: httpx.Client) -> None:
    """G07."""
    answer = complete(client, "capital", model="gpt-4")
    strictly(Completion, answer)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "tiny"  # never the request's here
    assert answer["choices"] == [{"index": 0, "text": CAPITAL, "logprobs": None, "finish_reason": "stop"}]
    num_tokens = len(ids(PROMPTS["capital"]))
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": num_tokens, "total_tokens": 7 + num_tokens}


def test_a_stream_has_openais_words(client: httpx.Client) -> None:
    """G07."""
    events = stream_completion(client, "capital")
    for event in events:
        strictly(Completion, event)
    assert text(events) == CAPITAL
    *before, last = events
    assert all(event["choices"][0]["finish_reason"] is None for event in before)
    assert all("usage" not in event for event in before)
    assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert last["usage"] == complete(client, "capital")["usage"]
    assert stream_completion(client, "capital", max_tokens=2)[-1]["choices"][0]["finish_reason"] == "length"


def test_usage_of_all_prompts_comes_last_if_asked_for(client: httpx.Client) -> None:
    *events, last = stream_completion(client, ["capital", "other"], stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == complete(client, ["capital", "other"])["usage"]
    assert not any("usage" in event for event in events)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("other", [OTHER]),
        (["other"], [OTHER]),
        (["other", "capital", "other"], [OTHER, CAPITAL, OTHER]),
        (list(ids("other")), [OTHER]),
        ([list(ids("capital")), list(ids("other"))], [CAPITAL, OTHER]),
    ],
)
def test_prompts_are_texts_or_token_ids_or_lists_of_them(
    client: httpx.Client, prompt: Any, expected: list[str]
) -> None:
    answer = complete(client, prompt)
    assert texts(answer) == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    events = stream_completion(client, prompt)
    assert [text(events, index) for index in range(len(expected))] == expected


def test_prompts_are_streamed_side_by_side(client: httpx.Client) -> None:
    events = stream_completion(client, ["longer", "longer"], max_tokens=30)
    indexes = [event["choices"][0]["index"] for event in events]
    assert indexes.count(0) == indexes.count(1) == 30
    assert indexes[:30] != [0] * 30


@pytest.mark.parametrize("stop", [" city", ["zzz", " city"], "ity of"])
def test_the_text_ends_before_a_stop_string(client: httpx.Client, stop: str | list[str]) -> None:
    """G01."""
    expected = CAPITAL[: CAPITAL.index(stop if isinstance(stop, str) else " city")]
    answer = complete(client, "capital", stop=stop)
    assert (texts(answer), answer["choices"][0]["finish_reason"]) == ([expected], "stop")
    assert text(stream_completion(client, "capital", stop=stop)) == expected


def test_several_choices_follow_their_prompt(client: httpx.Client) -> None:
    answer = complete(client, ["capital", "other"], n=2)
    assert texts(answer) == [CAPITAL, CAPITAL, OTHER, OTHER]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == len(ids("capital")) + len(ids("other"))
    events = stream_completion(client, ["capital", "other"], n=2)
    assert [text(events, index) for index in range(4)] == [CAPITAL, CAPITAL, OTHER, OTHER]


def test_best_of_generates_more_than_it_returns(client: httpx.Client) -> None:
    answer = complete(client, "capital", best_of=3, n=2)
    assert texts(answer) == [CAPITAL, CAPITAL]
    assert answer["usage"]["completion_tokens"] == 3 * len(ids(PROMPTS["capital"]))
    assert texts(complete(client, "capital", best_of=2)) == [CAPITAL]


@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_is_the_prompt_before_the_text(client: httpx.Client, as_ids: bool) -> None:
    """G10."""
    prompt: Any = list(ids("capital")) if as_ids else "capital"
    assert texts(complete(client, prompt, echo=True)) == ["capital" + CAPITAL]
    assert text(stream_completion(client, prompt, echo=True)) == "capital" + CAPITAL
    assert texts(complete(client, prompt, echo=True, stop="city")) == ["capital the "]


def test_an_echo_of_token_ids_shows_special_tokens_and_broken_characters(client: httpx.Client) -> None:
    prompt = [*ids("a"), EOS_ID, ids("😀")[0]]
    assert texts(complete(client, prompt, echo=True, max_tokens=1))[0].startswith("a</s>\ufffd")


def test_logprobs_are_four_lists(client: httpx.Client) -> None:
    choice = complete(client, "capital", logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    expected = ids(PROMPTS["capital"])
    assert logprobs["token_logprobs"] == pytest.approx(list(map(scripted_logprob, expected)))
    assert "".join(logprobs["tokens"]) == PROMPTS["capital"]
    assert logprobs["text_offset"][:3] == [0, 4, 5]
    for token, logprob, tops in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert tops[token] == logprob
        assert len(tops) == 2
    events = stream_completion(client, "capital", logprobs=2)
    streamed = [event["choices"][0]["logprobs"] for event in events]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in streamed for value in part[name]] == logprobs[name]
    assert complete(client, "capital", logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] is None


def test_an_echo_with_logprobs_has_those_of_the_prompt(client: httpx.Client) -> None:
    logprobs = complete(client, "capital", logprobs=0, echo=True, max_tokens=1)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [*"capital", " the"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(
        [scripted_logprob(token_id) for token_id in (*ids("capital")[1:], ids(" the")[0])]
    )
    assert logprobs["text_offset"] == list(range(8))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fields", "said", "error_type"),
    [
        (
            {"prompt": []},
            "prompt: Value error, Empty array detected. Do not use an empty array for the prompt.",
            "validation",
        ),
        ({"prompt": ""}, "Input validation error: `inputs` cannot be empty", "validation"),
        ({"prompt": [[]]}, "Input validation error: `inputs` cannot be empty", "validation"),
        ({"prompt": None}, "prompt", "validation"),
        ({"prompt": [[1], "x"]}, "prompt", "validation"),
        ({"prompt": [-1]}, "token id -1 is not one of the model's 264", "validation"),
        ({"prompt": [264]}, "token id 264 is not one of the model's 264", "validation"),
        ({"prompt": ["x"] * 5}, "Number of prompts exceeds the maximum allowed batch size of 4", "batch size exceeded"),
        (
            {"suffix": ""},
            "Suffix is not supported and can be achieved by preprocessing the prompt.",
            "suffix not supported",
        ),
        ({"top_p": 1.5}, "Input validation error: `top_p` must be > 0.0 and < 1.0", "validation"),
        ({"temperature": -1}, "Input validation error: `temperature` must be strictly positive", "validation"),
        ({"frequency_penalty": -3}, "`frequency_penalty` must be >= -2.0 and <= 2.0", "validation"),
        ({"max_tokens": 0}, "Input validation error: `max_new_tokens` must be strictly positive", "validation"),
        ({"logprobs": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6", "validation"),
        ({"best_of": 1, "n": 2}, "`best_of` must be >= `n`. Given: 1 and 2", "validation"),
        ({"echo": True, "logprobs": 1}, "`echo` with `logprobs`", "validation"),
        ({"prompt": ["x", ""]}, "Input validation error: `inputs` cannot be empty", "validation"),
    ],
)
def test_wrong_requests_are_refused(
    client: httpx.Client, streamed: bool, fields: dict[str, Any], said: str, error_type: str
) -> None:
    """G03: before the stream begins."""
    answer = client.post(COMPLETIONS, json={"prompt": "x", "stream": streamed, **fields})
    assert answer.status_code == 422
    assert answer.json()["error_type"] == error_type
    assert said in answer.json()["error"]


@pytest.mark.parametrize("fields", [{"best_of": 2}, {"echo": True, "logprobs": 0}])
def test_what_a_stream_cannot_do_is_refused(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": "x", "stream": True, **fields})
    assert answer.status_code == 422
    assert "not supported when streaming" in answer.json()["error"]


def test_headers_are_sums_over_the_prompts(client: httpx.Client) -> None:
    headers = client.post(COMPLETIONS, json={"prompt": ["capital", "other"], "max_tokens": 2}).headers
    assert headers["x-compute-characters"] == "12"
    assert headers["x-prompt-tokens"] == str(len(ids("capital")) + len(ids("other")))
    assert headers["x-generated-tokens"] == "4"
    assert headers["x-compute-type"] == "cpu"
    assert "x-compute-time" not in headers
    assert int(headers["x-total-time"]) >= 0
