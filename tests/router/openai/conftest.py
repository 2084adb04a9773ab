"""One router for the tests of this folder, with a scripted shard that gives known answers to known conversations."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.router.api.scripted import new_tokenizer
from tests.router.openai.scripted import new_shard, new_templates
from tests.support.router_server import RouterServer, router_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer(), new_templates(), max_input_tokens=512) as running:
        yield running


@pytest.fixture
def client(server: RouterServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
