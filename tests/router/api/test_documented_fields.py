"""The OpenAPI document shows the fields of a generate request with the types, defaults and bounds of the contract, and
the bounds are those that requests are held to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.support.documented import MAX_INT32, MAX_UINT32, MAX_UINT64, Row, row_of, unsigned
from tests.support.router_server import router_server

# Of a server with default limits. An upper bound that is not here is a limit of the model, see /info.
PARAMETERS: dict[str, Row] = {
    "best_of": unsigned(2, at_least=1, default=1),  # --max-best-of
    "temperature": Row("float", 1.0, {"exclusiveMinimum": 0}),
    "repetition_penalty": Row("float", 1.0, {"exclusiveMinimum": 0}),
    "frequency_penalty": Row("float", 0.0, {"minimum": -2, "maximum": 2}),
    # 0, and 1 below, mean "off" but are refused when they are given, so that they cannot be a default.
    "top_k": Row("integer", bounds={"minimum": 1, "maximum": MAX_INT32}),
    "top_p": Row("float", bounds={"exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    "typical_p": Row("float", bounds={"exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    "do_sample": Row("boolean", False),
    "max_new_tokens": unsigned(MAX_UINT32, at_least=1),
    "return_full_text": Row("boolean"),
    "stop": Row("array", [], {"maxItems": 4}),  # --max-stop-sequences
    "truncate": unsigned(MAX_UINT64, at_least=1),
    "watermark": Row("boolean", False),
    "details": Row("boolean", False),
    "decoder_input_details": Row("boolean", False),
    "seed": unsigned(MAX_UINT64),
    "top_n_tokens": unsigned(5, default=0),  # --max-top-n-tokens
    "grammar": Row("one of json, json_object, json_schema, regex"),
    "adapter_id": Row("string"),
}
BODY: dict[str, Row] = {
    "inputs": Row("string", bounds={"minLength": 1}, nullable=False),
    "parameters": Row("GenerateParameters"),
}
TABLES: dict[str, dict[str, Row]] = {
    "GenerateParameters": PARAMETERS,
    "GenerateRequest": BODY,
    "CompatGenerateRequest": {**BODY, "stream": Row("boolean", False)},
}
BOUNDED = [(name, key) for name, row in PARAMETERS.items() for key in row.bounds]
# Bounds of the type, below which lies one of the model.
NEVER_REACHED = {("max_new_tokens", "maximum"), ("truncate", "maximum")}


def schemas_of(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api-doc/openapi.json").json()["components"]["schemas"]
    return found


@pytest.mark.parametrize("model", TABLES)
def test_fields_are_those_of_the_table(client: httpx.Client, model: str) -> None:
    schema = schemas_of(client)[model]
    shown = {name: row_of(field) for name, field in schema["properties"].items()}
    assert shown == TABLES[model]
    assert schema.get("required", []) == [name for name, row in TABLES[model].items() if not row.nullable]


@pytest.mark.parametrize("model", TABLES)
def test_every_field_is_described_or_has_an_example(client: httpx.Client, model: str) -> None:
    for name, field in schemas_of(client)[model]["properties"].items():
        assert field.get("description") or field.get("examples"), name


def test_bounds_that_are_settings_are_the_servers_own(tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "max_best_of": 7,
        "max_stop_sequences": 3,
        "max_top_n_tokens": 9,
        "max_client_batch_size": 11,
    }
    with router_server(new_shard(tmp_path), new_tokenizer(), **limits) as server, server.client() as client:
        schemas = schemas_of(client)
    rows = {
        name: row_of(field).bounds
        for model in ("GenerateParameters", "CompletionRequest")
        for name, field in schemas[model]["properties"].items()
    }
    assert rows["best_of"]["maximum"] == 128  # of /v1/completions, which --max-best-of is not about
    assert row_of(schemas["GenerateParameters"]["properties"]["best_of"]).bounds["maximum"] == 7
    assert rows["stop"]["maxItems"] == 3
    assert rows["top_n_tokens"]["maximum"] == rows["logprobs"]["maximum"] == 9
    assert rows["prompt"]["maxItems"] == 11


def generate(client: httpx.Client, name: str, value: Any) -> httpx.Response:
    # Sampled, as best_of wants it.
    parameters = {"do_sample": True, "max_new_tokens": 1, name: value}
    return client.post("/generate", json={"inputs": "capital", "parameters": parameters})


@pytest.mark.parametrize(("name", "key"), BOUNDED)
def test_a_value_outside_its_bounds_is_refused(client: httpx.Client, name: str, key: str) -> None:
    row = PARAMETERS[name]
    bound = row.bounds[key]
    value: Any = bound
    if key == "maxItems":
        value = ["x"] * (int(bound) + 1)
    elif key in {"minimum", "maximum"}:
        above = key == "maximum"
        whole = int(bound) + (1 if above else -1)
        # The next 32-bit float.
        value = whole if row.type == "integer" else math.copysign(abs(bound) + 2**-22, bound)
    if name == "best_of" and value == 0:
        # TGI takes 0 for 1; the document does not advertise it.
        assert generate(client, name, value).status_code == 200
        return
    answer = generate(client, name, value)
    assert answer.status_code == 422
    assert name in answer.json()["error"]


@pytest.mark.parametrize(("name", "key"), [pair for pair in BOUNDED if pair not in NEVER_REACHED])
def test_a_value_at_its_bounds_is_taken(client: httpx.Client, name: str, key: str) -> None:
    bound = PARAMETERS[name].bounds[key]
    steps_inside = {"exclusiveMinimum": 2**-20, "exclusiveMaximum": -(2**-20)}
    value = ["x"] * int(bound) if key == "maxItems" else bound + steps_inside.get(key, 0)
    assert generate(client, name, value).status_code == 200
