"""Models of ModelScope, over its HTTP interface.

Two requests are all that is needed: the list of a model's files, and a file. The official package does far more than
that, and brings its own cache and settings along.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import requests

from text_generation_server.download.cache import cache_error, locked
from text_generation_server.download.checkpoint_files import Wanted, check_folder, small_files, weight_files
from text_generation_server.download.errors import DownloadError
from text_generation_server.download.places import DownloadPlaces
from text_generation_server.download.progress import Progress, byte_progress

logger = logging.getLogger(__name__)

DEFAULT_REVISION = "master"

_TIMEOUT_S = (10.0, 60.0)  # to connect, between two pieces
_PIECE_BYTES = 1 << 20
_RETRY_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
_BROKEN_OFF = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


@dataclass(frozen=True)
class RemoteFile:
    name: str
    num_bytes: int
    sha256: str | None  # some small files have none


class _Interrupted(Exception):
    """A transfer that ended early; another request can go on."""


def modelscope_folder(model_id: str, revision: str | None, wanted: Wanted, places: DownloadPlaces) -> Path:
    """The folder of a ModelScope model in our cache, downloaded unless it is whole.

    Raises:
        DownloadError: not found, not allowed, no network, no space, or bytes that are not what the hub announced.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model_id):
        raise DownloadError(f"{model_id} is neither a local folder nor a ModelScope id (OWNER/NAME)")
    revision = revision or DEFAULT_REVISION
    folder = places.cache / "modelscope" / model_id.replace("/", "--") / revision.replace("/", "--")
    if _is_whole(folder, wanted):
        logger.info("Files are already present on the host. Skipping download.")
        return folder
    if places.offline:
        raise DownloadError(
            f"{model_id} at revision {revision} is not in {folder} and HF_HUB_OFFLINE is set: unset it, or use "
            "--model-id with a local folder"
        )
    try:
        with locked(folder):
            if not _is_whole(folder, wanted):
                folder.mkdir(parents=True, exist_ok=True)
                _Repository(model_id, revision, places).download(folder, wanted)
    except requests.RequestException as error:
        raise DownloadError(
            f"Cannot reach {places.modelscope_endpoint} for {model_id} ({type(error).__name__}): check the network and "
            "MODELSCOPE_DOMAIN, or use --model-id with a local folder"
        ) from error
    except OSError as error:
        raise cache_error(folder, error) from error
    return folder


def _is_whole(folder: Path, wanted: Wanted) -> bool:
    if not folder.is_dir():
        return False
    try:
        check_folder(folder, wanted)
    except DownloadError:
        return False
    return True


