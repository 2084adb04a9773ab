"""The page in Chromium: a browser for each module, one router with a scripted shard, and a fresh page for each test.

A page fails its test if it logs an error or asks anybody but its own server for anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.checkpoints import make_checkpoint
from tests.support.router_server import RouterServer, router_server
from tests.support.servers import Server, serving
from tests.ui.pages import OpenPage, open_page
from tests.ui.scripted import new_shard, new_templates, new_tokenizer

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _chromium() -> str:
    """Debian's packages `chromium` and `fonts-noto-color-emoji` are what these tests need."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        said = "the page is not tested: there is no chromium; install it with `apt-get install chromium`"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    return path


# Not for the session: while it lives, its event loop runs in this thread, and other tests want one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = _chromium()
    with sync_playwright() as playwright:
        # Each context has a profile of its own, and the driver makes a new user data folder for the browser.
        running = playwright.chromium.launch(executable_path=executable, args=list(_FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer(), new_templates()) as running:
        yield running


@pytest.fixture
def server(scripted: RouterServer) -> Iterator[RouterServer]:
    """Answers as fast as it can, unless a test sets `shard.step_s`."""
    scripted.shard.step_s = 0.0
    yield scripted
    scripted.shard.step_s = 0.0


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama", seed=11)


@pytest.fixture(scope="session")
def launched(checkpoint: Path) -> Iterator[Server]:
    """A whole server with a real, tiny model."""
    with serving("--model-id", str(checkpoint)) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: RouterServer) -> Iterator[OpenPage]:
    with open_page(browser, server.url) as opened:
        yield opened
