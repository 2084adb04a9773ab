"""Runs valid requests on a replica and makes their answers: pieces of text as they come, and the facts at the end.

Knows nothing about HTTP, JSON or events.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from text_generation_router.errors import GenerationError, InvalidRequest, QueueTimeout, RequestTimeout
from text_generation_router.metrics import Metrics
from text_generation_router.scheduling.request import (
    Constraint,
    ConstraintFailed,
    FinishReason,
    GenerationFailed,
    NotFinishedInTime,
    NotStartedInTime,
    Request,
    TokenEvent,
    TokenNumbers,
)
from text_generation_router.together import all_or_none
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.tracing import current_trace
from text_generation_router.transcript import Token, Transcript
from text_generation_router.validation import ValidRequest, random_seed

logger = logging.getLogger(__name__)


class TokenSource(Protocol):
    """What generation needs of a replica."""

    def submit(self, request: Request, constraint: Constraint | None = None) -> AsyncGenerator[TokenEvent, None]:
        """Run one request. Closing the generator gives back all that it holds.

        Raises GenerationFailed, ConstraintFailed, NotStartedInTime, NotFinishedInTime.
        """


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """In seconds; None: none."""

    queue_s: float | None = None  # until the first step, from the moment when the request was found valid
    request_s: float | None = None  # until the last token, from arrival

    def apply(self, request: Request, arrived_s: float, queued_s: float) -> Request:
        if self.queue_s is None and self.request_s is None:
            return request
        return replace(
            request,
            start_by_s=None if self.queue_s is None else queued_s + self.queue_s,
            finish_by_s=None if self.request_s is None else arrived_s + self.request_s,
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """Moments of time.monotonic(), in seconds."""

    arrived_s: float
    queued_s: float
    started_s: float  # first put into a step
    finished_s: float

    @property
    def total_s(self) -> float:
        return self.finished_s - self.arrived_s

    @property
    def validation_s(self) -> float:
        return self.queued_s - self.arrived_s

    @property
    def queue_s(self) -> float:
        return self.started_s - self.queued_s

    @property
    def inference_s(self) -> float:
        return self.finished_s - self.started_s


@dataclass(frozen=True, slots=True)
class PromptToken:
    token_id: int
    text: str
    logprob: float | None  # None: the first one, which nothing precedes


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known when a sequence has ended."""

    finish_reason: FinishReason
    generated_text: str
    generated_tokens: int
    seed: int | None  # None: no seed had any effect
    input_length: int
    prefill: Sequence[PromptToken]  # empty unless asked for
    timings: Timings

    @property
    def time_per_token_s(self) -> float:
        return self.timings.inference_s / self.generated_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """One token, and with the last one the ending."""

    token: Token
    top_tokens: Sequence[Token]  # empty unless asked for
    ending: Ending | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole sequence."""

    tokens: Sequence[Token]
    top_tokens: Sequence[Sequence[Token]]  # one a token
    ending: Ending

    @property
    def mean_logprob(self) -> float:
        return math.fsum(token.logprob for token in self.tokens) / len(self.tokens)


class Incomplete(Exception):
    """A sequence's tokens ended without a last one."""


