"""Model folders as people have them (public case G26)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer

from tests.server.download.conftest import read_files
from tests.support.checkpoints import Layout, make_checkpoint
from text_generation_server.download import DownloadError, DownloadPlaces, download_weights, local_folder, result_line
from text_generation_server.download.checkpoint_files import Wanted, weight_files
from text_generation_server.weights.folder import weight_files as served_weight_files

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France? The capital of France is Paris.",
    "One two three four five six seven eight nine ten; there and back again.",
]


@pytest.mark.parametrize("layout", ["safetensors", "sharded", "unindexed", "bin", "sharded_bin"])
def test_folder_is_used_as_it_is_whatever_its_weight_files(
    layout: Layout, tmp_path: Path, places: DownloadPlaces
) -> None:
    """G26: nothing is written to it, so that it may be read-only."""
    source = make_checkpoint(tmp_path / "source", layout=layout)
    before = read_files(source)
    assert download_weights(str(source), places=places) == source
    assert read_files(source) == before
    assert not places.cache.exists()
    # The shards look for the same files that were fetched or checked here.
    assert [path.name for path in served_weight_files(source)] == weight_files(list(before), source, Wanted())


def test_missing_part_is_named(tmp_path: Path, places: DownloadPlaces) -> None:
    """G26."""
    source = make_checkpoint(tmp_path / "source", layout="sharded")
    part = sorted(source.glob("*.safetensors"))[1]
    part.unlink()
    with pytest.raises(DownloadError, match=f"lacks {part.name}"):
        download_weights(str(source), places=places)


def test_root_of_a_hub_cache_names_the_snapshot_to_use(
    checkpoint: Path, tmp_path: Path, places: DownloadPlaces
) -> None:
    """G26."""
    root = tmp_path / "models--x--y"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("abc")
    shutil.copytree(checkpoint, root / "snapshots" / "abc")
    shutil.copytree(checkpoint, root / "snapshots" / "def")
    with pytest.raises(DownloadError, match=f"use --model-id {root / 'snapshots' / 'abc'}"):
        download_weights(str(root), places=places)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ([], r"has no config\.json"),
        (["adapter_config.json"], "holds a LoRA adapter, not a model"),
        (["config.json"], r"no \.safetensors or \.bin weights"),
        (["config.json", "model.gguf"], r"but a GGUF: fetch that file"),
        (["config.json", "model.pth"], r"only \.pth, which cannot be read"),
        (["config.json", "model.safetensors"], r"has no tokenizer: tokenizer\.json, "),
        (["config.json", "model.safetensors.index.json"], "is no index of weight files"),
    ],
)
def test_folder_that_is_no_model_is_one_line(
    names: list[str], line: str, tmp_path: Path, places: DownloadPlaces
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(DownloadError, match=line) as caught:
        download_weights(str(tmp_path), places=places)
    assert "\n" not in str(caught.value)


def test_unknown_extension_is_refused(checkpoint: Path, places: DownloadPlaces) -> None:
    with pytest.raises(DownloadError, match=r"--extension \.h5 is not known; use \.safetensors or \.bin"):
        download_weights(str(checkpoint), extension=".h5", places=places)


def test_result_line_is_json_of_the_folder() -> None:
    assert json.loads(result_line(Path("/a b/ü"))) == {"model_folder": "/a b/ü"}


@pytest.fixture(scope="module")
def old_llama(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """A folder as Llama came at first: a SentencePiece model and no tokenizer.json."""
    folder = tmp_path_factory.mktemp("old-llama")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(checkpoint / name, folder)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    settings: dict[str, Any] = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": True,
        "chat_template": "{{ messages[0]['content'] }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_sentencepiece_tokenizer_is_converted_once_beside_links(old_llama: Path, places: DownloadPlaces) -> None:
    before = read_files(old_llama)
    folder = download_weights(str(old_llama), places=places)
    assert folder.parent == places.cache / "tokenizers"
    assert read_files(old_llama) == before
    made = read_files(folder)
    assert {name: made[name] for name in before} == before
    assert (folder / "model.safetensors").resolve() == old_llama / "model.safetensors"
    modified_ns = (folder / "tokenizer.json").stat().st_mtime_ns
    assert download_weights(str(old_llama), places=places) == local_folder(str(old_llama), places=places) == folder
    assert (folder / "tokenizer.json").stat().st_mtime_ns == modified_ns


def test_converted_tokenizer_gives_the_ids_of_sentencepiece(old_llama: Path, places: DownloadPlaces) -> None:
    reference = sentencepiece.SentencePieceProcessor(model_file=str(old_llama / "tokenizer.model"))
    folder = download_weights(str(old_llama), places=places)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in (*SENTENCES, "two  spaces", " 12\n3", "é你😀"):
        assert tokenizer.encode(text).ids == [1, *reference.encode(text)]


def test_changed_source_is_converted_anew(old_llama: Path, tmp_path: Path, places: DownloadPlaces) -> None:
    source = tmp_path / "model"
    shutil.copytree(old_llama, source)
    first = download_weights(str(source), places=places)
    os.utime(source / "tokenizer.model", (1, 1))
    assert download_weights(str(source), places=places) != first


def test_damaged_tokenizer_is_one_line(old_llama: Path, tmp_path: Path, places: DownloadPlaces) -> None:
    source = tmp_path / "model"
    shutil.copytree(old_llama, source)
    (source / "tokenizer.model").write_bytes(b"damaged")
    with pytest.raises(DownloadError, match=r"The tokenizer of .* cannot be read") as caught:
        download_weights(str(source), places=places)
    assert "\n" not in str(caught.value)


def test_conversion_needs_no_network(old_llama: Path, places: DownloadPlaces) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.server.download.no_network", str(old_llama), "huggingface"]
    environment = {**os.environ, "TEXT_GENERATION_CACHE": str(places.cache), "HF_HUB_OFFLINE": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    folder, attempts = ended.stdout.splitlines()
    assert (Path(folder) / "tokenizer.json").is_file()
    assert attempts == "0"


def test_a_lone_gguf_in_a_folder_is_what_is_meant(tmp_path: Path, places: DownloadPlaces) -> None:
    (tmp_path / "model.gguf").write_bytes(b"foreign")
    with pytest.raises(DownloadError, match=r"model\.gguf is not a GGUF file"):
        download_weights(str(tmp_path), places=places)


def test_weights_of_another_folder_complete_a_local_model(
    checkpoint: Path, tmp_path: Path, places: DownloadPlaces
) -> None:
    base, override = tmp_path / "base", tmp_path / "weights"
    shutil.copytree(checkpoint, base)
    override.mkdir()
    (base / "model.safetensors").rename(override / "model.safetensors")
    folder = download_weights(str(base), places=replace(places, weights_override=override))
    assert read_files(folder) == read_files(checkpoint)
    (override / "model.safetensors").rename(tmp_path / "away")
    with pytest.raises(DownloadError, match=r"no \.safetensors or \.bin weights"):
        download_weights(str(base), places=replace(places, weights_override=override))
