"""A `text-generation-server` that does what SCRIPT says instead of loading a model: the launcher's children in tests.

SCRIPT is a comma list of: download-fails, download-hangs, load-hangs, load-fails=RANK (an error line; RANK may be
"all"), load-crashes=RANK (a traceback), stubborn (ignores SIGTERM), noisy (a warning, and a line that is not JSON).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
import warnings
from pathlib import Path

from text_generation_cli.program import start
from text_generation_cli.ready import report_ready
from text_generation_server.settings import DownloadSettings, ServeSettings

SCRIPT = os.environ.get("SCRIPT", "").split(",")
logger = logging.getLogger("text_generation_server")


def note(what: str, **facts: object) -> None:
    """Leave a file that tells the test that this process is here."""
    path = Path(os.environ["SCRIPT_FOLDER"]) / what
    path.with_suffix(".part").write_text(json.dumps({"pid": os.getpid(), "argv": sys.argv, **facts}))
    path.with_suffix(".part").rename(path)


def sleep_for_ever() -> None:
    while True:
        time.sleep(60)


def download(settings: DownloadSettings) -> int:
    note("download")
    print("fetching 50%", file=sys.stderr, flush=True)
    if "download-hangs" in SCRIPT:
        sleep_for_ever()
    if "download-fails" in SCRIPT:
        logger.error("%s is not in the cache", settings.model_id)
        return 1
    print(json.dumps({"model_folder": "/models/found"}))
    return 0


def serve(settings: ServeSettings) -> int:
    note(f"shard-{settings.rank}", folder=settings.folder)
    if "stubborn" in SCRIPT:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "noisy" in SCRIPT:
        warnings.warn("an unrelated warning", stacklevel=1)
        print("an unrelated line", file=sys.stderr, flush=True)
        print("not json", flush=True)
    if "load-hangs" in SCRIPT:
        sleep_for_ever()
    if f"load-fails={settings.rank}" in SCRIPT or "load-fails=all" in SCRIPT:
        logger.error("model.safetensors is broken at byte 8")
        return 1
    if f"load-crashes={settings.rank}" in SCRIPT:
        raise RuntimeError("the device is gone")
    if any(word.startswith("load-") for word in SCRIPT):
        sleep_for_ever()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(settings.socket_path)
        listening.listen()
        if "stubborn" not in SCRIPT:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        logger.info("Server started at unix://%s", settings.socket_path)
        report_ready(rank=settings.rank)
        try:
            sleep_for_ever()
        finally:
            os.unlink(settings.socket_path)
    return 0


if __name__ == "__main__":
    program, package, command = "text-generation-server", "text_generation_server", sys.argv[1]
    if command == "download-weights":
        sys.exit(download(start(program, package, DownloadSettings, sys.argv[2:])[0]))
    sys.exit(serve(start(program, package, ServeSettings, sys.argv[2:])[0]))
