"""Widths and colours."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support.router_server import RouterServer
from tests.ui.pages import open_page

# Every element that shows text of its own, with the contrast (WCAG 2) of its colour to what lies below it.
_CONTRASTS = """() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return colour.startsWith("color(") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const below = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const ownText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!ownText || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("script, :disabled")) continue;
    const [one, other] = [parse(getComputedStyle(element).color), below(element)].map(luminance).sort((a, b) => b - a);
    found.push([(one + 0.05) / (other + 0.05), element.id || element.className || element.tagName]);
  }
  return found;
}"""


def contrasts(page: Any) -> list[tuple[float, str]]:
    return sorted((float(ratio), str(name)) for ratio, name in page.evaluate(_CONTRASTS))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["prompt", "chat", "server"])
def test_text_can_be_read(browser: Browser, server: RouterServer, theme: Any, view: str) -> None:
    with open_page(browser, server.url, color_scheme=theme) as page:
        page.show(view)
        if view == "prompt":
            page.page.locator("#shade").check()
            page.run("mixed")
            page.tokens.nth(0).hover()
        found = contrasts(page.page)
        assert len(found) > 15
        assert found[0][0] >= 4.5, found[:5]


def test_dark_and_light_differ_and_the_button_goes_before_the_system(browser: Browser, server: RouterServer) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with open_page(browser, server.url, color_scheme="dark") as page:
        page.show("prompt")
        dark = page.page.evaluate(background)
        page.page.locator("#theme").click()
        expect(page.page.locator("#theme")).to_have_text("Theme: light")
        light = page.page.evaluate(background)
        assert dark != light
        page.page.reload()
        assert page.page.evaluate(background) == light
        page.page.locator("#theme").click()
        assert page.page.evaluate(background) == dark


@pytest.mark.parametrize("width", [400, 700, 1000, 1400])
@pytest.mark.parametrize("view", ["prompt", "chat", "server"])
def test_nothing_is_wider_than_the_page(browser: Browser, server: RouterServer, width: int, view: str) -> None:
    with open_page(browser, server.url, width=width, height=800) as page:
        page.show(view)
        if view == "prompt":
            page.run("mixed")
            page.tokens.nth(2).click()
            box = page.page.locator("#alternatives").bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= 800
        wider = page.page.eval_on_selector_all(
            "body *",
            """elements => elements
                .filter(element => element.checkVisibility() && getComputedStyle(element).overflowX !== "hidden")
                .filter(element => element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0)
                .filter(element => getComputedStyle(element).display !== "inline" && !element.closest("svg"))
                .map(element => [element.tagName, element.id, element.className, element.scrollWidth])""",
        )
        assert wider == []
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width


def test_nothing_moves_while_text_streams(browser: Browser, server: RouterServer) -> None:
    places = """() => ["#prompt", "#answer", "#bar", "#run", "#continue", "#copy", "#counts", "#cards", "#theme"].map(
        (name) => { const { x, y, width, height } = document.querySelector(name).getBoundingClientRect();
                    return [name, x, y, width, height]; })"""
    for width in (1400, 400):
        with open_page(browser, server.url, width=width) as page:
            page.show("prompt")
            page.page.locator("#prompt").fill("story")
            before = page.page.evaluate(places)
            server.shard.step_s = 0.01
            page.page.locator("#run").click()
            expect(page.tokens.nth(5)).to_be_attached()
            shifts = page.page.evaluate(
                """() => new Promise((done) => {
                    let sum = 0;
                    new PerformanceObserver((list) => { for (const entry of list.getEntries()) sum += entry.value; })
                        .observe({ type: "layout-shift" });
                    setTimeout(() => done(sum), 700);
                })"""
            )
            assert page.page.evaluate(places) == before
            assert shifts < 0.01
            server.shard.step_s = 0.0
            expect(page.page.locator("#status")).to_contain_text("Done", timeout=60_000)
            assert page.page.evaluate(places) == before
