"""Every rule over HTTP, on every generating route: its message to the byte, which of two is said, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
from tokenizers import models

from tests.router.api.scripted import ids, new_shard, new_tokenizer
from tests.router.broken_rules import (
    BEFORE_A_PLACE,
    BEFORE_A_STREAM,
    BROKEN,
    BROKEN_GRAMMARS,
    MAX_INPUT_TOKENS,
    MAX_TOTAL_TOKENS,
    Broken,
    can_be_sent_together,
)
from tests.router.openai.asking import CHAT, COMPLETIONS, user
from tests.router.openai.scripted import new_templates, rendered
from tests.support.router_server import RouterServer, router_server
from text_generation_router.tokenizer import Tokenizer

# A stream is refused before, if it asks for several sequences.
STREAMABLE = [broken for broken in BROKEN if "best_of" not in broken.given]
# In the order in which they are looked at.
PLAIN_RULES = [BEFORE_A_PLACE, *BROKEN, *BROKEN_GRAMMARS]
STREAM_RULES = [*BEFORE_A_STREAM, *STREAMABLE, *BROKEN_GRAMMARS]

PLAIN = [("/generate", False), ("/", False), ("/invocations", False)]
STREAMS = [("/generate_stream", True), ("/", True), ("/invocations", True)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    """No step has been asked of its shard when all tests are over."""
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    shard.max_total_tokens = MAX_TOTAL_TOKENS
    with router_server(shard, new_tokenizer(), new_templates(), max_input_tokens=MAX_INPUT_TOKENS) as running:
        num_steps = shard.model.num_steps
        yield running
        assert shard.model.num_steps == num_steps, "a request that is wrong has reached the shard"


@pytest.fixture
def client(server: RouterServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def refusal(client: httpx.Client, path: str, body: dict[str, Any]) -> str:
    """The message, after what all of them begin with."""
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert list(content) == ["error", "error_type"]
    assert content["error_type"] == "validation"
    prefix = "Input validation error: "
    assert content["error"].startswith(prefix)
    return str(content["error"]).removeprefix(prefix)


def together(broken: Sequence[Broken]) -> tuple[str, dict[str, Any]]:
    """The prompt, and the other fields, that break all of these."""
    fields = {name: value for one in broken for name, value in one.given.items()}
    return fields.pop("text", "x"), fields


def native(*broken: Broken, stream: bool) -> dict[str, Any]:
    text, parameters = together(broken)
    return {"inputs": text, "parameters": parameters, "stream": stream}


ROUTES_AND_RULES = [
    pytest.param(path, stream, broken, id=f"{path} {'stream ' if stream else ''}{broken}")
    for routes, rules in ((PLAIN, PLAIN_RULES), (STREAMS, STREAM_RULES))
    for path, stream in routes
    for broken in rules
]


@pytest.mark.parametrize(("path", "stream", "broken"), ROUTES_AND_RULES)
def test_each_rule_has_its_message_on_every_native_route(
    client: httpx.Client, path: str, stream: bool, broken: Broken
) -> None:
    """G03: and streams are refused by a status, before they begin."""
    assert refusal(client, path, native(broken, stream=stream)) == broken.message


def pairs(rules: Sequence[Broken]) -> Iterator[tuple[Broken, Broken]]:
    for first, second in combinations(rules, 2):
        if first.rule < second.rule and can_be_sent_together(first, second):
            yield first, second


@pytest.mark.parametrize(
    ("rules", "path", "stream"),
    [(PLAIN_RULES, "/generate", False), (STREAM_RULES, "/generate_stream", True)],
    ids=["plain", "stream"],
)
def test_of_two_broken_rules_the_earlier_is_said(
    client: httpx.Client, rules: Sequence[Broken], path: str, stream: bool
) -> None:
    for first, second in pairs(rules):
        assert refusal(client, path, native(first, second, stream=stream)) == first.message, f"{first} and {second}"


def test_every_neighbouring_pair_of_rules_is_among_them() -> None:
    """But for rules of one field, which a request breaks together anyway, and 2, which satisfies 1."""
    for rules, missing in ((PLAIN_RULES, {(0, 1), (1, 2), (14, 15)}), (STREAM_RULES, {(14, 15)})):
        numbers = sorted({broken.rule for broken in rules})
        neighbours = set(pairwise(numbers))
        assert neighbours - {(first.rule, second.rule) for first, second in pairs(rules)} == missing
    assert any(len(broken.given.get("text", "")) > MAX_INPUT_TOKENS for broken in BROKEN if broken.rule == 14)


# ------------------------------------------------------------------------------------------------ other servers


def test_several_sequences_where_they_are_switched_off(tmp_path: Path) -> None:
    with router_server(new_shard(tmp_path), new_tokenizer(), max_best_of=1) as server, server.client() as client:
        message = refusal(client, "/generate", {"inputs": "x", "parameters": {"best_of": 2, "temperature": -1}})
    assert message == "`best_of` != 1 is not allowed for this endpoint"


def test_grammars_where_they_are_switched_off(tmp_path: Path) -> None:
    running = router_server(new_shard(tmp_path), new_tokenizer(), disable_grammar_support=True)
    with running as server, server.client() as client:
        body = {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "("}}}
        assert refusal(client, "/generate", body) == "grammar is not supported"


def test_what_a_tokenizer_cannot_take_is_said_in_its_words(tmp_path: Path) -> None:
    """One that knows a single letter, and has no token for what it does not know. After rule 13, before rule 14."""
    package = tokenizers.Tokenizer(models.Unigram([("a", 0.0)], None))
    with pytest.raises(Exception, match="unk_id") as failure:
        package.encode("b")
    message = f"tokenizer error {failure.value}"
    body: dict[str, Any] = {"inputs": "b", "parameters": {}}
    with (
        router_server(new_shard(tmp_path), Tokenizer(package, frozenset({0})), max_input_tokens=512) as server,
        server.client() as client,
    ):
        assert refusal(client, "/generate", body) == message
        assert refusal(client, "/generate_stream", body) == message
        body["parameters"]["max_new_tokens"] = 5000
        assert refusal(client, "/generate", body) == message
        body["parameters"]["truncate"] = 0
        assert refusal(client, "/generate", body).startswith("`truncate` must be strictly positive")
        assert refusal(client, "/v1/completions", {"prompt": "b"}) == message


# ------------------------------------------------------------------------------------------------ OpenAI's routes

# As in BROKEN, with `text` for the prompt or the message.
COMPLETION_RULES = [
    Broken(2, {"temperature": -1}, "`temperature` must be strictly positive"),
    Broken(3, {"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
    Broken(4, {"frequency_penalty": 3}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    Broken(5, {"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
    Broken(5, {"top_p": 1.5}, "`top_p` must be > 0.0 and < 1.0"),
    Broken(7, {"top_k": 0}, "`top_k` must be strictly positive"),
    Broken(8, {"max_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    Broken(9, {"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5"),
    Broken(11, {"logprobs": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    Broken(12, {"text": ""}, "`inputs` cannot be empty"),
    *(
        Broken(rule, {"text": given["text"], "max_tokens": given["max_new_tokens"]}, message)
        for rule, given, message in BROKEN
        if rule in {14, 15}
    ),
]


def for_chat(broken: Broken) -> Broken:
    """The same with the names of chats; what the template adds is taken from the text."""
    given = dict(broken.given)
    if "text" in given:
        given["text"] = given["text"][len(ids(rendered(""))) :]
    if "logprobs" in given:
        given = {"logprobs": True, "top_logprobs": given["logprobs"]}
    return broken._replace(given=given)


CHAT_RULES = [
    *(for_chat(broken) for broken in COMPLETION_RULES if broken.rule != 12),  # a template always writes something
    *(
        Broken(16, {"response_format": broken.given["grammar"]}, broken.message)
        for broken in (*BROKEN, *BROKEN_GRAMMARS)
        if "grammar" in broken.given and "'properties'" not in broken.message  # which may be missing here
    ),
]


def completion(*broken: Broken) -> dict[str, Any]:
    text, fields = together(broken)
    return {"prompt": text, **fields}


def chat(*broken: Broken) -> dict[str, Any]:
    text, fields = together(broken)
    return {"messages": user(text), **fields}


OPENAI = [(COMPLETIONS, completion, COMPLETION_RULES), (CHAT, chat, CHAT_RULES)]
OPENAI_ROUTES_AND_RULES = [
    pytest.param(path, body(broken), broken.message, id=f"{path} {broken}")
    for path, body, rules in OPENAI
    for broken in rules
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "message"), OPENAI_ROUTES_AND_RULES)
def test_each_rule_has_its_message_on_openais_routes(
    client: httpx.Client, path: str, body: dict[str, Any], message: str, stream: bool
) -> None:
    """G03."""
    assert refusal(client, path, {**body, "stream": stream}) == message
    assert refusal(client, "/invocations", {**body, "stream": stream}) == message


@pytest.mark.parametrize(("path", "body", "rules"), OPENAI, ids=["completions", "chat"])
def test_of_two_broken_rules_the_earlier_is_said_on_openais_routes(
    client: httpx.Client, path: str, body: Callable[..., dict[str, Any]], rules: Sequence[Broken]
) -> None:
    asked = list(pairs(rules))
    for first, second in asked:
        assert refusal(client, path, body(first, second)) == first.message, f"{first} and {second}"
    assert len(asked) > 50
