"""Prompts, answers, alternatives, and the ways out."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.support.router_server import RouterServer, router_server
from tests.support.servers import Server
from tests.ui.pages import OpenPage, open_page, sent_json
from tests.ui.scripted import HOSTILE, MIXED, STORY, new_shard, new_tokenizer


def percent(logprob: float) -> str:
    share = math.exp(logprob) * 100
    return "100 %" if share >= 99.995 else "< 0.01 %" if share < 0.01 else f"{share:.2f} %"


def test_text_appears_token_by_token(page: OpenPage, server: RouterServer) -> None:
    page.show("prompt")
    server.shard.step_s = 0.05
    page.page.locator("#prompt").fill("capital")
    page.page.locator("#run").click()
    seen: list[str] = []
    while not page.page.locator("#status").inner_text().startswith("Done"):
        if page.answer not in seen:
            seen.append(page.answer)
    texts = [*seen, page.answer]
    assert len(texts) > 5
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert page.answer == " the city of Paris, in the north.</s>"
    expect(page.page.locator("#counts")).to_contain_text("27 tokens · ")
    expect(page.page.locator("#status")).to_have_text("Done: the model ended it.")


def test_whatever_a_model_writes_is_text(page: OpenPage) -> None:
    page.show("prompt")
    page.run("hostile")
    assert page.answer == HOSTILE
    assert "taken" not in page.page.title()
    assert page.page.locator("#answer img, #answer script").count() == 0
    page.run("mixed")
    assert page.answer == MIXED
    assert page.page.locator("#answer .special").all_inner_texts() == ["<|end of turn|>", "</s>"]
    # The bytes of a character come as several tokens; the last one has the character.
    assert page.page.locator("#answer .token.empty").count() > 3


def test_alternatives_have_the_probabilities_that_the_api_gives(browser: Browser, launched: Server) -> None:
    with open_page(browser, launched.url) as page:
        page.show("prompt")
        page.set("max_new_tokens", "8")
        page.run("The capital of France")
        expect(page.tokens).to_have_count(8)
        parameters = {"max_new_tokens": 8, "top_n_tokens": 5, "details": True}
        body = {"inputs": "The capital of France", "parameters": parameters}
        details = httpx.post(f"{launched.url}/generate", json=body, timeout=60).json()["details"]
        for index, (token, top) in enumerate(zip(details["tokens"], details["top_tokens"], strict=True)):
            if not token["text"]:
                continue
            page.page.mouse.move(0, 0)
            page.tokens.nth(index).hover()
            expect(page.page.locator("#alternatives .head span")).to_have_text(
                f"id {token['id']} · logprob {token['logprob']:.4f}"
            )
            shown = page.alternatives()
            assert [row[1] for row in shown] == [percent(other["logprob"]) for other in top]
            assert page.page.locator("#alternatives .chosen").count() == 1


def test_choosing_an_alternative_goes_on_from_it_and_undo_goes_back(page: OpenPage) -> None:
    page.show("prompt")
    page.run("capital")
    before = page.answer
    page.set("max_new_tokens", "3")
    page.tokens.nth(7).click()
    assert page.alternatives()[0][0] == "o"
    page.page.locator("#alternatives .alternative").nth(1).click()
    expect(page.page.locator("#status")).to_have_text("Done: the limit of new tokens was reached.")
    expect(page.tokens).to_have_count(11)
    assert page.tokens.nth(7).inner_text() == "p"
    page.page.locator("#undo").click()
    assert page.answer == before


def test_continue_sends_prompt_and_answer_and_appends(page: OpenPage) -> None:
    page.show("prompt")
    page.set("max_new_tokens", "9")
    page.run("story")
    page.page.locator("#continue").click()
    expect(page.page.locator("#answer .token")).to_have_count(18)
    assert STORY.startswith(page.answer)
    page.page.locator("#undo").click()
    expect(page.tokens).to_have_count(9)


def test_stop_ends_the_request_within_a_second(page: OpenPage, server: RouterServer) -> None:
    page.show("prompt")
    server.shard.step_s = 0.02
    page.set("max_new_tokens", "")
    page.page.locator("#prompt").fill("without an end")
    page.page.locator("#run").click()
    expect(page.tokens.nth(5)).to_be_attached()
    with server.client() as client:
        assert "tgi_batch_current_size 1\n" in client.get("/metrics").text
        stopped_s = time.monotonic()
        page.page.locator("#run").click()
        expect(page.page.locator("#status")).to_have_text("Stopped.", timeout=1000)
        while "tgi_batch_current_size 0\n" not in client.get("/metrics").text:
            assert time.monotonic() - stopped_s < 1
    count = page.tokens.count()
    page.page.wait_for_timeout(150)
    assert page.tokens.count() == count > 5


def test_the_servers_words_about_a_wrong_parameter_are_shown_at_it(page: OpenPage) -> None:
    page.show("prompt")
    page.page.locator('[name="do_sample"][value="true"]').check()
    page.set("temperature", "0")
    page.run("capital", said="")
    expect(page.page.locator("#problem b")).to_have_text(
        "Input validation error: `temperature` must be strictly positive"
    )
    expect(page.page.locator("#problem")).to_contain_text("status 422 · validation")
    expect(page.page.locator('[name="temperature"]')).to_have_attribute("aria-invalid", "true")
    page.set("temperature", "0.7")
    expect(page.page.locator('[name="temperature"]')).not_to_have_attribute("aria-invalid", "true")
    page.run("capital")
    expect(page.page.locator("#problem")).to_be_empty()


def test_an_error_in_the_middle_of_a_stream_is_shown_and_the_text_stays(page: OpenPage) -> None:
    token = (
        '{"index":1,"token":{"id":1,"text":"half","logprob":-1.0,"special":false},"generated_text":null,"details":null}'
    )
    error = '{"error":"Request failed during generation: the device is gone","error_type":"generation"}'
    events = f"data: {token}\n\n:\n\ndata:{error}\n\n"

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=events)

    page.show("prompt")
    page.page.route("**/generate_stream", answer)
    page.run("anything", said="")
    expect(page.page.locator("#problem b")).to_have_text("Request failed during generation: the device is gone")
    assert page.answer == "half"


def test_a_server_that_is_gone_is_said(page: OpenPage) -> None:
    page.show("prompt")
    page.page.route("**/generate_stream", lambda route: route.abort("connectionrefused"))
    page.page.route("**/metrics", lambda route: route.abort("connectionrefused"))
    page.run("anything", said="")
    expect(page.page.locator("#problem")).to_contain_text("No answer from the server")
    expect(page.page.locator("#pulse")).to_contain_text("no answer from the server for")


def test_an_api_key_is_asked_for_kept_for_the_tab_and_sent(browser: Browser, tmp_path: Path) -> None:
    guarded = router_server(new_shard(tmp_path), new_tokenizer(), api_key="secret")
    with guarded as server, open_page(browser, server.url) as page:
        page.show("prompt")
        assert page.page.locator("#api-key").is_hidden()
        page.run("capital", said="")
        expect(page.page.locator("#problem")).to_contain_text("status 401")
        expect(page.page.locator("#api-key")).to_be_focused()
        page.page.keyboard.type("secret")
        page.page.keyboard.press("Control+Enter")
        expect(page.page.locator("#status")).to_contain_text("Done")
        page.page.reload()
        page.run("capital")
        assert "secret" not in page.page.evaluate("JSON.stringify(localStorage)")


@pytest.mark.parametrize("width", [1400, 400])
def test_what_is_sent_is_what_was_entered(browser: Browser, server: RouterServer, width: int) -> None:
    with open_page(browser, server.url, width=width) as page:
        page.show("prompt")
        if width == 400:
            page.page.locator("#settings > summary").click()
        page.page.locator('[name="do_sample"][value="true"]').check()
        entered = {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 12,
            "seed": 7,
            "repetition_penalty": 1.1,
            "max_new_tokens": 3,
            "top_n_tokens": 2,
        }
        for name, value in entered.items():
            page.set(name, str(value))
        page.set("stop", "\\n\\n\n###")
        with page.page.expect_request("**/generate_stream") as sent:
            page.run("capital")
        expected = {**entered, "do_sample": True, "details": True, "stop": ["\n\n", "###"]}
        assert sent_json(sent.value) == {"inputs": "capital", "parameters": expected}
        expect(page.page.locator("#counts")).to_contain_text("seed 7")
        page.page.locator('[name="do_sample"][value="false"]').check()
        with page.page.expect_request("**/generate_stream") as sent:
            page.run("capital")
        unsampled = {
            name: value for name, value in expected.items() if name not in {"temperature", "top_p", "top_k", "seed"}
        }
        assert sent_json(sent.value)["parameters"] == {**unsampled, "do_sample": False}


def test_copied_text_is_what_the_model_wrote(browser: Browser, server: RouterServer) -> None:
    with open_page(browser, server.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.show("prompt")
        page.run("capital")
        page.page.locator("#copy").click()
        expect(page.page.locator("#status")).to_have_text("The answer is copied.")
        assert page.page.evaluate("navigator.clipboard.readText()") == " the city of Paris, in the north."
        page.set("max_new_tokens", "1000")
        page.run("story")
        page.page.evaluate("getSelection().selectAllChildren(document.querySelector('#answer .text'))")
        page.page.keyboard.press("Control+c")
        assert page.page.evaluate("navigator.clipboard.readText()") == page.answer
        page.page.locator("#curl").click()
        expect(page.page.locator("#status")).to_have_text("The command is copied.")
        assert page.page.evaluate("navigator.clipboard.readText()").startswith(
            f"curl -N '{server.url}/generate_stream'"
        )
