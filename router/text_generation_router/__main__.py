"""`text-generation-router`: serves HTTP for the shards of one replica. `print-schema` prints the OpenAPI document."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import uvloop

from text_generation_cli.program import run, start
from text_generation_router.print_schema import schema_text
from text_generation_router.server import StartError, serve
from text_generation_router.settings import RouterSettings

_PACKAGE = "text_generation_router"

logger = logging.getLogger(_PACKAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns: the exit status, 0 when told to stop, 1 on a failure, which has been logged."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["print-schema"]:
        print(schema_text())
        return 0
    settings, _ = start("text-generation-router", _PACKAGE, RouterSettings, arguments)
    return run(_PACKAGE, lambda: _serve(settings))


def _serve(settings: RouterSettings) -> int:
    try:
        return uvloop.run(serve(settings))
    except StartError as error:
        logger.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
