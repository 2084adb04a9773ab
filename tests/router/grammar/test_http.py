"""`grammar` over HTTP: accepted and refused, beside other requests, on a router whose shard has no model."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.router.api.scripted import ANSWERS, PACKAGE, ids, new_shard, new_tokenizer
from tests.router.api.streams import stream
from tests.router.openai.scripted import new_templates
from tests.support.router_server import RouterServer, answering, router_server
from tests.support.scripted_shard import ScriptedShard
from text_generation_proto import generate_pb2 as pb
from text_generation_router.grammar.spec import MAX_BYTES

SCHEMA = {
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
PREFIX = "Input validation error: "
# What is sent and how the answer begins.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "regex", "value": "("}, "grammar is not valid: unclosed group"),
    ({"type": "regex", "value": "a\\"}, "grammar is not valid: it ends in the middle of an escape sequence"),
    ({"type": "regex", "value": "a(?=b)"}, "grammar is not valid: look-around"),
    ({"type": "regex", "value": "x" * (MAX_BYTES + 1)}, f"grammar is not valid: it has {MAX_BYTES + 1} bytes"),
    ({"type": "regex", "value": "(" * 50_000 + ")" * 50_000}, "grammar is not valid: "),
    ({"type": "json", "value": []}, "grammar is not supported"),
    ({"type": "json", "value": 5}, "grammar is not supported"),
    ({"type": "json", "value": None}, "grammar is not supported"),
    ({"type": "json", "value": "text"}, "grammar is not valid: "),
    ({"type": "json", "value": "[]"}, "grammar is not valid: it must be an object, true or false"),
    ({"type": "json", "value": {"type": "object"}}, "grammar is not valid: Grammar must have a 'properties' field"),
    ({"type": "json_schema", "value": {"schema": {}}}, "grammar is not valid: Grammar must have a 'properties' field"),
    (
        {"type": "json", "value": {"properties": {"a": {"$ref": "#/$defs/nowhere"}}}},
        "cannot compile regex from schema: Pointer '/$defs/nowhere' does not exist",
    ),
    ({"type": "json", "value": {"properties": {"a": {"type": "text"}}}}, "grammar is not valid: `properties.a.type`"),
    ({"type": "json", "value": {"properties": {"a": {"not": {}}}}}, "cannot compile regex from schema: "),
    ({"type": "json", "value": {"properties": {"a": False}, "required": ["a"]}}, "cannot compile regex from schema: "),
    (
        {"type": "json", "value": {"properties": {str(n): {} for n in range(3000)}}},
        "cannot compile regex from schema: it has more than",
    ),
]
# May be refused, work, or end when a single token becomes too much work; what counts is that nobody else notices.
HEAVY: list[dict[str, Any]] = [
    {"type": "regex", "value": "foo**"},
    {"type": "regex", "value": "a" * 100_000},
    {"type": "regex", "value": "((x{1000}){1000}){1000}"},
    {"type": "regex", "value": "(a|b)*a(a|b){5000}"},
    {"type": "regex", "value": "|".join(f"word{n}" for n in range(20_000))},
    {"type": "json", "value": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
    {"type": "json", "value": {"properties": {"a": {"allOf": [{"anyOf": [{"const": n} for n in range(30)]}] * 2}}}},
    {"type": "json", "value": {"properties": {str(n): {"type": "string", "maxLength": n} for n in range(900)}}},
]


class WatchedShard(ScriptedShard):
    """Notes how many bytes of masks each step brings."""

    mask_bytes: list[int]

    async def Steps(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        self.mask_bytes = []

        async def noted() -> AsyncIterator[pb.StepRequest]:
            async for request in request_iterator:
                self.mask_bytes.append(len(request.masks))
                yield request

        async for answer in super().Steps(noted(), context):
            yield answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    rule = answering({ids(prompt): ids(answer) for prompt, answer in ANSWERS.items()}, 256)
    path = tmp_path_factory.mktemp("shard") / "s-0"
    shard = WatchedShard(str(path), next_token=rule, vocab_size=PACKAGE.get_vocab_size(), step_s=0.002)
    with router_server(shard, new_tokenizer(), new_templates(), max_concurrent_requests=64) as running:
        yield running


@pytest.fixture
def client(server: RouterServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def ask(client: httpx.Client, prompt: str, grammar: object, **parameters: Any) -> httpx.Response:
    given = {"details": True, "max_new_tokens": 300, "grammar": grammar, **parameters}
    return client.post("/generate", json={"inputs": prompt, "parameters": given})


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": SCHEMA},
        {"type": "json_object", "value": SCHEMA},
        {"type": "json", "value": json.dumps(SCHEMA)},
        {"type": "json_schema", "value": {"name": "person", "schema": SCHEMA, "strict": True}},
        {"type": "json_schema", "value": {"schema": SCHEMA}},
    ],
)
def test_every_spelling_of_a_schema_gives_its_json(client: httpx.Client, grammar: dict[str, Any]) -> None:
    for prompt in ("a", "bc", "xyz"):
        answer = ask(client, prompt, grammar).json()
        assert answer["details"]["finish_reason"] == "eos_token"
        Draft202012Validator(SCHEMA).validate(json.loads(answer["generated_text"]))


def test_a_pattern_holds_on_every_native_route(client: httpx.Client) -> None:
    parameters = {"grammar": {"type": "regex", "value": "[0-9]{4}"}, "details": True}
    for prompt in ("one", "two"):
        plain = client.post("/generate", json={"inputs": prompt, "parameters": parameters}).json()
        assert re.fullmatch("[0-9]{4}", plain["generated_text"])
        listed = client.post("/", json={"inputs": prompt, "parameters": parameters}).json()
        streamed = stream(client, prompt, **parameters)
        assert listed == [plain]
        assert streamed[-1]["generated_text"] == plain["generated_text"]
        assert streamed[-1]["details"]["finish_reason"] == "eos_token"


def test_null_is_no_grammar(client: httpx.Client) -> None:
    assert ask(client, "capital", None).json()["generated_text"] == ANSWERS["capital"].removesuffix("</s>")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ({"type": "xml", "value": "a"}, "'json', 'json_object', 'json_schema', 'regex'"),
        ({"value": "a"}, "type"),
        ({"type": "regex"}, "Field required"),
        ({"type": "json"}, "Field required"),
        ({"type": "json_schema", "value": {"name": "x"}}, "Field required"),
        ({"type": "regex", "value": {}}, "valid string"),
        ("[0-9]", "grammar"),
    ],
)
def test_another_shape_is_a_mismatch_that_names_what_is_wrong(client: httpx.Client, grammar: Any, reason: str) -> None:
    answer = ask(client, "a", grammar)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("Failed to deserialize the JSON body into the target type: parameters.")
    assert reason in answer.json()["error"]


@pytest.mark.parametrize(("grammar", "message"), BAD)
def test_a_bad_grammar_is_refused_with_its_reason(client: httpx.Client, grammar: dict[str, Any], message: str) -> None:
    """G34."""
    began_s = time.monotonic()
    answer = ask(client, "a", grammar)
    assert time.monotonic() - began_s < 2
    assert answer.status_code == 422
    error = answer.json()
    assert error["error_type"] == "validation"
    assert error["error"].startswith(PREFIX + message)
    assert "\n" not in error["error"]
    assert len(error["error"]) < 400
    assert ask(client, "capital", None).json()["generated_text"] == ANSWERS["capital"].removesuffix("</s>")


# Compiles, and is too much from the second token on.
TOO_MUCH_LATER = {"type": "regex", "value": "[ab]" + "(a|b)*" * 1000}
CANNOT_GO_ON = f"{PREFIX}grammar cannot be followed any further: it is too complex; use a simpler one"


def test_a_grammar_that_fails_part_way_is_an_error_of_its_sender_and_one_line_in_the_log(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """G34."""
    plain = ask(client, "a", TOO_MUCH_LATER)
    assert plain.status_code == 422
    assert plain.json() == {"error": CANNOT_GO_ON, "error_type": "validation"}
    token, error = stream(client, "a", grammar=TOO_MUCH_LATER)
    assert token["token"]["text"] in {"a", "b"}
    assert error == plain.json()
    chat = {"messages": [{"role": "user", "content": "a"}], "response_format": TOO_MUCH_LATER, "stream": True}
    *_, event, done, rest = client.post("/v1/chat/completions", json=chat).content.split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: ")) == {
        "error": {"message": CANNOT_GO_ON, "http_status_code": 422, "type": "validation"},
        "error_type": "validation",
    }
    assert (done, rest) == (b"data: [DONE]", b"")
    warnings = [record for record in caplog.records if record.levelname != "INFO"]
    assert [record.getMessage() for record in warnings] == [
        "A grammar ended its request: it is too complex; its sender should use a simpler one"
    ] * 3
    assert not any(record.exc_info for record in warnings)
    assert ask(client, "capital", None).json()["generated_text"] == ANSWERS["capital"].removesuffix("</s>")


def test_bad_and_heavy_grammars_do_not_hold_up_a_stream(server: RouterServer) -> None:
    """G34. A stall of our making comes each time, one of a busy machine does not: the best of three counts."""

    def longest_gap_s(grammar: dict[str, Any]) -> float:
        parameters = {"max_new_tokens": 800}
        with server.client() as reader, server.client() as sender, ThreadPoolExecutor(1) as pool:
            with reader.stream("POST", "/generate_stream", json={"inputs": "long", "parameters": parameters}) as answer:
                lines = answer.iter_lines()
                next(lines)
                sent = pool.submit(ask, sender, "a", grammar, max_new_tokens=4)
                gap_s, last_s = 0.0, time.monotonic()
                for line in lines:
                    if line:
                        now_s = time.monotonic()
                        gap_s, last_s = max(gap_s, now_s - last_s), now_s
                    if sent.done():
                        break
            assert sent.result().status_code in {200, 422, 424}
        return gap_s

    for grammar in [*(grammar for grammar, _ in BAD), *HEAVY, TOO_MUCH_LATER]:
        assert any(longest_gap_s(grammar) < 0.1 for _ in range(3)), str(grammar)[:100]


def test_grammars_beside_free_text_leave_it_as_it_is(server: RouterServer) -> None:
    """G33."""
    json_grammar, regex = {"type": "json", "value": SCHEMA}, {"type": "regex", "value": "[0-9]{4}"}
    asked = [("a", json_grammar), ("b", regex), ("capital", None), ("emoji", None)] * 6
    with server.client() as client, ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda one: ask(client, *one).json()["generated_text"], asked))
    for (prompt, grammar), text in zip(asked, answers, strict=True):
        if grammar is None:
            assert text == ANSWERS[prompt].removesuffix("</s>")
        elif grammar is regex:
            assert re.fullmatch("[0-9]{4}", text)
        else:
            Draft202012Validator(SCHEMA).validate(json.loads(text))


def test_too_few_tokens_end_with_length(client: httpx.Client) -> None:
    """G33."""
    details = ask(client, "a", {"type": "json", "value": SCHEMA}, max_new_tokens=4).json()["details"]
    assert details["finish_reason"] == "length"
    assert details["generated_tokens"] == 4


def test_no_masks_cross_for_requests_without_a_grammar(server: RouterServer, client: httpx.Client) -> None:
    shard = server.shard
    assert isinstance(shard, WatchedShard)
    before = len(shard.mask_bytes)
    ask(client, "long", None, max_new_tokens=50)
    free = shard.mask_bytes[before:]
    assert len(free) >= 50
    assert set(free) == {0}
    before = len(shard.mask_bytes)
    tokens = ask(client, "a", {"type": "regex", "value": "[0-9]{4}"}).json()["details"]["generated_tokens"]
    assert sum(map(bool, shard.mask_bytes[before:])) == tokens


def test_best_of_writes_every_sequence_under_the_grammar(client: httpx.Client) -> None:
    answer = ask(client, "a", {"type": "regex", "value": "[0-9]{4}"}, best_of=2, do_sample=True).json()
    texts = [answer["generated_text"], answer["details"]["best_of_sequences"][0]["generated_text"]]
    assert all(re.fullmatch("[0-9]{4}", text) for text in texts)


def test_info_lists_grammars_unless_they_are_switched_off(client: httpx.Client, tmp_path: Path) -> None:
    assert "grammar" in client.get("/info").json()["supported_parameters"]
    running = router_server(new_shard(tmp_path), new_tokenizer(), disable_grammar_support=True)
    with running as without, without.client() as other:
        assert "grammar" not in other.get("/info").json()["supported_parameters"]
        refused = ask(other, "a", {"type": "regex", "value": "a"})
    assert refused.status_code == 422
    assert refused.json()["error"] == PREFIX + "grammar is not supported"
