"""Which files make a model: chosen by name, from a hub's listing or from a folder.

Knows names; opens nothing but an index.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from text_generation_server.download.errors import DownloadError

_SMALL_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken")
_SMALL_NAMES = ("merges.txt", "vocab.txt")

# file names of a whole model and of the parts of one, by extension; the index of parts is named after the whole
_WHOLE_NAMES = {".safetensors": "model.safetensors", ".bin": "pytorch_model.bin"}
_PART_PREFIXES = {".safetensors": "", ".bin": "pytorch_model"}
# Mistral ships the same weights a second time under other names; an adapter is no model.
_NOT_THE_MODEL = ("consolidated", "adapter_")


@dataclass(frozen=True)
class Wanted:
    """What the user asked for, beside the model's name."""

    extension: str = ".safetensors"  # kind of weight files to look for first
    auto_convert: bool = True  # take the other kind when there are none of that one
    trust_remote_code: bool = False  # fetch and run the repository's own code
    with_weights: bool = True  # False: they come from another folder

    def __post_init__(self) -> None:
        if self.extension not in _WHOLE_NAMES:
            raise DownloadError(f"--extension {self.extension} is not known; use {' or '.join(_WHOLE_NAMES)}")

    @property
    def extensions(self) -> list[str]:
        """Kinds of weight files, the preferred one first."""
        fallback = [".bin"] if self.auto_convert and self.extension == ".safetensors" else []
        return [self.extension, *fallback]


def small_files(names: Collection[str], wanted: Wanted) -> list[str]:
    """Configuration, tokenizer and templates; Python files only if they may be run. Subfolders hold other formats."""
    suffixes = (*_SMALL_SUFFIXES, ".py") if wanted.trust_remote_code else _SMALL_SUFFIXES
    return sorted(name for name in names if "/" not in name and (name.endswith(suffixes) or name in _SMALL_NAMES))


def weight_files(names: Collection[str], folder: Path, wanted: Wanted) -> list[str]:
    """The weight files of the first kind that there is any of, as an index or else their names tell.

    Args:
        names: of all files, in the folder or on the hub.
        folder: where an index that is among the names can be read.
    Raises:
        DownloadError: no weights, or an index that cannot be read.
    """
    for extension in wanted.extensions:
        whole = _WHOLE_NAMES[extension]
        if whole in names:
            return [whole]
        if f"{whole}.index.json" in names:
            return _indexed(folder / f"{whole}.index.json")
        prefix = _PART_PREFIXES[extension]
        parts = [
            name
            for name in names
            if name.startswith(prefix) and name.endswith(extension) and not name.startswith(_NOT_THE_MODEL)
            if "/" not in name
        ]
        if parts:
            return sorted(parts)
    raise DownloadError(_no_weights(names, wanted))


def has_tokenizer(names: Collection[str]) -> bool:
    """Whether there is a tokenizer, converted or not."""
    known = {"tokenizer.json", "tokenizer.model", "vocab.txt", "spiece.model"}
    return bool(known.intersection(names)) or {"vocab.json", "merges.txt"} <= set(names)


def check_folder(folder: Path, wanted: Wanted) -> None:
    """See that a folder holds all of a model.

    Raises:
        DownloadError: what is missing, or which folder to use instead.
    """
    names = {path.name for path in folder.iterdir() if path.is_file()}
    if "config.json" not in names:
        raise DownloadError(_no_config(folder, names))
    if wanted.with_weights:
        try:
            files = weight_files(names, folder, wanted)
        except DownloadError as error:
            raise DownloadError(f"{folder}: {error}") from error
        missing = [name for name in files if name not in names]
        if missing:
            raise DownloadError(
                f"{folder} lacks {', '.join(missing)}, of which its index says that weights are there: fetch it again"
            )


def _no_config(folder: Path, names: set[str]) -> str:
    snapshots = sorted((folder / "snapshots").glob("*/"), key=lambda path: path.stat().st_mtime)
    if snapshots:
        main = folder / "refs" / "main"
        current = folder / "snapshots" / main.read_text().strip() if main.is_file() else snapshots[-1]
        return f"{folder} is a model's folder in the hub cache, not a model: use --model-id {current}"
    if "adapter_config.json" in names:
        return f"{folder} holds a LoRA adapter, not a model: use --model-id with the model that it was made for"
    return f"{folder} has no config.json: use --model-id with the folder that a Hugging Face model lies in"


def _no_weights(names: Collection[str], wanted: Wanted) -> str:
    kinds = " or ".join(wanted.extensions)
    others = sorted(
        {Path(name).suffix for name in names} & {".gguf", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx"}
    )
    if ".gguf" in others:
        return f"no {kinds} weights, but a GGUF: fetch that file and use --model-id FILE.gguf"
    return f"no {kinds} weights" + (f", only {', '.join(others)}, which cannot be read" if others else "")


def _indexed(index: Path) -> list[str]:
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"{index.name} is no index of weight files: fetch it again") from error
    if any("/" in name for name in files):
        raise DownloadError(f"{index.name} names weight files outside the model's folder, which is not supported")
    return files
