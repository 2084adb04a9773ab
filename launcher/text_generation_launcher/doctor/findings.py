"""A finding: one thing that was seen, judged. The rules that make findings are in the `judge_*` modules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    OK = "ok"
    NOTE = "note"  # worth knowing, nothing to do
    WARNING = "warning"  # it serves, but not as it should
    ERROR = "error"  # it cannot serve


@dataclass(frozen=True)
class Finding:
    """One line for the user."""

    severity: Severity
    code: str  # stable name of the rule
    seen: str
    allowed: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        allowed = f" (allowed: {self.allowed})" if self.allowed else ""
        return f"{self.seen}{allowed}" + (f"; {self.remedy}" if self.remedy else "")


def ok(code: str, seen: str) -> Finding:
    return Finding(Severity.OK, code, seen)


def note(code: str, seen: str, remedy: str = "") -> Finding:
    return Finding(Severity.NOTE, code, seen, "", remedy)


def warning(code: str, seen: str, remedy: str, allowed: str = "") -> Finding:
    return Finding(Severity.WARNING, code, seen, allowed, remedy)


def error(code: str, seen: str, remedy: str, allowed: str = "") -> Finding:
    return Finding(Severity.ERROR, code, seen, allowed, remedy)


def can_serve(findings: Iterable[Finding]) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in findings)
