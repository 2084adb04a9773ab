"""How an exception of torch, or of a runtime below it, is quoted in a message of one line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Its message up to the first line break; its type where it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)
