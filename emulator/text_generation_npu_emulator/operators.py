"""The ops of npu:: and atb::: how an emulated kernel is declared, and what is checked before any of them runs.

A kernel is a function of a `Call` and of those arguments of its schema that it knows, by name. Arguments that it does
not know must have their default. It gets tensors of the card, returns host tensors, and says in its declaration where
arguments may lie and which may be in FRACTAL_NZ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from text_generation_npu_emulator.formats import FRACTAL_NZ
from text_generation_npu_emulator.launch import Call, Refused, launch
from text_generation_npu_emulator.machine import Machine
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.schemas import OpRecord
from text_generation_npu_emulator.tensors import POISON, is_on_npu

Function = Callable[..., Any]

_SUPPORTED = ("y", "t")
_WORKSPACE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Declaration:
    """An emulated kernel."""

    name: str  # of the packet
    function: Function
    known: frozenset[str]  # arguments
    on_host: frozenset[str]  # tensors that must lie on the host
    anywhere: frozenset[str]  # tensors that may
    nz: frozenset[str]  # tensors that may be in FRACTAL_NZ
    also_on: frozenset[str]  # families that npu_ops.json does not list
    host_only: bool
    capture_refusal: str | None


DECLARED: dict[str, Declaration] = {}


def kernel(
    *names: str,
    on_host: tuple[str, ...] = (),
    anywhere: tuple[str, ...] = (),
    nz: tuple[str, ...] = (),
    also_on: tuple[str, ...] = (),
    renamed: Mapping[str, str] | None = None,
    host_only: bool = False,
    capture_refusal: str | None = None,
) -> Callable[[Function], Function]:
    """Declare a function as the kernel of some ops, all their overloads included.

    `renamed`: how these ops call some of the function's parameters, by the parameter's name.
    """

    def declare(function: Function) -> Function:
        parameters = {
            (renamed or {}).get(name, name): name for name in list(inspect.signature(function).parameters)[1:]
        }

        def run(call: Call, **named: Any) -> Any:
            return function(call, **{parameters[name]: value for name, value in named.items()})

        for name in names:
            DECLARED[name] = Declaration(
                name,
                run if renamed else function,
                frozenset(parameters),
                frozenset(on_host),
                frozenset(anywhere),
                frozenset(nz),
                frozenset(also_on),
                host_only,
                capture_refusal,
            )
        return function

    return declare


def declare_workspace(name: str, *, of: str, without: tuple[str, ...]) -> None:
    """Declare the op that makes the memory for captured calls of another op, whose arguments it takes but for some.

    The kernels here need no such memory; it only has a size, as on the chip.
    """

    def make(call: Call, **_: Any) -> Tensor:
        return torch.full((_WORKSPACE_BYTES,), POISON, dtype=torch.uint8, device="cpu")

    captured = DECLARED[of]
    DECLARED[name] = replace(captured, name=name, function=make, known=captured.known - set(without), host_only=True)


class NpuKernel:
    """One overload of an op of npu:: or atb:: on one machine."""

    def __init__(self, record: OpRecord) -> None:
        self.name = record.packet
        self._record = record
        self._declaration = DECLARED.get(record.packet)
        self._schema = torch._C.parse_schema(f"{record.namespace}::{record.schema}")
        self.compiles = record.has_aclop
        self.host_only = self._declaration is not None and self._declaration.host_only
        self.capture_refusal = None if self._declaration is None else self._declaration.capture_refusal

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the dispatcher calls."""
        machine = machine_now()
        named = self._bind(args, kwargs)
        self._check(machine, named)
        return launch(machine, self, (), named)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        named = {}
        for place, argument in enumerate(self._schema.arguments):
            if place < len(args):
                named[argument.name] = args[place]
            elif argument.name in kwargs:
                named[argument.name] = kwargs[argument.name]
            else:
                named[argument.name] = argument.default_value
        return named

    def _check(self, machine: Machine, named: Mapping[str, Any]) -> None:
        """What holds for every op: that the chip has it, and where its tensors may lie."""
        declaration, soc = self._declaration, machine.soc
        if self._record.namespace == "atb":
            self._require_nnal(machine)
        has_kernel = self._record.families.get(soc.family) in _SUPPORTED
        if declaration is not None:
            has_kernel = has_kernel or soc.family in declaration.also_on
        if not has_kernel and machine.settings.silent and self._record.namespace == "atb":
            machine.give_garbage(self.name)  # what a user saw on a 910A
        elif not has_kernel:
            raise Refused(f"{self.name} on {soc.name}: there is no kernel for this chip (error code 500002)")
        if declaration is None:
            raise Refused(f"{self.name}: this op is not emulated")
        devices = set()
        for argument in self._schema.arguments:
            value = named[argument.name]
            if argument.name not in declaration.known and value != argument.default_value:
                raise Refused(f"{self.name}: argument {argument.name} is not emulated; leave it at its default")
            for tensor in [value] if isinstance(value, Tensor) else value if _is_tensor_list(value) else []:
                self._check_tensor(machine, declaration, argument.name, tensor)
                if is_on_npu(tensor):
                    devices.add(tensor.device.index)
        if len(devices) > 1:
            raise Refused(f"{self.name}: expected all tensors to be on the same device, found npu:{sorted(devices)}")

    def _check_tensor(self, machine: Machine, declaration: Declaration, name: str, tensor: Tensor) -> None:
        if name in declaration.on_host:
            if is_on_npu(tensor):
                raise Refused(f"{self.name}: {name} must lie on the host")
            return
        if not is_on_npu(tensor):
            if name in declaration.anywhere:
                return
            raise Refused(f"{self.name}: {name} must lie on the device, it is on {tensor.device}")
        check_dtype(machine, self.name, tensor)
        if machine.tensors.format_of(tensor) == FRACTAL_NZ and name not in declaration.nz:
            raise Refused(f"{self.name}: {name} is in FRACTAL_NZ, which this op cannot read")

    def _require_nnal(self, machine: Machine) -> None:
        if machine.settings.nnal == "missing":
            raise RuntimeError("libatb.so: cannot open shared object file: No such file or directory")
        if machine.settings.nnal == "mismatch":
            raise RuntimeError("libop_plugin_atb.so: undefined symbol: _ZN3atb9OperationE")

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        declaration = self._declaration
        assert declaration is not None
        return declaration.function(call, **{name: kwargs[name] for name in declaration.known if name in kwargs})


def _is_tensor_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value)


def check_has_dtype(machine: Machine, name: str, dtype: torch.dtype) -> None:
    """Refuse dtypes that the chip does not have. float64 may lie on a card; it only cannot be computed with."""
    if dtype == torch.bfloat16 and not machine.soc.has_bfloat16:
        raise Refused(f"{name} on {machine.soc.name}: bfloat16 is not supported by this chip")


def check_dtype(machine: Machine, name: str, tensor: Tensor) -> None:
    """Refuse dtypes that the chip does not compute in."""
    check_has_dtype(machine, name, tensor.dtype)
    if tensor.dtype == torch.float64:
        raise Refused(f"{name}: float64 is not supported by any NPU")
