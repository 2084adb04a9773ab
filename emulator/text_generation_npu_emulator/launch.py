"""One run of a kernel: what it may read, write and refuse; and the path that every kernel takes.

Results pass through here, so that saturation and injected faults reach all of them; so does what a graph records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from text_generation_npu_emulator.counters import signature
from text_generation_npu_emulator.faults import Fault
from text_generation_npu_emulator.formats import FRACTAL_NZ
from text_generation_npu_emulator.tensors import NotReadable, is_on_npu

if TYPE_CHECKING:
    from text_generation_npu_emulator.machine import Machine

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

# Kernels that move values and compute none: what overflowed stays what it is.
_MOVES = frozenset({"index_put_", "_index_put_impl_", "index_copy_", "scatter_", "zero_", "copy_from"})


class Refused(RuntimeError):
    """An op was called in a way that the real one rejects, or gets wrong without an error. The message says how."""


class Kernel(Protocol):
    """What can be launched."""

    @property
    def name(self) -> str:
        """Without namespace and overload."""

    @property
    def host_only(self) -> bool:
        """Whether it launches nothing, as a query of a workspace's size."""

    @property
    def capture_refusal(self) -> str | None:
        """Why it cannot be captured in a graph."""

    @property
    def compiles(self) -> bool:
        """Whether the chip has it as a legacy kernel, which is compiled for each shape while that is on."""

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute. Results: host tensors for new ones, the arguments themselves for those changed in place."""


@dataclass(frozen=True, slots=True)
class PlainKernel:
    """A kernel that is one function, and can always be captured."""

    name: str
    function: Callable[..., Any]
    compiles: bool
    host_only: bool = False
    capture_refusal: str | None = None

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.function(call, *args, **kwargs)


class Call:
    """A kernel's view of the machine, for one run.

    Args:
        dry: whether what existed before a capture must keep its values, since capturing executes nothing.
    """

    def __init__(self, machine: Machine, name: str, fault: Fault | None, dry: bool) -> None:
        self.machine = machine
        self.soc = machine.soc
        self.name = name
        self._fault = fault
        self._dry_below = machine.capture.first_serial if dry and machine.capture is not None else 0
        self._place = 0

    def refuse(self, why: str) -> NoReturn:
        raise Refused(f"{self.name} on {self.soc.name}: {why}")

    def require(self, fits: bool, why: str) -> None:
        if not fits:
            self.refuse(why)

    def require_loud(self, fits: bool, why: str) -> None:
        """Refuse what the chip takes without a word and gets wrong, unless the machine is to be as silent as that."""
        if not fits and not self.machine.settings.silent:
            self.refuse(f"{why} (the chip gives no error and a wrong result)")

    def read(self, tensor: Tensor) -> Tensor:
        """A tensor's values on the host, ND, in its own dtype."""
        if not is_on_npu(tensor):
            return tensor
        try:
            return self.machine.tensors.read(tensor)
        except NotReadable as error:
            self.refuse(f"got {error}")

    def read_float32(self, tensor: Tensor) -> Tensor:
        """A tensor's values on the host, ND, as float32."""
        if not is_on_npu(tensor):
            return tensor.float()
        try:
            return self.machine.tensors.read_float32(tensor)
        except NotReadable as error:
            self.refuse(f"got {error}")

    def write(self, tensor: Tensor) -> Tensor:
        """A host tensor over the bytes of one on a card, to be written."""
        tensors = self.machine.tensors
        if self.captures_dry(tensor):
            return tensors.alias(tensor).clone(memory_format=torch.preserve_format)
        return tensors.alias_to_write(tensor)

    def captures_dry(self, tensor: Tensor) -> bool:
        """Whether a tensor must stay as it is: a graph is being captured, and the tensor was there before."""
        return self._dry_below > 0 and self.machine.tensors.block(tensor).serial < self._dry_below

    def store(self, out: Tensor, values: Tensor) -> None:
        """Write an op's result into the tensor that was given for it."""
        self.write(out).copy_(self.result(values).reshape(out.shape))

    def result(self, values: Tensor) -> Tensor:
        """What becomes of computed values on this chip, and with this fault."""
        if self.machine.settings.saturates and self.name not in _MOVES:
            values = saturate(values)
        if self._fault is not None:
            values = self._fault.apply(values, self._place)
        self._place += 1
        return values

    def finish_in_place(self, values: Tensor) -> None:
        """The same for a host tensor that was written in place."""
        if self._fault is not None or (self.machine.settings.saturates and self.name not in _MOVES):
            values.copy_(self.result(values.clone()))

    def is_nz(self, tensor: Tensor) -> bool:
        return is_on_npu(tensor) and self.machine.tensors.format_of(tensor) == FRACTAL_NZ


