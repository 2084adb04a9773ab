"""Folders of links: a model's files beside others that were made for it, without touching or copying the source."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def link_files(target: Path, sources: Iterable[Path]) -> None:
    """Link the files of each source folder into `target`; a name that is there already is left alone."""
    for source in sources:
        for file in sorted(source.iterdir()):
            link = target / file.name
            if file.is_file() and not link.exists():
                link.symlink_to(file.resolve())


def folder_key(sources: Iterable[Path]) -> str:
    """A short key that changes when a file of the folders comes, goes or changes."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.resolve()}\n".encode())
        for file in sorted(source.iterdir()):
            if file.is_file():
                status = file.stat()
                digest.update(f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
