"""Takes the pictures of docs/screenshots from a running server: `python -m tests.ui.screenshots http://127.0.0.1:8080`.

Meant for a server that nobody else uses, with the packaged demo model: some load is made for the live view. Needs
`pngquant`, which makes the files small enough to keep.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import threading
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

_FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
_SIZES = {1400: 860, 400: 800}
_PROMPTS = (
    "The capital of France is",
    "The history of the lighthouse begins",
    "A good soup needs",
    "In the north, by the sea,",
)


def _load(url: str, stop: threading.Event, number: int) -> None:
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        while not stop.is_set():
            parameters = {"max_new_tokens": 24 + 8 * number, "do_sample": True, "seed": number}
            client.post("/generate", json={"inputs": _PROMPTS[number % 4], "parameters": parameters})
            stop.wait(0.5 * number)


def _done(page: Page) -> None:
    expect(page.locator("#status")).to_contain_text("Done", timeout=120_000)


def _set(page: Page, **values: str) -> None:
    page.evaluate("document.getElementById('settings').open = true")
    for name, value in values.items():
        page.locator(f'[name="{name}"]').fill(value)
    page.evaluate("document.getElementById('settings').open = innerWidth > 900")


def _prompt(page: Page, width: int) -> None:
    if width == 1400:
        page.locator("#shade").check()
    _set(page, max_new_tokens="120", repetition_penalty="1.15")
    page.locator("#prompt").fill("The old lighthouse keeper climbed the stairs every evening because")
    page.keyboard.press("Control+Enter")
    _done(page)
    unlikely = page.locator("#answer .token.p1")
    unlikely.nth(min(4, unlikely.count() - 1)).click()


def _chat(page: Page, width: int) -> None:
    _set(page, max_new_tokens="70", repetition_penalty="1.15")
    for text in ("What is a lighthouse for?", "And who looked after them?"):
        page.locator("#message").fill(text)
        page.keyboard.press("Control+Enter")
        _done(page)


def _server(page: Page, width: int) -> None:
    page.wait_for_timeout(60_000 if width == 1400 else 15_000)


def _take(browser: Browser, url: str) -> None:
    for theme in ("light", "dark"):
        for width, height in _SIZES.items():
            for name, act in (("prompt", _prompt), ("chat", _chat), ("server", _server)):
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                page = context.new_page()
                page.goto(f"{url}/ui#/{name}")
                act(page, width)
                page.mouse.move(0, 0)
                page.wait_for_timeout(300)
                path = _FOLDER / f"{name}-{width}-{theme}.png"
                page.screenshot(path=str(path))
                subprocess.run(["pngquant", "--force", "--output", path, "64", path], check=True)
                context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    url = parser.parse_args().url
    stop = threading.Event()
    clients = [threading.Thread(target=_load, args=(url, stop, number)) for number in range(4)]
    for client in clients:
        client.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            _take(browser, url)
            browser.close()
    finally:
        stop.set()
        for client in clients:
            client.join()


if __name__ == "__main__":
    main()
