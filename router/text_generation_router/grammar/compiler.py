"""Compiles grammars in worker threads of its own and remembers them.

A compiled grammar hands out one constraint a sequence. A compile that runs cannot be stopped; its work is bounded, by
limits of size (spec, schema) and by the engine's fuel, and its thread lets go of the interpreter and gives way to all
other work. Knows nothing about requests or HTTP.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from text_generation_router.grammar.schema import prepare_schema
from text_generation_router.grammar.spec import GrammarError, GrammarKind, GrammarSpec
from text_generation_router.grammar.vocabulary import load_vocabulary
from text_generation_router.scheduling.request import Constraint, ConstraintFailed
from text_generation_router.tokenizer import Tokenizer

_MAX_REMEMBERED = 64
_MAX_ITEMS = 10_000  # of the parser at one place: about four for each optional key that may come next
_MAX_REASON = 200  # characters
# Parts of the engine's messages that speak of the engine, and what is said instead.
_SAID = (
    ("NoExtension", "no text that the model can write satisfies it"),
    ("recursion limit exceeded", "it is nested too deeply"),
    ("panic", "it is too large"),
    ("fuel", "it is too complex"),
    ("too many expressions", "it is too complex"),
    ("Current row has", "it is too complex"),
    ("doesn't satisfy the grammar", "a token came that it does not allow"),  # the engine quotes the text so far
)
_NICENESS = 5  # a third of the share of a thread that is not nice
# A mask holds every token that may come. Without this, where the grammar leaves only one text it would hold only that
# text's usual token, and a run of a million forced characters would be worked out at once.
_OPTIONS = '%llguidance {"no_forcing": true}\n'


class CompiledGrammar:
    def __init__(self, matcher: LLMatcher, first_mask: bytes) -> None:
        """
        Args:
            matcher: at the start; never moved on, only copied.
            first_mask: its mask.
        """
        self._matcher = matcher
        self._first_mask = first_mask

    def constraint(self) -> Constraint:
        """For one sequence, at its start. Takes microseconds."""
        return _Constraint(self._matcher.deep_copy(), self._first_mask)


class _Constraint:
    __slots__ = ("_mask", "_matcher")

    def __init__(self, matcher: LLMatcher, first_mask: bytes) -> None:
        self._matcher = matcher
        self._mask: bytes | None = first_mask

    def mask(self) -> bytes:
        """Raises: ConstraintFailed when the grammar leads nowhere from here, or the engine's limits are reached."""
        if self._mask is None:
            self._mask = _mask_of(self._matcher)
        return self._mask

    def accept(self, token_id: int) -> None:
        """Raises: ConstraintFailed for a token that the mask does not allow."""
        self._mask = None
        if not self._matcher.consume_token(token_id):
            raise ConstraintFailed(_reason(self._matcher.get_error()))


class Grammars:
    """All methods belong to one event loop."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, num_workers: int = 1) -> None:
        """Returns at once; the tokenizer's vocabulary is read in a worker, before the first grammar.

        Args:
            vocab_size: of the model: a mask has a bit for each of its ids. Those that the tokenizer does not know are
                never allowed.
        """
        self._workers = ThreadPoolExecutor(num_workers, thread_name_prefix="grammar", initializer=_give_way)
        self._vocabulary = self._workers.submit(load_vocabulary, tokenizer, vocab_size)
        self._compiled: OrderedDict[GrammarSpec, asyncio.Future[CompiledGrammar]] = OrderedDict()

    async def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a grammar, or find it again. Raises: GrammarError."""
        compiled = self._compiled.get(spec)
        if compiled is None:
            compiled = asyncio.get_running_loop().run_in_executor(self._workers, self._compile, spec)
            compiled.add_done_callback(lambda done: self._forget_failed(spec, done))
            self._compiled[spec] = compiled
            if len(self._compiled) > _MAX_REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(spec)
        # Others may wait for the same grammar: who gives up does not take it from them.
        return await asyncio.shield(compiled)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _forget_failed(self, spec: GrammarSpec, done: asyncio.Future[CompiledGrammar]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._compiled.get(spec) is done:
            del self._compiled[spec]

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        vocabulary = self._vocabulary.result()
        if spec.kind is GrammarKind.REGEX:
            matcher = _match(vocabulary, _regex_source(spec.text))
            if matcher.is_error():
                raise GrammarError.invalid(_reason(matcher.get_error()))
        else:
            matcher = _match(vocabulary, f"start: %json {prepare_schema(spec.text, spec.needs_properties)}")
            if matcher.is_error():
                raise GrammarError.refused(_reason(matcher.get_error()))
        return CompiledGrammar(matcher, _first_mask(matcher, spec.kind))


def _give_way() -> None:
    """Let this thread have the processor when nobody else wants it; Linux keeps priorities by thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _match(vocabulary: LLTokenizer, source: str) -> LLMatcher:
    limits = LLParserLimits(max_items_in_row=_MAX_ITEMS, verbose_errors=False)
    return LLMatcher(vocabulary, _OPTIONS + source, log_level=0, limits=limits)


def _regex_source(pattern: str) -> str:
    num_backslashes = len(pattern) - len(pattern.rstrip("\\"))
    if num_backslashes % 2:
        raise GrammarError.invalid("it ends in the middle of an escape sequence")
    # \d is 0-9, as in JavaScript: whoever reads the answer seldom has the digits of other scripts in mind.
    return f"start: /{regex_to_lark(pattern, use_ascii='d')}/"


def _first_mask(matcher: LLMatcher, kind: GrammarKind) -> bytes:
    try:
        return _mask_of(matcher)
    except ConstraintFailed as error:
        raise (GrammarError.invalid if kind is GrammarKind.REGEX else GrammarError.refused)(str(error)) from None


def _mask_of(matcher: LLMatcher) -> bytes:
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        raise ConstraintFailed(_reason(matcher.get_error()))
    return mask


def _reason(message: str) -> str:
    """The engine's message without the picture of the grammar around it, in one line."""
    inner = re.search(r"^error: (.+)$", message, re.MULTILINE)
    line = inner[1] if inner else message.strip().splitlines()[0]
    line = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", line)
    for sign, said in _SAID:
        if sign in line:
            return said
    return line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]}..."
