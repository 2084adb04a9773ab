"""What clients find out about a server before they use it, and what langchain makes of an answer."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from tests.clients.clients import ClientProcess
from tests.clients.expected import MAX_INPUT_TOKENS, MAX_TOTAL_TOKENS, PROMPT, Expected, user
from tests.clients.functions import SCHEMAS, TOOLS
from tests.support.servers import Server


@pytest.mark.parametrize("name", ["huggingface_hub 0.36", "huggingface_hub 2"])
def test_huggingface_hub_reads_the_endpoint(
    processes: dict[str, ClientProcess], server: Server, checkpoint: Path, name: str
) -> None:
    """G43."""
    found = processes[name].call("endpoint", url=server.url)
    assert found["healthy"] is True
    assert found["info"]["model_id"] == str(checkpoint)
    assert found["info"]["max_input_tokens"] == MAX_INPUT_TOKENS


def test_llama_index_knows_limits_and_that_functions_can_be_called(
    processes: dict[str, ClientProcess], server: Server, checkpoint: Path
) -> None:
    metadata = processes["llama-index-tgi"].call("metadata", url=server.url)
    assert metadata["context_window"] == MAX_TOTAL_TOKENS
    assert metadata["is_function_calling_model"] is True
    assert metadata["model_name"] == str(checkpoint)
    window = processes["llama-index-huggingface-api"].call("context_window", url=server.url)
    assert window == MAX_INPUT_TOKENS


def test_langchain_counts_tokens(processes: dict[str, ClientProcess], server: Server, expected: Expected) -> None:
    answer = processes["langchain-huggingface"].call("chat", url=server.url, messages=user(PROMPT), max_tokens=5)
    prompt_tokens = len(expected.chat_ids(user(PROMPT)))
    assert answer["usage"]["input_tokens"] == prompt_tokens
    assert answer["usage"]["total_tokens"] == prompt_tokens + 5


def test_langchain_finds_the_call_of_a_function(processes: dict[str, ClientProcess], server: Server) -> None:
    found = processes["langchain-huggingface"].call(
        "call_tools",
        url=server.url,
        question=PROMPT,
        tools=TOOLS[:1],
        tool_choice="get_t",
        temperature=0,
        max_tokens=60,
    )
    assert found["invalid"] == []
    (call,) = found["calls"]
    assert call["name"] == "get_t"
    jsonschema.validate(call["args"], SCHEMAS["get_t"])
