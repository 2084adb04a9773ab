"""A client that we did not write: huggingface_hub's InferenceClient against the native routes."""

from __future__ import annotations

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from tests.router.api.scripted import ANSWERS, ids
from tests.support.router_server import RouterServer

CAPITAL = ANSWERS["capital"].removesuffix("</s>")


@pytest.fixture
def hub(server: RouterServer) -> InferenceClient:
    return InferenceClient(model=server.url)


def test_plain_text(hub: InferenceClient) -> None:
    assert hub.text_generation("capital") == CAPITAL


def test_details(hub: InferenceClient) -> None:
    answer = hub.text_generation("capital", details=True, top_n_tokens=2, decoder_input_details=True)
    assert answer.details is not None
    assert answer.details.finish_reason == "eos_token"
    assert [token.id for token in answer.details.tokens] == list(ids(ANSWERS["capital"]))
    assert len(answer.details.prefill) == len(ids("capital"))


def test_streams_with_line_separators_in_their_text(hub: InferenceClient) -> None:
    events = list(hub.text_generation("emoji", stream=True, details=True))
    assert "".join(event.token.text for event in events if not event.token.special) == "a😀é\u2028\u0085b한"
    assert events[-1].generated_text == "a😀é\u2028\u0085b한"


def test_a_refusal_is_the_clients_validation_error(hub: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
        hub.text_generation("capital", temperature=0.0)
    with pytest.raises(ValidationError, match="when streaming tokens"):
        list(hub.text_generation("capital", stream=True, best_of=2))
