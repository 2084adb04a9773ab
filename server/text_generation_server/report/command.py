"""Writing the report: its parts in order, without secrets, and at its end what was left out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from text_generation_cli.options import all_variables
from text_generation_server.download.places import DownloadPlaces
from text_generation_server.report import sections
from text_generation_server.report.secrets import Redactor
from text_generation_server.report.settings import ReportSettings
from text_generation_server.settings import DownloadSettings, ServeSettings


def run_report(settings: ReportSettings, environ: Mapping[str, str]) -> int:
    """Write the report and say where it is. Returns 0, or 1 if the file cannot be written."""
    text = make_report(settings, environ)
    if settings.output == "-":
        print(text, end="")
        return 0
    try:
        # It holds paths and names of a machine: the user alone may read it until it is sent.
        with open(
            os.open(settings.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        reason = f"{settings.output} cannot be written ({error.strerror}); choose another with --output"
        print(f"Error: {reason}", file=sys.stderr)
        return 1
    print(f"{settings.output} is written: read it through before you attach it to a bug report")
    return 0


def make_report(settings: ReportSettings, environ: Mapping[str, str]) -> str:
    """The whole text."""
    redact = Redactor(environ)
    variables, num_left_out, hidden = sections.environment(environ, all_variables(ServeSettings, DownloadSettings))
    parts = {
        "versions": sections.versions(),
        "doctor": sections.doctor(settings.model_id, settings.doctor_timeout),
        "packages": sections.packages(),
        "environment": variables,
        "npu-smi": sections.npu_smi(environ),
        "self-check": sections.selfchecks(DownloadPlaces.from_environment(environ).cache),
    }
    if settings.log is not None:
        parts[f"last {settings.log_lines} lines of {settings.log}"] = sections.last_lines(
            settings.log, settings.log_lines
        )
    parts["left out"] = _left_out(num_left_out, hidden, has_log=settings.log is not None)
    date = time.strftime("%Y-%m-%d %H:%M:%S %z")
    body = "".join(f"\n## {title}\n\n{text.rstrip()}\n" for title, text in parts.items())
    return redact(f"# text-generation report, {date}\n{body}")


def _left_out(num_variables: int, hidden: list[str], *, has_log: bool) -> str:
    """One line: what a reader of the report does not see."""
    what = [f"{num_variables} variables that have nothing to do with serving"]
    if hidden:
        what.append(f"the values of {', '.join(hidden)}")
    what += ["tokens and passwords within other texts", "the path of the home folder (~)", "serial numbers of cards"]
    if not has_log:
        what.append("the server's log (--log FILE takes its end in)")
    what.append("CANN's own logs (~/ascend/log)")
    return f"Left out: {'; '.join(what)}. Prompts are not in the log unless --log-prompts was given."
