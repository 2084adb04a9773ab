"""Stop strings on a whole server: at their own place, wherever tokens end, and each for its own request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.asking import Answer, Question, ask, ask_at_once, client_of, prompt_of
from tests.support.servers import Server

PROMPT = prompt_of(18, seed=1)
LENGTH = {"max_new_tokens": 60}


@pytest.fixture(scope="module")
def whole(one_shard: Server) -> Answer:
    with client_of(one_shard) as client:
        return ask(client, PROMPT, **LENGTH)


def test_a_stop_string_ends_the_text_wherever_tokens_end(one_shard: Server, whole: Answer) -> None:
    """G01: every piece of three characters of the first forty, on every route; kept there, cut off here."""
    with client_of(one_shard) as client:
        for start in range(0, 40, 3):
            stop = whole.text[start : start + 3]
            if "\ufffd" in stop:
                continue
            end = whole.text.index(stop) + len(stop)
            answer = ask(client, PROMPT, stop=[stop], **LENGTH)
            assert (answer.text, answer.finish_reason) == (whole.text[:end], "stop_sequence")
            for given in (stop, [stop]):
                body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stop": given}
                (choice,) = client.post("/v1/completions", json=body).json()["choices"]
                assert (choice["text"], choice["finish_reason"]) == (whole.text[: end - len(stop)], "stop")


def test_stop_strings_are_per_request(one_shard: Server, whole: Answer) -> None:
    """G02: in one batch, with prompts of one length; an empty list stops nothing."""
    stop = next(character for character in whole.text if character != "\ufffd")
    stops: list[dict[str, Any]] = [{"stop": [stop]}, {"stop": ["zzzz", "qqqq"]}, {"stop": []}, {}]
    first, *others = ask_at_once(one_shard, [Question(PROMPT, {**LENGTH, **given}) for given in stops])
    assert first.text == whole.text[: whole.text.index(stop) + 1]
    assert first.finish_reason == "stop_sequence"
    assert [answer.ids for answer in others] == [whole.ids] * 3
    assert [answer.finish_reason for answer in others] == ["length"] * 3
