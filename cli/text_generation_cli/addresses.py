"""Addresses that a server is asked to listen on: which of them can be bound at all."""

from __future__ import annotations

import ipaddress
import socket


def can_bind(address: str, *, resolve: bool) -> bool:
    """Whether `address` is an IP address or, if `resolve`, a name that resolves to one.

    Names from the environment must not be resolved: containers and shells export HOSTNAME, and a container's name
    resolves to an address that only other containers can reach.
    """
    try:
        ipaddress.ip_address(address)
    except ValueError:
        if not resolve or not address:
            return False
        try:
            return bool(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            return False
    return True
