"""The paths of the shards' sockets: PREFIX-0, PREFIX-1 ..., owned by one launcher at a time.

A launcher holds a lock file beside its sockets while it runs, because sockets appear only when models are loaded, and
until then a second launcher would take the path for free.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from text_generation_launcher.errors import LauncherError, invalid

# sockaddr_un holds 108 bytes, one of them for the final zero.
MAX_PATH_BYTES = 107
_CHOOSE = "choose another with --shard-uds-path"


class SocketPrefix:
    """A claimed prefix. A context manager: leaving it removes the sockets and the lock."""

    def __init__(self, prefix: str, num_shards: int, alternatives: Sequence[str] = ()) -> None:
        """Claim `prefix`, or, if it is in use, the first of the `alternatives` that is not.

        Raises:
            LauncherError: too long, not writable, in use, or somebody else's.
        """
        self._num_shards = num_shards
        self._lock: int | None = None
        for path in (prefix, *alternatives):
            self.path = path
            self._check_path()
            self._lock = self._claim()
            if self._lock is not None:
                break
        else:
            raise invalid(f"the sockets {self.path}-* are in use by another server; {_CHOOSE}")
        self.is_first_choice = self.path == prefix

    def __enter__(self) -> SocketPrefix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None
        self.remove_sockets()
        self._release(self._lock)

    def remove_sockets(self) -> None:
        """Remove what shards have left."""
        for path in self._sockets():
            path.unlink(missing_ok=True)

    @property
    def _lock_path(self) -> str:
        return f"{self.path}.lock"

    def _sockets(self) -> list[Path]:
        return [Path(f"{self.path}-{rank}") for rank in range(self._num_shards)]

    def _check_path(self) -> None:
        longest = str(self._sockets()[-1])
        size = len(os.fsencode(longest))
        if size > MAX_PATH_BYTES:
            raise invalid(
                f"the socket path {longest} is {size} bytes long and the system allows {MAX_PATH_BYTES}; "
                "choose a shorter one with --shard-uds-path"
            )
        folder = Path(longest).parent
        if not folder.is_dir():
            raise invalid(f"the folder {folder} for the shards' sockets does not exist; create it or {_CHOOSE}")

    def _claim(self) -> int | None:
        """Lock the prefix and clear it of stale sockets. Returns the lock, None if a server is alive there."""
        lock = self._take_lock()
        if lock is None:
            return None
        try:
            if any(_is_alive(path) for path in self._sockets()):
                self._release(lock)
                return None
            self.remove_sockets()
        except LauncherError:
            self._release(lock)
            raise
        return lock

    def _release(self, lock: int) -> None:
        Path(self._lock_path).unlink(missing_ok=True)
        os.close(lock)

    def _take_lock(self) -> int | None:
        while True:
            try:
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise invalid(f"cannot write {self._lock_path} ({error.strerror}); {_CHOOSE}") from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_ino == os.stat(self._lock_path).st_ino:
                    return lock
            except BlockingIOError:
                os.close(lock)
                return None
            except FileNotFoundError:
                pass  # its owner has just removed it: the lock is on a file that nobody else will find
            os.close(lock)


def _is_alive(path: Path) -> bool:
    """Whether somebody listens on the socket; a stale one is left for the caller to remove.

    Raises:
        LauncherError: the file is not ours to remove.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise invalid(f"{path} exists and is not a socket; remove it or {_CHOOSE}")
    if found.st_uid != os.geteuid():
        raise invalid(f"the socket {path} belongs to another user (id {found.st_uid}); {_CHOOSE}")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # too busy to accept is alive
    return True
