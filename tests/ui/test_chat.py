"""Conversations through /v1/chat/completions."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.support.router_server import RouterServer
from tests.support.servers import Server
from tests.ui.pages import OpenPage, open_page, sent_json


def say(page: OpenPage, text: str, said: str = "Done") -> None:
    page.page.locator("#message").fill(text)
    page.page.keyboard.press("Control+Enter")
    expect(page.page.locator("#status")).to_contain_text(said, timeout=60_000)


def answers(page: OpenPage) -> Locator:
    return page.page.locator("#messages .assistant .text")


def test_a_conversation_grows_by_question_and_answer(page: OpenPage) -> None:
    page.show("chat")
    say(page, "capital")
    expect(answers(page).nth(0)).to_have_text(" the city of Paris, in the north.</s>")
    assert page.page.locator("#message").input_value() == ""
    say(page, "and then")
    expect(answers(page).nth(1)).to_have_text("the sea</s>")
    expect(page.page.locator("#messages .user .text")).to_have_text(["capital", "and then"])
    expect(page.page.locator("#messages .special")).to_have_text(["</s>", "</s>"])
    expect(page.page.locator("#counts")).to_contain_text("prompt ")


def test_the_system_message_goes_first(page: OpenPage) -> None:
    page.show("chat")
    page.page.locator("#system-box summary").click()
    page.page.locator("#system").fill("be brief")
    say(page, "capital")
    expect(answers(page)).to_have_text("Paris</s>")


def test_alternatives_and_going_on_from_the_middle(page: OpenPage) -> None:
    page.show("chat")
    say(page, "capital")
    page.page.locator("#messages .token").nth(7).hover()
    expect(page.page.locator("#alternatives .head b")).to_have_text("o")
    assert [row[1] for row in page.alternatives()] == ["33.33 %"] * 5
    assert page.page.locator("#alternatives .chosen").count() == 1
    with page.page.expect_request("**/v1/chat/completions") as sent:
        page.page.locator("#alternatives .alternative").nth(1).click()
    assert sent_json(sent.value)["messages"] == [
        {"role": "user", "content": "capital"},
        {"role": "assistant", "content": " the city p"},
    ]
    expect(page.page.locator("#status")).to_contain_text("Done")
    page.page.locator("#undo").click()
    expect(answers(page)).to_have_text(" the city of Paris, in the north.</s>")


def test_continue_goes_on_with_the_last_answer_and_undo_takes_it_back(page: OpenPage) -> None:
    page.show("chat")
    page.set("max_new_tokens", "6")
    say(page, "capital", said="limit of new tokens")
    expect(answers(page)).to_have_text(" the city")
    page.set("max_new_tokens", "50")
    with page.page.expect_request("**/v1/chat/completions") as sent:
        page.page.locator("#continue").click()
    assert sent_json(sent.value)["messages"][-1] == {"role": "assistant", "content": " the city"}
    expect(answers(page)).to_have_text(" the city of Paris, in the north.</s>")
    page.page.locator("#undo").click()
    expect(answers(page)).to_have_text(" the city")
    page.page.locator("#undo").click()
    expect(answers(page)).to_have_count(0)
    assert page.page.locator("#message").input_value() == "capital"


def test_characters_of_several_tokens_are_whole(page: OpenPage) -> None:
    page.show("chat")
    say(page, "emoji")
    expect(answers(page)).to_have_text("a😀b</s>")


@pytest.mark.parametrize("said", ["###", "Paris"])
def test_a_stop_string_is_not_in_the_answer(page: OpenPage, said: str) -> None:
    page.show("chat")
    page.set("stop", said)
    say(page, "capital")
    whole = " the city of Paris, in the north."
    text = page.page.locator("#messages .token:not(.special)").all_text_contents()
    assert "".join(text) == whole.partition(said)[0]


def test_stop_keeps_what_came(page: OpenPage, server: RouterServer) -> None:
    page.show("chat")
    server.shard.step_s = 0.02
    page.set("max_new_tokens", "")
    page.page.locator("#message").fill("without an end")
    page.page.locator("#run").click()
    expect(page.page.locator("#messages .token").nth(5)).to_be_attached()
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#status")).to_have_text("Stopped.", timeout=1000)
    assert page.page.locator("#messages .token").count() > 5


def test_errors_are_shown_and_the_question_can_be_sent_again(page: OpenPage) -> None:
    page.show("chat")
    page.set("repetition_penalty", "0")
    say(page, "capital", said="")
    expect(page.page.locator("#problem b")).to_contain_text("`repetition_penalty` must be strictly positive")
    page.set("repetition_penalty", "")
    say(page, "")
    expect(answers(page)).to_have_text(" the city of Paris, in the north.</s>")


def test_a_real_model_with_its_own_template(browser: Browser, launched: Server) -> None:
    with open_page(browser, launched.url) as page:
        page.show("chat")
        page.set("max_new_tokens", "12")
        say(page, "What is the capital of France?", said="limit of new tokens")
        expect(page.page.locator("#messages .token")).to_have_count(12)
