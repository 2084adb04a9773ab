"""An Ascend NPU as a device: which chip it is, its memory, its ops, and its captured decode steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from text_generation_kernels.interface import CapturedStep, Device, MemoryInfo, StepFunction
from text_generation_kernels.npu.graphs import capture_decode
from text_generation_kernels.npu.ops import NpuOps
from text_generation_kernels.npu.soc import Family, acting_as, classify

logger = logging.getLogger(__name__)

DEFAULT_BLOCK_SIZE = 128


@dataclass(frozen=True)
class NpuOptions:
    """What a server may be told about its NPU."""

    dtype: torch.dtype | None = None  # of weights, activations, keys and values; None: the model's or float16
    model_dtype: torch.dtype | None = None  # that the weights are stored in, where it is known
    weight_layout: str = "auto"
    graph_sizes: Sequence[int] = ()  # rows of the decode steps to capture
    family: str | None = None  # treat the chip as one of a lesser family
    is_plain: bool = False  # compute with plain torch ops


class NpuDevice(Device):
    """One card, or one die, of this process.

    Args:
        torch_npu: the module, imported.
        index: of the card among the visible ones.
    Raises: ValueError, one line, for a card that is not there, a chip that is not supported, or a dtype it lacks.
    """

    def __init__(self, torch_npu: Any, index: int, options: NpuOptions | None = None) -> None:
        options = options or NpuOptions()
        self._npu = torch_npu.npu
        self._torch_npu = torch_npu
        self._index = index
        num_cards = int(self._npu.device_count())
        if index >= num_cards:
            raise ValueError(
                f"shard {index} wants an NPU of its own, and {num_cards} are visible; use fewer shards (--num-shard), "
                f"or make more visible (ASCEND_RT_VISIBLE_DEVICES)"
            )
        self._npu.set_device(index)
        self.kind = "npu"
        self.soc_id = read_soc_id(torch_npu)
        self.name = str(self._npu.get_device_name(index))
        self.family = _family(self.soc_id, self.name, options.family)
        self.torch_device = torch.device("npu", index)
        self.default_block_size = DEFAULT_BLOCK_SIZE
        self.process_group_backend = "hccl"
        self.has_bfloat16 = self.family.has_bfloat16
        self.broadcasts = self.family.broadcasts
        if self.family.compiles_at_run_time:
            # Else each new shape is compiled while it is served, and a server's shapes are new all the time.
            self._npu.set_compile_mode(jit_compile=False)
        self._graph_sizes = tuple(size for size in options.graph_sizes if size > 0)
        self._reserved_at_reset = 0
        self.ops: NpuOps = NpuOps(
            torch_npu,
            self.family,
            self.torch_device,
            _dtype(options, self.family, self.name, is_first=index == 0),
            weight_layout=options.weight_layout,
        )
        if options.is_plain:
            self.ops.use_composed()
        reason = self.ops.check_atb()
        if reason is not None:
            logger.warning("%s: %s; other ops are used instead. Is NNAL installed, for this CANN?", self.name, reason)

    @property
    def torch_npu_version(self) -> str:
        return str(getattr(self._torch_npu, "__version__", "unknown"))

    def enter_thread(self) -> None:
        self._npu.set_device(self._index)

    def memory(self) -> MemoryInfo:
        """As the driver counts, so that other processes' share is not free. What the allocator only keeps is."""
        self._npu.empty_cache()
        free_bytes, total_bytes = (int(nbytes) for nbytes in self._npu.mem_get_info(self._index))
        outside_bytes = total_bytes - free_bytes - int(self._npu.memory_reserved(self._index))
        return MemoryInfo(total_bytes, free_bytes, max(0, outside_bytes))

    def used_memory_bytes(self) -> int:
        """All that is not free: tensors, workspaces, HCCL's buffers, and what other processes hold, which a limit such
        as MAX_MEMORY_GB has to leave them."""
        memory = self.memory()
        return memory.total_bytes - memory.free_bytes

    def reset_peak_memory(self) -> None:
        self._npu.synchronize()
        self._npu.empty_cache()
        self._npu.reset_peak_memory_stats(self._index)
        self._reserved_at_reset = int(self._npu.memory_reserved(self._index))

    def peak_memory_bytes(self) -> int:
        peak = int(self._npu.memory_stats(self._index)["reserved_bytes.all.peak"])
        return max(0, peak - self._reserved_at_reset)

    def synchronize(self) -> None:
        self._npu.synchronize()

    def capture(self, function: StepFunction, max_tokens: int, max_sampled: int, max_blocks: int) -> CapturedStep:
        most = min(max_tokens, max_sampled)
        sizes = sorted({min(size, most) for size in self._graph_sizes})
        return capture_decode(self._torch_npu, self.ops, function, sizes, max_blocks)


def read_soc_id(torch_npu: Any) -> int:
    """The chip's integer id. Older builds have it only below `_C`."""
    public = getattr(torch_npu.npu, "get_soc_version", None)
    return int(public() if public is not None else torch_npu._C._npu_get_soc_version())


def _family(soc_id: int, name: str, wanted: str | None) -> Family:
    family = classify(soc_id, name)
    if wanted is None or wanted == family.name:
        return family
    lesser = acting_as(family, wanted)
    logger.warning("%s (family %s) is treated as family %s, as NPU_FAMILY says", name, family.name, lesser.name)
    return lesser


def _dtype(options: NpuOptions, family: Family, name: str, *, is_first: bool) -> torch.dtype:
    """What is asked for; else bfloat16 where the model has it and the chip too, whose range float16 lacks."""
    if options.dtype == torch.bfloat16 and not family.has_bfloat16:
        raise ValueError(f"{name} has no bfloat16; use --dtype float16")
    if options.dtype is not None or options.model_dtype != torch.bfloat16:
        return options.dtype or torch.float16
    if family.has_bfloat16:
        return torch.bfloat16
    if is_first:
        logger.warning("%s has no bfloat16, which the model was made in: it is served in float16", name)
    return torch.float16
