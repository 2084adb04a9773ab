"""Reading the wire's parameters, and which steps they ask for."""

from __future__ import annotations

import pytest

from text_generation_proto import generate_pb2
from text_generation_server.sampling import SamplingParameters


def test_every_field_of_the_wire_arrives() -> None:
    message = generate_pb2.SamplingParameters(
        do_sample=True,
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        typical_p=0.25,
        repetition_penalty=1.5,
        frequency_penalty=-0.5,
        watermark=True,
        seed=2**64 - 1,
        presence_penalty=0.25,
        count_penalty=-1.5,
        bias_token_ids=[3, 9],
        bias_values=[-100.0, 0.5],
    )
    parameters = SamplingParameters.from_proto(message)
    names = [field.name for field in generate_pb2.SamplingParameters.DESCRIPTOR.fields]
    alike = [name for name in names if not name.startswith("bias_")]
    assert [*alike, "logit_bias"] == list(SamplingParameters.__slots__)
    assert [getattr(parameters, name) for name in alike] == [getattr(message, name) for name in alike]
    assert parameters.logit_bias == ((3, -100.0), (9, 0.5))


def test_an_unset_message_is_neutral() -> None:
    assert SamplingParameters.from_proto(generate_pb2.SamplingParameters()) == SamplingParameters()


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-38, 1e-45])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    message = generate_pb2.SamplingParameters(do_sample=True, temperature=temperature)
    assert SamplingParameters.from_proto(message).is_greedy


def test_only_penalties_and_the_watermark_need_the_history() -> None:
    assert not SamplingParameters(do_sample=True, temperature=0.3, top_k=3, top_p=0.5, typical_p=0.5).needs_history
    assert SamplingParameters(repetition_penalty=1.1).needs_history
    assert SamplingParameters(frequency_penalty=0.1).needs_history
    assert SamplingParameters(watermark=True).needs_history
    assert SamplingParameters(presence_penalty=0.1).needs_history
    assert SamplingParameters(count_penalty=0.1).needs_history
    assert not SamplingParameters(logit_bias=((1, 2.0),)).needs_history
