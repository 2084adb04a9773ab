"""A long stream leaves the browser time for its frames."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Browser

from tests.support.router_server import RouterServer
from tests.ui.pages import OpenPage

_TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline"]


def milliseconds_by_frame(trace: bytes) -> list[float]:
    """Processor time that the page's main thread used for each frame: its events, scripts, style, layout and paint.

    Not the time between frames, because other programs take their share of a small machine.
    """
    events: list[dict[str, Any]] = json.loads(trace)["traceEvents"]
    threads = {(event["pid"], event["tid"]) for event in events if event.get("args") == {"name": "CrRendererMain"}}
    own = sorted((event for event in events if (event["pid"], event["tid"]) in threads), key=lambda event: event["ts"])
    frames = [0.0]
    for event in own:
        if event["name"] == "Commit":
            frames.append(0.0)
        elif event["name"] == "RunTask":
            frames[-1] += event.get("tdur", 0) / 1000
    return frames


def test_a_thousand_tokens_stream_at_more_than_thirty_frames_a_second(
    browser: Browser, page: OpenPage, server: RouterServer
) -> None:
    page.show("prompt")
    page.set("max_new_tokens", "1000")
    page.page.locator("#shade").check()
    server.shard.step_s = 0.004
    browser.start_tracing(page=page.page, categories=_TRACED)
    page.run("story")
    frames = sorted(milliseconds_by_frame(browser.stop_tracing()))
    assert page.tokens.count() == 1000
    assert len(frames) > 20
    assert sum(frames) > 50, "the trace has no processor time"
    assert frames[int(len(frames) * 0.95)] < 1000 / 30, frames[-20:]


_APPEND = """(count) => {
  const scroller = document.querySelector("#answer");
  const view = scroller.querySelector(".text").tokenView;
  const words = "In the north, by the sea, the old road went on. ".split(/(?<= )/);
  for (let index = 0; index < count; index++) {
    const word = words[view.records.length % words.length];
    const isLineEnd = view.records.length % 40 === 39;
    view.append({ text: isLineEnd ? word + "\\n" : word, logprob: -1, special: false, top: [] });
    if (index % 10 === 9) { view.flush(); scroller.getBoundingClientRect(); }
  }
}"""


def test_the_cost_of_a_token_does_not_grow_with_the_answer(page: OpenPage) -> None:
    page.show("prompt")
    session = page.page.context.new_cdp_session(page.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def milliseconds(count: int) -> float:
        """Processor time of adding so many tokens, ten a frame, with their layout."""
        before = busy_s()
        page.page.evaluate(_APPEND, count)
        return (busy_s() - before) * 1000

    def busy_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    milliseconds(1000)
    early = milliseconds(1000)
    milliseconds(14000)
    late = milliseconds(1000)
    assert 1 < early < 1000
    assert late < 4 * early
