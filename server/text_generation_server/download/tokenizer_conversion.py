"""Making `tokenizer.json` from the older files of a checkpoint, as transformers does it.

The only module that imports transformers, and it imports a great deal: `model_folder` loads it when it is needed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from text_generation_server.download.errors import DownloadError


def convert_tokenizer(source: Path, target: Path, trust_remote_code: bool) -> None:
    """Write `tokenizer.json`, and the settings beside it that `source` lacks, into `target`.

    Raises:
        DownloadError: transformers cannot read or cannot convert this tokenizer.
    """
    transformers_logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source), use_fast=True, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (ValueError, OSError, ImportError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        hint = "" if trust_remote_code else " or, if it needs code of its own, --trust-remote-code"
        raise DownloadError(
            f"The tokenizer of {source} cannot be read ({reason}): use a folder with a tokenizer.json{hint}"
        ) from error
    with tempfile.TemporaryDirectory(dir=target) as work:
        tokenizer.save_pretrained(work)
        converted = Path(work) / "tokenizer.json"
        if not converted.is_file():
            raise DownloadError(
                f"The tokenizer of {source} ({type(tokenizer).__name__}) cannot be converted to tokenizer.json: "
                "use a folder that has one"
            )
        _restore_prefix(converted, source)
        for file in Path(work).iterdir():
            if file.is_file() and not (source / file.name).is_file():
                file.rename(target / file.name)


def _restore_prefix(tokenizer_json: Path, source: Path) -> None:
    """Put a space before every text, as SentencePiece does, unless the checkpoint's settings say otherwise.

    transformers 5 converts Llama's tokenizer.model to one that leaves the space away where the text begins with a space
    itself (" 12" loses a token against SentencePiece); up to version 4 only those with `"legacy": false` got that.
    """
    settings_file = source / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8")) if settings_file.is_file() else {}
    converted = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    split, model = converted.get("pre_tokenizer") or {}, converted["model"]
    is_llama = split.get("type") == "Metaspace" and model["type"] == "BPE" and model.get("byte_fallback")
    if not is_llama or split.get("prepend_scheme") == "never" or settings.get("legacy") is False:
        return
    converted["pre_tokenizer"] = None
    converted["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    tokenizer_json.write_text(json.dumps(converted, ensure_ascii=False), encoding="utf-8")
