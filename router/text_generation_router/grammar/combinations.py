"""How many combinations of branches a JSON schema multiplies out to.

`allOf` over members with `anyOf` is compiled as one alternative for each combination, so a few lines can stand for
thousands. Knows keywords that choose and combine, and nothing else of a schema.
"""

from __future__ import annotations

from math import prod
from typing import Any
from urllib.parse import unquote

# 2 ** 10 take half a second to compile, 20 ** 3 six.
MAX_COMBINATIONS = 1024
_MAX_DEPTH = 150  # of references and branches; further in nothing is counted
_COUNTLESS = 10**6


class Combinations:
    """Counts of the schemas within one document."""

    def __init__(self, document: object) -> None:
        self._document = document
        self._counts: dict[int, int] = {}  # by id() of a schema; 1 while it is being counted: a circle adds nothing

    def are_too_many(self, schema: dict[str, Any]) -> bool:
        """Whether more than MAX_COMBINATIONS come about by multiplying; a long list of branches alone is no trouble."""
        factors = [factor for factor in self._factors(schema, 0) if factor > 1]
        return len(factors) > 1 and prod(factors) > MAX_COMBINATIONS

    def _factors(self, schema: dict[str, Any], depth: int) -> list[int]:
        factors = [
            sum(self._count(branch, depth) for branch in branches)
            for keyword in ("anyOf", "oneOf")
            if isinstance(branches := schema.get(keyword), list)
        ]
        if isinstance(members := schema.get("allOf"), list):
            factors += [self._count(member, depth) for member in members]
        if "$ref" in schema:
            factors.append(self._count(self._target(schema["$ref"]), depth))
        return factors

    def _count(self, schema: object, depth: int) -> int:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return 1
        known = self._counts.get(id(schema))
        if known is None:
            self._counts[id(schema)] = 1
            known = min(prod(self._factors(schema, depth + 1)), _COUNTLESS)
            self._counts[id(schema)] = known
        return known

    def _target(self, reference: object) -> object:
        """What a reference into the document points at; None if that is not there or elsewhere."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self._document
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found
