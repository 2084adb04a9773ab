"""The OpenAPI document shows the fields of the OpenAI routes with the types, defaults and bounds of the contract."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from text_generation_router.openai.schema import ChatRequest, CompletionRequest

MAX_UINT32, MAX_UINT64 = 2**32 - 1, 2**64 - 1

# field: type, minimum, maximum. Everything but what is required may be null, and null is the default.
Row = tuple[str, float | None, float | None]
BOTH: dict[str, Row] = {
    "model": ("string", None, None),
    "max_tokens": ("integer", 0, MAX_UINT32),
    "temperature": ("number", None, None),
    "top_p": ("number", None, None),
    "top_k": ("integer", -(2**31), 2**31 - 1),
    "frequency_penalty": ("number", None, None),  # bounds by TGI's own rule and message
    "presence_penalty": ("number", -2, 2),
    "repetition_penalty": ("number", None, None),
    "logit_bias": ("object", None, None),
    "n": ("integer", 1, 128),
    "seed": ("integer", 0, MAX_UINT64),
    "stop": ("string|array", None, None),
    "stream": ("boolean", None, None),
    "stream_options": ("StreamOptions", None, None),
}
CHAT: dict[str, Row] = {
    **BOTH,
    "messages": ("array", None, None),
    "max_completion_tokens": ("integer", 0, MAX_UINT32),
    "logprobs": ("boolean", None, None),
    "top_logprobs": ("integer", 0, MAX_UINT32),
    "tools": ("array", None, None),
    "tool_choice": ("string|ToolChoice", None, None),
    "tool_prompt": ("string", None, None),
    "response_format": ("object", None, None),
    "functions": ("any", None, None),
    "function_call": ("any", None, None),
    "audio": ("any", None, None),
    "web_search_options": ("any", None, None),
}
COMPLETION: dict[str, Row] = {
    **BOTH,
    "prompt": ("string|array|array|array", None, None),
    "logprobs": ("integer", 0, MAX_UINT32),
    "echo": ("boolean", None, None),
    "best_of": ("integer", 1, 128),
    "suffix": ("string", None, None),
}
REQUIRED = {"messages", "prompt"}


@pytest.fixture(scope="module")
def schemas(server: Any) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.get("/api-doc/openapi.json").json()["components"]["schemas"]
    return found


def described(field: dict[str, Any]) -> tuple[Row, bool]:
    """A field's row, and whether it may be null."""
    options = field.get("anyOf", [field])
    kinds = [option for option in options if option.get("type") != "null"]
    names = [kind["$ref"].rsplit("/", 1)[1] if "$ref" in kind else kind.get("type", "any") for kind in kinds]
    bounds = (kinds[0].get("minimum"), kinds[0].get("maximum"))
    return ("|".join(names), *bounds), len(kinds) < len(options) or names == ["any"]


@pytest.mark.parametrize(
    ("model", "rows"), [(ChatRequest, CHAT), (CompletionRequest, COMPLETION)], ids=["chat", "completion"]
)
def test_fields_are_those_of_the_table(schemas: dict[str, Any], model: type, rows: dict[str, Row]) -> None:
    schema = schemas[model.__name__]
    assert schema["properties"].keys() == rows.keys()
    assert set(schema["required"]) == rows.keys() & REQUIRED
    for name, row in rows.items():
        field = schema["properties"][name]
        assert described(field) == (row, name not in REQUIRED), name
        assert field.get("default") is None
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
