"""Steps past gRPC: one connection on a unix socket, read and answered by the device thread itself.

By gRPC a message wakes five threads on its way, and every one of them takes a core from the kernels of the step before.
Knows frames and sockets; what a message says is the caller's.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from text_generation_proto.frames import Frames, frame

_READ_BYTES = 1 << 16  # a larger buffer would be mapped anew for each call
_MAX_PATH_BYTES = 107  # what fits the system's address of a socket


def step_socket_path(socket_path: str) -> str | None:
    """Where a shard that listens on `socket_path` takes steps; None if that would be too long for a path."""
    path = f"{socket_path}s"
    return path if len(os.fsencode(path)) <= _MAX_PATH_BYTES else None


class StepSocket:
    """Listens, for this user only, as long as it takes for one connection to come."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._path.unlink(missing_ok=True)  # a killed process's
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        previous = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(previous)
        self._listener.listen(1)

    def __enter__(self) -> StepSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        self._path.unlink(missing_ok=True)

    async def accept(self) -> socket.socket:
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        connection.setblocking(True)
        return connection


def answer_steps(connection: socket.socket, answer: Callable[[bytes], bytes | None]) -> None:
    """Answer messages in order until the other side is gone, or this end is shut down. Blocks the calling thread.

    Args:
        answer: gives the answer to a message; None: there is none.
    """
    frames = Frames()
    with suppress(ConnectionError):
        while data := connection.recv(_READ_BYTES):
            for message in frames.feed(data):
                answered = answer(message)
                if answered is not None:
                    connection.sendall(frame(answered))
