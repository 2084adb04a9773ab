"""The ops of older torch_npu releases, as npu_ops.json describes them: schemas to bind against, without the wheels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from text_generation_kernels.npu.op_table import OpRecord, op_records
from text_generation_kernels.npu.schemas import Lookup

RELEASES = ("2.1.0.post8", "2.5.1", "2.8.0", "2.13.0")


@dataclass(frozen=True)
class Described:
    """Stands where an op would: it can be looked at, not called."""

    _schema: Any

    def __call__(self, **arguments: object) -> Any:
        raise AssertionError("this op is only described")


def lookup_in(release: str) -> Lookup:
    """Finds the ops that a release has."""

    def lookup(namespace: str, name: str, overload: str) -> Any:
        record = op_records().get(name if overload == "default" else f"{name}.{overload}")
        if record is None or record.namespace != namespace or record.by_release.get(release) == "absent":
            return None
        return Described(_schema_in(record, release))

    return lookup


def _schema_in(record: OpRecord, release: str) -> Any:
    schema = torch._C.parse_schema(record.schema)
    difference = record.by_release.get(release, "same")
    if not isinstance(difference, dict):
        return schema
    lacks = difference.get("lacks_args", [])
    defaults = dict(entry.split(": ", 1) for entry in difference.get("default_differs", []))
    return _Schema([_Argument(a, defaults) for a in schema.arguments if a.name not in lacks])


@dataclass(frozen=True)
class _Schema:
    arguments: list[_Argument]


class _Argument:
    """An argument of 2.13 with the default of another release."""

    def __init__(self, argument: Any, defaults: dict[str, str]) -> None:
        self.name: str = argument.name
        self._argument = argument
        # "pre_tokens: 2147473647 then, 2147483647 in 2.13"
        self._default = defaults[self.name].split(" then")[0].strip("'") if self.name in defaults else None

    def has_default_value(self) -> bool:
        return bool(self._argument.has_default_value())

    @property
    def default_value(self) -> object:
        if self._default is None:
            return self._argument.default_value
        return int(self._default) if self._default.isdigit() else self._default
