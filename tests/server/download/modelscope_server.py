"""The parts of ModelScope's API that downloading a model uses, as its own client (modelscope-hub 0.5.1) knows it."""

from __future__ import annotations

import hashlib
import re
from http.server import BaseHTTPRequestHandler

from tests.server.download.file_server import FileServer, Repository, SeenRequest


class ModelScopeServer(FileServer):
    """Every repository has the branch master."""

    wrong_sha256: frozenset[str] = frozenset()  # files whose listed checksum is another's

    def is_transfer(self, seen: SeenRequest, name: str) -> bool:
        return seen.path.endswith("/repo") and seen.query.get("FilePath") == name

    def answer(self, handler: BaseHTTPRequestHandler, seen: SeenRequest) -> None:
        match = re.fullmatch(r"/api/v1/models/([\w.-]+/[\w.-]+)/(repo|repo/files)", seen.path)
        repository = self.repositories.get(match[1]) if match else None
        if match is None or repository is None or seen.query.get("Revision") != "master":
            self.send_json(handler, {"Code": 10010205001, "Message": "Record not found", "Success": False}, 404)
        elif repository.token is not None and seen.headers.get("authorization") != f"Bearer {repository.token}":
            self.send_json(handler, {"Code": 10010203001, "Message": "No permission", "Success": False}, 403)
        elif match[2] == "repo/files":
            files = [self._entry(name, content) for name, content in repository.files.items()]
            self.send_json(handler, {"Code": 200, "Data": {"Files": files}, "Message": "success", "Success": True})
        elif (name := seen.query.get("FilePath", "")) in repository.files:
            self.send_file(handler, repository, name, {"Accept-Ranges": "bytes"})
        else:
            self.send_json(handler, {"Code": 10010205001, "Message": "File not found", "Success": False}, 404)

    def _entry(self, name: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(b"other" if name in self.wrong_sha256 else content).hexdigest()
        return {
            "Name": name,
            "Path": name,
            "Type": "blob",
            "Size": len(content),
            "Sha256": digest,
            "Revision": "c0ffee",
        }


__all__ = ["ModelScopeServer", "Repository"]
