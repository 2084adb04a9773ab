"""What a grammar is, before anything is compiled: one of two kinds, and a text.

Knows the shapes in which clients write grammars, not what they mean: see schema and compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import orjson

# A grammar of 64 kB takes about a tenth of a second to compile, and nothing real comes near it but long lists of words.
MAX_BYTES = 256 * 1024

NOT_SUPPORTED = "grammar is not supported"


class GrammarError(Exception):
    """A grammar that cannot be used. The message is for its sender, and says whether it is wrong or not supported."""

    @classmethod
    def invalid(cls, reason: str) -> GrammarError:
        """It means nothing."""
        return cls(f"grammar is not valid: {reason}")

    @classmethod
    def refused(cls, reason: str) -> GrammarError:
        """A JSON schema that means something which cannot be compiled."""
        return cls(f"cannot compile regex from schema: {reason}")


class GrammarKind(str, Enum):
    JSON = "json"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """Equal specs share one compiled grammar. Not looked into yet: compiling says what is wrong with it."""

    kind: GrammarKind
    text: str  # a JSON schema, or a pattern that the whole answer matches
    needs_properties: bool = False  # refuse a schema without top-level `properties`, as TGI does


# Makes a spec when its turn to be checked comes. Raises: GrammarError.
WriteSpec = Callable[[], GrammarSpec]

# What OpenAI's bare `json_object` asks for.
ANY_OBJECT = GrammarSpec(GrammarKind.JSON, '{"type":"object"}')


def regex_spec(pattern: str) -> GrammarSpec:
    """Raises: GrammarError."""
    return _checked(GrammarSpec(GrammarKind.REGEX, pattern))


def json_spec(schema: object, *, needs_properties: bool = False) -> GrammarSpec:
    """
    Args:
        schema: an object or the text of one.
    Raises: GrammarError.
    """
    if isinstance(schema, str):
        return _checked(GrammarSpec(GrammarKind.JSON, schema, needs_properties))
    if not isinstance(schema, dict):
        raise GrammarError(NOT_SUPPORTED)
    try:
        text = orjson.dumps(schema).decode()  # in the order of its keys, which is the order of the answer's
    except TypeError as error:
        raise GrammarError.invalid(str(error)) from error
    return _checked(GrammarSpec(GrammarKind.JSON, text, needs_properties))


def _checked(spec: GrammarSpec) -> GrammarSpec:
    try:
        num_bytes = len(spec.text.encode())
    except UnicodeEncodeError:
        raise GrammarError.invalid("it holds half of a surrogate pair") from None
    if num_bytes > MAX_BYTES:
        raise GrammarError.invalid(f"it has {num_bytes} bytes, at most {MAX_BYTES} are compiled")
    return spec
