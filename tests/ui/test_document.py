"""The one document that /ui is, without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.support.router_server import RouterServer
from text_generation_router.ui.page import load_page


@pytest.fixture
def client(server: RouterServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_only_what_the_page_holds_may_run(client: httpx.Client) -> None:
    answer = client.get("/ui")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    for tag in ("script", "style"):
        held = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in held]
        assert held
        assert policy[f"{tag}-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"


def test_nothing_is_loaded_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/ui").text
    assert re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?!data:)", page) == []
    assert "url(" not in page
    assert "innerHTML" not in page


def test_a_known_page_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/ui/")
    again = client.get("/ui", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = client.head("/ui")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", first.headers["etag"])


def test_the_page_is_read_when_the_server_starts() -> None:
    assert load_page() == load_page()
