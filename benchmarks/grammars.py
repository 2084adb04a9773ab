"""What a grammar costs in the router, and what it refuses: `python -m benchmarks.grammars`.

Measures the engine in use as the router uses it; and xgrammar beside it where that can be imported, which needs an
environment of its own because it brings torch. Times are CPU times, which a busy machine changes little. Prints
Markdown tables.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
from jsonschema import Draft202012Validator

from text_generation_router.grammar.compiler import CompiledGrammar, Grammars
from text_generation_router.grammar.spec import GrammarError, json_spec
from text_generation_router.scheduling.request import Constraint
from text_generation_router.tokenizer import Tokenizer

_KINDS: tuple[tuple[dict[str, Any], Any], ...] = (
    ({"type": "string", "maxLength": 40}, "a few words and an é"),
    ({"type": "integer", "minimum": 0, "maximum": 10**6}, 31415),
    ({"type": "boolean"}, True),
    ({"enum": ["red", "green", None]}, "green"),
    ({"type": "array", "items": {"type": "number"}, "maxItems": 3}, [1, 2.5]),
)
SCHEMA = {
    "type": "object",
    "properties": {f"field_{n}": _KINDS[n % len(_KINDS)][0] for n in range(200)},
    "required": [f"field_{n}" for n in range(200)],
    "additionalProperties": False,
}
INSTANCE = {f"field_{n}": _KINDS[n % len(_KINDS)][1] for n in range(200)}

# By keyword: a schema of the property `a`, and a value that it forbids.
KEYWORDS: dict[str, tuple[dict[str, Any], Any]] = {
    "enum": ({"enum": [1, 2]}, 3),
    "const": ({"const": [1]}, [2]),
    "minLength": ({"type": "string", "minLength": 3}, "ab"),
    "maxLength": ({"type": "string", "maxLength": 3}, "abcd"),
    "pattern": ({"type": "string", "pattern": "^a+$"}, "b"),
    "pattern, look-ahead": ({"type": "string", "pattern": "^(?=ab)a.*$"}, "ac"),
    "format": ({"type": "string", "format": "date"}, "tomorrow"),
    "minimum, maximum": ({"type": "integer", "minimum": 5, "maximum": 700}, 701),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 5, "maximum": 9}, 5),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, 8),
    "minItems, maxItems": ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, [None, None]),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "null"}], "items": False}, [1]),
    "uniqueItems": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 1]),
    "contains": ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}}, [2]),
    "required": ({"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}, {}),
    "additionalProperties": ({"type": "object", "additionalProperties": {"type": "null"}}, {"b": 1}),
    "patternProperties": ({"type": "object", "patternProperties": {"^b": {"type": "null"}}}, {"b": 1}),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a"}}, {"b": 1}),
    "minProperties": ({"type": "object", "minProperties": 2}, {"b": 1}),
    "maxProperties": ({"type": "object", "maxProperties": 1}, {"b": 1, "c": 1}),
    "dependentRequired": ({"type": "object", "dependentRequired": {"b": ["c"]}}, {"b": 1}),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, 2),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x"),
    "oneOf, disjoint": ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "x"),
    "oneOf, overlapping": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1),
    "not": ({"type": "integer", "not": {"const": 4}}, 4),
    "if, then": ({"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 6}}, 7),
    "$ref, recursive": ({"type": "array", "items": {"$ref": "#/properties/a"}}, [1]),
}


class Engine(Protocol):
    name: str

    def compile(self, schema: Any) -> Any:
        """Anew each time. Raises: Refused."""

    def start(self, compiled: Any) -> Constraint:
        """One sequence."""


class Refused(Exception):
    """The engine does not take a schema."""


class OurEngine:
    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.name = f"llguidance {version('llguidance')}"
        self._vocabulary = tokenizer, vocab_size
        self._grammars = Grammars(tokenizer, vocab_size)
        self._loop = asyncio.new_event_loop()
        self._num_compiled = 0

    def compile(self, schema: Any) -> CompiledGrammar:
        self._num_compiled += 1  # part of the schema, so that no grammar is found again
        try:
            spec = json_spec({**schema, "$comment": str(self._num_compiled)})
            return self._loop.run_until_complete(self._grammars.compile(spec))
        except GrammarError as error:
            raise Refused(str(error)) from error

    def start(self, compiled: CompiledGrammar) -> Constraint:
        return compiled.constraint()


class XGrammar:
    """The same by xgrammar, with the whitespace that is ours."""

    def __init__(self, tokens: list[bytes], eos_token_ids: list[int]) -> None:
        self._package: Any = importlib.import_module("xgrammar")
        self.name = f"xgrammar {version('xgrammar')}"
        information = self._package.TokenizerInfo(tokens, vocab_size=len(tokens), stop_token_ids=eos_token_ids)
        self._compiler = self._package.GrammarCompiler(information, max_threads=1, cache_enabled=False)
        self._num_words = (len(tokens) + 31) // 32

    def compile(self, schema: Any) -> Any:
        try:
            return self._compiler.compile_json_schema(json.dumps(schema), max_whitespace_cnt=1)
        except Exception as error:  # it raises its own and RuntimeError
            raise Refused(str(error)) from error

    def start(self, compiled: Any) -> Constraint:
        return _XConstraint(self._package.GrammarMatcher(compiled), self._num_words)


class _XConstraint:
    def __init__(self, matcher: Any, num_words: int) -> None:
        self._matcher = matcher
        self._mask = np.full((1, num_words), -1, dtype=np.int32)

    def mask(self) -> bytes:
        self._matcher.fill_next_token_bitmask(self._mask)
        return self._mask.tobytes()

    def accept(self, token_id: int) -> None:
        if not self._matcher.accept_token(token_id):
            raise Refused(f"token {token_id}")


def is_allowed(mask: bytes, token_id: int) -> bool:
    return bool(mask[token_id // 8] >> token_id % 8 & 1)


def write(constraint: Constraint, token_ids: Sequence[int]) -> list[float] | None:
    """The time of each token's mask with the step before it, in seconds; None if one was not allowed."""
    times_s = []
    for position, token_id in enumerate(token_ids):
        began_s = time.process_time()
        if position:
            constraint.accept(token_ids[position - 1])
        mask = constraint.mask()
        times_s.append(time.process_time() - began_s)
        if not is_allowed(mask, token_id):
            return None
    return times_s


