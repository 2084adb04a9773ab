"""/v1/completions: prompts of text or token ids, each a request of its own."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from text_generation_router.api.answers import JsonResponse, timing_headers
from text_generation_router.api.bodies import read_body
from text_generation_router.api.disconnect import until_disconnect
from text_generation_router.api.openapi import request_body, responses
from text_generation_router.errors import InvalidRequest
from text_generation_router.generation import Answer, Ending
from text_generation_router.openai.answers import Echo, Head, completion_choice, usage_of
from text_generation_router.openai.chunks import DONE, CompletionChunks, usage_event
from text_generation_router.openai.errors import SuffixNotSupported, TooManyPrompts
from text_generation_router.openai.sampling import choices, native_parameters
from text_generation_router.openai.schema import Completion, CompletionRequest, Prompt
from text_generation_router.openai.service import OpenAiService, event_stream
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.validation import ValidRequest


@dataclass(frozen=True, slots=True)
class _Work:
    """A request's sequences: for each prompt in order, so many that its choices can be chosen from them."""

    sequences: Sequence[ValidRequest]
    num_per_prompt: int

    @property
    def prompt_lengths(self) -> list[int]:
        return [valid.input_length for valid in self.sequences[:: self.num_per_prompt]]


async def answer_completion(service: OpenAiService, body: CompletionRequest, request: Request) -> Response:
    """A plain answer, or events. Raises RequestError."""
    arrived_s = time.monotonic()
    generation = service.generation
    with generation.counted():
        generation.gate.check_open()
        _check(service, body)
    headers = {
        "x-compute-type": generation.compute_type,
        "x-compute-characters": str(sum(len(prompt) for prompt in body.prompts if isinstance(prompt, str))),
    }
    if body.stream:
        return event_stream(service, _events(service, body, arrived_s), headers)
    return await until_disconnect(request.receive, _answer(service, body, arrived_s, headers))


def _check(service: OpenAiService, body: CompletionRequest) -> None:
    if body.suffix is not None:
        raise SuffixNotSupported
    if len(body.prompts) > service.max_client_batch_size:
        raise TooManyPrompts(service.max_client_batch_size)
    if body.best_of is not None and body.best_of < body.num_choices:
        raise InvalidRequest(f"`best_of` must be >= `n`. Given: {body.best_of} and {body.num_choices}")
    if body.stream and _num_per_prompt(body) != body.num_choices:
        raise InvalidRequest("`best_of` above `n` is not supported when streaming")
    if body.echo and body.logprobs is not None:
        if body.stream:
            raise InvalidRequest("`echo` with `logprobs` is not supported when streaming")
        if body.logprobs > 0:
            raise InvalidRequest(
                "`echo` with `logprobs` above 0 is not supported: of the prompt only the tokens' own logprobs are known"
            )


def _num_per_prompt(body: CompletionRequest) -> int:
    return max(body.best_of or 1, body.num_choices)


async def _work(service: OpenAiService, body: CompletionRequest) -> _Work:
    """Raises InvalidRequest."""
    lenient = service.generation.compat.lenient_openai
    parameters = native_parameters(
        body,
        max_new_tokens=body.max_tokens,
        top_n_tokens=body.logprobs,
        prompt_logprobs=bool(body.echo) and body.logprobs is not None,
        lenient=lenient,
    )
    validator = service.generation.validator
    sequences: list[ValidRequest] = []
    for prompt in body.prompts:
        valid = await validator.validate(prompt, parameters)
        num_choices, vocab_size = _num_per_prompt(body), validator.limits.vocab_size
        sequences.extend(choices(valid, body, num_choices, vocab_size, lenient=lenient))
    return _Work(sequences, _num_per_prompt(body))


async def _answer(
    service: OpenAiService, body: CompletionRequest, arrived_s: float, headers: dict[str, str]
) -> Response:
    generation = service.generation
    num_sequences = len(body.prompts) * _num_per_prompt(body)
    with generation.failures_counted(), generation.gate.enter(num_sequences):
        work = await _work(service, body)
        answers = await service.answers(work.sequences, arrived_s)
    contents: list[dict[str, Any]] = []
    for place, prompt in enumerate(body.prompts):
        candidates = answers[place * work.num_per_prompt : (place + 1) * work.num_per_prompt]
        for answer in _best(candidates, body.num_choices):
            echo = Echo(_echoed(service.tokenizer, prompt, body), answer.ending.prefill)
            contents.append(completion_choice(len(contents), answer, body.stops, echo, body.logprobs))
    content = {
        **_head(service).fields(),
        "choices": contents,
        "usage": usage_of([answer.ending for answer in answers], work.prompt_lengths),
    }
    timings = timing_headers(answers)
    del timings["x-compute-time"]
    return JsonResponse(content, headers={**headers, **timings})


def _best(candidates: Sequence[Answer], num_choices: int) -> Sequence[Answer]:
    """Those with the highest mean logprob, best first; all in their order if there is nothing to choose."""
    if len(candidates) == num_choices:
        return candidates
    return sorted(candidates, key=lambda answer: -answer.mean_logprob)[:num_choices]


async def _events(service: OpenAiService, body: CompletionRequest, arrived_s: float) -> AsyncGenerator[bytes, None]:
    generation = service.generation
    head = _head(service)
    with generation.failures_counted(), generation.gate.enter(len(body.prompts) * body.num_choices):
        work = await _work(service, body)
        writers = [
            CompletionChunks(
                head,
                index,
                body.stops,
                _echoed(service.tokenizer, body.prompts[index // body.num_choices], body),
                body.logprobs,
                show_usage=not body.include_usage,
            )
            for index in range(len(work.sequences))
        ]
        endings: list[Ending] = []
        async with aclosing(service.pieces(work.sequences, arrived_s)) as pieces:
            async for index, piece in pieces:
                yield writers[index].push(piece)
                if piece.ending is not None:
                    endings.append(piece.ending)
        if body.include_usage:
            yield usage_event(head, usage_of(endings, work.prompt_lengths))
        yield DONE


def _echoed(tokenizer: Tokenizer, prompt: Prompt, body: CompletionRequest) -> str:
    """The prompt's text, if it shall be given back."""
    if not body.echo:
        return ""
    if isinstance(prompt, str):
        return prompt
    detokenizer = tokenizer.detokenizer(())
    texts = [tokenizer.special_texts.get(token_id) or detokenizer.push(token_id) for token_id in prompt]
    return "".join(texts) + detokenizer.flush()


def _head(service: OpenAiService) -> Head:
    return Head.new("text_completion", "cmpl", service.served_model, service.fingerprint)


def add_completion_routes(app: FastAPI, service: OpenAiService) -> None:
    limit_bytes = service.generation.payload_limit

    @app.post(
        "/v1/completions",
        summary="Continue texts, as a whole or, if `stream` is true, as events",
        openapi_extra=request_body(CompletionRequest),
        responses=responses(Completion, 413, 422, 424, 429, 500, 503, event_models=[Completion]),
    )
    async def completions(request: Request) -> Response:
        return await answer_completion(service, await read_body(request, CompletionRequest, limit_bytes), request)
