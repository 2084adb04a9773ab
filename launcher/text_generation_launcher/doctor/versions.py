"""Which CANN each torch_npu was released with, and the order of CANN's versions.

From the table of versions that Ascend publishes with torch_npu, up to its release 7.3.0. A newer CANN than stated
usually serves an older torch_npu; an older CANN lacks symbols and kernels that a newer torch_npu calls.
"""

from __future__ import annotations

import re

_RELEASED_WITH = {
    "2.1.0": "7.0.0",
    "2.1.0.post3": "8.0.RC1",
    "2.1.0.post6": "8.0.RC2",
    "2.1.0.post8": "8.0.RC3",
    "2.1.0.post10": "8.0.0",
    "2.1.0.post12": "8.1.RC1",
    "2.1.0.post13": "8.2.RC1",
    "2.1.0.post17": "8.3.RC1",
    "2.2.0": "8.0.RC1",
    "2.2.0.post2": "8.0.RC2",
    "2.3.1": "8.0.RC2",
    "2.3.1.post2": "8.0.RC3",
    "2.3.1.post4": "8.0.0",
    "2.3.1.post6": "8.1.RC1",
    "2.4.0": "8.0.RC3",
    "2.4.0.post2": "8.0.0",
    "2.4.0.post4": "8.1.RC1",
    "2.5.1": "8.1.RC1",
    "2.5.1.post1": "8.2.RC1",
    "2.6.0": "8.2.RC1",
    "2.6.0.post3": "8.3.RC1",
    "2.6.0.post5": "8.5.0",
    "2.7.1": "8.3.RC1",
    "2.7.1.post2": "8.5.0",
    "2.8.0": "8.3.RC1",
    "2.8.0.post2": "8.5.0",
    "2.9.0": "8.5.0",
}


def cann_released_with(torch_npu: str) -> str | None:
    """The CANN of a torch_npu such as "2.8.0.post2"; None if the table does not have it."""
    return _RELEASED_WITH.get(torch_npu.partition("+")[0])


def cann_order(version: str) -> tuple[int, int, int, int]:
    """What CANN versions sort by: 8.0.RC3 is before 8.0.0, and 8.3.RC1.alpha003 counts as 8.3.RC1."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(?:RC(\d+)|(\d+)))?", version, re.IGNORECASE)
    if match is None:
        return (0, 0, 0, 0)
    major, minor, candidate, patch = match.groups()
    return (int(major), int(minor), 0 if candidate else 1, int(candidate or patch or 0))
