"""An Ascend NPU in pure Python, for development and tests on machines without one.

`install_from_environment()`, called before `import torch_npu`, gives this process the device "npu", `torch.npu`,
`torch.ops.npu`, `torch.ops.atb` and the module `torch_npu`, on the chip that TEXT_GENERATION_NPU_EMULATOR names. Its
ops compute true values, and refuse what the real ones refuse or get wrong without an error. It proves arguments,
layouts, formats, fallbacks and books; it proves nothing about speed, and nothing about the kernels of a chip.

Never imported by the server itself, and no part of the wheel.
"""

from __future__ import annotations

from text_generation_npu_emulator.faults import InjectedError
from text_generation_npu_emulator.installation import emulated_npu, install, install_from_environment, uninstall
from text_generation_npu_emulator.launch import Refused
from text_generation_npu_emulator.machine import Machine
from text_generation_npu_emulator.schemas import ops_of, sampled_release
from text_generation_npu_emulator.settings import VARIABLE, Settings
from text_generation_npu_emulator.soc import Soc, find_soc, soc_names

__all__ = [
    "VARIABLE",
    "InjectedError",
    "Machine",
    "Refused",
    "Settings",
    "Soc",
    "emulated_npu",
    "find_soc",
    "install",
    "install_from_environment",
    "ops_of",
    "sampled_release",
    "soc_names",
    "uninstall",
]
