"""A GGUF file as a Hugging Face folder in the cache, made once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from text_generation_server.download.cache import make_once
from text_generation_server.download.errors import DownloadError
from text_generation_server.download.gguf_config import config, generation_config, interleaved_heads
from text_generation_server.download.gguf_file import GGUFFile
from text_generation_server.download.gguf_tokenizer import tokenizer, tokenizer_config
from text_generation_server.download.gguf_weights import write_checkpoint
from text_generation_server.download.places import CONVERSION_VERSION

# What values of the wrong type, size or shape end in. The file is the user's: none of it was checked before.
_NONSENSE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


def converted_gguf_folder(path: Path, cache: Path) -> Path:
    """Where the folder made of `path` lies, made or not; another if the file was replaced by a different one."""
    path = path.resolve()
    status = path.stat()
    key = f"{path}\0{status.st_size}\0{status.st_mtime_ns}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache / "gguf" / f"{path.stem}-{digest}-v{CONVERSION_VERSION}"


def convert_gguf(path: Path, cache: Path) -> Path:
    """Convert `path` unless that was done before, and return the folder.

    Raises:
        DownloadError: the file is damaged or of a kind that cannot be read, or the cache cannot be written.
    """
    return make_once(converted_gguf_folder(path, cache), lambda folder: write_model_folder(path, folder))


def write_model_folder(path: Path, folder: Path) -> None:
    """Write configuration, tokenizer and weights of a GGUF into `folder`: the small ones first, they may be refused."""
    gguf = GGUFFile(path)
    try:
        _write_json(folder / "config.json", config(gguf))
        _write_json(folder / "generation_config.json", generation_config(gguf.metadata))
        _write_json(folder / "tokenizer_config.json", tokenizer_config(path, gguf.metadata))
        tokenizer(path, gguf.metadata).save(str(folder / "tokenizer.json"))
        write_checkpoint(gguf, folder, interleaved_heads(gguf))
    except _NONSENSE as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DownloadError(
            f"{path} contradicts itself ({reason}): fetch it again, or use the original model"
        ) from error


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
