"""Folders that are made once: complete or absent, whatever is killed, and made by one process at a time.

Knows nothing about what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from text_generation_server.download.errors import DownloadError
from text_generation_server.download.places import CACHE_VARIABLE

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
        with locked(folder):
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
        raise cache_error(folder, error) from error
    return folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that lock the same folder waiting. The lock file lies beside the folder, and stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=1)
    except Timeout:
        logger.info("Waiting for another process that prepares %s", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _flush(folder: Path) -> None:
    """Reach the disk before the rename does: after a power cut a folder that exists must be whole."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def cache_error(folder: Path, error: OSError, variable: str = CACHE_VARIABLE) -> DownloadError:
    """What to say when `folder` or something in it cannot be written; `variable` is what moves that cache."""
    where = error.filename or folder
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(f"No space left for {folder}: free some, or set {variable} to a folder on another disk")
    return DownloadError(
        f"Cannot write {where} ({error.strerror or error}): set {variable} to a folder that can be written"
    )