def speed_table(engines: Sequence[Engine], token_ids: Sequence[int], rounds: int) -> list[str]:
    rows = [
        "| engine | compile, 200 fields | first answer: a mask, median | worst | later answers: median | worst |",
        "|---|---|---|---|---|---|",
    ]
    for engine in engines:
        compile_s: list[float] = []
        for _ in range(rounds):
            began_s = time.process_time()
            compiled = engine.compile(SCHEMA)
            compile_s.append(time.process_time() - began_s)
        cells = [f"{median(compile_s) * 1e3:.1f} ms"]
        for _ in range(2):
            times_s = write(engine.start(compiled), token_ids)
            if times_s is None:
                raise SystemExit(f"{engine.name} does not allow the instance")
            cells += [f"{median(times_s) * 1e6:.0f} µs", f"{max(times_s) * 1e3:.2f} ms"]
        rows.append(f"| {engine.name} | {' | '.join(cells)} |")
    return rows


def keyword_table(engines: Sequence[Engine], encode: Callable[[str], list[int]], eos_token_id: int) -> list[str]:
    rows = [f"| keyword | {' | '.join(engine.name for engine in engines)} |", "|---|" + "---|" * len(engines)]
    for keyword, (schema, forbidden) in KEYWORDS.items():
        whole = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
        if Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid({"a": forbidden}):
            raise AssertionError(f"{keyword}: {forbidden} is allowed")
        cells = [verdict(engine, whole, [*encode(json.dumps({"a": forbidden})), eos_token_id]) for engine in engines]
        rows.append(f"| {keyword} | {' | '.join(cells)} |")
    return rows


def verdict(engine: Engine, schema: Any, forbidden: Sequence[int]) -> str:
    """What becomes of an answer that the schema forbids."""
    try:
        compiled = engine.compile(schema)
    except Refused:
        return "refused"
    return "held" if write(engine.start(compiled), forbidden) is None else "**ignored**"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.grammars", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder with tokenizer.json and config.json")
    parser.add_argument("--rounds", type=int, default=9, help="times that the schema is compiled")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_folder(options.model)
    vocab_size = json.loads((options.model / "config.json").read_text())["vocab_size"]
    eos_token_ids = sorted(tokenizer.eos_token_ids)

    def encode(text: str) -> list[int]:
        return asyncio.run(tokenizer.encode(text, add_special_tokens=False))

    engines: list[Engine] = [OurEngine(tokenizer, vocab_size)]
    try:
        engines.append(XGrammar(tokenizer.token_bytes(vocab_size) or [], eos_token_ids))
    except ImportError:
        print("xgrammar is not installed here: without it\n")
    token_ids = [*encode(json.dumps(INSTANCE, ensure_ascii=False)), eos_token_ids[0]]
    print(f"{vocab_size} tokens; an answer of {len(token_ids)} tokens\n")
    print("\n".join(speed_table(engines, token_ids, options.rounds)), end="\n\n")
    print("\n".join(keyword_table(engines, encode, eos_token_ids[0])))


if __name__ == "__main__":
    main()
