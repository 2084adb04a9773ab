"""Plain answers of the native routes: body and headers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from text_generation_router.generation import Answer, PromptToken
from text_generation_router.parameters import GenerateParameters
from text_generation_router.tokenizer import TextToken
from text_generation_router.transcript import Token


class JsonResponse(Response):
    """JSON by orjson, which writes NaN and infinities as null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def generate_body(answers: Sequence[Answer], parameters: GenerateParameters, prompt: str) -> dict[str, Any]:
    """The object of /generate.

    Args:
        answers: the one to return, then the others of a best_of.
        prompt: put before each generated text.
    """
    best, *others = answers
    body: dict[str, Any] = {"generated_text": prompt + best.ending.generated_text}
    if parameters.details or parameters.decoder_input_details:
        details = _details(best, parameters)
        if others:
            details["best_of_sequences"] = [
                {"generated_text": prompt + other.ending.generated_text, **_details(other, parameters)}
                for other in others
            ]
        body["details"] = details
    return body


def timing_headers(answers: Sequence[Answer], *, compute_time_in_ms: bool = False) -> dict[str, str]:
    """Of one sequence, or sums over several; x-compute-time is that of the one that took longest.

    Args:
        compute_time_in_ms: write x-compute-time as 0.9.4 did, not in seconds.
    """
    endings = [answer.ending for answer in answers]
    timings = [ending.timings for ending in endings]
    total_s = max(timing.total_s for timing in timings)
    return {
        "x-compute-time": _milliseconds([total_s]) if compute_time_in_ms else f"{total_s:.6f}",
        "x-total-time": _milliseconds(timing.total_s for timing in timings),
        "x-validation-time": _milliseconds(timing.validation_s for timing in timings),
        "x-queue-time": _milliseconds(timing.queue_s for timing in timings),
        "x-inference-time": _milliseconds(timing.inference_s for timing in timings),
        "x-time-per-token": _milliseconds(ending.time_per_token_s for ending in endings),
        "x-prompt-tokens": str(sum(ending.input_length for ending in endings)),
        "x-generated-tokens": str(sum(ending.generated_tokens for ending in endings)),
    }


def text_tokens(tokens: Iterable[TextToken]) -> list[dict[str, Any]]:
    """The list of /tokenize."""
    return [{"id": token.token_id, "text": token.text, "start": token.start, "stop": token.stop} for token in tokens]


def _milliseconds(durations_s: Iterable[float]) -> str:
    return str(sum(max(0, int(duration_s * 1000)) for duration_s in durations_s))


def _details(answer: Answer, parameters: GenerateParameters) -> dict[str, Any]:
    ending = answer.ending
    details: dict[str, Any] = {
        "finish_reason": ending.finish_reason.value,
        "generated_tokens": ending.generated_tokens,
        "seed": ending.seed,
        "prefill": [_prompt_token(token) for token in ending.prefill],
        "tokens": _tokens(answer.tokens),
    }
    if parameters.top_n_tokens:
        details["top_tokens"] = [_tokens(tokens) for tokens in answer.top_tokens]
    return details


def _prompt_token(token: PromptToken) -> dict[str, Any]:
    return {"id": token.token_id, "text": token.text, "logprob": token.logprob}


def _tokens(tokens: Iterable[Token]) -> list[dict[str, Any]]:
    return [
        {"id": token.token_id, "text": token.text, **token.numbers._asdict(), "special": token.special}
        for token in tokens
    ]
