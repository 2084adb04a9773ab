"""The CPU as a device: its name, its memory and its ops."""

from __future__ import annotations

from pathlib import Path

import torch

from text_generation_kernels.cpu.memory import available_memory
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.cpu.peak import PeakMeter, resident_bytes
from text_generation_kernels.interface import Device, MemoryInfo


class CpuDevice(Device):
    """One process's share of the CPU. Launches nothing: each op has finished when it returns."""

    def __init__(self) -> None:
        self.kind = "cpu"
        self.name = read_model_name(Path("/proc/cpuinfo"))
        self.torch_device = torch.device("cpu")
        self.ops = CpuOps()
        self.default_block_size = 16
        self.process_group_backend = "gloo"
        self._peak = PeakMeter()

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


def read_model_name(cpuinfo: Path) -> str:
    """The first "model name" of /proc/cpuinfo; "cpu" where there is none, as on Arm."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return "cpu"
