"""The machine of this process. torch's registry is one for a process, and so is what stands behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from text_generation_npu_emulator.machine import Machine

_machines: list[Machine] = []


def machine_now() -> Machine:
    """The machine that was installed last."""
    if not _machines:
        raise RuntimeError("no emulated NPU is installed; call text_generation_npu_emulator.install()")
    return _machines[-1]


def replace_machine(machine: Machine) -> None:
    """Put another machine in its place."""
    _machines[:] = [machine]
