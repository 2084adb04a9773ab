"""ModelScope models against a local server that speaks its API."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.server.download.modelscope_server import ModelScopeServer, Repository
from text_generation_server.download import DownloadError, DownloadPlaces, download_weights, local_folder

MODEL = "owner/tiny"


@pytest.fixture
def hub(checkpoint_files: dict[str, bytes]) -> Iterator[ModelScopeServer]:
    with ModelScopeServer({MODEL: Repository({**checkpoint_files, "README.md": b"x", "code.py": b"x"})}) as server:
        assert isinstance(server, ModelScopeServer)
        yield server


@pytest.fixture
def at_hub(hub: ModelScopeServer, places: DownloadPlaces) -> DownloadPlaces:
    return replace(places, modelscope_endpoint=hub.url)


def test_model_comes_whole_and_once(
    hub: ModelScopeServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    folder = download_weights(MODEL, source="modelscope", places=at_hub)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == checkpoint_files
    hub.seen.clear()
    assert download_weights(MODEL, source="modelscope", places=at_hub) == folder
    assert local_folder(MODEL, source="modelscope", places=at_hub) == folder
    assert hub.seen == []


def test_broken_transfer_goes_on_where_it_stopped(
    hub: ModelScopeServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    weights = bytes(range(256)) * (3 << 12)  # 3 MB: what came is kept in pieces of 1
    large = Repository({**checkpoint_files, "model.safetensors": weights}, cut_after={"model.safetensors": 5 << 19})
    hub.repositories["owner/large"] = large
    folder = download_weights("owner/large", source="modelscope", places=at_hub)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert [seen.headers.get("range") for seen in hub.transfers("model.safetensors")] == [None, f"bytes={2 << 20}-"]


def test_part_of_an_earlier_run_is_gone_on_with(
    hub: ModelScopeServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    weights = checkpoint_files["model.safetensors"]
    folder = at_hub.cache / "modelscope" / "owner--tiny" / "master"
    folder.mkdir(parents=True)
    (folder / "model.safetensors.part").write_bytes(weights[:500])
    (folder / "tokenizer.json.part").write_bytes(checkpoint_files["tokenizer.json"])
    assert download_weights(MODEL, source="modelscope", places=at_hub) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == checkpoint_files
    assert [seen.headers.get("range") for seen in hub.transfers("model.safetensors")] == ["bytes=500-"]
    assert hub.transfers("tokenizer.json") == []


def test_damaged_file_is_refused_and_not_kept(hub: ModelScopeServer, at_hub: DownloadPlaces) -> None:
    hub.wrong_sha256 = frozenset({"model.safetensors"})
    with pytest.raises(DownloadError, match=r"model\.safetensors of owner/tiny arrived damaged"):
        download_weights(MODEL, source="modelscope", places=at_hub)
    left = {path.name for path in (at_hub.cache / "modelscope" / "owner--tiny" / "master").iterdir()}
    assert not {name for name in left if "safetensors" in name}
    hub.wrong_sha256 = frozenset()
    assert download_weights(MODEL, source="modelscope", places=at_hub).is_dir()


def test_private_model_comes_with_the_token_and_says_what_to_do_without(
    hub: ModelScopeServer, at_hub: DownloadPlaces
) -> None:
    hub.repositories[MODEL].token = "right"
    with pytest.raises(DownloadError, match=r"refuses owner/tiny .* set MODELSCOPE_API_TOKEN"):
        download_weights(MODEL, source="modelscope", places=at_hub)
    folder = download_weights(MODEL, source="modelscope", places=replace(at_hub, modelscope_token="right"))
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("model_id", "revision", "line"),
    [
        ("owner/nothing", None, "owner/nothing at revision master is not on http://127.0.0.1"),
        (MODEL, "v9", "owner/tiny at revision v9 is not on http://127.0.0.1"),
        ("tiny", None, "tiny is neither a local folder nor a ModelScope id"),
    ],
)
def test_what_cannot_be_found_is_one_clear_line(
    hub: ModelScopeServer, at_hub: DownloadPlaces, model_id: str, revision: str | None, line: str
) -> None:
    with pytest.raises(DownloadError, match=line):
        download_weights(model_id, revision=revision, source="modelscope", places=at_hub)


def test_unreachable_hub_is_one_line(places: DownloadPlaces) -> None:
    with ModelScopeServer({}) as closed:
        endpoint = closed.url
    with pytest.raises(DownloadError, match=r"Cannot reach http://127.0.0.1.* check the network and MODELSCOPE_DOMAIN"):
        download_weights(MODEL, source="modelscope", places=replace(places, modelscope_endpoint=endpoint))


def test_offline_start_tries_no_connection(hub: ModelScopeServer, at_hub: DownloadPlaces) -> None:
    folder = download_weights(MODEL, source="modelscope", places=at_hub)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TEXT_GENERATION_CACHE": str(at_hub.cache)}
    for model_id, expected in ((MODEL, str(folder)), ("owner/other", "owner/other at revision master is not in ")):
        command = [sys.executable, "-m", "tests.server.download.no_network", model_id, "modelscope"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        line, attempts = ended.stdout.splitlines()
        assert line.startswith(expected)
        assert attempts == "0"


def test_unknown_source_is_refused(places: DownloadPlaces) -> None:
    with pytest.raises(DownloadError, match="--model-source elsewhere is not known; use huggingface or modelscope"):
        download_weights(MODEL, source="elsewhere", places=places)
