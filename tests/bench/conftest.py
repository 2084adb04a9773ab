"""One shard for all tests of the benchmark, on a tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.shards import running_shard
from tests.support.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("bench-model"))


@pytest.fixture(scope="session")
def shard(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_shard(model, tmp_path_factory.mktemp("bench")) as socket_path:
        yield socket_path
