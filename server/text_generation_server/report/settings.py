"""What `text-generation-server report` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_cli.options import option


@dataclass(frozen=True)
class ReportSettings:
    """Options of `report`. What is to be served is said as to the launcher: by its variables, and by --model-id."""

    output: str = option(
        default="text-generation-report.txt",
        reads_environment=False,
        short="o",
        help="file that is written; -: standard output",
    )
    log: str | None = option(
        default=None, reads_environment=False, help="file with the server's log, whose last lines are taken in"
    )
    log_lines: int = option(default=200, minimum=1, reads_environment=False, help="how many of them")
    model_id: str | None = option(default=None, help="model that was to be served, as given to the launcher")
    doctor_timeout: float = option(
        default=180.0, minimum=1, reads_environment=False, help="seconds that the doctor may take"
    )
