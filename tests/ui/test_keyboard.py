"""Everything without a mouse."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.support.router_server import RouterServer
from tests.ui.pages import OpenPage, open_page

_FOCUSED = """() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  if (element === document.body) return ["BODY", true];
  const name = element.id || element.name || element.textContent.trim() || element.tagName;
  return [name, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
}"""


def tab_through(page: OpenPage) -> list[str]:
    """Names of what Tab reaches, in order; each must show that it has the focus."""
    names: list[str] = []
    for _ in range(60):
        page.page.keyboard.press("Tab")
        name, is_visible = page.page.evaluate(_FOCUSED)
        if name in names and not name.startswith("do_sample"):
            return names
        if name != "BODY":
            assert is_visible, f"{name} does not show its focus"
            names.append(name)
    raise AssertionError(f"Tab never came back: {names}")


@pytest.mark.parametrize("width", [1400, 400])
def test_tab_reaches_everything_in_reading_order(browser: Browser, server: RouterServer, width: int) -> None:
    with open_page(browser, server.url, width=width) as page:
        page.show("prompt")
        if width == 1400:
            page.page.locator('[name="do_sample"][value="true"]').check()
        page.run("capital")
        page.page.evaluate("document.activeElement.blur()")
        page.page.locator("#model").click()
        reached = tab_through(page)
        parameters = ["do_sample", "temperature", "top_p", "top_k", "seed", "repetition_penalty", "max_new_tokens"]
        shown = [*parameters, "top_n_tokens", "stop", "shade"] if width == 1400 else []
        wanted = ["Prompt", "Chat", "Server", "theme", *shown, "prompt", "run", "continue", "undo", "copy", "curl"]
        assert [name for name in reached if name in wanted] == wanted
        # The tokens are one stop, between prompt and buttons: arrows go on from there.
        assert reached[reached.index("prompt") + 1 : reached.index("run")] == ["the"]


def test_a_whole_round_without_a_mouse(page: OpenPage, server: RouterServer) -> None:
    page.show("prompt")
    keyboard = page.page.keyboard
    while page.page.evaluate("document.activeElement.id") != "prompt":
        keyboard.press("Tab")
    keyboard.type("capital")
    keyboard.press("Control+Enter")
    expect(page.page.locator("#status")).to_contain_text("Done")

    keyboard.press("Tab")
    expect(page.tokens.nth(0)).to_be_focused()
    for _ in range(3):
        keyboard.press("ArrowRight")
    expect(page.tokens.nth(3)).to_be_focused()
    expect(page.page.locator("#alternatives")).to_be_visible()
    keyboard.press("Escape")
    expect(page.page.locator("#alternatives")).to_be_hidden()
    keyboard.press("End")
    expect(page.tokens.last).to_be_focused()
    keyboard.press("Home")
    for _ in range(7):
        keyboard.press("ArrowRight")
    keyboard.press("Enter")
    expect(page.page.locator("#alternatives button:enabled").nth(0)).to_be_focused()
    keyboard.press("ArrowDown")
    expect(page.page.locator("#alternatives button:enabled").nth(1)).to_be_focused()

    server.shard.step_s = 0.02
    keyboard.press("Enter")
    expect(page.tokens.nth(7)).to_have_class("token picked p2")
    expect(page.tokens.nth(12)).to_be_attached()
    keyboard.press("Escape")
    expect(page.page.locator("#status")).to_have_text("Stopped.")


def test_progress_and_errors_are_announced(page: OpenPage) -> None:
    page.show("prompt")
    expect(page.page.locator("#status")).to_have_attribute("role", "status")
    expect(page.page.locator("#problem")).to_have_attribute("role", "alert")
    page.run("capital")
    text = page.page.locator("#answer .text")
    expect(text).to_have_attribute("aria-live", "polite")
    expect(text).to_have_attribute("aria-busy", "false")
    unnamed = page.page.eval_on_selector_all(
        "input, textarea",
        "boxes => boxes.filter(box => !box.labels.length && !box.ariaLabel).map(box => box.outerHTML)",
    )
    assert unnamed == []
