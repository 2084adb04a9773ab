"""Hub models against a local server that speaks the hub's API (public cases G26, G41)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.download.hub_server import COMMIT, HubServer, Repository
from text_generation_server.download import DownloadError, DownloadPlaces, download_weights, local_folder

MODEL = "owner/tiny"


@pytest.fixture
def hub(checkpoint_files: dict[str, bytes]) -> Iterator[HubServer]:
    other_formats = {"model.onnx": b"x", "onnx/model.onnx": b"x", "README.md": b"x", "pytorch_model.bin": b"x"}
    with HubServer({MODEL: Repository({**checkpoint_files, **other_formats, "modeling.py": b"x"})}) as server:
        assert isinstance(server, HubServer)
        yield server


@pytest.fixture
def at_hub(hub: HubServer, places: DownloadPlaces) -> DownloadPlaces:
    return replace(places, hub_endpoint=hub.url)


def test_only_what_serving_needs_is_downloaded(
    hub: HubServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    folder = download_weights(MODEL, places=at_hub)
    assert folder == at_hub.hub_cache / "models--owner--tiny" / "snapshots" / COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == checkpoint_files


def test_code_of_the_repository_comes_only_if_it_is_trusted(hub: HubServer, at_hub: DownloadPlaces) -> None:
    assert (download_weights(MODEL, trust_remote_code=True, places=at_hub) / "modeling.py").is_file()


def test_second_start_asks_the_hub_nothing(hub: HubServer, at_hub: DownloadPlaces) -> None:
    first = download_weights(MODEL, places=at_hub)
    hub.seen.clear()
    assert download_weights(MODEL, places=at_hub) == first
    assert local_folder(MODEL, places=at_hub) == first
    assert hub.seen == []


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_revision_may_be_a_branch_or_a_commit(hub: HubServer, at_hub: DownloadPlaces, revision: str) -> None:
    folder = download_weights(MODEL, revision=revision, places=at_hub)
    assert local_folder(MODEL, revision=revision, places=at_hub) == folder


def test_broken_transfer_goes_on_where_it_stopped(
    hub: HubServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    weights = bytes(range(256)) * (24 << 12)  # 24 MB: huggingface_hub keeps what came in pieces of 10
    large = Repository({**checkpoint_files, "model.safetensors": weights}, cut_after={"model.safetensors": 12 << 20})
    hub.repositories["owner/large"] = large
    folder = download_weights("owner/large", places=at_hub)
    assert (folder / "model.safetensors").read_bytes() == weights
    first, second = (request.headers.get("range", "") for request in hub.transfers("model.safetensors"))
    assert first == ""
    assert int(second.removeprefix("bytes=").removesuffix("-")) >= 10 << 20


def test_weights_missing_after_an_interrupted_run_are_fetched(
    hub: HubServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    folder = download_weights(MODEL, places=at_hub)
    (folder / "model.safetensors").unlink()
    assert download_weights(MODEL, places=at_hub) == folder
    assert (folder / "model.safetensors").read_bytes() == checkpoint_files["model.safetensors"]


def test_bin_files_come_only_when_there_are_no_safetensors(
    hub: HubServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    files = {name: content for name, content in checkpoint_files.items() if name != "model.safetensors"}
    hub.repositories["owner/old"] = Repository({**files, "pytorch_model.bin": b"weights", "training_args.bin": b"x"})
    folder = download_weights("owner/old", places=at_hub)
    assert (folder / "pytorch_model.bin").read_bytes() == b"weights"
    assert not (folder / "training_args.bin").exists()
    with pytest.raises(DownloadError, match=r"owner/old: no \.safetensors weights, only \.bin"):
        download_weights("owner/old", auto_convert=False, places=replace(at_hub, hub_cache=at_hub.cache / "other"))


def test_asking_for_bin_brings_bin(hub: HubServer, at_hub: DownloadPlaces) -> None:
    folder = download_weights(MODEL, extension=".bin", places=at_hub)
    assert (folder / "pytorch_model.bin").is_file()
    assert not (folder / "model.safetensors").exists()


def test_parts_are_the_ones_that_the_index_names(
    hub: HubServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    files = {name: content for name, content in checkpoint_files.items() if name != "model.safetensors"}
    files["model.safetensors.index.json"] = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    parts = {"model-1.safetensors": b"1", "model-2.safetensors": b"2"}
    hub.repositories["owner/parts"] = Repository({**files, **parts, "consolidated.safetensors": b"x"})
    folder = download_weights("owner/parts", places=at_hub)
    assert {path.name for path in folder.glob("*.safetensors")} == set(parts)
    hub.repositories["owner/half"] = Repository({**files, "model-1.safetensors": b"1"})
    with pytest.raises(DownloadError, match=r"owner/half lacks model-2\.safetensors"):
        download_weights("owner/half", places=at_hub)


def test_gated_model_comes_with_the_right_token_and_says_what_to_do_without(
    hub: HubServer, at_hub: DownloadPlaces
) -> None:
    hub.repositories[MODEL].token = "right"
    for token in (None, "wrong"):
        with pytest.raises(DownloadError, match=r"owner/tiny is gated: ask for access .* HF_TOKEN"):
            download_weights(MODEL, places=replace(at_hub, hub_token=token))
    assert download_weights(MODEL, places=replace(at_hub, hub_token="right")).is_dir()


@pytest.mark.parametrize(
    ("model_id", "revision", "line"),
    [
        ("owner/nothing", None, "owner/nothing is not on http://127.0.0.1:.* HF_TOKEN"),
        (MODEL, "v9", "owner/tiny has no revision v9: use a branch, tag or commit"),
        ("owner--x/y..z", None, "neither a local folder nor a hub id"),
        ("/models/absent", None, "/models/absent does not exist"),
        ("models/of/mine", None, "models/of/mine does not exist"),
        ("owner/model.gguf", None, "owner/model.gguf does not exist"),
    ],
)
def test_what_cannot_be_found_is_one_clear_line(
    hub: HubServer, at_hub: DownloadPlaces, model_id: str, revision: str | None, line: str
) -> None:
    with pytest.raises(DownloadError, match=line) as caught:
        download_weights(model_id, revision=revision, places=at_hub)
    assert "\n" not in str(caught.value)


def test_repository_of_an_adapter_or_of_a_gguf_says_what_to_do(
    hub: HubServer, at_hub: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    hub.repositories["owner/adapter"] = Repository({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})
    with pytest.raises(DownloadError, match="holds a LoRA adapter, not a model"):
        download_weights("owner/adapter", places=at_hub)
    hub.repositories["owner/gguf"] = Repository(
        {"config.json": checkpoint_files["config.json"], "model-Q4.gguf": b"x", "tokenizer.json": b"{}"}
    )
    with pytest.raises(DownloadError, match=r"but a GGUF: fetch that file and use --model-id FILE\.gguf"):
        download_weights("owner/gguf", places=at_hub)


def test_unreachable_hub_is_one_line_with_the_remedy(
    places: DownloadPlaces, checkpoint_files: dict[str, bytes]
) -> None:
    with HubServer({}) as closed:
        endpoint = closed.url
    with pytest.raises(DownloadError, match=r"Cannot reach http://127.0.0.1.*: check the network and HF_ENDPOINT"):
        download_weights(MODEL, places=replace(places, hub_endpoint=endpoint))


def test_cache_that_cannot_be_written_is_one_line(hub: HubServer, at_hub: DownloadPlaces, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="HUGGINGFACE_HUB_CACHE"):
        download_weights(MODEL, places=replace(at_hub, hub_cache=tmp_path / "file" / "hub"))


def test_weights_may_come_from_another_folder(
    hub: HubServer, at_hub: DownloadPlaces, tmp_path: Path, checkpoint_files: dict[str, bytes]
) -> None:
    override = tmp_path / "weights"
    override.mkdir()
    (override / "model.safetensors").write_bytes(checkpoint_files["model.safetensors"])
    folder = download_weights(MODEL, places=replace(at_hub, weights_override=override))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == checkpoint_files
    assert hub.transfers("model.safetensors") == []
    with pytest.raises(DownloadError, match=r"WEIGHTS_CACHE_OVERRIDE is .*nowhere, which is no folder"):
        download_weights(MODEL, places=replace(at_hub, weights_override=tmp_path / "nowhere"))


def test_offline_start_tries_no_connection(hub: HubServer, at_hub: DownloadPlaces) -> None:
    """G41: cached, it starts; not cached, one clear line; either way without a single attempt."""
    folder = download_weights(MODEL, places=at_hub)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(at_hub.hub_cache)}
    for model_id, expected in (
        (MODEL, str(folder)),
        (str(folder), str(folder)),
        ("owner/other", f"owner/other is not in the cache {at_hub.hub_cache}"),
    ):
        command = [sys.executable, "-W", "ignore", "-m", "tests.server.download.no_network", model_id, "huggingface"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        line, attempts = ended.stdout.splitlines()
        assert line.startswith(expected)
        assert attempts == "0"


def test_fast_transfer_switched_on_without_its_package_does_not_break(hub: HubServer, at_hub: DownloadPlaces) -> None:
    environment = {
        **os.environ,
        "HF_HUB_ENABLE_HF_TRANSFER": "1",
        "HF_HUB_CACHE": str(at_hub.hub_cache),
        "HF_ENDPOINT": hub.url,
    }
    script = f"from text_generation_server.download import download_weights; print(download_weights({MODEL!r}))"
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == str(at_hub.hub_cache / "models--owner--tiny" / "snapshots" / COMMIT)
