"""Puts the real torch_npu into this process, over a stand-in for CANN, and the emulator's kernels into torch_npu."""

from __future__ import annotations

import importlib
import os
import warnings

import torch
import torch.distributed as dist

from text_generation_npu_emulator.hccl import register_backend
from text_generation_npu_emulator.operators import DECLARED, NpuKernel
from text_generation_npu_emulator.present import replace_machine
from text_generation_npu_emulator.schemas import ops_of
from text_generation_npu_emulator.settings import Settings
from text_generation_npu_emulator.wheel.aten import replace_kernels
from text_generation_npu_emulator.wheel.build import build
from text_generation_npu_emulator.wheel.graphs import GraphEvents
from text_generation_npu_emulator.wheel.machine import WheelMachine
from text_generation_npu_emulator.wheel.stand_in import StandIn

# torch_npu keeps the books of formats itself, and casts with the one op that the stand-in has.
_KEPT = frozenset({"npu_format_cast", "npu_format_cast_", "get_npu_format", "get_storage_size", "empty_with_format"})
_KEY = "PrivateUse1"


class _Installed:
    """What was made for this process, in which torch_npu is imported once."""

    def __init__(self) -> None:
        self.machine: WheelMachine | None = None
        self.libraries: list[torch.library.Library] = []


_installed = _Installed()


def install_wheel(settings: Settings) -> WheelMachine:
    """Import torch_npu as on a machine with these settings.

    Raises: BuildError where the stand-in cannot be built, ValueError for settings that this host cannot give.
    """
    if _installed.machine is not None:
        raise ValueError("torch_npu is imported once in a process; its machine cannot be replaced by another")
    stand_in = StandIn(build())
    stand_in.configure(settings, GraphEvents())
    # A launch goes to the card from a second thread otherwise, and these cards have done it when it returns.
    os.environ["TASK_QUEUE_ENABLE"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own source
        torch_npu = importlib.import_module("torch_npu")
    wanted = ".".join(settings.torch_npu.split(".")[:2])
    if not torch_npu.__version__.startswith(f"{wanted}."):
        raise ValueError(f"the installed torch_npu is {torch_npu.__version__}; {settings.torch_npu} was asked for")
    machine = WheelMachine(settings, stand_in, torch_npu)
    replace_machine(machine)
    _installed.libraries = [replace_kernels(), *_replace_ops(settings)]
    _replace_hccl()
    _installed.machine = machine
    return machine


def _replace_ops(settings: Settings) -> list[torch.library.Library]:
    libraries = {namespace: torch.library.Library(namespace, "IMPL") for namespace in ("npu", "atb")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are overridden
        for record in ops_of(settings.release):
            if record.packet in DECLARED and record.packet not in _KEPT:
                library = libraries[record.namespace]
                library.impl(record.name, NpuKernel(record), _KEY, allow_override=True)
    return list(libraries.values())


def _replace_hccl() -> None:
    """torch_npu's own communicator asks for a library that is not here."""
    dist.Backend._plugins.pop("HCCL", None)
    delattr(dist.Backend, "HCCL")
    dist.Backend.backend_list.remove("hccl")
    register_backend()
