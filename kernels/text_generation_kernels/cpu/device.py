"""The CPU as a device: its name, its memory and its ops, native or plain torch."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from text_generation_kernels.cpu.memory import available_memory
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.cpu.peak import PeakMeter, resident_bytes
from text_generation_kernels.interface import CapturedStep, CaptureRefused, Device, MemoryInfo, StepFunction
from text_generation_kernels.native.capture import capture
from text_generation_kernels.native.library import (
    LibraryUnavailable,
    choose_instruction_set,
    load_library,
    wanted_instruction_set,
)
from text_generation_kernels.native.ops import NativeCpuOps

logger = logging.getLogger(__name__)

# Input features that share a scale in --quantize w8a16: 8.5 bits a weight.
INT8_GROUP_SIZE = 64


class CpuDevice(Device):
    """One process's share of the CPU. Launches nothing: each op has finished when it returns.

    Args:
        kv_dtype: what keys and values are kept in: float32, or with the native kernels bfloat16. None: bfloat16 with
            the native kernels, float32 without.
        quantize: None or "w8a16": linear weights as int8, which needs the native kernels.
        native: False computes with plain torch; True raises LibraryUnavailable where there are no native kernels; None
            takes them where they are, and torch with a warning where they are not.
    Raises: ValueError, one line, for what these ops cannot do.
    """

    def __init__(
        self,
        kv_dtype: torch.dtype | None = torch.float32,
        quantize: str | None = None,
        native: bool | None = None,
    ) -> None:
        self.kind = "cpu"
        self.name = read_model_name(Path("/proc/cpuinfo"))
        self.torch_device = torch.device("cpu")
        self.default_block_size = 16
        self.process_group_backend = "gloo"
        self._peak = PeakMeter()
        if quantize not in (None, "w8a16"):
            raise ValueError(f"--quantize {quantize} is not served on the CPU; use w8a16, or leave it out")
        self.ops: NativeCpuOps | CpuOps
        ops = None if native is False else _native_ops(kv_dtype, quantize, required=native is True)
        self.ops = ops or _torch_ops(kv_dtype, quantize)

    def memory(self) -> MemoryInfo:
        return available_memory()

    def used_memory_bytes(self) -> int:
        return resident_bytes()

    def reset_peak_memory(self) -> None:
        self._peak.reset()

    def peak_memory_bytes(self) -> int:
        return self._peak.bytes_above_reset()

    def synchronize(self) -> None:
        return None

    def settle(self) -> None:
        if isinstance(self.ops, NativeCpuOps):
            self.ops.caches.supply_pages()

    def capture(self, function: StepFunction, max_tokens: int, max_sampled: int, max_blocks: int) -> CapturedStep:
        if not isinstance(self.ops, NativeCpuOps):
            raise CaptureRefused("plain torch ops cannot be replayed")
        return capture(self.ops, function, max_tokens, max_sampled)


def _native_ops(kv_dtype: torch.dtype | None, quantize: str | None, *, required: bool) -> NativeCpuOps | None:
    """None where there are no native kernels; said once, as a warning, unless they were turned off."""
    wanted = wanted_instruction_set()
    if not required and wanted == "none":
        return None
    try:
        library = load_library()
        instruction_set = choose_instruction_set(library, wanted)
    except LibraryUnavailable as error:
        if required:
            raise
        logger.warning("computing with plain torch, several times slower: %s", error)
        return None
    int8_group_size = INT8_GROUP_SIZE if quantize == "w8a16" else None
    num_threads = torch.get_num_threads()
    return NativeCpuOps(library, num_threads, instruction_set, kv_dtype or torch.bfloat16, int8_group_size)


def _torch_ops(kv_dtype: torch.dtype | None, quantize: str | None) -> CpuOps:
    if quantize is not None:
        raise ValueError(f"--quantize {quantize} needs the native CPU kernels; leave it out, or build them")
    if kv_dtype not in (None, torch.float32):
        raise ValueError("without the native CPU kernels keys and values are kept in float32; use that or build them")
    return CpuOps()


def read_model_name(cpuinfo: Path) -> str:
    """The first "model name" of /proc/cpuinfo; "cpu" where there is none, as on Arm."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return "cpu"
