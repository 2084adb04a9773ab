"""The ports on which the shards of one server talk over HCCL, claimed before anything is started.

HCCL listens on a range from HCCL_IF_BASE_PORT on, and two servers on one host with the same range fail minutes later,
in the first collective. A claim is a name in the kernel, in the network namespace of the ports, gone with its owner.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from text_generation_launcher.errors import invalid
from text_generation_launcher.ports import is_free

VARIABLE = "HCCL_IF_BASE_PORT"
BASE_PORT = 60000  # HCCL's own default
NUM_PORTS = 16
_LAST_PORT = 65535


@contextmanager
def claim_hccl_ports(environ: Mapping[str, str], first: int = BASE_PORT) -> Iterator[int]:
    """The first port of the range for a server, kept for it until the block is left.

    Args:
        environ: where the user may have chosen; what is there is taken as it is.
        first: where the search begins.
    Raises:
        LauncherError: no range is free.
    """
    given = environ.get(VARIABLE, "")
    if given.isdigit():
        yield int(given)
        return
    for base in range(first, _LAST_PORT - NUM_PORTS + 2, NUM_PORTS):
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0text-generation-hccl-{base}")
            except OSError:
                continue  # another server's
            if taken_ports(base):
                continue
            yield base
            return
    raise invalid(
        f"no {NUM_PORTS} ports from {first} on are free for HCCL; set {VARIABLE} to the first of such a range"
    )


def taken_ports(base: int) -> tuple[int, ...]:
    """Ports of a range that somebody listens on."""
    return tuple(port for port in range(base, base + NUM_PORTS) if not is_free("0.0.0.0", port))
