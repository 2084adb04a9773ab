"""Finds tool calls in the text that a model writes, piece by piece.

`ForcedCall` reads an answer that a grammar makes a call: its arguments come out as they come in. `FoundCalls` reads
free text, in which models mark calls each in their own way; what may become a call is held back until it is one or is
not. Plain and streamed answers go through the same code, so they hold the same calls. Knows nothing about HTTP.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    index: int  # of the call within the answer
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str  # the next piece of a JSON object


Part = Content | CallStart | CallArguments


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class JsonScanner:
    """Finds where a JSON object or list ends in text that arrives in pieces."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters of `text` still belong to the value; None if it goes on."""
        for position, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return position + 1
        return None


# What stands before the arguments of a call in the grammar's form.
_FORCED_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


class ForcedCall:
    """An answer that is one call, `{"name": NAME, "arguments": {...}}`."""

    def __init__(self) -> None:
        self._head = ""
        self._scanner: JsonScanner | None = None
        self.is_complete = False

    @property
    def num_calls(self) -> int:
        return 1 if self.is_complete else 0

    def push(self, text: str) -> Iterator[Part]:
        if self.is_complete or not text:
            return
        if self._scanner is None:
            self._head += text
            match = _FORCED_HEAD.match(self._head)
            if match is None:
                return
            yield CallStart(0, new_call_id(), orjson.loads(match[1]))
            text = self._head[match.end() :]
            self._scanner = JsonScanner()
        end = self._scanner.feed(text)
        self.is_complete = end is not None
        yield CallArguments(0, text[:end])

    def finish(self) -> Iterator[Part]:
        """Nothing is held back: the grammar ends the text with the call."""
        return iter(())


# How models mark a call in their text: Hermes and Qwen, Mistral, Llama 3. JSON follows.
_MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_FENCE = "```json"
# What may follow a call.
_CLOSINGS = ("</tool_call>", "```")

_ANY_MARKER = "|".join(map(re.escape, _MARKERS))
_JSON_BEGINS = r"\s*(?=\{|\[\s*\{)"
_MARKED = re.compile(rf"(?:{_ANY_MARKER}){_JSON_BEGINS}")
# Without a marker a call is the beginning of the answer, perhaps as a block of code. A marker that is a special token
# is not in the text, and leaves a call of this kind.
_AT_START = re.compile(rf"\s*(?:{_ANY_MARKER}|```(?:json)?)?{_JSON_BEGINS}")
_OPEN_MARKER = re.compile(rf"(?:{_ANY_MARKER})\s*\[?\s*$")


class _Place(Enum):
    START = auto()  # nothing but white space has come
    TEXT = auto()
    AFTER_CALL = auto()


class FoundCalls:
    """Free text that may hold calls of the functions named."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._place = _Place.START
        self._held = ""  # text that may be, or is, the beginning of a call
        # While a JSON value is read: where it begins in `_held`, and how much of `_held` the scanner has seen.
        self._scanner: JsonScanner | None = None
        self._value_start = 0
        self._num_scanned = 0
        self.num_calls = 0

    def push(self, text: str) -> Iterator[Part]:
        self._held += text
        while True:
            if self._scanner is None:
                yield from self._look_for_value()
            if self._scanner is None:
                return
            length = self._scanner.feed(self._held[self._num_scanned :])
            if length is None:
                self._num_scanned = len(self._held)
                return
            yield from self._take_value(self._num_scanned + length)

    def finish(self) -> Iterator[Part]:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        if held and not (self.num_calls and not held.strip()):
            yield Content(held)

    def _look_for_value(self) -> Iterator[Part]:
        """Give out text that is no part of a call, and find where the JSON of one begins."""
        if self._place is _Place.AFTER_CALL:
            self._drop_what_follows_a_call()
        if self._place is not _Place.TEXT:
            match = _AT_START.match(self._held)
            if match is not None:
                self._begin_value(match.end())
                return
            if _may_begin_a_call(self._held, after_call=self._place is _Place.AFTER_CALL):
                return
        match = _MARKED.search(self._held)
        num_text = len(self._held) - _num_open(self._held) if match is None else match.start()
        if num_text:
            self._place = _Place.TEXT
            yield Content(self._held[:num_text])
            self._held = self._held[num_text:]
        if match is not None:
            self._begin_value(match.end() - num_text)

    def _drop_what_follows_a_call(self) -> None:
        rest = self._held.lstrip(" \t\r\n,;")
        for closing in _CLOSINGS:
            if rest.startswith(closing):
                rest = rest[len(closing) :].lstrip()
        self._held = rest

    def _begin_value(self, start: int) -> None:
        self._scanner = JsonScanner()
        self._value_start = self._num_scanned = start

    def _take_value(self, end: int) -> Iterator[Part]:
        """A JSON value is whole: it is calls, or it was text."""
        taken, self._held = self._held[:end], self._held[end:]
        self._scanner = None
        calls = self._parse(taken[self._value_start :])
        if not calls:
            self._place = _Place.TEXT
            yield Content(taken)
            return
        self._place = _Place.AFTER_CALL
        for name, arguments in calls:
            yield CallStart(self.num_calls, new_call_id(), name)
            yield CallArguments(self.num_calls, arguments)
            self.num_calls += 1

    def _parse(self, text: str) -> list[tuple[str, str]]:
        """Names and arguments; [] if the text is not a call, or a list of calls, of the functions named."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return []
        items = value if isinstance(value, list) else [value]
        calls = [call for item in items if (call := self._call(item)) is not None]
        return calls if len(calls) == len(items) else []

    def _call(self, item: Any) -> tuple[str, str] | None:
        if isinstance(item, dict) and isinstance(item.get("function"), dict):  # OpenAI's own form
            item = item["function"]
        if not isinstance(item, dict) or item.get("name") not in self._names:
            return None
        name, arguments = item["name"], item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = orjson.loads(arguments)
            except orjson.JSONDecodeError:
                return None
        return (name, orjson.dumps(arguments).decode()) if isinstance(arguments, dict) else None


def _may_begin_a_call(text: str, *, after_call: bool) -> bool:
    text = text.lstrip()
    beginnings = (*_MARKERS, _FENCE, *(_CLOSINGS if after_call else ()))
    if any(beginning.startswith(text) for beginning in beginnings) or _OPEN_MARKER.match(text):
        return True
    if text.startswith("```"):
        text = text.removeprefix("```").removeprefix("json").lstrip()
    return text.rstrip() in {"", "["}


def _num_open(text: str) -> int:
    """How many characters at the end may be the beginning of a marked call."""
    match = _OPEN_MARKER.search(text)
    if match is not None:
        return len(text) - match.start()
    sizes = range(min(max(map(len, _MARKERS)) - 1, len(text)), 0, -1)
    return next((size for size in sizes if any(marker.startswith(text[-size:]) for marker in _MARKERS)), 0)
