"""The route /ui, and how its files become one document.

Stylesheet and scripts are put into the page when the server starts, so that it works below any path a proxy gives it,
and their hashes are the only ones that its content security policy lets run. Knows nothing about what the page shows.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response

_FOLDER = Path(__file__).parent / "static"
_LINK = re.compile(r'<link rel="stylesheet" href="([a-z_]+\.css)">')
_SCRIPT = re.compile(r'<script src="([a-z_]+\.js)"></script>')


@dataclass(frozen=True, slots=True)
class Page:
    content: bytes
    headers: dict[str, str]


def load_page(folder: Path = _FOLDER) -> Page:
    """Read index.html with the stylesheets and scripts that it names."""
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inline(tag: str, match: re.Match[str]) -> str:
        # Browsers hash what stands between the tags, after making line ends "\n" as read_text does.
        text = (folder / match[1]).read_text(encoding="utf-8")
        assert f"</{tag}" not in text, f"{match[1]} would end its own element"
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    page = (folder / "index.html").read_text(encoding="utf-8")
    page = _LINK.sub(lambda match: inline("style", match), page)
    page = _SCRIPT.sub(lambda match: inline("script", match), page)
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(hashes["script"]),
        "style-src": " ".join(hashes["style"]),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'self'",
    }
    content = page.encode()
    return Page(
        content,
        {
            "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "cache-control": "no-cache",
            "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        },
    )


def add_ui_route(app: FastAPI) -> None:
    page = load_page()

    @app.get("/ui", include_in_schema=False)
    async def ui(request: Request) -> Response:
        if request.headers.get("if-none-match") == page.headers["etag"]:
            return Response(status_code=304, headers=page.headers)
        return Response(page.content, media_type="text/html", headers=page.headers)
