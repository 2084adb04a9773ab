"""Findings as lines for a reader, or as JSON for a program."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping

from text_generation_cli import __version__
from text_generation_launcher.doctor.examination import Examination
from text_generation_launcher.doctor.findings import Finding, Severity, can_serve


def as_text(examination: Examination) -> str:
    """One line a finding, then the verdict."""
    target, findings = examination.target, examination.findings
    width = max(len(finding.code) for finding in findings)
    lines = [f"{finding.severity.value:<8} {finding.code:<{width}}  {finding}" for finding in findings]
    where = "on the NPU" if target.is_npu else "on the CPU"
    shards = f"{target.num_shards} shard{'s' if target.num_shards > 1 else ''}"
    verdict = f"can serve {where}, {shards}" if can_serve(findings) else f"cannot serve {where}"
    return "\n".join([*lines, f"{verdict} ({_counted(findings)})"])


def as_json(examination: Examination, options: Mapping[str, str]) -> str:
    """One object: verdict, the options that were given, findings, and the facts that they come from."""
    content = {
        "version": __version__,
        "can_serve": can_serve(examination.findings),
        "device": examination.target.kind,
        "num_shards": examination.target.num_shards,
        "options": dict(options),
        "findings": [
            {**dataclasses.asdict(finding), "severity": finding.severity.value} for finding in examination.findings
        ],
        "facts": dataclasses.asdict(examination.facts),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, default=_plain)


def _counted(findings: Iterable[Finding]) -> str:
    severities = [finding.severity for finding in findings]
    counts = {severity: severities.count(severity) for severity in Severity}
    words = [f"{counts[Severity.OK]} ok"]
    for severity in (Severity.NOTE, Severity.WARNING, Severity.ERROR):
        words.append(f"{counts[severity]} {severity.value}{'' if counts[severity] == 1 else 's'}")
    return ", ".join(words)


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
