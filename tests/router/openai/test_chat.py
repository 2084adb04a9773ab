"""/v1/chat/completions over real HTTP, with a scripted shard."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.router.api.scripted import ids
from tests.router.openai.asking import CHAT, chat, content, post, stream_chat, user
from tests.router.openai.scripted import CHATS, rendered, shown
from tests.router.openai.shapes import strictly
from tests.support.router_server import RouterServer
from tests.support.shard_model import scripted_logprob
from text_generation_router.openai.schema import ChatCompletion, ChatCompletionChunk, ChatRequest

CAPITAL = shown(CHATS["capital"])
PROMPT_LENGTH = len(ids(rendered("capital")))


def message(answer: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = answer["choices"][0]["message"]
    return result


def test_an_answer_has_openais_words(client: httpx.Client) -> None:
    """G07."""
    answer = chat(client, "capital")
    strictly(ChatCompletion, answer)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["id"] != chat(client, "capital")["id"]
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": CAPITAL},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    num_tokens = len(ids(CHATS["capital"]))
    assert answer["usage"] == {
        "prompt_tokens": PROMPT_LENGTH,
        "completion_tokens": num_tokens,
        "total_tokens": PROMPT_LENGTH + num_tokens,
    }
    assert chat(client, "capital", max_tokens=3)["choices"][0]["finish_reason"] == "length"


def test_a_stream_has_openais_words(client: httpx.Client) -> None:
    """G07 and G21."""
    events = stream_chat(client, "capital")
    for event in events:
        strictly(ChatCompletionChunk, event)
        assert event["object"] == "chat.completion.chunk"
        assert event["choices"][0]["index"] == 0
        assert event["usage"] is None
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert len(events) == len(ids(CHATS["capital"]))
    assert content(events) == CAPITAL
    *before, last = (event["choices"][0] for event in events)
    assert last == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert all(choice["finish_reason"] is None for choice in before)


def test_the_last_tokens_event_has_its_text_and_the_reason(client: httpx.Client) -> None:
    """As in TGI 3: one event a token, none of them for the reason alone."""
    events = stream_chat(client, "capital", max_tokens=2)
    assert [event["choices"][0]["delta"]["content"] for event in events] == [" the", " "]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, "length"]


@pytest.mark.parametrize("question", CHATS.keys() - {"unfinished"})
def test_streamed_text_is_the_plain_text(client: httpx.Client, question: str) -> None:
    """G17 and G21: whole characters, no special token."""
    plain = message(chat(client, question, max_tokens=60))["content"]
    assert plain == shown(CHATS[question])[:60]
    assert content(stream_chat(client, question, max_tokens=60)) == plain


def test_an_unfinished_character_comes_at_the_end(client: httpx.Client) -> None:
    assert message(chat(client, "unfinished", max_tokens=2))["content"] == "x\ufffd"
    assert content(stream_chat(client, "unfinished", max_tokens=2)) == "x\ufffd"


@pytest.mark.parametrize("stop", ["Pari", "ty of Par", "the", ",", " in the n", " "])
@pytest.mark.parametrize("as_list", [True, False])
def test_the_text_ends_before_a_stop_string(client: httpx.Client, stop: str, as_list: bool) -> None:
    """G01."""
    expected = CAPITAL[: CAPITAL.index(stop)]
    plain = chat(client, "capital", stop=["never", stop] if as_list else stop)
    assert message(plain)["content"] == expected
    assert plain["choices"][0]["finish_reason"] == "stop"
    events = stream_chat(client, "capital", stop=["never", stop] if as_list else stop)
    assert content(events) == expected
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(events) == plain["usage"]["completion_tokens"]


def test_a_stop_string_on_the_last_allowed_token_is_cut_too(client: httpx.Client) -> None:
    answer = chat(client, "capital", stop=" the", max_tokens=1)
    assert message(answer)["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_only_what_may_begin_a_stop_string_is_held_back(client: httpx.Client) -> None:
    """The text " the city of P" has come when P is read: all but P can be shown by then."""
    deltas = [
        event["choices"][0]["delta"]["content"] for event in stream_chat(client, "capital", stop="Pax", max_tokens=13)
    ]
    position = deltas.index("")
    assert "".join(deltas[:position]) == " the city of "
    assert deltas[position + 1] == ""  # Pa
    assert deltas[position + 2] == "Par"


def test_usage_comes_last_if_asked_for(client: httpx.Client) -> None:
    *events, last = stream_chat(client, "capital", stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == chat(client, "capital")["usage"]
    strictly(ChatCompletionChunk, last)
    assert all(event["usage"] is None for event in events)
    assert stream_chat(client, "capital", stream_options=None)[-1]["choices"]


def test_logprobs_are_listed_for_each_token_and_eos_too(client: httpx.Client) -> None:
    """G10."""
    answer = chat(client, "capital", logprobs=True, top_logprobs=3)
    strictly(ChatCompletion, answer)
    entries = answer["choices"][0]["logprobs"]["content"]
    expected = ids(CHATS["capital"])
    assert [entry["logprob"] for entry in entries] == pytest.approx(list(map(scripted_logprob, expected)))
    assert entries[-1]["token"] == "</s>"
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    assert entries[0]["top_logprobs"][0] == {"token": " the", "logprob": entries[0]["logprob"]}
    events = stream_chat(client, "capital", logprobs=True, top_logprobs=3)
    assert [event["choices"][0]["logprobs"]["content"] for event in events] == [[entry] for entry in entries]
    without = chat(client, "capital", logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in without)
    assert chat(client, "capital", top_logprobs=3)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("n", [1, 2, 5])
def test_several_choices_have_indexes(client: httpx.Client, n: int) -> None:
    """G10."""
    answer = chat(client, "capital", n=n, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == list(range(n))
    assert [choice["message"]["content"] for choice in answer["choices"]] == [" the ci"] * n
    assert answer["usage"]["prompt_tokens"] == PROMPT_LENGTH
    assert answer["usage"]["completion_tokens"] == 4 * n
    events = stream_chat(client, "capital", n=n, max_tokens=4, stream_options={"include_usage": True})
    for index in range(n):
        assert content(events, index) == " the ci"
    assert events[-1]["usage"] == answer["usage"]
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons.count("length") == n


def test_openais_ranges_are_taken(client: httpx.Client) -> None:
    """G04."""
    neutral = {"temperature": 0, "top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}
    assert message(chat(client, "capital", **neutral))["content"] == CAPITAL


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
def test_without_a_length_the_answer_goes_on_until_the_limit(client: httpx.Client, fields: dict[str, Any]) -> None:
    """G05."""
    usage = chat(client, "no such question", **fields)["usage"]
    assert usage["total_tokens"] == 1024


def test_max_completion_tokens_wins(client: httpx.Client) -> None:
    """G05."""
    assert chat(client, "long", max_completion_tokens=7)["usage"]["completion_tokens"] == 7
    assert chat(client, "long", max_completion_tokens=7, max_tokens=3)["usage"]["completion_tokens"] == 7


def test_any_model_name_is_served(client: httpx.Client) -> None:
    """G43: and echoed, but for the names that mean none."""
    names = {name: chat(client, "capital", model=name)["model"] for name in ("gpt-4", "tgi", None)}
    assert names == {"gpt-4": "gpt-4", "tgi": "tiny", None: "tiny"}
    assert stream_chat(client, "capital", model='a"é')[0]["model"] == 'a"é'


def test_a_prompt_has_the_templates_special_tokens_and_no_others(client: httpx.Client) -> None:
    """G22: the template wrote one."""
    answer = post(client, "/chat_tokenize", {"messages": user("é")})
    assert answer["templated_text"] == rendered("é")
    tokens = answer["tokenize_response"]
    assert [token["id"] for token in tokens] == list(ids(rendered("é")))
    text = rendered("é").encode()
    assert "".join(token["text"] for token in tokens) == rendered("é")
    assert all(text[token["start"] : token["stop"]].decode() == token["text"] for token in tokens)


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        (
            [*user("a"), {"role": "assistant", "content": "the cit"}],
            f"{rendered('a').removesuffix('[assistant]')}[assistant]the cit",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], rendered("ab")),
        ([{"role": "user", "content": "a", "name": None, "tool_calls": None}], rendered("a")),
        ([{"role": "user", "content": ""}], rendered("")),
    ],
)
def test_message_shapes(client: httpx.Client, messages: list[dict[str, Any]], prompt: str) -> None:
    """G06."""
    assert post(client, "/chat_tokenize", {"messages": messages})["templated_text"] == prompt


def test_nulls_and_unknown_fields_are_taken(client: httpx.Client) -> None:
    nulls = dict.fromkeys(name for name in ChatRequest.model_fields if name != "messages")
    unknown = {"user": "x", "metadata": {}, "options": 1, "parallel_tool_calls": False, "store": True}
    body = {"messages": user("capital"), **nulls, **unknown}
    assert message(post(client, CHAT, body))["content"] == CAPITAL


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "`messages` cannot be empty"),
        ({"messages": None}, "messages: Input should be a valid list"),
        ({"messages": [{"role": "user"}]}, "`messages[0]` must have `content` or `tool_calls`"),
        ({"messages": [{"role": "user", "content": None}]}, "`messages[0]` must have `content` or `tool_calls`"),
        ({"messages": [{"content": "x"}]}, "messages.0.role: Field required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "`messages[0].content[0]`: image modality is not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
            '`messages[0].content[0]` must be {"type": "text", "text": ...}. Given type: audio',
        ),
        ({"temperature": -1}, "Input validation error: `temperature` must be strictly positive"),
        ({"top_p": 1.5}, "Input validation error: `top_p` must be > 0.0 and < 1.0"),
        ({"top_p": 0}, "Input validation error: `top_p` must be > 0.0 and < 1.0"),
        ({"top_p": 1.5, "temperature": 0}, "Input validation error: `top_p` must be > 0.0 and < 1.0"),
        ({"top_k": 0}, "Input validation error: `top_k` must be strictly positive"),
        ({"frequency_penalty": 3}, "Input validation error: `frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"presence_penalty": 3}, "presence_penalty: Input should be less than or equal to 2. Given: 3"),
        ({"repetition_penalty": 0}, "Input validation error: `repetition_penalty` must be strictly positive"),
        ({"max_tokens": 0}, "Input validation error: `max_new_tokens` must be strictly positive"),
        ({"max_tokens": "ten"}, "max_tokens: Input should be a valid integer"),
        ({"stop": list("abcde")}, "Input validation error: `stop` supports up to 4 stop sequences. Given: 5"),
        ({"logprobs": True, "top_logprobs": 99}, "`top_n_tokens` must be >= 0 and <= 5. Given: 99"),
        ({"n": 0}, "n: Input should be greater than or equal to 1. Given: 0"),
        ({"n": 129}, "n: Input should be less than or equal to 128. Given: 129"),
        ({"logit_bias": {"x": 1}}, "`logit_bias` keys must be token ids from 0 to 263. Given: x"),
        ({"logit_bias": {"264": 1}}, "`logit_bias` keys must be token ids from 0 to 263. Given: 264"),
        ({"logit_bias": {"-1": 1}}, "Given: -1"),
        ({"logit_bias": {"9" * 5000: 1}}, "`logit_bias` keys"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1: Input should be less than or equal to 100"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"functions": [{"name": "f"}]}, "`functions` is not supported: use `tools`"),
        ({"function_call": "auto"}, "`function_call` is not supported: use `tool_choice`"),
        ({"audio": {}}, "`audio` is not supported"),
        ({"web_search_options": {}}, "`web_search_options` is not supported"),
        (
            {"response_format": {"type": "xml"}},
            "must be one of text, json_object, json_schema, json, regex. Given: xml",
        ),
        ({"response_format": {}}, "must be one of text, json_object, json_schema, json, regex. Given: None"),
        ({"response_format": {"type": "json"}}, "`response_format.value` is missing"),
        ({"response_format": {"type": "regex", "value": 3}}, "must be a regular expression as a text"),
        ({"response_format": {"type": "regex", "value": "("}}, "grammar is not valid: "),
        ({"response_format": {"type": "json_schema"}}, "`response_format.json_schema.schema` is missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "schema` is missing"),
    ],
)
def test_wrong_requests_are_refused(client: httpx.Client, streamed: bool, fields: dict[str, Any], said: str) -> None:
    """G03: before the stream begins, by the message of the native rules where there is one."""
    answer = client.post(CHAT, json={"messages": user("x"), "stream": streamed, **fields})
    assert answer.status_code == 422
    assert answer.json().keys() == {"error", "error_type"}
    assert answer.json()["error_type"] == "validation"
    assert said in answer.json()["error"]


def test_too_long_a_conversation_is_refused(client: httpx.Client) -> None:
    answer = client.post(CHAT, json={"messages": user("q" * 600), "max_tokens": 1})
    assert answer.status_code == 422
    length = len(ids(rendered("q" * 600)))
    assert answer.json()["error"].endswith(f"`inputs` must have less than 512 tokens. Given: {length}")


def test_plain_answers_and_streams_have_their_headers(client: httpx.Client) -> None:
    plain = client.post(CHAT, json={"messages": user("capital"), "max_tokens": 4, "n": 2}).headers
    assert plain["x-compute-type"] == "cpu"
    assert plain["x-compute-characters"] == str(len(rendered("capital")))
    assert plain["x-generated-tokens"] == "8"
    assert 0 < float(plain["x-compute-time"]) < 10
    streamed = client.post(CHAT, json={"messages": user("capital"), "max_tokens": 4, "stream": True}).headers
    assert streamed["content-type"] == "text/event-stream"
    assert streamed["x-compute-characters"] == str(len(rendered("capital")))
    assert "x-total-time" not in streamed


def test_slashes_in_a_base_address_do_not_matter(server: RouterServer) -> None:
    for path in ("//v1/chat/completions", "/v1//chat/completions/"):
        answer = httpx.post(server.url + path, json={"messages": user("capital"), "max_tokens": 1}, trust_env=False)
        assert answer.status_code == 200
