from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.clients.clients import (
    CHAT_CLIENTS,
    CLIENTS,
    TEXT_CLIENTS,
    WAYS,
    Caller,
    ChatCaller,
    ClientProcess,
    Way,
    running,
)
from tests.clients.expected import MAX_INPUT_TOKENS, MAX_TOTAL_TOKENS, Expected
from tests.support.checkpoints import EOS_ID, make_checkpoint, make_tokenizer
from tests.support.client_envs import make_environments
from tests.support.servers import Server, serving

# Frequent enough to be learned first: some characters become one token, others stay cut into two or three.
MULTI_BYTE = "😀 😀👍 中文 日本語 한국어 é ü \u2028 \u2028 " * 20
ENGLISH = "What is the capital of France? There and back again; one two three. Deep learning is learning. " * 4


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="package")
def endless_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, but the token that ends a text is never the likeliest."""
    folder = _make_checkpoint(tmp_path_factory.mktemp("endless"))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][EOS_ID] = torch.zeros_like(weights["lm_head.weight"][EOS_ID])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _make_checkpoint(folder: Path) -> Path:
    make_checkpoint(folder, "llama", seed=5, max_position_embeddings=20_000, tokenizer=False)
    return make_tokenizer(folder, training_text=MULTI_BYTE + ENGLISH)


@pytest.fixture(scope="package")
def expected(checkpoint: Path) -> Expected:
    return Expected(checkpoint)


@pytest.fixture(scope="package")
def server(checkpoint: Path) -> Iterator[Server]:
    """Limits that a test can break quickly."""
    limits = ("--max-input-tokens", str(MAX_INPUT_TOKENS), "--max-total-tokens", str(MAX_TOTAL_TOKENS))
    with serving("--model-id", str(checkpoint), *limits) as server:
        yield server
        assert "Traceback" not in server.log, server.log


@pytest.fixture(scope="package")
def one_place(endless_checkpoint: Path) -> Iterator[Server]:
    """Runs one request at a time, and that may be so long that it still runs whenever a test looks."""
    limits = ("--max-concurrent-requests", "1", "--max-total-tokens", "20000")
    with serving("--model-id", str(endless_checkpoint), *limits) as server:
        yield server
        assert "Traceback" not in server.log, server.log


@pytest.fixture(scope="package")
def processes() -> Iterator[dict[str, ClientProcess]]:
    """Every client, started in its environment; environments are made first if need be."""
    make_environments()
    with ExitStack() as stack:
        yield {name: stack.enter_context(running(client)) for name, client in CLIENTS.items()}


@pytest.fixture(params=TEXT_CLIENTS)
def client_name(request: pytest.FixtureRequest) -> str:
    """A client of the native routes."""
    name: str = request.param
    return name


@pytest.fixture(params=CHAT_CLIENTS)
def chat_client_name(request: pytest.FixtureRequest) -> str:
    """A client of OpenAI's chat route."""
    name: str = request.param
    return name


STREAMING = [(name, way) for name in CHAT_CLIENTS for way in CLIENTS[name].streams_chat]


@pytest.fixture(params=STREAMING, ids=["-".join(name_and_way) for name_and_way in STREAMING])
def streaming_chat_caller(request: pytest.FixtureRequest, processes: dict[str, ClientProcess]) -> ChatCaller:
    """A client that can stream a chat."""
    name, way = request.param
    return ChatCaller(CLIENTS[name], way, processes[name])


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    way: Way = request.param
    return way


@pytest.fixture
def caller(processes: dict[str, ClientProcess], client_name: str, way: Way) -> Caller:
    return Caller(CLIENTS[client_name], way, processes[client_name])


@pytest.fixture
def chat_caller(processes: dict[str, ClientProcess], chat_client_name: str, way: Way) -> ChatCaller:
    return ChatCaller(CLIENTS[chat_client_name], way, processes[chat_client_name])
