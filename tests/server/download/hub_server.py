"""The parts of the Hugging Face hub's API that downloading a model uses."""

from __future__ import annotations

import hashlib
import re
from http.server import BaseHTTPRequestHandler

from tests.server.download.file_server import FileServer, Repository, SeenRequest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_COMMON = {"X-Repo-Commit": COMMIT}


class HubServer(FileServer):
    """Every repository has one commit, `COMMIT`, and the branch main. A token that is not the repository's is gated."""

    def is_transfer(self, seen: SeenRequest, name: str) -> bool:
        return "/resolve/" in seen.path and seen.path.endswith(f"/{name}")

    def answer(self, handler: BaseHTTPRequestHandler, seen: SeenRequest) -> None:
        match = re.fullmatch(
            r"/(?:api/models/)?(?P<id>[\w.-]+/[\w.-]+)"
            r"(?:/(?P<verb>revision|tree|resolve)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?",
            seen.path,
        )
        repository = self.repositories.get(match["id"]) if match else None
        if match is None or repository is None:
            self._refuse(handler, 401, "RepoNotFound", "Repository not found")
        elif repository.token is not None and seen.headers.get("authorization") != f"Bearer {repository.token}":
            self._refuse(handler, 403, "GatedRepo", "Access to model is restricted")
        elif match["revision"] not in (None, "main", COMMIT):
            self._refuse(handler, 404, "RevisionNotFound", "Invalid rev id")
        elif match["verb"] in (None, "revision"):
            siblings = [{"rfilename": name} for name in repository.files]
            self.send_json(handler, {"id": match["id"], "sha": COMMIT, "siblings": siblings}, headers=_COMMON)
        elif match["verb"] == "tree":
            entries = [_entry(name, content) for name, content in repository.files.items()]
            self.send_json(handler, entries, headers=_COMMON)
        elif match["file"] in repository.files:
            etag = hashlib.sha256(repository.files[match["file"]]).hexdigest()
            self.send_file(
                handler, repository, match["file"], {**_COMMON, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
            )
        else:
            self._refuse(handler, 404, "EntryNotFound", "Entry not found")

    def _refuse(self, handler: BaseHTTPRequestHandler, status: int, code: str, text: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": text}
        self.send_json(handler, {"error": text}, status, headers)


def _entry(name: str, content: bytes) -> dict[str, object]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": blob}


__all__ = ["COMMIT", "HubServer", "Repository"]
