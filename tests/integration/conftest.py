"""Servers that several modules ask, each started once, on tiny checkpoints.

Keys and values are float32 in all. `one_shard` has default limits and runs where no connection to another machine is
possible; `two_shards` is the same model without prefix reuse; `small_cache` holds about two of its longest sequences
and computes prompts by chunks; `short_answers` says little, however much is asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.integration.offline import Offline
from tests.support.checkpoints import BOS_ID, EOS_ID, PAD_ID, make_checkpoint
from tests.support.servers import SHORT_ANSWERS, Server, serving
from tests.support.witness import Witness


@dataclass(frozen=True)
class Limits:
    """Of the server with a small cache, in tokens."""

    max_input: int = 200
    max_total: int = 256
    cache: int = 512
    chunk: int = 48


LIMITS = Limits()

# What is compared with transformers keeps keys and values as transformers does.
EXACT = ("--kv-cache-dtype", "float32")


@contextmanager
def serving_quietly(*arguments: str, **options: object) -> Iterator[Server]:
    """A server in whose log no traceback may be, whatever it is asked."""
    with serving(*arguments, **options) as server:  # type: ignore[arg-type]
        yield server
        assert "Traceback" not in server.log, server.log


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for long answers, and an end token of logit 0, which is never the likeliest: greedy text ends by length."""
    folder = make_checkpoint(tmp_path_factory.mktemp("llama"), "llama", seed=11, max_position_embeddings=2048)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][EOS_ID] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def tokenizer(llama: Path) -> Tokenizer:
    return Tokenizer.from_file(str(llama / "tokenizer.json"))


@pytest.fixture(scope="session")
def witness(llama: Path) -> Witness:
    return Witness(llama)


@pytest.fixture(scope="session")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offline]:
    with Offline(tmp_path_factory.mktemp("offline")) as offline:
        yield offline


@pytest.fixture(scope="session")
def one_shard(llama: Path, offline: Offline) -> Iterator[Server]:
    with serving_quietly("--model-id", str(llama), *EXACT, environ=offline.environ) as server:
        yield server


@pytest.fixture(scope="session")
def two_shards(llama: Path) -> Iterator[Server]:
    arguments = ["--model-id", str(llama), *EXACT, "--num-shard", "2", "--prefix-caching", "false"]
    with serving_quietly(*arguments) as server:
        yield server


@contextmanager
def serving_limited(llama: Path, limits: Limits) -> Iterator[Server]:
    values = {
        "--max-input-tokens": limits.max_input,
        "--max-total-tokens": limits.max_total,
        "--max-batch-total-tokens": limits.cache,
        "--max-batch-prefill-tokens": limits.chunk,
    }
    arguments = [str(part) for item in values.items() for part in item]
    with serving_quietly("--model-id", str(llama), *EXACT, *arguments) as server:
        yield server


@pytest.fixture(scope="session")
def small_cache(llama: Path) -> Iterator[Server]:
    with serving_limited(llama, LIMITS) as server:
        yield server


@pytest.fixture(scope="session")
def short_answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All ids are about as likely, and three special ones end an answer."""
    folder = make_checkpoint(tmp_path_factory.mktemp("flat"), seed=11, scale=0.4, eos_token_id=[BOS_ID, EOS_ID, PAD_ID])
    with serving_quietly("--model-id", str(folder), *SHORT_ANSWERS) as server:
        yield server
