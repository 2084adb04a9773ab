"""The `download-weights` command: the folder it finds or makes is its last line of standard output, as JSON."""

from __future__ import annotations

import logging

from text_generation_server.download.errors import DownloadError
from text_generation_server.download.resolve import download_weights, result_line
from text_generation_server.settings import DownloadSettings

logger = logging.getLogger(__name__)


def run_download(settings: DownloadSettings) -> int:
    """Returns: the process's exit status."""
    try:
        folder = download_weights(
            settings.model_id,
            revision=settings.revision,
            source=settings.model_source,
            trust_remote_code=settings.trust_remote_code,
            extension=settings.extension,
            auto_convert=settings.auto_convert,
        )
    except DownloadError as error:
        logger.error("%s", error)
        return 1
    print(result_line(folder), flush=True)
    return 0
