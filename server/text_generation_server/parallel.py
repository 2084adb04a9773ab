"""The ranks of one tensor-parallel group, and what they say to each other.

Every rank makes the same calls in the same order. Knows nothing about models; who holds what is in `sharding`.
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from text_generation_kernels.errors import first_line
from text_generation_kernels.interface import Device
from text_generation_server.sharding import split

# CANN's codes for an address that is bound already.
_PORT_IN_USE = ("EJ0003", "EI0019")

P = ParamSpec("P")
T = TypeVar("T")


class GroupError(RuntimeError):
    """The ranks could not find each other, or have lost one; the message is one line for whoever started them."""


class TensorParallelGroup(ABC):
    """One rank's end of its group."""

    rank: int
    world_size: int

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, the same bits on each. `x` may be overwritten and returned."""

    @abstractmethod
    def gather_logits(self, logits: Tensor, vocab_size: int) -> Tensor | None:
        """Join the ranks' shares of the vocabulary.

        Args:
            logits: [n, vocab_local], this rank's columns as `sharding.split` gives them.
        Returns: [n, vocab_size] on rank 0, None on the others.
        """

    @abstractmethod
    def broadcast_ids(self, ids: Tensor | None, num_ids: int) -> Tensor:
        """Rank 0's ids on every rank.

        Args:
            ids: [num_ids] int64 on the device on rank 0, None on the others.
        """

    @abstractmethod
    def all_reduce_min(self, value: int) -> int:
        """The smallest of the ranks' values."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group. Nothing may be called afterwards."""


class LoneRank(TensorParallelGroup):
    """A group of one: everything is there already."""

    rank = 0
    world_size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def gather_logits(self, logits: Tensor, vocab_size: int) -> Tensor | None:
        return logits

    def broadcast_ids(self, ids: Tensor | None, num_ids: int) -> Tensor:
        assert ids is not None
        return ids

    def all_reduce_min(self, value: int) -> int:
        return value

    def close(self) -> None:
        pass


def _together(
    collective: Callable[Concatenate[ProcessGroup, P], T],
) -> Callable[Concatenate[ProcessGroup, P], T]:
    """What torch raises here means, but for bugs, that another rank is gone: no fault of this one."""

    @functools.wraps(collective)
    def call(group: ProcessGroup, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return collective(group, *args, **kwargs)
        except RuntimeError as error:
            raise GroupError(_what_happened(error)) from error

    return call


def _what_happened(error: RuntimeError) -> str:
    """HCCL opens its ports in a group's first collective, so that is where a port in use shows."""
    text = str(error)
    if any(code in text for code in _PORT_IN_USE):
        line = next(line for line in text.splitlines() if any(code in line for code in _PORT_IN_USE))
        first = os.environ.get("HCCL_IF_BASE_PORT", "60000")
        return (
            f"HCCL cannot open its ports, from {first} on: another server of this host, or one that has just ended, "
            f"has them; set HCCL_IF_BASE_PORT to the first of 16 free ports ({line})"
        )
    return f"another rank has ended or hangs ({first_line(error)})"


class ProcessGroup(TensorParallelGroup):
    """A group over torch.distributed, made by `join_group`; there is one in a process."""

    def __init__(self, device: Device, timeout: timedelta) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._device = device.torch_device
        self._outside = device.ops.outside
        self._broadcasts = device.broadcasts
        # What is known on the host is said over gloo, beside the cards' own backend.
        self._host_group = None
        if device.process_group_backend != "gloo":
            self._host_group = dist.new_group(backend="gloo", timeout=timeout)
        # gloo adds up around a ring, from another rank on for each piece of the buffer. With three or more terms the
        # rounding then depends on where a row lies in the batch, which rows of a step must not; so terms are gathered
        # and added in rank order. Two terms commute.
        self._sum_in_order = device.process_group_backend == "gloo" and self.world_size > 2

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._outside(self._sum, x)

    @_together
    def _sum(self, x: Tensor) -> Tensor:
        if not self._sum_in_order:
            dist.all_reduce(x)
            return x
        terms = [torch.empty_like(x) for _ in range(self.world_size)]
        dist.all_gather(terms, x)
        total = terms[0]
        for term in terms[1:]:
            total += term
        return total

    @_together
    def gather_logits(self, logits: Tensor, vocab_size: int) -> Tensor | None:
        # Collectives want equal shapes; with an uneven split the last ranks send one column too many.
        widths = [len(split(vocab_size, rank, self.world_size)) for rank in range(self.world_size)]
        missing = widths[0] - logits.shape[1]
        padded = torch.nn.functional.pad(logits, (0, missing)) if missing else logits.contiguous()
        parts = [torch.empty_like(padded) for _ in widths]
        if self._host_group is not None:
            dist.all_gather(parts, padded)  # HCCL has no gather everywhere
        else:
            dist.gather(padded, parts if self.rank == 0 else None, dst=0)
        if self.rank != 0:
            return None
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    @_together
    def broadcast_ids(self, ids: Tensor | None, num_ids: int) -> Tensor:
        if not self._broadcasts:
            host = torch.empty(num_ids, dtype=torch.int64) if ids is None else ids.cpu()
            dist.broadcast(host, src=0, group=self._host_group)
            return host.to(self._device) if ids is None else ids
        if ids is None:
            ids = torch.empty(num_ids, dtype=torch.int64, device=self._device)
        dist.broadcast(ids, src=0)
        return ids

    @_together
    def all_reduce_min(self, value: int) -> int:
        smallest = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=self._host_group)
        return int(smallest.item())

    def close(self) -> None:
        dist.destroy_process_group()


def join_group(
    device: Device, rank: int, world_size: int, *, master_addr: str, master_port: int, timeout_s: float
) -> TensorParallelGroup:
    """Meet the other ranks at rank 0's address.

    Args:
        timeout_s: how long to wait for the others here, and later in each collective.
    Raises:
        GroupError: they did not all come in time, or the address cannot be used.
    """
    if world_size == 1:
        return LoneRank()
    timeout = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(
            device.process_group_backend,
            init_method=f"tcp://{master_addr}:{master_port}",
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
        return ProcessGroup(device, timeout)
    except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
        raise GroupError(
            f"rank {rank} could not meet the other {world_size - 1} at {master_addr}:{master_port} "
            f"within {timeout_s:g} s: {first_line(error)}"
        ) from None