class _Repository:
    """One revision of one model."""

    def __init__(self, model_id: str, revision: str, places: DownloadPlaces) -> None:
        self._model_id = model_id
        self._revision = revision
        self._endpoint = places.modelscope_endpoint
        self._session = requests.Session()
        # A compressed answer could not be resumed, and its length would not be the file's.
        self._session.headers["Accept-Encoding"] = "identity"
        if token := places.modelscope_token:
            self._session.headers["Authorization"] = f"Bearer {token}"
            host = urlsplit(self._endpoint).hostname or ""
            self._session.cookies.set("m_session_id", token, domain=host, path="/")

    def download(self, folder: Path, wanted: Wanted) -> None:
        """Small files first: then a folder whose weights are there is whole."""
        files = {file.name: file for file in self._list_files()}
        self._fetch_all([files[name] for name in small_files(files, wanted)], folder)
        if wanted.with_weights and "config.json" in files:
            try:
                names = weight_files(files, folder, wanted)
            except DownloadError as error:
                raise DownloadError(f"{self._model_id}: {error}") from error
            self._fetch_all([files[name] for name in names if name in files], folder)
        check_folder(folder, wanted)

    def _list_files(self) -> list[RemoteFile]:
        response = self._get("repo/files", {"Revision": self._revision, "Recursive": "False"})
        self._raise_for_status(response)
        try:
            entries = response.json()["Data"]["Files"]
            return [
                RemoteFile(entry["Path"], int(entry["Size"]), entry.get("Sha256") or None)
                for entry in entries
                if entry["Type"] == "blob" and "/" not in entry["Path"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise DownloadError(
                f"{self._endpoint} does not answer as ModelScope does: check MODELSCOPE_DOMAIN"
            ) from error

    def _fetch_all(self, files: list[RemoteFile], folder: Path) -> None:
        missing = [file for file in files if not (folder / file.name).is_file()]
        if not missing:
            return
        with byte_progress(f"Fetching {self._model_id}", sum(file.num_bytes for file in missing)) as bar:
            for file in missing:
                self._fetch(file, folder / file.name, bar)

    def _fetch(self, file: RemoteFile, target: Path, bar: Progress) -> None:
        """Bring one file, going on after interruptions, those of earlier runs too."""
        part = target.with_name(target.name + ".part")
        bar.update(part.stat().st_size if part.is_file() else 0)
        for pause_s in (*_RETRY_PAUSES_S, None):
            try:
                self._receive(file, part, bar)
                break
            except (_Interrupted, *_BROKEN_OFF) as error:
                if pause_s is None:
                    raise DownloadError(
                        f"{file.name} of {self._model_id} keeps breaking off ({error}): start again to go on"
                    ) from error
                logger.warning("Download of %s interrupted, going on in %g s", file.name, pause_s)
                time.sleep(pause_s)
        if file.sha256 and _sha256(part) != file.sha256.lower():
            part.unlink()
            raise DownloadError(f"{file.name} of {self._model_id} arrived damaged (its sha256 differs): start again")
        part.rename(target)

    def _receive(self, file: RemoteFile, part: Path, bar: Progress) -> None:
        have = part.stat().st_size if part.is_file() else 0
        if have < file.num_bytes or not part.is_file():
            query = {"Revision": self._revision, "FilePath": file.name}
            with self._get("repo", query, headers={"Range": f"bytes={have}-"} if have else {}) as response:
                if response.status_code != 416:
                    self._raise_for_status(response)
                going_on = response.status_code == 206 and response.headers.get("Content-Range", "").startswith(
                    f"bytes {have}-"
                )
                if have and not going_on:  # the whole file comes, or this piece fits nowhere
                    bar.update(-have)
                    have = 0
                    part.unlink()
                if response.status_code in (206, 416) and not going_on:
                    raise _Interrupted(f"{file.name} cannot be resumed here")
                with part.open("ab") as output:
                    for piece in response.iter_content(_PIECE_BYTES):
                        output.write(piece)
                        bar.update(len(piece))
                        have += len(piece)
        if have < file.num_bytes:
            raise _Interrupted(f"{have} of {file.num_bytes} bytes")
        if have > file.num_bytes:
            part.unlink()
            bar.update(-have)
            raise _Interrupted(f"{have} bytes where {file.num_bytes} were announced")

    def _get(self, path: str, query: dict[str, str], headers: dict[str, str] | None = None) -> requests.Response:
        url = f"{self._endpoint}/api/v1/models/{self._model_id}/{path}"
        return self._session.get(url, params=query, headers=headers, stream=True, timeout=_TIMEOUT_S)

    def _raise_for_status(self, response: requests.Response) -> None:
        status = response.status_code
        if status < 400:
            return
        name = f"{self._model_id} at revision {self._revision}"
        if status == 404:
            raise DownloadError(f"{name} is not on {self._endpoint}: check --model-id and --revision")
        if status in (401, 403):
            raise DownloadError(
                f"{self._endpoint} refuses {name} (HTTP {status}): set MODELSCOPE_API_TOKEN to a token that may read it"
            )
        if status >= 500:
            raise _Interrupted(f"HTTP {status}")
        raise DownloadError(f"{self._endpoint} answers HTTP {status} for {name}: try again later")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_PIECE_BYTES):
            digest.update(block)
    return digest.hexdigest()
