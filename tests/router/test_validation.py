"""Every rule with its message to the byte, and what a valid request becomes. See test_messages for their order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from tests.router.broken_rules import BROKEN, MAX_INPUT_TOKENS, MAX_TOTAL_TOKENS, Broken
from tests.support.tokenizers import byte_level_tokenizer
from text_generation_router.errors import InvalidRequest
from text_generation_router.parameters import GenerateParameters
from text_generation_router.scheduling.request import SamplingParameters
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.validation import SUPPORTED_PARAMETERS, Limits, Validator, ValidRequest

PACKAGE = byte_level_tokenizer()
TOKENIZER = Tokenizer(PACKAGE, frozenset({256}))
# One token a letter, so that lengths are easily made.
LIMITS = Limits(
    max_best_of=2,
    max_stop_sequences=4,
    max_top_n_tokens=5,
    max_input_tokens=MAX_INPUT_TOKENS,
    max_total_tokens=MAX_TOTAL_TOKENS,
    vocab_size=400,
)


def validate(text: str, limits: Limits = LIMITS, **parameters: Any) -> ValidRequest:
    return asyncio.run(Validator(TOKENIZER, limits).validate(text, GenerateParameters(**parameters)))


def refusal(text: str, limits: Limits = LIMITS, **parameters: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        validate(text, limits, **parameters)
    return str(refused.value).removeprefix("Input validation error: ")


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_each_rule_has_its_message(broken: Broken) -> None:
    assert refusal(**{"text": "x", **broken.given}) == broken.message


@pytest.mark.parametrize(
    ("parameters", "stream", "message"),
    [
        ({"best_of": 2}, True, "`best_of` != 1 is not supported when streaming tokens"),
        ({"best_of": 0}, True, "`best_of` != 1 is not supported when streaming tokens"),
        (
            {"decoder_input_details": True},
            True,
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
        ({"best_of": 3}, False, "`best_of` must be > 0 and <= 2. Given: 3"),
    ],
)
def test_rules_before_admission(parameters: dict[str, Any], stream: bool, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Validator(TOKENIZER, LIMITS).check_before_admission(GenerateParameters(**parameters), stream=stream)
    assert str(refused.value) == f"Input validation error: {message}"


def test_best_of_where_it_is_switched_off() -> None:
    limits = Limits(1, 4, 5, 1500, 2000, 400)
    with pytest.raises(InvalidRequest, match=r"`best_of` != 1 is not allowed for this endpoint"):
        Validator(TOKENIZER, limits).check_before_admission(GenerateParameters(best_of=2), stream=False)


def test_best_of_zero_is_one_in_a_plain_request() -> None:
    Validator(TOKENIZER, LIMITS).check_before_admission(GenerateParameters(best_of=0), stream=False)
    validate("x", best_of=0)


@pytest.mark.parametrize(
    ("input_length", "max_new_tokens", "expected"),
    [
        (1500, 500, 500),  # exactly full
        (1500, 1, 1),
        (976, 1024, 1024),
        (976, 10_000, 1024),  # of a longer answer 1024 are counted, and it is cut off where the room ends
        (500, 1600, 1500),
        (500, None, 1500),
        (1500, None, 500),
    ],
)
def test_how_many_tokens_may_be_generated(input_length: int, max_new_tokens: int | None, expected: int) -> None:
    assert validate("x" * input_length, max_new_tokens=max_new_tokens).request.max_new_tokens == expected


@pytest.mark.parametrize(
    ("input_length", "max_new_tokens", "message"),
    [
        (977, 10_000, "Given: 977 `inputs` tokens and 1024 `max_new_tokens`"),
        (1999, None, "`inputs` must have less than 1500 tokens. Given: 1999"),
        (2001, None, "Given: 2001 `inputs` tokens and 0 `max_new_tokens`"),
    ],
)
def test_what_does_not_fit(input_length: int, max_new_tokens: int | None, message: str) -> None:
    assert refusal("x" * input_length, max_new_tokens=max_new_tokens).endswith(message)


def test_truncate_keeps_the_last_tokens_and_counts_before_the_limits() -> None:
    request = validate("x" * 3000 + "abc", truncate=5, max_new_tokens=1500).request
    assert [PACKAGE.id_to_token(token_id) for token_id in request.token_ids] == ["x", "x", "a", "b", "c"]
    assert len(validate("x" * 3000, truncate=1500, max_new_tokens=1).request.token_ids) == 1500


def test_a_token_that_the_model_does_not_have_is_refused() -> None:
    limits = Limits(2, 4, 5, 1500, 2000, vocab_size=10)
    assert refusal("x", limits).startswith("tokenizer error token id ")


@pytest.mark.parametrize(
    ("parameters", "samples"),
    [
        ({}, False),
        ({"temperature": 1.0}, False),
        ({"seed": 7, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "watermark": True}, False),
        ({"do_sample": True}, True),
        ({"temperature": 0.7}, True),
        ({"top_k": 5}, True),
        ({"top_p": 0.9}, True),
        ({"typical_p": 0.9}, True),
    ],
)
def test_when_sampling_is_on(parameters: dict[str, Any], samples: bool) -> None:
    valid = validate("x", **parameters)
    assert valid.request.sampling.do_sample is samples
    assert (valid.seed is not None) is samples


def test_seeds_are_kept_or_drawn() -> None:
    assert validate("x", do_sample=True, seed=2**64 - 1).seed == 2**64 - 1
    assert validate("x", do_sample=True, seed=0).seed == 0
    drawn = {validate("x", do_sample=True).seed for _ in range(4)}
    assert len(drawn) == 4
    assert all(seed is not None and 0 <= seed < 2**64 for seed in drawn)


def test_everything_reaches_the_request() -> None:
    valid = validate(
        "x",
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        typical_p=0.75,
        repetition_penalty=2,
        frequency_penalty=-1,
        watermark=True,
        seed=9,
        top_n_tokens=5,
        decoder_input_details=True,
        stop=["a", "b"],
        max_new_tokens=3,
    )
    assert valid.request.sampling == SamplingParameters(True, 0.5, 3, 0.25, 0.75, 2.0, -1.0, True, 9)
    assert valid.request.top_n_tokens == 5
    assert valid.request.prompt_logprobs
    assert valid.request.eos_token_ids == {256}
    assert valid.stop == ("a", "b")


def test_a_tiny_temperature_does_not_reach_the_shards_as_zero() -> None:
    assert validate("x", temperature=1e-40).request.sampling.temperature == pytest.approx(1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": "ten"},
        {"max_new_tokens": -1},
        {"max_new_tokens": 1.5},
        {"max_new_tokens": 2**32},
        {"truncate": -1},
        {"seed": -1},
        {"seed": 2**64},
        {"top_k": 2**31},
        {"top_n_tokens": -1},
        {"temperature": 1e39},
        {"temperature": "hot"},
        {"stop": "a"},
        {"stop": [1]},
        {"do_sample": "maybe"},
    ],
)
def test_wrong_types_and_numbers_outside_their_type_do_not_parse(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GenerateParameters.model_validate(wrong)


def test_null_is_not_given_for_every_field() -> None:
    nulls = GenerateParameters.model_validate(dict.fromkeys(GenerateParameters.model_fields))
    assert nulls == GenerateParameters()


def test_unsupported_fields_are_not_listed_as_supported() -> None:
    assert set(GenerateParameters.model_fields) - set(SUPPORTED_PARAMETERS) == {"adapter_id"}
