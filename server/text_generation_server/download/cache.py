"""Folders that are made once: complete or absent, whatever is killed, and made by one process at a time.

Knows nothing about what is in them.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from text_generation_server.download.errors import DownloadError
from text_generation_server.download.settings import CACHE_VARIABLE

logger = logging.getLogger(__name__)


def make_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; if it is not there, let `build` fill a folder beside it and move that into place.

    A second process that asks meanwhile waits and finds it made. What a killed process left is thrown away.

    Raises:
        DownloadError: the cache cannot be written, or `build` raised it.
    """
    if folder.is_dir():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(folder.name + ".lock")):
            if folder.is_dir():
                return folder
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                build(partial)
                _flush(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise _cache_error(folder, error) from error
    return folder


def _locked(path: Path) -> FileLock:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        logger.info("Waiting for another process that prepares %s", path.with_suffix(""))
        lock.acquire()
    return lock


def _flush(folder: Path) -> None:
    """Reach the disk before the rename does: after a power cut a folder that exists must be whole."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _cache_error(folder: Path, error: OSError) -> DownloadError:
    where = error.filename or folder
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"No space left for {folder}: free some, or set {CACHE_VARIABLE} to a folder on another disk"
        )
    return DownloadError(
        f"Cannot write {where} ({error.strerror or error}): set {CACHE_VARIABLE} to a folder that can be written"
    )
