"""Sequences become answers: which of several wins, when a source is closed, and what an early end is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from tests.support.scripted_source import ScriptedSource
from tests.support.tokenizers import byte_level_tokenizer
from text_generation_router.errors import GenerationError
from text_generation_router.generation import Answer, Generator, Incomplete
from text_generation_router.metrics import Metrics
from text_generation_router.scheduling.request import FinishReason, Request, SamplingParameters
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.validation import ValidRequest

T = TypeVar("T")

PACKAGE = byte_level_tokenizer()
A, B, C = (PACKAGE.token_to_id(letter) or 0 for letter in "abc")


def generator(source: ScriptedSource) -> Generator:
    return Generator(source, Tokenizer(PACKAGE, frozenset()), Metrics(max_input_tokens=10, max_total_tokens=20))


def valid(*stop: str) -> ValidRequest:
    return ValidRequest(Request((A,), 10, sampling=SamplingParameters(do_sample=True, seed=1)), stop)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 10))


def texts(answers: list[Answer]) -> list[str]:
    return [answer.ending.generated_text for answer in answers]


def test_the_highest_mean_logprob_wins_and_the_others_keep_their_order() -> None:
    # Sums would let the second, mere length the first win.
    source = ScriptedSource([(A, -1.0), (A, -1.0)], [(B, -1.5)], [(C, -0.5)] * 5)
    answers = run(generator(source).generate_best_of(valid(), 3, 0.0))
    assert texts(answers) == ["ccccc", "aa", "b"]
    seeds = [request.sampling.seed for request in source.requests]
    assert len(set(seeds)) == 3
    assert [answer.ending.seed for answer in answers] == [seeds[2], seeds[0], seeds[1]]


def test_if_one_of_several_fails_all_end() -> None:
    source = ScriptedSource([(A, -1.0)] * 3, [(A, -1.0), "rank 0 is gone"])
    with pytest.raises(GenerationError, match=r"^Request failed during generation: Server error: rank 0 is gone$"):
        run(generator(source).generate_best_of(valid(), 2, 0.0))
    assert source.num_closed == 2


def test_a_stop_string_closes_the_source_before_the_last_piece_is_given_out() -> None:
    source = ScriptedSource([(A, -1.0), (B, -1.0), (C, -1.0), (A, -1.0)])

    async def test() -> None:
        async with aclosing(generator(source).stream(valid("b"), 0.0)) as pieces:
            async for piece in pieces:
                assert source.num_closed == (piece.ending is not None)
        assert piece.ending is not None
        assert piece.ending.finish_reason is FinishReason.STOP_SEQUENCE
        assert piece.ending.generated_text == "ab"
        assert source.num_events == 2

    run(test())


def test_closing_a_stream_closes_its_source() -> None:
    source = ScriptedSource([(A, -1.0)] * 5)

    async def test() -> None:
        async with aclosing(generator(source).stream(valid(), 0.0)) as pieces:
            async for _ in pieces:
                break
        assert source.num_closed == 1

    run(test())


def test_an_end_without_a_last_token_is_incomplete() -> None:
    with pytest.raises(Incomplete):
        run(generator(ScriptedSource([(A, -1.0)], finish_reason=None)).generate(valid(), 0.0))
    with pytest.raises(Incomplete):
        run(generator(ScriptedSource([])).generate(valid(), 0.0))
