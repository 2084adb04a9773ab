from __future__ import annotations

from pathlib import Path

import torch

from text_generation_kernels.cpu.device import CpuDevice, read_model_name


def test_the_cpu_describes_itself() -> None:
    device = CpuDevice(native=False)
    assert (device.kind, device.torch_device, device.process_group_backend) == ("cpu", torch.device("cpu"), "gloo")
    assert (device.default_block_size, device.ops.name, device.ops.activation_dtype) == (16, "cpu", torch.float32)
    assert device.name
    device.synchronize()


def test_memory_of_this_machine_is_read() -> None:
    memory = CpuDevice().memory()
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_the_name_is_that_of_the_first_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nmodel\t\t: 25\nmodel name\t: AMD EPYC 7R13\n\nprocessor\t: 1\nmodel name\t: B\n"
    )
    assert read_model_name(cpuinfo) == "AMD EPYC 7R13"


def test_a_cpu_without_a_model_name_is_called_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 200.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x48\n")
    assert read_model_name(cpuinfo) == "cpu"
    assert read_model_name(tmp_path / "absent") == "cpu"
