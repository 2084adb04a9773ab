"""The examination at every start: only what matters is said, and what cannot work ends before anything is loaded."""

from __future__ import annotations

import logging
import time

from text_generation_cli.options import Values
from text_generation_launcher.doctor.examination import examine
from text_generation_launcher.doctor.findings import Finding, Severity
from text_generation_launcher.doctor.host import Host, ImportChild
from text_generation_launcher.doctor.target import Asked
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.plan import LaunchPlan
from text_generation_launcher.stop import StopRequest

# What the launcher has said itself, or is about to check where it claims it.
_LAUNCHER_SAYS = ("device", "http-port", "master-port", "options")
_IMPORT_TIMEOUT_S = 120.0
# A file system may be slow once, not every package is needed by every model, and who uses the memory may be about to
# end: the shards are left to try.
_NOT_FINAL = ("torch-npu-slow", "python-packages", "free-memory")

logger = logging.getLogger("text_generation_launcher")


def check_before_launch(plan: LaunchPlan, values: Values, stop: StopRequest) -> None:
    """Log warnings and errors.

    Raises:
        LauncherError: these options cannot be served on this machine.
        Stopped: the launcher was asked to stop meanwhile.
    """

    def wait(child: ImportChild, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not child.has_ended() and time.monotonic() < deadline:
            stop.sleep()

    found = examine(
        Host(plan.environ),
        Asked.from_values(values),
        import_timeout_s=_IMPORT_TIMEOUT_S,
        brief=True,
        wait=wait,
    ).findings
    matters = [finding for finding in found if finding.code not in _LAUNCHER_SAYS]
    for finding in matters:
        if finding.severity is Severity.WARNING or (_is_error(finding) and finding.code in _NOT_FINAL):
            logger.warning("%s", finding)
    errors = [finding for finding in matters if _is_error(finding) and finding.code not in _NOT_FINAL]
    for finding in errors:
        logger.error("%s", finding)
    if errors:
        raise LauncherError(
            "ShardCannotStart", f"{errors[0]} (text-generation-launcher doctor says all there is to say)"
        )


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR
