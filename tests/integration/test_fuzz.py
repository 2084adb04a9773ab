"""Whatever the OpenAPI document allows, and more: an answer that it names, soon, and never a failure of the server.

`make fuzz` asks thousands of times, these tests only so often that every route is reached in every way.
"""

from __future__ import annotations

import pytest

from tests.integration.fuzzing import Findings, fuzz
from tests.support.servers import Server

NUM_REQUESTS = 250


@pytest.fixture(scope="module")
def findings(short_answers: Server) -> Findings:
    return fuzz(short_answers.url, NUM_REQUESTS)


def test_every_answer_is_documented_in_time_and_no_failure_of_the_server(findings: Findings) -> None:
    assert findings.failures == []
    assert findings.num_requests >= NUM_REQUESTS


def test_every_operation_was_asked_for_what_it_gives_and_for_what_it_refuses(findings: Findings) -> None:
    assert len(findings.statuses) == 16
    for operation, statuses in findings.statuses.items():
        assert statuses[200], operation
        assert any(400 <= status < 500 for status in statuses), operation


def test_the_server_still_answers(short_answers: Server, findings: Findings) -> None:
    assert short_answers.generate("capital", max_new_tokens=3)["generated_text"]
    assert short_answers.metric("tgi_batch_current_size") == 0
    assert short_answers.metric("tgi_queue_size") == 0
