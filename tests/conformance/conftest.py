"""The demo model, served, and the same folder in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.support.servers import Server, serving
from tests.support.witness import Witness
from text_generation_server.download import demo_model_folder


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    return demo_model_folder()


@pytest.fixture(scope="session")
def demo_server(demo_folder: Path) -> Iterator[Server]:
    """Keys and values are float32, as in transformers."""
    with serving("--model-id", str(demo_folder), "--kv-cache-dtype", "float32") as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(scope="session")
def demo_witness(demo_folder: Path) -> Witness:
    return Witness(demo_folder)


@pytest.fixture(scope="session")
def demo_tokenizer(demo_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(demo_folder)