def saturate(values: Tensor) -> Tensor:
    """Overflow to the largest number, NaN to zero."""
    if not values.dtype.is_floating_point:
        return values
    largest = torch.finfo(values.dtype).max
    return values.nan_to_num(nan=0.0, posinf=largest, neginf=-largest)


def launch(machine: Machine, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a kernel on a machine: compute, or record, or change what was recorded. Returns tensors on the card."""
    if kernel.host_only:
        return _run(machine, kernel, args, kwargs, dry=False)
    if machine.update is not None:
        return machine.update.replace(kernel, args, kwargs)
    machine.require_nothing_waits(f"{kernel.name} was launched")
    capture = machine.capture
    if capture is not None and kernel.capture_refusal is not None:
        raise Refused(f"{kernel.name} cannot be captured: {kernel.capture_refusal}")
    _count(machine, kernel, args, kwargs)
    outputs = _run(machine, kernel, args, kwargs, dry=capture is not None)
    if capture is not None:
        capture.record_launch(kernel, args, kwargs, outputs)
    return outputs


def _count(machine: Machine, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    counters = machine.counters
    counters.calls[kernel.name] += 1
    if kernel.compiles and machine.soc.jit_compile_default:
        shapes = signature((*args, *kwargs.values()))
        counters.shapes[kernel.name].add(shapes)
        if machine.jit_compile:
            counters.compiled[kernel.name].add(shapes)


def _start(machine: Machine, kernel: Kernel, dry: bool) -> Call:
    fault = machine.fault_of(kernel.name)
    if fault is not None:
        fault.before()
    return Call(machine, kernel.name, fault, dry)


def _run(machine: Machine, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], dry: bool) -> Any:
    call = _start(machine, kernel, dry)
    results = kernel.run(call, args, kwargs)
    device = device_of(machine, args, kwargs)

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor) or is_on_npu(value):
            return value
        return machine.tensors.new(call.result(value), device)

    return tree_map(place, results)


def rerun(machine: Machine, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
    """Run a recorded kernel once more, into the outputs that it had."""
    call = _start(machine, kernel, dry=False)
    fresh, _ = tree_flatten(kernel.run(call, args, kwargs))
    for value, output in zip(fresh, tree_flatten(outputs)[0], strict=True):
        if isinstance(value, Tensor) and not is_on_npu(value):
            machine.tensors.alias_to_write(output).copy_(call.result(value))


def freeze(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Arguments as a graph keeps them: what lies on the host as it is now, what lies on a card by its place."""

    def keep(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and not is_on_npu(value) else value

    leaves, structure = tree_flatten((args, kwargs))
    frozen: Arguments = tree_unflatten([keep(leaf) for leaf in leaves], structure)
    return frozen


def device_of(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The card that an op runs on: that of its tensors, or the one it names, or else the current one."""
    named: int | None = None
    for value in _leaves((*args, *kwargs.values())):
        if is_on_npu(value):
            return int(value.device.index)
        if isinstance(value, torch.device) and value.type == "npu" and value.index is not None:
            named = value.index
    return machine.current_device if named is None else named


def _leaves(values: tuple[Any, ...]) -> list[Any]:
    found = []
    for value in values:
        found.extend(_leaves(tuple(value)) if isinstance(value, (list, tuple)) else [value])
    return found
