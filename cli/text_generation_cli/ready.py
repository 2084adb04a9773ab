"""How a child tells the launcher that it serves: one line of JSON on a pipe whose descriptor the environment names.

And how the launcher tells one that was started ahead of time to go on: it closes another pipe.
"""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping

READY_FD = "TEXT_GENERATION_READY_FD"
GO_AHEAD_FD = "TEXT_GENERATION_GO_AHEAD_FD"


def report_ready(environ: MutableMapping[str, str] = os.environ, **facts: object) -> None:
    """Tell the launcher, if one listens, that this process answers requests.

    A shard calls it when its own Health RPC has answered over its socket, the router when /health has. `facts` are
    shown in the launcher's ready line, e.g. `max_total_tokens=2048`.
    """
    descriptor = environ.pop(READY_FD, "")
    if descriptor:
        with os.fdopen(int(descriptor), "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps({"ready": True, **facts}) + "\n")


def take_go_ahead(environ: MutableMapping[str, str] = os.environ) -> int | None:
    """The descriptor, the caller's from now on, that can be read (end of file) once what this process needs is there.

    Returns: None where there is nothing to wait for.
    """
    descriptor = environ.pop(GO_AHEAD_FD, "")
    return int(descriptor) if descriptor else None


def parse_report(line: str) -> dict[str, object] | None:
    """The facts of a ready line, or None if it is not one."""
    try:
        report = json.loads(line)
    except ValueError:
        return None
    if not isinstance(report, dict) or report.pop("ready", None) is not True:
        return None
    return report
