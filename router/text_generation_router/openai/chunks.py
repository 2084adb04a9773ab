"""Events of the OpenAI routes. What is the same in all events of a stream is made once, the rest is written by hand, as
in api.events, with everything that is not ASCII escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from text_generation_router.errors import RequestError
from text_generation_router.generation import Piece
from text_generation_router.openai.answers import CompletionLogprobs, Head
from text_generation_router.openai.calls import CallArguments, CallStart, Content, Part
from text_generation_router.openai.choice import Choice
from text_generation_router.openai.tools import ToolUse
from text_generation_router.transcript import Token

DONE = b"data: [DONE]\n\n"


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def error_events(error: RequestError, prefix: str) -> bytes:
    """The last events of a stream that fails. `error_type` is for clients of TGI, `error.message` for OpenAI's."""
    content = {
        "error": {"message": str(error), "http_status_code": error.status, "type": error.error_type},
        "error_type": error.error_type,
    }
    return f"{prefix}{compact(content)}\n\n".encode("ascii") + DONE


def usage_event(head: Head, usage: dict[str, int]) -> bytes:
    content = {**head.fields(), "choices": [], "usage": usage}
    return f"data: {compact(content)}\n\n".encode("ascii")


class ChatChunks:
    """Writes the events of one choice of a chat."""

    def __init__(self, head: Head, index: int, stops: Sequence[str], tools: ToolUse | None, *, logprobs: bool) -> None:
        self._choice = Choice(stops, tools)
        self._has_tools = tools is not None
        self._prefix = f'data: {compact(head.fields())[:-1]},"choices":[{{"index":{index},"delta":'
        self._logprobs: list[str] | None = [] if logprobs else None  # of tokens without an event as yet

    def push(self, piece: Piece) -> bytes:
        """The events of one token; without tools exactly one."""
        last = piece.ending is not None
        if self._logprobs is not None:
            self._logprobs.append(_logprob_json(piece.token, piece.top_tokens))
        if not self._has_tools:
            delta = f'{{"role":"assistant","content":{quoted(self._choice.text(piece.token, last=last))}}}'
            return self._event(delta, self._finish_reason(piece)).encode("ascii")
        events = [self._event(_delta(part), None) for part in self._choice.parts(piece.token, last=last)]
        if last:
            events.append(self._event("{}", self._finish_reason(piece)))
        return "".join(events).encode("ascii")

    def _finish_reason(self, piece: Piece) -> str | None:
        return None if piece.ending is None else self._choice.finish_reason(piece.ending)

    def _event(self, delta: str, finish_reason: str | None) -> str:
        logprobs = "null"
        if self._logprobs is not None:
            logprobs = f'{{"content":[{",".join(self._logprobs)}]}}'
            self._logprobs.clear()
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        return f'{self._prefix}{delta},"logprobs":{logprobs},"finish_reason":{reason}}}],"usage":null}}\n\n'


class CompletionChunks:
    """Writes the events of one choice of a completion."""

    def __init__(
        self, head: Head, index: int, stops: Sequence[str], echo: str, num_logprobs: int | None, *, show_usage: bool
    ) -> None:
        """
        Args:
            echo: text that stands before the first token's.
            num_logprobs: so many of the likeliest tokens with each; None: no log-probabilities.
            show_usage: with the last event, of this choice; if not, it comes at the end of the stream.
        """
        self._choice = Choice(stops)
        self._prefix = f'data: {compact(head.fields())[:-1]},"choices":[{{"index":{index},"text":'
        self._echo = echo
        self._show_usage = show_usage
        self._logprobs = None if num_logprobs is None else CompletionLogprobs(num_logprobs)
        if self._logprobs is not None:
            self._logprobs.offset = len(echo)

    def push(self, piece: Piece) -> bytes:
        """The event of one token."""
        ending = piece.ending
        text = self._echo + self._choice.text(piece.token, last=ending is not None)
        self._echo = ""
        logprobs = "null"
        if self._logprobs is not None:
            self._logprobs.add_token(piece.token, piece.top_tokens)
            logprobs = compact(self._logprobs.take())
        reason, usage = "null", ""
        if ending is not None:
            reason = f'"{self._choice.finish_reason(ending)}"'
            total = ending.input_length + ending.generated_tokens
            if self._show_usage:
                usage = (
                    f',"usage":{{"prompt_tokens":{ending.input_length},'
                    f'"completion_tokens":{ending.generated_tokens},"total_tokens":{total}}}'
                )
        return (f'{self._prefix}{quoted(text)},"logprobs":{logprobs},"finish_reason":{reason}}}]{usage}}}\n\n').encode(
            "ascii"
        )


def _delta(part: Part) -> str:
    match part:
        case Content(text):
            return f'{{"role":"assistant","content":{quoted(text)}}}'
        case CallStart(index, call_id, name):
            return (
                f'{{"role":"assistant","content":null,"tool_calls":[{{"index":{index},"id":"{call_id}",'
                f'"type":"function","function":{{"name":{quoted(name)},"arguments":""}}}}]}}'
            )
        case CallArguments(index, text):
            return f'{{"tool_calls":[{{"index":{index},"function":{{"arguments":{quoted(text)}}}}}]}}'


def _logprob_json(token: Token, top_tokens: Sequence[Token]) -> str:
    tops = ",".join(f'{{"token":{quoted(top.text)},"logprob":{_number(top.logprob)}}}' for top in top_tokens)
    return f'{{"token":{quoted(token.text)},"logprob":{_number(token.logprob)},"top_logprobs":[{tops}]}}'


def _number(logprob: float) -> str:
    return repr(logprob) if math.isfinite(logprob) else "null"