class Generator:
    def __init__(
        self,
        source: TokenSource,
        tokenizer: Tokenizer,
        metrics: Metrics,
        time_limits: TimeLimits | None = None,
        *,
        log_text: bool = False,
    ) -> None:
        """`log_text`: prompts and answers are written to the log, which they are nowhere else."""
        self._source = source
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._time_limits = time_limits or TimeLimits()
        self._log_text = log_text

    async def stream(self, valid: ValidRequest, arrived_s: float) -> AsyncGenerator[Piece, None]:
        """One piece a token. Closing it ends the sequence at once.

        Args:
            arrived_s: time.monotonic() when the request came.
        Raises: GenerationError, QueueTimeout, RequestTimeout, Incomplete, and InvalidRequest for a grammar that turned
            out to be too much on the way.
        """
        queued_s = time.monotonic()
        self._metrics.request_input_length.observe(valid.input_length)
        self._metrics.request_max_new_tokens.observe(valid.request.max_new_tokens)
        request = self._time_limits.apply(valid.request, arrived_s, queued_s)
        transcript = Transcript(self._tokenizer, valid)
        prefill: Sequence[PromptToken] = ()
        try:
            # Leaving the block with a stop string found closes the source, which releases the sequence.
            constraint = None if valid.grammar is None else valid.grammar.constraint()
            async with aclosing(self._source.submit(request, constraint)) as events:
                async for event in events:
                    token = transcript.push(event)
                    top_tokens = self._top_tokens(event) if event.top_tokens else ()
                    if transcript.num_tokens == 1:
                        prefill = self._prefill(valid, event)
                        self._metrics.request_time_to_first_token_duration.observe(time.monotonic() - arrived_s)
                    if transcript.finish_reason is not None:
                        break
                    yield Piece(token, top_tokens, None)
                else:
                    raise Incomplete
        except GenerationFailed as error:
            raise GenerationError(str(error)) from error
        except ConstraintFailed as error:
            raise InvalidRequest(f"grammar cannot be followed any further: {error}; use a simpler one") from error
        except NotStartedInTime:
            raise QueueTimeout(self._time_limits.queue_s or 0.0) from None
        except NotFinishedInTime:
            raise RequestTimeout(self._time_limits.request_s or 0.0) from None
        ending = Ending(
            finish_reason=transcript.finish_reason,
            generated_text=transcript.generated_text(),
            generated_tokens=transcript.num_tokens,
            seed=valid.seed,
            input_length=valid.input_length,
            prefill=prefill,
            timings=Timings(arrived_s, queued_s, event.started_s, time.monotonic()),
        )
        self._record(valid, ending)
        yield Piece(token, top_tokens, ending)

    async def generate(self, valid: ValidRequest, arrived_s: float) -> Answer:
        """The whole sequence. Raises as `stream` does."""
        tokens: list[Token] = []
        top_tokens: list[Sequence[Token]] = []
        async with aclosing(self.stream(valid, arrived_s)) as pieces:
            async for piece in pieces:
                tokens.append(piece.token)
                top_tokens.append(piece.top_tokens)
        assert piece.ending is not None
        return Answer(tokens, top_tokens, piece.ending)

    async def generate_best_of(self, valid: ValidRequest, num_sequences: int, arrived_s: float) -> list[Answer]:
        """Several sequences, each with its own seed: the one with the highest mean logprob, then the others in order.

        Raises: as `stream` does, as soon as one of them fails; the others end with it.
        """
        sampling = valid.request.sampling
        seeds = [sampling.seed, *(random_seed() for _ in range(num_sequences - 1))]
        answers = await all_or_none(
            [
                self.generate(
                    replace(valid, request=replace(valid.request, sampling=replace(sampling, seed=seed))), arrived_s
                )
                for seed in seeds
            ]
        )
        best = max(answers, key=lambda answer: answer.mean_logprob)
        return [best, *(answer for answer in answers if answer is not best)]

    def _top_tokens(self, event: TokenEvent) -> list[Token]:
        special_texts = self._tokenizer.special_texts
        return [
            Token(token_id, self._tokenizer.token_text(token_id), TokenNumbers(logprob), token_id in special_texts)
            for token_id, logprob in event.top_tokens
        ]

    def _prefill(self, valid: ValidRequest, event: TokenEvent) -> Sequence[PromptToken]:
        if not valid.request.prompt_logprobs:
            return ()
        logprobs = (None, *(event.prompt_logprobs or ()))
        return [
            PromptToken(token_id, self._tokenizer.token_text(token_id), logprob)
            for token_id, logprob in zip(valid.request.token_ids, logprobs, strict=True)
        ]

    def _record(self, valid: ValidRequest, ending: Ending) -> None:
        timings, metrics = ending.timings, self._metrics
        metrics.request_success.add()
        metrics.request_duration.observe(timings.total_s)
        metrics.request_validation_duration.observe(timings.validation_s)
        metrics.request_queue_duration.observe(timings.queue_s)
        metrics.request_inference_duration.observe(timings.inference_s)
        metrics.request_mean_time_per_token_duration.observe(ending.time_per_token_s)
        metrics.request_generated_tokens.observe(ending.generated_tokens)
        facts: dict[str, str | int | None] = {
            "total_time": f"{timings.total_s:.6f}s",
            "validation_time": f"{timings.validation_s:.6f}s",
            "queue_time": f"{timings.queue_s:.6f}s",
            "inference_time": f"{timings.inference_s:.6f}s",
            "time_per_token": f"{ending.time_per_token_s:.6f}s",
            "seed": ending.seed,
        }
        text: dict[str, str] = {}
        if self._log_text:
            text = {"prompt": self._tokenizer.decode(valid.request.token_ids), "answer": ending.generated_text}
        logger.info("Success", extra={**facts, **text})
        trace = current_trace.get()
        if trace is not None:
            spans = (
                ("validation", timings.arrived_s, timings.queued_s),
                ("queue", timings.queued_s, timings.started_s),
                ("inference", timings.started_s, timings.finished_s),
            )
            trace.add_sequence(
                spans,
                {
                    **facts,
                    "seed": None if ending.seed is None else str(ending.seed),  # more than the wire's integers hold
                    "input_length": ending.input_length,
                    "generated_tokens": ending.generated_tokens,
                    "finish_reason": ending.finish_reason.value,
                },
            )
