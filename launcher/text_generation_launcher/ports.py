"""TCP ports, tried before a model is loaded: loading takes minutes, and the message must not come after it."""

from __future__ import annotations

import errno
import socket

from text_generation_launcher.errors import invalid


def check_http_port(hostname: str, port: int) -> None:
    """Raise LauncherError if the router could not listen there."""
    if port == 0:
        return
    error = _try_bind(hostname, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise invalid(f"port {port} is in use; stop the program that holds it or choose another with --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        raise invalid(f"port {port} is reserved for the system; choose one from 1024 on with --port")
    raise invalid(f"{hostname} is not an address of this machine ({error.strerror}); choose another with --hostname")


def choose_master_port(port: int, *, is_given: bool, may_use_default: bool) -> int:
    """The port where several shards find each other: `port` if it is free, else, unless the user gave it, a free one.

    `may_use_default` is false if another launcher is at work here, which may be about to use the default.

    Raises:
        LauncherError: the port that the user gave is in use.
    """
    is_unused = is_free("127.0.0.1", port)
    if is_given and not is_unused:
        raise invalid(f"port {port} is in use; choose another with --master-port")
    if is_given or (is_unused and may_use_default):
        return port
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def is_free(hostname: str, port: int) -> bool:
    """Whether somebody could listen there."""
    return _try_bind(hostname, port) is None


def _try_bind(hostname: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            hostname, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            # As the router does: connections of a server that has just ended do not count.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        return error
    return None
