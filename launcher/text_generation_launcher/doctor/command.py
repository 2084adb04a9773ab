"""`text-generation-launcher doctor`: the launcher's options, an examination of the machine, an exit status."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from text_generation_cli.options import option, parse
from text_generation_launcher.doctor.examination import examine
from text_generation_launcher.doctor.findings import can_serve
from text_generation_launcher.doctor.host import Host
from text_generation_launcher.doctor.rendering import as_json, as_text
from text_generation_launcher.doctor.target import Asked
from text_generation_launcher.settings import PROGRAM, LauncherSettings
from text_generation_router.settings import RouterSettings
from text_generation_server.settings import DownloadSettings, ServeSettings

COMMAND = "doctor"
_INTERRUPTED = 130


@dataclass(frozen=True)
class DoctorSettings:
    """Options of `doctor` beside the launcher's own, which say what is to be served."""

    json: bool = option(default=False, reads_environment=False, help="print findings and facts as one JSON object")
    import_timeout: float = option(
        default=120.0,
        minimum=1,
        reads_environment=False,
        help="seconds that torch_npu may take to load and to ask for the cards",
    )


def run_doctor(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print what is there and what is not. Returns 0 if these options can be served here, else 1."""
    values = parse(
        f"{PROGRAM} {COMMAND}",
        (DoctorSettings, LauncherSettings, RouterSettings, ServeSettings, DownloadSettings),
        argv,
        environ,
        description="Say what this machine has and lacks for serving, with the launcher's own options.",
    )
    settings = values.build(DoctorSettings)
    try:
        examination = examine(Host(environ), Asked.from_values(values), import_timeout_s=settings.import_timeout)
    except KeyboardInterrupt:
        return _INTERRUPTED
    try:
        print(as_json(examination, values.given()) if settings.json else as_text(examination), flush=True)
    except BrokenPipeError:  # the reader has seen enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0 if can_serve(examination.findings) else 1
