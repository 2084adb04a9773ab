"""How far a long job is: a bar on a terminal, a plain line every few seconds anywhere else."""

from __future__ import annotations

import io
import sys
from typing import Any

from tqdm import tqdm

LINE_INTERVAL_S = 5.0


class _Lines(io.TextIOBase):
    """What tqdm draws over and over in one place, as lines of their own."""

    def write(self, text: str) -> int:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)
        return len(text)


class Progress(tqdm):  # type: ignore[type-arg]  # generic in its stubs only
    """tqdm on standard error that writes whole lines when nobody watches, so that a log stays readable."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not sys.stderr.isatty():
            kwargs.update(file=_Lines(), mininterval=LINE_INTERVAL_S, maxinterval=LINE_INTERVAL_S, ncols=0)
        super().__init__(*args, **kwargs)


def byte_progress(label: str, total_bytes: int) -> Progress:
    return Progress(total=total_bytes, desc=label, unit="B", unit_scale=True, unit_divisor=1000)
