"""No network is needed, and none is tried (G41)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import serving_quietly
from tests.integration.offline import Offline
from tests.support.servers import Server, start_launcher

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def hub_cache(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub cache that holds the model as `someone/tiny`, as huggingface_hub lays it out."""
    cache = tmp_path_factory.mktemp("hub")
    repository = cache / "models--someone--tiny"
    shutil.copytree(llama, repository / "snapshots" / _COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(_COMMIT)
    return cache


def test_a_local_folder_is_served_without_any_connection(one_shard: Server, offline: Offline) -> None:
    """Every one of the processes was watched."""
    assert one_shard.generate("no network", max_new_tokens=3)["generated_text"]
    for program in ("text_generation_launcher", "download-weights", "serve", "text_generation_router"):
        assert program in offline.watched
    assert offline.attempts == []


def test_a_cached_hub_id_is_served_without_any_connection(hub_cache: Path, tmp_path: Path) -> None:
    with Offline(tmp_path) as offline:
        environ = {**offline.environ, "HF_HUB_CACHE": str(hub_cache)}
        with serving_quietly("--model-id", "someone/tiny", environ=environ) as server:
            assert server.generate("no network", max_new_tokens=3)["generated_text"]
            assert "someone/tiny" in server.log
        assert offline.attempts == []


def test_a_hub_id_that_is_not_cached_is_one_clear_line(hub_cache: Path, tmp_path: Path) -> None:
    with Offline(tmp_path) as offline:
        environ = {**offline.environ, "HF_HUB_CACHE": str(hub_cache)}
        with start_launcher("--model-id", "someone/else", environ=environ) as server:
            assert server.process.wait(60) == 1
            (line,) = (line for line in server.log.splitlines() if " ERROR " in line)
            assert "someone/else" in line
            assert "HF_HUB_OFFLINE" in line
            assert "Traceback" not in server.log
        assert offline.attempts == []
