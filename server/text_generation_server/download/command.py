"""The `download-weights` command: the folder it finds or makes is its last line of standard output, as JSON."""

from __future__ import annotations

import logging
import os
import signal

import psutil

from text_generation_server.download.errors import DownloadError
from text_generation_server.download.places import DownloadPlaces
from text_generation_server.download.resolve import download_weights, result_line
from text_generation_server.settings import DownloadSettings

logger = logging.getLogger(__name__)


def run_download(settings: DownloadSettings) -> int:
    """Returns: the process's exit status."""
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, _leave)
    options = {
        "HF_HUB_CACHE": settings.huggingface_hub_cache,
        "WEIGHTS_CACHE_OVERRIDE": settings.weights_cache_override,
    }
    environ = {**os.environ, **{name: value for name, value in options.items() if value}}
    try:
        folder = download_weights(
            settings.model_id,
            revision=settings.revision,
            source=settings.model_source,
            trust_remote_code=settings.trust_remote_code,
            extension=settings.extension,
            auto_convert=settings.auto_convert,
            places=DownloadPlaces.from_environment(environ),
        )
    except DownloadError as error:
        logger.error("%s", error)
        return 1
    print(result_line(folder), flush=True)
    return 0


def _leave(signal_number: int, frame: object) -> None:
    """End at once: threads in the middle of a transfer would be waited for, and a running pip would be left behind.

    What is half done is gone on with, or thrown away, by the next start.
    """
    for child in psutil.Process().children(recursive=True):
        child.terminate()
    os._exit(128 + signal_number)
