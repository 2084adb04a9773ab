"""A `text-generation-router` that does what SCRIPT says: the launcher's web server in tests.

SCRIPT is a comma list. router-fails, router-crashes (a traceback), router-hangs (before it is ready), drain=SECONDS
(after SIGTERM), noisy.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time

from tests.launcher.programs.scripted_server import SCRIPT, note, sleep_for_ever
from text_generation_cli.program import start
from text_generation_cli.ready import report_ready, take_go_ahead
from text_generation_router.settings import RouterSettings

logger = logging.getLogger("text_generation_router")


def main() -> int:
    settings, _ = start("text-generation-router", "text_generation_router", RouterSettings, sys.argv[1:])
    drain_s = next((float(word.partition("=")[2]) for word in SCRIPT if word.startswith("drain=")), 0.0)

    def stop(number: int, frame: object) -> None:
        note("router-stopping", shards=[os.path.exists(settings.master_shard_uds_path)])
        time.sleep(drain_s)
        note("router-drained")
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    note("router", folder=settings.folder, model_id=settings.shown_model_id)
    if "noisy" in SCRIPT:
        print("not json", flush=True)
        print("not json either", file=sys.stderr, flush=True)
    if "router-fails" in SCRIPT:
        logger.error("Argument validation error: `max_total_tokens` must be <= `max_batch_total_tokens`")
        return 1
    if "router-crashes" in SCRIPT:
        raise RuntimeError("the address is odd")
    if "router-hangs" in SCRIPT:
        sleep_for_ever()
    if (go_ahead := take_go_ahead()) is not None:
        os.read(go_ahead, 1)
        note("router-goes-ahead", shards=[os.path.exists(settings.master_shard_uds_path)])
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.hostname, settings.port))
        listening.listen()
        logger.info("Connected", extra={"port": settings.port})
        report_ready(port=listening.getsockname()[1], max_batch_total_tokens=64)
        sleep_for_ever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
