"""A checkpoint to download, and a place of its own for every test's caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import make_checkpoint
from text_generation_server.download import DownloadPlaces


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def checkpoint_files(checkpoint: Path) -> dict[str, bytes]:
    return read_files(checkpoint)


@pytest.fixture
def places(tmp_path: Path) -> DownloadPlaces:
    return DownloadPlaces(cache=tmp_path / "cache", hub_cache=tmp_path / "hub")


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
