"""Every aten op without a kernel of its own: run by the CPU's kernel over the same bytes.

One boxed function. Structured ops arrive as their out= overload, with numbers where the schema says Tensor; a result
that the CPU's kernel resized becomes the storage of the tensor that was given for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from text_generation_npu_emulator.launch import Call, Refused, launch
from text_generation_npu_emulator.machine import Machine
from text_generation_npu_emulator.operators import check_dtype
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.tensors import is_on_npu

# The number of results, or their values, must be known on the host: each waits for the card.
_WAITS = frozenset(
    {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "equal", "bincount"}
    | {"is_nonzero", "repeat_interleave", "_assert_async", "item"}
)
# Ops that take index tensors from the host.
_HOST_INDEX = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})


class AtenKernel:
    """One overload of an aten op."""

    host_only = False
    capture_refusal: str | None = None
    compiles = True

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.name = op._schema.name.rpartition("::")[2]
        self.waits = self.name in _WAITS
        arguments = op._schema.arguments
        self._wants_tensor = [str(argument.type) == "Tensor" for argument in arguments]
        self._names = [argument.name for argument in arguments]
        self._written = frozenset(
            argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write
        )

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.name == "zero_" and call.is_nz(args[0]):
            call.machine.tensors.whole_bytes(args[0]).zero_()  # in whatever order they are
            return args[0]
        host_arguments = _HostArguments(call)
        positional = [
            torch.tensor(value, device="cpu")
            if self._wants_tensor[place] and isinstance(value, (int, float, bool))
            else host_arguments.convert(value, self._names[place] in self._written)
            for place, value in enumerate(args)
        ]
        named = {name: host_arguments.convert(value, name in self._written) for name, value in kwargs.items()}
        results = self.op(*positional, **named)
        host_arguments.finish_writes()
        return host_arguments.back(results)


class _HostArguments:
    """The host tensors that stand for a call's arguments, and the way back from them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._card_of: dict[int, Tensor] = {}  # by id of the host tensor
        self._read: list[Tensor] = []
        self._written: list[Tensor] = []

    def convert(self, value: Any, written: bool) -> Any:
        return tree_map(self._convert_written if written else self._convert_read, value)

    def _convert_read(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "npu" else value
        if not is_on_npu(value):
            return value
        if self._call.is_nz(value):
            self._call.refuse(f"got a {tuple(value.shape)} tensor in FRACTAL_NZ, which this op cannot read")
        host = self._call.machine.tensors.alias(value)
        self._card_of[id(host)] = value
        self._read.append(host)
        return host

    def _convert_written(self, value: Any) -> Any:
        if not is_on_npu(value):
            return value
        if self._call.is_nz(value):
            self._call.refuse(f"would write into a {tuple(value.shape)} tensor in FRACTAL_NZ")
        if value.numel() == 0:  # the op will resize it
            host = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        else:
            host = self._call.write(value)
        self._card_of[id(host)] = value
        self._written.append(host)
        return host

    def finish_writes(self) -> None:
        """Saturate, or spoil, what was written; give a tensor that was resized its new storage."""
        tensors = self._call.machine.tensors
        for host in self._written:
            self._call.finish_in_place(host)
            card = self._card_of[id(host)]
            if host.shape != card.shape:
                tensors.replace(card, tensors.new(host, card.device.index))

    def back(self, results: Any) -> Any:
        return tree_map(self._back, results)

    def _back(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        card = self._card_of.get(id(value))
        if card is None and any(_same_storage(value, host) for host in self._read):
            self._call.refuse("returns a view of its argument, which is not emulated")
        return value if card is None else card


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


kernel_of = cache(AtenKernel)


def fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The boxed fallback of the device."""
    machine = machine_now()
    if op.namespace != "aten":
        raise Refused(f"{op}: there is no kernel for the NPU")
    kernel = kernel_of(op)
    check_arguments(machine, kernel.name, args, kwargs)
    if kernel.waits:
        machine.wait(f"aten::{kernel.name}")
    return launch(machine, kernel, args, kwargs)


def check_arguments(machine: Machine, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse tensors of dtypes that the chip lacks, of two cards, and of the host unless they are single numbers."""
    devices = set()
    for tensor in _tensors((*args, *kwargs.values())):
        if is_on_npu(tensor):
            check_dtype(machine, name, tensor)
            devices.add(str(tensor.device))
        elif tensor.dim() > 0 and name not in _HOST_INDEX:
            devices.add("cpu")
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(devices))}! (aten::{name})"
        )


def _tensors(values: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(tuple(value))
