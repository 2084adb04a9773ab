"""The emulated machine under the real torch_npu, which has switches, cards and memory of its own."""

from __future__ import annotations

from typing import Any

from text_generation_npu_emulator.machine import Machine
from text_generation_npu_emulator.settings import Settings
from text_generation_npu_emulator.tensors import Tensors
from text_generation_npu_emulator.wheel.stand_in import StandIn
from text_generation_npu_emulator.wheel.storages import WheelStorages, WheelTensors


class WheelMachine(Machine):
    """What kernels see of the machine.

    Args:
        torch_npu: the module.
    """

    def __init__(self, settings: Settings, stand_in: StandIn, torch_npu: Any) -> None:
        self._stand_in = stand_in
        self._torch_npu = torch_npu
        super().__init__(settings)

    def _make_tensors(self) -> Tensors:
        return WheelTensors(WheelStorages(self._on_freed), self.settings.silent, self._torch_npu)

    @property
    def current_device(self) -> int:
        return int(self._torch_npu.npu.current_device())

    @property
    def jit_compile(self) -> bool:
        return not self._torch_npu.npu.is_jit_compile_false()

    @jit_compile.setter
    def jit_compile(self, enabled: bool) -> None:
        self._torch_npu.npu.set_compile_mode(jit_compile=enabled)

    def hold_outside(self, nbytes: int) -> None:
        self._stand_in.reserve(self.current_device, nbytes)
