"""What masks hold, against all words of small languages, which Python's own `re` lists."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest

from tests.router.grammar.walking import BYTE_LEVEL, PADDING, VOCABULARIES, Vocabulary, allowed
from text_generation_router.grammar.spec import json_spec, regex_spec
from text_generation_router.scheduling.request import ConstraintFailed

EACH_VOCABULARY = pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=("byte level", "byte fallback"))

# Every word of these has at most five characters, all of the alphabet.
ALPHABET = "abthe é"
PATTERNS = (
    "a",
    "(a|b)?",
    "the|a|ab",
    "(a|ab)(b|bb)?",
    "t?h{1,3}e?",
    "[abe]?( the)?",
    "é| é|éé",
    "^(a b){0,1}$",
    "(a?b?){2}",
    "[^\\x00-`c-\U0010ffff]{1,3}",
    "(|a|(b|e{2}){1,2})",
)


def words_of(pattern: str) -> set[bytes]:
    candidates = ("".join(letters) for length in range(6) for letters in product(ALPHABET, repeat=length))
    return {word.encode() for word in candidates if re.fullmatch(pattern, word)}


@EACH_VOCABULARY
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_token_is_allowed_exactly_if_some_word_goes_on_with_it(vocabulary: Vocabulary, pattern: str) -> None:
    words = words_of(pattern)
    grammar = vocabulary.compile(regex_spec(pattern))
    waiting: list[tuple[tuple[int, ...], bytes]] = [((), b"")]
    seen = 0
    draw = random.Random(pattern)
    while waiting and seen < 60:
        token_ids, text = waiting.pop(draw.randrange(len(waiting)))
        seen += 1
        constraint = grammar.constraint()
        for token_id in token_ids:
            constraint.accept(token_id)
        want = {
            token_id
            for token_id, data in enumerate(vocabulary.data)
            if data
            and token_id not in vocabulary.tokenizer.special_texts
            and any(word.startswith(text + data) for word in words)
        }
        if text in words:
            want |= vocabulary.eos_token_ids
        assert set(allowed(constraint.mask())) == want, text
        ordinary = want - vocabulary.eos_token_ids
        waiting.extend(((*token_ids, token_id), text + vocabulary.data[token_id]) for token_id in ordinary)


@EACH_VOCABULARY
def test_special_tokens_and_ids_without_a_token_are_never_allowed(vocabulary: Vocabulary) -> None:
    grammar = vocabulary.compile(regex_spec("(.|\\n)*"))
    tokens = set(allowed(grammar.constraint().mask()))
    assert tokens & set(vocabulary.tokenizer.special_texts) == vocabulary.eos_token_ids
    assert max(tokens) < vocabulary.size - PADDING


@EACH_VOCABULARY
def test_every_end_token_is_allowed_exactly_when_the_text_may_end(vocabulary: Vocabulary) -> None:
    constraint = vocabulary.compile(regex_spec("ab?")).constraint()
    letter = {letter: vocabulary.data.index(letter) for letter in (b"a", b"b")}
    assert vocabulary.eos_token_ids.isdisjoint(allowed(constraint.mask()))
    constraint.accept(letter[b"a"])
    assert vocabulary.eos_token_ids < set(allowed(constraint.mask()))
    constraint.accept(letter[b"b"])
    assert set(allowed(constraint.mask())) == vocabulary.eos_token_ids


def test_a_mask_has_whole_words_for_every_id_of_the_model() -> None:
    mask = BYTE_LEVEL.compile(regex_spec("a")).constraint().mask()
    assert len(mask) == (BYTE_LEVEL.size + 31) // 32 * 4


def test_asking_twice_for_a_mask_changes_nothing() -> None:
    constraint = BYTE_LEVEL.compile(regex_spec("ab")).constraint()
    assert constraint.mask() == constraint.mask()
    constraint.accept(BYTE_LEVEL.data.index(b"a"))
    assert constraint.mask() == constraint.mask()


def test_constraints_of_one_grammar_do_not_touch_each_other() -> None:
    grammar = BYTE_LEVEL.compile(regex_spec("ab"))
    first, second = grammar.constraint(), grammar.constraint()
    beginning = second.mask()
    first.accept(BYTE_LEVEL.data.index(b"a"))
    assert allowed(first.mask()) == [BYTE_LEVEL.data.index(b"b")]
    assert second.mask() == beginning == grammar.constraint().mask()


def test_a_token_that_the_mask_does_not_allow_is_an_error_in_one_line() -> None:
    constraint = BYTE_LEVEL.compile(json_spec({"properties": {"secret": {"type": "integer"}}})).constraint()
    with pytest.raises(ConstraintFailed) as failure:
        constraint.accept(BYTE_LEVEL.data.index(b"x"))
    assert str(failure.value) == "a token came that it does not allow"
