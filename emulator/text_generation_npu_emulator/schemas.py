"""The signatures of torch_npu's ops, as the registry of a release has them.

Reads npu_ops.json of the kernels package: exact strings of 2.13.0, and how those of older releases differ. The strings
of some ops could not be read from some old wheels; those ops are taken to be what they are in 2.13.0.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Not in npu_ops.json, which compares argument lists: the first release in which all arguments may be positional.
_KEYWORD_ONLY_BEFORE = {"npu_fusion_attention": ((2, 10), "input_layout")}
# Ops that the registry has and `torch_npu` does not, before a release.
_NOT_EXPOSED_BEFORE = {"npu_apply_rotary_pos_emb": (2, 7)}


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One overload of one op in one release."""

    namespace: str  # "npu" or "atb"
    name: str  # with the overload: "npu_format_cast.Tensor"
    schema: str  # "npu_format_cast.Tensor(Tensor input, ...) -> Tensor", without the namespace
    python: str | None  # where torch_npu shows it: "torch_npu.atb.x"; None if it does not
    families: Mapping[str, str]  # "y", "t", "n" or "?" by family
    has_aclop: bool

    @property
    def packet(self) -> str:
        return self.name.partition(".")[0]


def ops_file() -> Path:
    """The repository's one copy of npu_ops.json. Found without importing the package that it lies in."""
    spec = importlib.util.find_spec("text_generation_kernels")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the emulated NPU needs text_generation_kernels beside it, for npu_ops.json")
    return Path(spec.submodule_search_locations[0]) / "npu" / "npu_ops.json"


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ops_file().read_text())
    return document


def sampled_release(release: tuple[int, int]) -> str:
    """The sampled release that stands for a version: the same one, or else the newest that is older.

    Raises: ValueError below the oldest.
    """
    best = ""
    for sample in _document()["sampled_releases"]:
        major, minor = sample.split(".")[:2]
        if (int(major), int(minor)) <= release:
            best = sample
    if not best:
        raise ValueError(f"no signatures of torch_npu {release[0]}.{release[1]} are known; the oldest is 2.1")
    return best


def ops_of(release: tuple[int, int]) -> list[OpRecord]:
    """Every op that a release of torch_npu has."""
    sample = sampled_release(release)
    records = []
    for name, entry in _document()["ops"].items():
        difference = entry["signature_by_release"].get(sample, "same")
        if difference == "absent":
            continue
        schema = entry["schema"].partition("::")[2]
        if isinstance(difference, dict):
            schema = _older_schema(schema, difference)
        packet = name.partition(".")[0]
        changed, last_positional = _KEYWORD_ONLY_BEFORE.get(packet, ((0, 0), ""))
        if release < changed:
            schema = _keyword_only_after(schema, last_positional)
        records.append(
            OpRecord(
                namespace=entry["namespace"],
                name=name,
                schema=schema,
                python=None if release < _NOT_EXPOSED_BEFORE.get(packet, (0, 0)) else entry["python"],
                families=entry["socs"],
                has_aclop="acl_op" in entry["routes"],
            )
        )
    return records


def _split(schema: str) -> tuple[str, list[str], str]:
    """Name, arguments with "*" among them, and returns."""
    match = re.fullmatch(r"([\w.]+)\((.*)\) -> (.*)", schema)
    assert match is not None, schema
    name, arguments, returns = match.groups()
    return name, _split_arguments(arguments), returns


def _split_arguments(arguments: str) -> list[str]:
    pieces: list[str] = []
    depth = 0
    current = ""
    for character in arguments:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            pieces.append(current.strip())
            current = ""
        else:
            current += character
    return [*pieces, current.strip()] if current.strip() else pieces


def _join(name: str, arguments: list[str], returns: str) -> str:
    if arguments and arguments[-1] == "*":
        arguments = arguments[:-1]
    return f"{name}({', '.join(arguments)}) -> {returns}"


def _argument_name(argument: str) -> str:
    return argument.partition("=")[0].rpartition(" ")[2]


def _older_schema(schema: str, difference: Mapping[str, list[str]]) -> str:
    name, arguments, returns = _split(schema)
    lacking = set(difference.get("lacks_args", ()))
    arguments = [argument for argument in arguments if argument == "*" or _argument_name(argument) not in lacking]
    for line in difference.get("default_differs", ()):
        changed, old = re.fullmatch(r"(\w+): '?(.*?)'? then, .*", line).groups()  # type: ignore[union-attr]
        arguments = [
            _with_default(argument, old) if _argument_name(argument) == changed else argument for argument in arguments
        ]
    for line in difference.get("type_differs", ()):
        changed, old = re.fullmatch(r"(\w+): (.*) then", line).groups()  # type: ignore[union-attr]
        arguments = [
            _with_type(argument, old) if _argument_name(argument) == changed else argument for argument in arguments
        ]
    positional = set(difference.get("kwarg_only_differs", ()))
    if positional and "*" in arguments:
        star = arguments.index("*")
        moved = [argument for argument in arguments[star + 1 :] if _argument_name(argument) in positional]
        rest = [argument for argument in arguments[star + 1 :] if _argument_name(argument) not in positional]
        arguments = [*arguments[:star], *moved, "*", *rest]
    return _join(name, arguments, returns)


def _with_default(argument: str, default: str) -> str:
    declaration, _, old = argument.partition("=")
    return f'{declaration}="{default}"' if old.startswith('"') else f"{declaration}={default}"


_TYPES = {"Optional[List[int]]": "int[]?", "List[bool]": "bool[2]"}


def _with_type(argument: str, old: str) -> str:
    old = _TYPES.get(old, old)
    name = _argument_name(argument)
    _, separator, default = argument.partition("=")
    if separator and default == "None" and not old.endswith("?"):
        return f"{old} {name}"
    return f"{old} {name}{separator}{default}"


def _keyword_only_after(schema: str, last_positional: str) -> str:
    name, arguments, returns = _split(schema)
    place = [_argument_name(argument) for argument in arguments].index(last_positional) + 1
    return _join(name, [*arguments[:place], "*", *arguments[place:]], returns)
