"""Ops of the installed torch_npu, checked before they are used: are they there, and do they take what they will get?

Signatures drift between releases, and so do defaults. So every argument is passed by keyword, none that matters is left
to its default, and the names are compared with the schema that the installed wheel registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from text_generation_kernels.npu.op_table import OpRecord, op_records

OpCall = Callable[..., Any]
# Finds an op by namespace, name and overload; None where the wheel has none.
Lookup = Callable[[str, str, str], Any]


class OpUnavailable(Exception):
    """An op cannot be used here. The message is the reason, without the op's purpose."""


def registered_op(namespace: str, name: str, overload: str) -> Any:
    """What the torch_npu that was imported has registered."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, overload, None)


class InstalledOps:
    """The ops that may be used on one chip family with one installed wheel.

    Args:
        family: as npu_ops.json names it.
        lookup: where ops are found.
    """

    def __init__(self, family: str, lookup: Lookup = registered_op) -> None:
        self._family = family
        self._lookup = lookup

    def bind(self, name: str, *arguments: str, where_known: Mapping[str, object] | None = None) -> OpCall:
        """An op to be called with exactly these arguments, by keyword.

        Args:
            name: as in npu_ops.json, with the overload behind a dot if it is not the default one.
            where_known: arguments that some releases lack, whose only way is then the one given here.
        Raises: OpUnavailable.
        """
        record = self._record(name)
        op = self._installed(record)
        known = {argument.name: argument for argument in op._schema.arguments}
        unknown = [argument for argument in arguments if argument not in known]
        if unknown:
            raise OpUnavailable(f"{name} of the installed torch_npu has no argument {', '.join(unknown)}")
        fixed = {key: value for key, value in (where_known or {}).items() if key in known}
        missing = [
            key
            for key, argument in known.items()
            if key not in arguments and key not in fixed and not argument.has_default_value()
        ]
        if missing:
            raise OpUnavailable(f"{name} of the installed torch_npu wants {', '.join(missing)}, which is unknown here")
        call: OpCall = partial(op, **fixed) if fixed else op
        return call

    def default_of(self, name: str, argument: str) -> object:
        """An argument's default in the installed wheel, where nothing else is allowed and releases differ.

        Raises: OpUnavailable.
        """
        for known in self._installed(self._record(name))._schema.arguments:
            if known.name == argument and known.has_default_value():
                value: object = known.default_value
                return value
        raise OpUnavailable(f"{name} of the installed torch_npu has no default for {argument}")

    def _record(self, name: str) -> OpRecord:
        record = op_records()[name]
        if record.support.get(self._family) == "n":
            raise OpUnavailable(f"{name} does not exist on chips of family {self._family}")
        return record

    def _installed(self, record: OpRecord) -> Any:
        base, _, overload = record.name.partition(".")
        op = self._lookup(record.namespace, base, overload or "default")
        if op is None:
            raise OpUnavailable(f"the installed torch_npu has no {record.name} (seen from {record.first_seen_in} on)")
        return op
