"""Plain answers of the OpenAI routes, and what they share with the events: heads, usage, log-probabilities."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from text_generation_router.generation import Answer, Ending, PromptToken
from text_generation_router.openai.calls import CallArguments, CallStart, Content
from text_generation_router.openai.choice import Choice, shown_text, with_last
from text_generation_router.openai.errors import ToolError
from text_generation_router.openai.tools import ToolUse
from text_generation_router.transcript import Token


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer and each of its events begin with."""

    object: str
    id: str
    created: int  # Unix time in seconds
    model: str
    system_fingerprint: str

    @classmethod
    def new(cls, object: str, prefix: str, model: str, fingerprint: str) -> Head:
        return cls(object, f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model, fingerprint)

    def fields(self) -> dict[str, Any]:
        return {
            "object": self.object,
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def usage_of(endings: Sequence[Ending], prompt_lengths: Sequence[int]) -> dict[str, int]:
    """
    Args:
        endings: of all sequences.
        prompt_lengths: one for each prompt, however many sequences it had.
    """
    return usage(sum(prompt_lengths), sum(ending.generated_tokens for ending in endings))


# ------------------------------------------------------------------------------------------------ chat


def chat_body(
    head: Head, answers: Sequence[Answer], stops: Sequence[str], tools: ToolUse | None, *, logprobs: bool
) -> dict[str, Any]:
    """Raises ToolError if a forced call did not come out whole."""
    return {
        **head.fields(),
        "choices": [_chat_choice(index, answer, stops, tools, logprobs) for index, answer in enumerate(answers)],
        "usage": usage_of([answer.ending for answer in answers], [answers[0].ending.input_length]),
    }


def chat_logprob(token: Token, top_tokens: Sequence[Token]) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": token.logprob,
        "top_logprobs": [{"token": top.text, "logprob": top.logprob} for top in top_tokens],
    }


def _chat_choice(
    index: int, answer: Answer, stops: Sequence[str], tools: ToolUse | None, logprobs: bool
) -> dict[str, Any]:
    choice = Choice(stops, tools)
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for token, last in with_last(answer.tokens):
        for part in choice.parts(token, last=last):
            match part:
                case Content(text):
                    texts.append(text)
                case CallStart(_, call_id, name):
                    calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
                case CallArguments(place, text):
                    calls[place]["function"]["arguments"] += text
    if choice.missing_call:
        written = answer.ending.generated_text
        raise ToolError(f"Failed to parse generated text: the call is not complete {written!r}")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    content = [chat_logprob(*pair) for pair in zip(answer.tokens, answer.top_tokens, strict=True)]
    return {
        "index": index,
        "message": message,
        "logprobs": {"content": content} if logprobs else None,
        "finish_reason": choice.finish_reason(answer.ending),
    }


# ------------------------------------------------------------------------------------------------ completions


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is given back before its completion."""

    text: str
    tokens: Sequence[PromptToken]  # empty unless log-probabilities were asked for


def completion_choice(
    index: int, answer: Answer, stops: Sequence[str], echo: Echo, num_logprobs: int | None
) -> dict[str, Any]:
    """
    Args:
        echo: with an empty text if it was not asked for.
        num_logprobs: so many of the likeliest tokens at each position; None: no log-probabilities.
    """
    text, finish_reason = shown_text(answer, stops)
    logprobs = None
    if num_logprobs is not None:
        writer = CompletionLogprobs(num_logprobs)
        for prompt_token in echo.tokens:
            writer.add(prompt_token.text, prompt_token.logprob, len(prompt_token.text), ())
        writer.offset = len(echo.text)
        for token, top_tokens in zip(answer.tokens, answer.top_tokens, strict=True):
            writer.add_token(token, top_tokens)
        logprobs = writer.take()
    return {"index": index, "text": echo.text + text, "logprobs": logprobs, "finish_reason": finish_reason}


class CompletionLogprobs:
    """Collects OpenAI's four parallel lists; `take` gives what came since the last time."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self.offset = 0  # characters of text before the next token
        self._clear()

    def add_token(self, token: Token, top_tokens: Sequence[Token]) -> None:
        self.add(token.text, token.logprob, len(token.shown), (*top_tokens, token))

    def add(self, text: str, logprob: float | None, num_shown: int, top_tokens: Sequence[Token]) -> None:
        """
        Args:
            num_shown: characters that the token adds to the text.
            top_tokens: best first, and the chosen one.
        """
        self._tokens.append(text)
        self._logprobs.append(_finite(logprob))
        self._offsets.append(self.offset)
        self._tops.append({token.text: _finite(token.logprob) for token in reversed(top_tokens)})
        self.offset += num_shown

    def take(self) -> dict[str, Any]:
        taken = {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._tops if self._num_top else None,
            "text_offset": self._offsets,
        }
        self._clear()
        return taken

    def _clear(self) -> None:
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._offsets: list[int] = []
        self._tops: list[dict[str, float | None]] = []


def _finite(logprob: float | None) -> float | None:
    return logprob if logprob is not None and math.isfinite(logprob) else None
