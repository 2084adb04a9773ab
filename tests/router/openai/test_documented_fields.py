"""The OpenAPI document shows the fields of the OpenAI routes with the types, defaults and bounds of the contract."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.documented import MAX_INT32, MAX_UINT32, MAX_UINT64, Row, row_of, unsigned
from text_generation_router.openai.schema import ChatRequest, CompletionRequest

REFUSED = Row("", nullable=True)  # nothing but null
# null is taken for not given, and is the default, unless a row says something else.
BOTH: dict[str, Row] = {
    "model": Row("string"),
    "max_tokens": unsigned(MAX_UINT32, at_least=1),
    "temperature": Row("float", bounds={"minimum": 0}),
    "top_p": Row("float", bounds={"exclusiveMinimum": 0, "maximum": 1}),
    "top_k": Row("integer", bounds={"minimum": 1, "maximum": MAX_INT32}),
    "frequency_penalty": Row("float", bounds={"minimum": -2, "maximum": 2}),
    "presence_penalty": Row("number", bounds={"minimum": -2, "maximum": 2}),
    "repetition_penalty": Row("float", bounds={"exclusiveMinimum": 0}),
    "logit_bias": Row("object"),
    "n": unsigned(128, at_least=1),
    "seed": unsigned(MAX_UINT64),
    "stop": Row("string|array", bounds={"maxItems": 4}),
    "stream": Row("boolean", False),
    "stream_options": Row("StreamOptions", {}),
}
CHAT: dict[str, Row] = {
    **BOTH,
    "messages": Row("array", bounds={"minItems": 1}, nullable=False),
    "max_completion_tokens": unsigned(MAX_UINT32, at_least=1),
    "logprobs": Row("boolean"),
    "top_logprobs": unsigned(5),
    "tools": Row("array"),
    "tool_choice": Row("string|ToolChoice"),
    "tool_prompt": Row("string"),
    "response_format": Row("object"),
    "functions": REFUSED,
    "function_call": REFUSED,
    "audio": REFUSED,
    "web_search_options": REFUSED,
}
COMPLETION: dict[str, Row] = {
    **BOTH,
    # A text, texts, token ids, or lists of them: as many prompts as --max-client-batch-size.
    "prompt": Row("string|array|array|array", bounds={"minLength": 1, "minItems": 1, "maxItems": 4}, nullable=False),
    "logprobs": unsigned(5),
    "echo": Row("boolean"),
    "best_of": unsigned(128, at_least=1),
    "suffix": REFUSED,
}
REQUIRED = {"messages", "prompt"}


@pytest.fixture(scope="module")
def schemas(server: Any) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.get("/api-doc/openapi.json").json()["components"]["schemas"]
    return found


@pytest.mark.parametrize(
    ("model", "rows"), [(ChatRequest, CHAT), (CompletionRequest, COMPLETION)], ids=["chat", "completion"]
)
def test_fields_are_those_of_the_table(schemas: dict[str, Any], model: type, rows: dict[str, Row]) -> None:
    schema = schemas[model.__name__]
    assert schema["properties"].keys() == rows.keys()
    assert set(schema["required"]) == rows.keys() & REQUIRED
    for name, row in rows.items():
        field = schema["properties"][name]
        assert row_of(field) == row, name
        assert field.get("description"), name


@pytest.mark.parametrize(
    ("path", "request_model", "answer_model"),
    [
        ("/v1/chat/completions", "ChatRequest", "ChatCompletion"),
        ("/v1/completions", "CompletionRequest", "Completion"),
        ("/chat_tokenize", "ChatRequest", "ChatTokens"),
        ("/invocations", "Invocation", None),
        ("/vertex", "VertexRequest", "Predictions"),
    ],
)
def test_routes_name_their_bodies(server: Any, path: str, request_model: str, answer_model: str | None) -> None:
    with server.client() as client:
        operation = client.get("/api-doc/openapi.json").json()["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": f"#/components/schemas/{request_model}"}
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    if answer_model is not None:
        assert answer == {"$ref": f"#/components/schemas/{answer_model}"}
    assert {"413", "422", "503"} <= operation["responses"].keys()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_events_are_described(client: httpx.Client, path: str) -> None:
    operation = client.get("/api-doc/openapi.json").json()["paths"][path]["post"]
    assert "text/event-stream" in operation["responses"]["200"]["content"]
