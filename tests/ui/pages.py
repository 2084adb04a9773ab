"""A page under watch, and what tests do with it again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Request, expect

# What the browser itself logs for an answer that is not 2xx; the page shows such an answer, which is what is tested.
REFUSED = "Failed to load resource"


class OpenPage:
    """A page of one server. `problems` collects what no page may have."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[str] = []
        self.problems: list[str] = []
        page.on("request", lambda request: self._requested(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self._logged(message.type, message.text))

    def _requested(self, url: str) -> None:
        self.requests.append(url)
        if not url.startswith((self.url, "data:")):
            self.problems.append(f"asked somebody else: {url}")

    def _logged(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"} and not text.startswith(REFUSED):
            self.problems.append(text)

    def show(self, view: str) -> None:
        self.page.goto(f"{self.url}/ui#/{view}")
        expect(self.page.locator("#pulse")).to_have_attribute("data-state", "live")

    def set(self, name: str, value: str) -> None:
        """A parameter by its name in the API."""
        self.page.locator(f'#parameters [name="{name}"]').fill(value)

    def run(self, prompt: str, said: str = "Done") -> None:
        """Run a prompt to its end."""
        self.page.locator("#prompt").fill(prompt)
        self.page.keyboard.press("Control+Enter")
        expect(self.page.locator("#status")).to_contain_text(said, timeout=60_000)

    @property
    def tokens(self) -> Locator:
        return self.page.locator("#answer .token")

    @property
    def answer(self) -> str:
        return str(self.page.evaluate("document.querySelector('#answer .text').textContent"))

    def alternatives(self) -> list[tuple[str, str]]:
        """Text and probability of each row of the box that is open."""
        rows: list[list[str]] = self.page.eval_on_selector_all(
            "#alternatives .alternative",
            "rows => rows.map(row => [row.children[1].textContent, row.children[2].textContent])",
        )
        return [(text, percent) for text, percent in rows]


def sent_json(request: Request) -> dict[str, Any]:
    """The body of a request that a page sent."""
    body = request.post_data_json
    assert isinstance(body, dict)
    return body


@contextmanager
def open_page(
    browser: Browser, url: str, *, width: int = 1400, height: int = 860, **context: Any
) -> Iterator[OpenPage]:
    """Fails if the page had a problem until it was closed."""
    opened = browser.new_context(viewport={"width": width, "height": height}, **context)
    page = OpenPage(opened.new_page(), url)
    try:
        yield page
    finally:
        opened.close()
    assert page.problems == []
