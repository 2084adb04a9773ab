"""How far a long job is: a bar on a terminal, a plain line every few seconds anywhere else."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

from tqdm.auto import tqdm

LINE_INTERVAL_S = 5.0


class _Lines(io.TextIOBase):
    """Takes what tqdm draws over and over in one place, and lets a line through now and then."""

    def __init__(self) -> None:
        self._next_s = 0.0  # time.monotonic() from which on the next line is due

    def write(self, text: str) -> int:
        line = text.strip()
        if line and (time.monotonic() >= self._next_s or "100%" in line):
            print(line, file=sys.stderr, flush=True)
            self._next_s = time.monotonic() + LINE_INTERVAL_S
        return len(text)


class Progress(tqdm):  # type: ignore[type-arg]  # generic in its stubs only
    """tqdm on standard error that writes whole lines when nobody watches, so that a log stays readable."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not sys.stderr.isatty():
            kwargs.update(file=_Lines(), mininterval=LINE_INTERVAL_S, maxinterval=LINE_INTERVAL_S, ncols=0)
        super().__init__(*args, **kwargs)


def byte_progress(label: str, total_bytes: int) -> Progress:
    return Progress(total=total_bytes, desc=label, unit="B", unit_scale=True, unit_divisor=1000)
