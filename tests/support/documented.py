"""Fields of a request as the OpenAPI document shows them, in a form that tables can be compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_INT32, MAX_UINT32, MAX_UINT64 = 2**31 - 1, 2**32 - 1, 2**64 - 1
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "minItems", "maxItems")


@dataclass(frozen=True)
class Row:
    """
    Attributes:
        type: JSON's, "float" if it is a 32-bit one, or an object's name; several are joined by "|".
        default: what a request without the field means, where a value means the same.
        bounds: by JSON schema's keywords; a list's are those of its length.
        nullable: null is taken for not given.
    """

    type: str
    default: Any = None
    bounds: dict[str, float] = field(default_factory=dict)
    nullable: bool = True


def unsigned(maximum: int, *, at_least: int = 0, default: Any = None) -> Row:
    return Row("integer", default, {"minimum": at_least, "maximum": maximum})


def row_of(shown: dict[str, Any]) -> Row:
    """What the document shows of a field."""
    options = shown.get("anyOf", [shown])
    kinds = [option for option in options if option.get("type") != "null"]
    return Row(
        "|".join(_type(kind) for kind in kinds),
        shown.get("default"),
        {key: kind[key] for kind in kinds for key in BOUNDS if key in kind},
        nullable=len(kinds) < len(options),
    )


def _type(shown: dict[str, Any]) -> str:
    if "$ref" in shown:
        return str(shown["$ref"]).rsplit("/", 1)[1]
    if "discriminator" in shown:
        return "one of " + ", ".join(sorted(shown["discriminator"]["mapping"]))
    return "float" if shown.get("format") == "float" else str(shown["type"])
