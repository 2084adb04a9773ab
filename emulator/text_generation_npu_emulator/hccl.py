"""The process group backend "hccl": gloo over the bytes of the tensors on the cards.

Sums are computed in float32. The buffers that a real communicator allocates for itself are counted on the card.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d

from text_generation_npu_emulator.launch import Call, PlainKernel, Refused, launch
from text_generation_npu_emulator.machine import Machine
from text_generation_npu_emulator.memory import MIB
from text_generation_npu_emulator.operators import check_dtype
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.tensors import is_on_npu

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8, torch.int32, torch.int64)
_DEFAULT_BUFFER_MB = 200


_work_from: Callable[[torch.futures.Future[Any]], dist.Work] = getattr(_distributed_c10d, "_create_work_from_future")  # noqa: B009


class HcclGroup(dist.ProcessGroup):
    """One communicator: a rank on a card, and a gloo group that carries the bytes."""

    def __init__(self, gloo: Any, rank: int, size: int, machine: Machine) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._gloo = gloo
        self._rank = rank
        self._size = size
        self._machine = machine
        self._name = f"hccl_world_{id(self):x}"
        buffer_mb = int(machine.settings.environment.get("HCCL_BUFFSIZE", _DEFAULT_BUFFER_MB))
        machine.hold_outside(2 * buffer_mb * MIB)  # to send and to receive

    def getBackendName(self) -> str:  # noqa: N802
        return "hccl"

    def _get_backend(self, device: torch.device) -> Any:
        """The backend for a device: a communicator is its own."""
        if device.type != "npu":
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self

    def get_hccl_comm_name(self, rank: int) -> str:
        return self._name

    def _run(self, name: str, function: Callable[..., None], tensors: list[Tensor], result: Any) -> dist.Work:
        for tensor in tensors:
            self._check(name, tensor)
        # A kernel, so that it is counted and captured like any other.
        launch(self._machine, PlainKernel(name, function, compiles=False), tuple(tensors), {})
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(result)
        return _work_from(future)

    def _check(self, name: str, tensor: Tensor) -> None:
        if not is_on_npu(tensor):
            raise Refused(f"HCCL {name}: tensors must be on the NPU, got one on {tensor.device}")
        if not tensor.is_contiguous():
            raise Refused(f"HCCL {name}: tensors must be contiguous")
        if tensor.dtype not in _DTYPES:
            raise Refused(f"HCCL {name}: {tensor.dtype} is not supported")
        check_dtype(self._machine, f"HCCL {name}", tensor)

    def _reduce(self, values: Tensor, op: Any) -> Tensor:
        wide = values.float() if values.dtype.is_floating_point else values.clone()
        options = dist.AllreduceOptions()
        options.reduceOp = op
        self._gloo.allreduce([wide], options).wait()
        return wide.to(values.dtype)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp

        def run(call: Call, *tensors: Tensor) -> None:
            for tensor in tensors:
                call.store(tensor, self._reduce(call.read(tensor), op))

        return self._run("all_reduce", run, tensors, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        if self._machine.soc.family == "310P":
            raise Refused(f"HCCL broadcast is not supported on {self._machine.soc.name}")
        root = 0 if opts is None else opts.rootRank

        def run(call: Call, *tensors: Tensor) -> None:
            for tensor in tensors:
                values = call.read(tensor).clone()
                options = dist.BroadcastOptions()
                options.rootRank = root
                self._gloo.broadcast([values], options).wait()
                call.store(tensor, values)

        return self._run("broadcast", run, tensors, tensors)

    def _gather(self, values: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(values) for _ in range(self._size)]
        self._gloo.allgather([gathered], [values]).wait()
        return gathered

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        def run(call: Call, source: Tensor, *targets: Tensor) -> None:
            for target, values in zip(targets, self._gather(call.read(source).clone()), strict=True):
                call.store(target, values)

        return self._run("all_gather", run, [inputs[0], *outputs[0]], outputs)

    def _allgather_base(self, output: Tensor, source: Tensor, opts: Any = None) -> dist.Work:
        def run(call: Call, source: Tensor, target: Tensor) -> None:
            call.store(target, torch.cat([part.reshape(-1) for part in self._gather(call.read(source).clone())]))

        return self._run("all_gather_into_tensor", run, [source, output], output)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> dist.Work:
        """The name of all_gather_into_tensor since torch 2.13."""
        return self._allgather_base(output, source, opts)

    def _reduce_scatter_base(self, output: Tensor, source: Tensor, opts: Any = None) -> dist.Work:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp

        def run(call: Call, source: Tensor, target: Tensor) -> None:
            call.store(target, self._reduce(call.read(source), op).reshape(self._size, -1)[self._rank])

        return self._run("reduce_scatter_tensor", run, [source, output], output)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> dist.Work:
        """The name of reduce_scatter_tensor since torch 2.13."""
        return self._reduce_scatter_base(output, source, opts)

    def barrier(self, opts: Any = None) -> dist.Work:
        self._gloo.barrier().wait()
        return self._run("barrier", lambda call: None, [], [])


def register_backend() -> None:
    """Make torch.distributed know "hccl" for the device "npu"."""

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> HcclGroup:
        return HcclGroup(dist.ProcessGroupGloo(store, rank, size, timeout=timeout), rank, size, machine_now())

    dist.Backend.register_backend("hccl", create, devices=["npu"])
