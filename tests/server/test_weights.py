"""Model folders as people have them (case G26), and parts of tensors from every kind of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import Layout, make_checkpoint
from text_generation_server.model_config import ModelConfig
from text_generation_server.weights import Checkpoint, CheckpointError

NAME = "model.layers.0.self_attn.k_proj.weight"  # [32, 64]
LAYOUTS: tuple[Layout, ...] = ("safetensors", "sharded", "unindexed", "bin", "sharded_bin")


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What every layout of seed 0 holds, read by the safetensors library."""
    return load_file(make_checkpoint(tmp_path_factory.mktemp("plain"), tokenizer=False) / "model.safetensors")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_tensors(layout: Layout, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, layout=layout, tokenizer=False)
    with Checkpoint(folder) as checkpoint:
        assert sorted(checkpoint.names()) == sorted(tensors)
        for name, tensor in tensors.items():
            assert checkpoint.shape(name) == tuple(tensor.shape)
            assert torch.equal(checkpoint.get(name), tensor)
        assert torch.equal(checkpoint.get_rows(NAME, 3, 20), tensors[NAME][3:20])
        assert torch.equal(checkpoint.get_columns(NAME, 60, 64), tensors[NAME][:, 60:64])
        assert torch.equal(checkpoint.get_rows("model.norm.weight", 1, 5), tensors["model.norm.weight"][1:5])


def test_pickled_file_of_the_old_format_is_read(tmp_path: Path) -> None:
    """Before torch 1.6 these were no zip archives, and cannot be mapped."""
    x = torch.randn(3, 4)
    torch.save({NAME: x}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(Checkpoint(tmp_path).get(NAME), x)


def test_names_are_found_without_the_model_prefix(tmp_path: Path) -> None:
    """A folder saved from transformers' inner model has them so."""
    save_file({"layers.0.x": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.has("model.layers.0.x")
    assert not checkpoint.has("lm_head.weight")
    assert checkpoint.get("model.layers.0.x").sum() == 4
    assert checkpoint.unread_names() == []


def test_tensors_nobody_asked_for_are_known(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.get("b")
    assert checkpoint.unread_names() == ["a"]


def test_read_only_folder_is_enough(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", layout="sharded_bin", tokenizer=False)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    folder.chmod(0o555)
    try:
        Checkpoint(folder).get(NAME)
    finally:
        folder.chmod(0o755)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir()) == before


def test_copies_and_adapters_beside_the_model_are_left_alone(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "weights-1.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    assert Checkpoint(tmp_path).get("a") == 1


def error_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("layout", "index", "lost"),
    [
        ("sharded", "model.safetensors.index.json", "model-00002-of-00012.safetensors"),
        ("sharded_bin", "pytorch_model.bin.index.json", "pytorch_model-00002-of-00003.bin"),
    ],
)
def test_missing_part_is_named(layout: Layout, index: str, lost: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, layout=layout, tokenizer=False)
    (folder / lost).unlink()
    assert error_of(folder) == f"{folder}: {lost} is missing, but {index} names it; download the model again"


def test_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "y.safetensors")
    assert error_of(tmp_path) == f"{tmp_path}: a is in both x.safetensors and y.safetensors"


@pytest.mark.parametrize(("layout", "file_name"), [("safetensors", "model.safetensors"), ("bin", "pytorch_model.bin")])
@pytest.mark.parametrize("kept", [0, 5, 5000])
def test_truncated_file_is_named(layout: Layout, file_name: str, kept: int, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, layout=layout, tokenizer=False) / file_name
    path.write_bytes(path.read_bytes()[:kept])
    assert error_of(tmp_path).startswith(f"{path}: cannot be read, it may be truncated or damaged; download it again (")


def test_git_lfs_pointer_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    assert error_of(tmp_path) == f"{path}: is a Git LFS pointer, not the weights; run git lfs pull"


class RunsCode:
    """Unpickled by a trusting reader, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickle_that_runs_code_is_refused_unrun(tmp_path: Path) -> None:
    made = tmp_path / "made"
    torch.save({"a": RunsCode(made)}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin: cannot be read" in error_of(tmp_path)
    assert not made.exists()
    torch.load(tmp_path / "pytorch_model.bin", weights_only=False)
    assert made.exists(), "the file was harmless, so nothing was shown"


def test_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert error_of(tmp_path) == (
        f"{tmp_path}: no weights found; looked for model.safetensors, model.safetensors.index.json, *.safetensors, "
        "pytorch_model.bin, pytorch_model.bin.index.json and pytorch_model*.bin"
    )


def test_index_without_weight_map_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}}))
    assert error_of(tmp_path) == f"{index}: has no weight_map"


def hub_cache(root: Path, *snapshots: str, main: str | None = None) -> Path:
    for name in snapshots:
        (root / "snapshots" / name).mkdir(parents=True)
    if main:
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(main)
    return root


def test_root_of_a_hub_cache_names_the_snapshot(tmp_path: Path) -> None:
    root = hub_cache(tmp_path / "models--x--y", "abc", "def", main="def")
    expected = f"{root} is the root of a hub cache, not a model; use the snapshot {root}/snapshots/def"
    assert error_of(root) == expected
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.from_hf(root)
    assert str(caught.value) == expected


def test_root_of_a_hub_cache_without_a_main_names_all_snapshots(tmp_path: Path) -> None:
    root = hub_cache(tmp_path / "models--x--y", "abc", "def")
    assert error_of(root).endswith(f"use the snapshot {root}/snapshots/abc or {root}/snapshots/def")


def test_empty_hub_cache_asks_for_a_download(tmp_path: Path) -> None:
    root = tmp_path / "models--x--y"
    (root / "snapshots").mkdir(parents=True)
    assert error_of(root) == f"{root} is the root of a hub cache without a snapshot; download the model first"


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantized_tensor_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"a is {dtype}; only 16, 32 and 64 bit floats are served"):
        Checkpoint(tmp_path).get("a")
