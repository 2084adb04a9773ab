"""Models of the Hugging Face hub, through huggingface_hub and its cache."""

from __future__ import annotations

import glob
import importlib.util
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from text_generation_server.download.cache import cache_error
from text_generation_server.download.checkpoint_files import (
    Wanted,
    check_folder,
    has_tokenizer,
    small_files,
    weight_files,
)
from text_generation_server.download.errors import DownloadError
from text_generation_server.download.places import DownloadPlaces
from text_generation_server.download.progress import Progress

logger = logging.getLogger(__name__)

DEFAULT_REVISION = "main"

# Whatever HTTP library this version of huggingface_hub uses: its errors share a base with HfHubHTTPError.
_HUB_ERRORS: tuple[type[BaseException], ...] = (OSError, *HfHubHTTPError.__bases__)
_RETRY_PAUSES_S = (1.0, 4.0)

_T = TypeVar("_T")


def hub_folder(model_id: str, revision: str | None, wanted: Wanted, places: DownloadPlaces) -> Path:
    """The snapshot of a hub model: the cached one if it is whole, else downloaded.

    Raises:
        DownloadError: not found, not allowed, no network, no space.
    """
    cached = cached_snapshot(places.hub_cache, model_id, revision)
    lacks = _what_is_missing(cached, wanted)
    if cached is not None and lacks is None:
        logger.info("Files are already present on the host. Skipping download.")
        return cached
    if places.offline:
        at = f" at revision {revision}" if revision else ""
        raise DownloadError(
            f"{model_id}{at} is not in the cache {places.hub_cache} ({lacks}) and HF_HUB_OFFLINE is set: "
            "unset it, or use --model-id with a local folder"
        )
    try:
        return _download(model_id, revision, wanted, places)
    except HFValidationError as error:
        raise DownloadError(f"{model_id} is neither a local folder nor a hub id (NAME or OWNER/NAME)") from error
    except _HUB_ERRORS as error:
        raise _explained(error, model_id, revision, places) from error


def cached_snapshot(hub_cache: Path, model_id: str, revision: str | None) -> Path | None:
    """The folder of a model in the hub's cache, whole or not; looks at nothing but the disk."""
    root = hub_cache / f"models--{model_id.replace('/', '--')}"
    name = revision or DEFAULT_REVISION
    reference = root / "refs" / name
    snapshot = root / "snapshots" / (reference.read_text().strip() if reference.is_file() else name)
    return snapshot if snapshot.is_dir() else None


def _what_is_missing(folder: Path | None, wanted: Wanted) -> str | None:
    if folder is None:
        return "no such snapshot"
    try:
        check_folder(folder, wanted)
    except DownloadError as error:
        return str(error)
    return None if has_tokenizer([path.name for path in folder.iterdir()]) else "no tokenizer"


def _download(model_id: str, revision: str | None, wanted: Wanted, places: DownloadPlaces) -> Path:
    """Small files first: then a snapshot whose weights are there is whole, and can be used unseen next time."""
    _disable_missing_transfer_package()
    api = HfApi(endpoint=places.hub_endpoint, token=places.hub_token)
    names = [file.rfilename for file in api.model_info(model_id, revision=revision).siblings or ()]

    def fetch(files: list[str]) -> Path:
        return Path(
            snapshot_download(
                model_id,
                revision=revision,
                cache_dir=places.hub_cache,
                endpoint=places.hub_endpoint,
                token=places.hub_token,
                allow_patterns=[glob.escape(name) for name in files],
                tqdm_class=None if are_progress_bars_disabled() else Progress,
            )
        )

    folder = _with_retries(lambda: fetch(small_files(names, wanted)))
    if wanted.with_weights and "config.json" in names:
        try:
            files = weight_files(names, folder, wanted)
        except DownloadError as error:
            raise DownloadError(f"{model_id}: {error}") from error
        absent = [name for name in files if name not in names]
        if absent:
            raise DownloadError(
                f"{model_id} lacks {', '.join(absent)}, which its index names: the upload is not complete"
            )
        folder = _with_retries(lambda: fetch(files))
    check_folder(folder, wanted)
    return folder


def _with_retries(fetch: Callable[[], _T]) -> _T:
    """Try again after a failed transfer, which goes on where it stopped; not after a refusal."""
    for pause_s in _RETRY_PAUSES_S:
        try:
            return fetch()
        except _HUB_ERRORS as error:
            if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
                raise
            if _is_of_the_disk(error):
                raise
            logger.warning("Download interrupted (%s), trying again in %g s", _first_line(error), pause_s)
            time.sleep(pause_s)
    return fetch()


def _explained(error: BaseException, model_id: str, revision: str | None, places: DownloadPlaces) -> DownloadError:
    hub = places.hub_endpoint or constants.ENDPOINT
    if isinstance(error, OSError) and _is_of_the_disk(error):
        return cache_error(places.hub_cache, error, variable="HUGGINGFACE_HUB_CACHE")
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{model_id} is gated: ask for access on {hub}/{model_id}, then set HF_TOKEN to a token of that account"
        )
    if isinstance(error, RevisionNotFoundError):
        return DownloadError(f"{model_id} has no revision {revision or DEFAULT_REVISION}: use a branch, tag or commit")
    if isinstance(error, RepositoryNotFoundError):
        remedy = "or HF_TOKEN may not read it" if places.hub_token else "or it is private: then set HF_TOKEN"
        return DownloadError(f"{model_id} is not on {hub} ({remedy}); check --model-id")
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return DownloadError(f"{hub} refuses {model_id} (HTTP {status}): check the token in HF_TOKEN")
        return DownloadError(f"{hub} answers HTTP {status} for {model_id}: try again later, or set HF_ENDPOINT")
    return DownloadError(
        f"Cannot reach {hub} for {model_id} ({_first_line(error)}): check the network and HF_ENDPOINT, "
        "or use --model-id with a local folder"
    )


def _is_of_the_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _disable_missing_transfer_package() -> None:
    """huggingface_hub before 1.0 fails when HF_HUB_ENABLE_HF_TRANSFER=1, which TGI images set, lacks its package."""
    name = "HF_HUB_ENABLE_HF_TRANSFER"
    if getattr(constants, name, False) and importlib.util.find_spec("hf_transfer") is None:
        logger.warning("%s is set but hf_transfer is not installed: downloading without it", name)
        setattr(constants, name, False)
