"""The live view of the server, and the arithmetic below it."""

from __future__ import annotations

import random
import re

from playwright.sync_api import Browser, expect

from tests.support.router_server import RouterServer
from tests.ui.pages import OpenPage, open_page


def test_running_requests_tokens_and_cache_are_shown_as_they_change(page: OpenPage, server: RouterServer) -> None:
    page.show("prompt")
    server.shard.step_s = 0.01
    page.set("max_new_tokens", "")
    page.page.locator("#prompt").fill("without an end")
    page.page.locator("#run").click()
    expect(page.page.locator("#pulse")).to_contain_text("1 running · 0 queued")
    expect(page.page.locator("#pulse-rate")).to_have_text(re.compile(r" · [1-9][0-9.]* tokens/s"), timeout=5000)
    card = page.page.locator(".card", has_text="KV cache")
    expect(card.locator("b")).to_have_text(re.compile(r"[1-9][0-9.]* %|0\.[1-9] %"), timeout=5000)
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#pulse")).to_contain_text("0 running · 0 queued")
    first_token = page.page.locator(".card tr", has_text="First token").locator("td").nth(0)
    expect(first_token).to_have_text(re.compile(r"[0-9.]+ m?s"), timeout=5000)


def test_limits_are_those_of_info(page: OpenPage, server: RouterServer) -> None:
    page.show("server")
    with server.client() as client:
        info = client.get("/info").json()
    expect(page.page.locator("#model")).to_have_text(info["model_id"])
    expect(page.page.locator("#limits")).to_contain_text(f"{info['max_total_tokens']} tokens")


def test_a_page_that_is_not_seen_asks_nothing(page: OpenPage) -> None:
    page.show("server")

    def asked() -> int:
        return sum(url.endswith("/metrics") for url in page.requests)

    hide = "Object.defineProperty(document, 'visibilityState', {{value: '{}', configurable: true}});"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    page.page.evaluate(hide.format("hidden") + tell)
    page.page.wait_for_timeout(300)
    before = asked()
    page.page.wait_for_timeout(1500)
    assert asked() == before
    page.page.evaluate(hide.format("visible") + tell)
    page.page.wait_for_timeout(1500)
    assert asked() > before


def test_it_asks_once_a_second(page: OpenPage) -> None:
    page.show("server")
    page.requests.clear()
    page.page.wait_for_timeout(3000)
    assert 2 <= sum(url.endswith("/metrics") for url in page.requests) <= 4
    assert not any(url.endswith("/info") for url in page.requests)


def test_replicas_have_a_row_each(browser: Browser, server: RouterServer) -> None:
    lines = [
        f'{name}{{replica="{replica}"}} {value}'
        for name, values in {
            "tgi_batch_current_size": (3, 5),
            "tgi_queue_size": (0, 2),
            "tgi_kv_blocks": (100, 100),
            "tgi_kv_blocks_free": (70, 10),
            "tgi_kv_blocks_cached": (5, 10),
        }.items()
        for replica, value in enumerate(values)
    ]
    with open_page(browser, server.url) as page:
        page.page.route("**/metrics", lambda route: route.fulfill(body="\n".join(lines) + "\n"))
        page.show("server")
        expect(page.page.locator("#pulse")).to_contain_text("8 running · 2 queued")
        rows = page.page.locator("#replicas tbody tr")
        assert [row.split() for row in rows.all_inner_texts()] == [
            ["0", "3", "0", "25", "%"],
            ["1", "5", "2", "80", "%"],
        ]
        # What this server does not have is left out.
        expect(page.page.locator(".card", has_text="Preempted").locator("b")).to_have_text("–")


def test_quantiles_are_those_of_the_time_between(page: OpenPage) -> None:
    """Against the values themselves: a quantile lies in the bucket that holds the value of its rank."""
    page.show("server")
    bounds = [0.0001 * 1.5**power for power in range(1, 36)]
    draw = random.Random(5)
    earlier = [draw.expovariate(10) for _ in range(400)]
    later = [draw.lognormvariate(-4, 1) for _ in range(500)]

    def page_of(values: list[float]) -> str:
        counts = [(repr(bound), sum(value <= bound for value in values)) for bound in bounds]
        return "".join(f'x_bucket{{le="{le}"}} {count}\n' for le, count in [*counts, ("+Inf", len(values))])

    found = page.page.evaluate(
        """([before, now]) => {
          const parse = (text) => parseExposition(text, () => true);
          return quantilesBetween(parse(now), parse(before), "x", [0.5, 0.95]);
        }""",
        [page_of(earlier), page_of(earlier + later)],
    )
    ranked = sorted(later)
    for quantile, value in zip((0.5, 0.95), found, strict=True):
        true = ranked[int(quantile * len(ranked))]
        assert true / 1.5 <= value <= true * 1.5
    nothing = page.page.evaluate(
        "(text) => { const all = parseExposition(text, () => true); return quantilesBetween(all, all, 'x', [0.5]); }",
        page_of(earlier),
    )
    assert nothing is None
