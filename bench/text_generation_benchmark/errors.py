"""What ends a benchmark before its time."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The message is one line for the user: what was seen, and what to do."""
