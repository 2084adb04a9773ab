"""`text-generation-server`: one shard (`serve`), and getting a model's files (`download-weights`)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence

from text_generation_cli import __version__
from text_generation_cli.options import parse
from text_generation_cli.program import run, start
from text_generation_server.report.settings import ReportSettings
from text_generation_server.selfcheck.settings import SelfCheckSettings
from text_generation_server.settings import DownloadSettings, ServeSettings

_PROGRAM = "text-generation-server"
_PACKAGE = "text_generation_server"

logger = logging.getLogger(_PACKAGE)

_USAGE = f"""usage: {_PROGRAM} COMMAND [options]

commands:
  serve             run one shard: load a model and answer the router over a unix socket
  download-weights  make a model's files present on this host
  selfcheck         compare this device's ops with a reference, and a model on it with the CPU
  report            write what belongs to a bug report into one file, without secrets

{_PROGRAM} COMMAND --help shows a command's options.
"""


def _serve(argv: Sequence[str]) -> int:
    settings, _ = start(f"{_PROGRAM} serve", _PACKAGE, ServeSettings, argv)

    def serve() -> int:
        _bind(settings.cpu_cores)  # before torch starts threads, which keep what they were started with
        # Not at the top: importing torch takes seconds, which `--help` and a bad option need not wait for.
        from text_generation_server.shard import run_shard  # noqa: PLC0415

        return run_shard(settings)

    return run(_PACKAGE, serve)


def _bind(cores: Sequence[int]) -> None:
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        given = ",".join(map(str, cores))
        logger.warning("this shard runs on any core: it may not be bound to %s (%s)", given, error.strerror)


def _download_weights(argv: Sequence[str]) -> int:
    settings, _ = start(f"{_PROGRAM} download-weights", _PACKAGE, DownloadSettings, argv)

    def download() -> int:
        from text_generation_server.download.command import run_download  # noqa: PLC0415

        return run_download(settings)

    return run(_PACKAGE, download)


def _selfcheck(argv: Sequence[str]) -> int:
    settings, _ = start(f"{_PROGRAM} selfcheck", _PACKAGE, SelfCheckSettings, argv)

    def check() -> int:
        from text_generation_server.selfcheck.check import SelfCheckFailed  # noqa: PLC0415
        from text_generation_server.selfcheck.command import CannotCheck, run_selfcheck  # noqa: PLC0415

        try:
            return run_selfcheck(settings)
        except SelfCheckFailed as error:
            logger.error("%s", error)
            return 1
        except CannotCheck as error:
            logger.error("%s", error)
            return 2

    return run(_PACKAGE, check)


def _report(argv: Sequence[str]) -> int:
    settings = parse(f"{_PROGRAM} report", ReportSettings, argv, os.environ).build(ReportSettings)

    def report() -> int:
        from text_generation_server.report.command import run_report  # noqa: PLC0415

        return run_report(settings, os.environ)

    return run(_PACKAGE, report)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": _serve,
    "download-weights": _download_weights,
    "selfcheck": _selfcheck,
    "report": _report,
}


def main(argv: Sequence[str] | None = None) -> int:
    # Else `import torch` imports torch_npu by itself and fails as a whole where CANN is not on the library path.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-V", "--version"):
        print(f"{_PROGRAM} {__version__}")
        return 0
    if arguments and arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    if not arguments or arguments[0] not in _COMMANDS:
        seen = f"unknown command {arguments[0]!r}" if arguments else "a command is missing"
        print(f"{_USAGE}\n{_PROGRAM}: error: {seen}; use one of {', '.join(_COMMANDS)}", file=sys.stderr)
        return 2
    return _COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
