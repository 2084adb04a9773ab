"""What a model folder looks like on disk: its JSON files and its weight files. Reads no tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_SAFETENSORS = "model.safetensors"
_PICKLED = "pytorch_model.bin"
# Mistral ships the same weights a second time under other names; adapters are not a model.
_NOT_THE_MODEL = ("consolidated", "adapter_")


class CheckpointError(ValueError):
    """A model folder that cannot be served; the message is one line for whoever started the server."""


def check_model_folder(folder: Path) -> None:
    """Raise CheckpointError when `folder` is no folder, or is a hub cache's root; then name the snapshot to use."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such model folder")
    snapshots = folder / "snapshots"
    if (folder / "config.json").exists() or not snapshots.is_dir():
        return
    found = sorted(path for path in snapshots.iterdir() if path.is_dir())
    main = folder / "refs" / "main"
    if main.is_file():
        found = [path for path in found if path.name == main.read_text().strip()] or found
    if found:
        use = " or ".join(str(path) for path in found)
        raise CheckpointError(f"{folder} is the root of a hub cache, not a model; use the snapshot {use}")
    raise CheckpointError(f"{folder} is the root of a hub cache without a snapshot; download the model first")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError when it is missing, broken or not an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent}: there is no {path.name}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # broken UTF-8 or JSON
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, not an object")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights, all of one kind, safetensors first, as transformers looks for them.

    Raises:
        CheckpointError: there are none, or an index names one that is not there.
    """
    check_model_folder(folder)
    for whole in (_SAFETENSORS, _PICKLED):
        if (folder / whole).exists():
            return [folder / whole]
        index = folder / f"{whole}.index.json"
        if index.exists():
            return _indexed_files(index)
        stem, suffix = whole.split(".")
        pattern = "*.safetensors" if whole == _SAFETENSORS else f"{stem}*.{suffix}"
        parts = [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(_NOT_THE_MODEL)]
        if parts:
            return parts
    raise CheckpointError(
        f"{folder}: no weights found; looked for {_SAFETENSORS}, {_SAFETENSORS}.index.json, *.safetensors, "
        f"{_PICKLED}, {_PICKLED}.index.json and pytorch_model*.bin"
    )


def _indexed_files(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        raise CheckpointError(
            f"{index.parent}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, "
            f"but {index.name} names {'it' if len(missing) == 1 else 'them'}; download the model again"
        )
    return [index.parent / name for name in names]
