"""Making `tokenizer.json` from the older files of a checkpoint, as transformers does it.

The only module that imports transformers, and it imports a great deal: `model_folder` loads it when it is needed.
"""

from __future__ import annotations

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
        for file in Path(work).iterdir():
            if file.is_file() and not (source / file.name).is_file():
                file.rename(target / file.name)
