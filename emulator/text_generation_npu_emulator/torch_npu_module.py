"""`torch_npu` as a module: the ops of the release, and the few functions around them."""

from __future__ import annotations

import enum
import importlib.machinery
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from text_generation_npu_emulator.device_module import NpuModule
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.schemas import OpRecord

# Before this release, formats are plain numbers.
_FORMATS_HAVE_NAMES_SINCE = (2, 7)


class Format(enum.IntEnum):
    """torch_npu.Format."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51
    FRACTAL_NZ_C0_2 = 52
    FRACTAL_NZ_C0_4 = 53
    FRACTAL_NZ_C0_8 = 54

    def __str__(self) -> str:
        return self.name


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    return module


def make_torch_npu(npu: NpuModule, records: Iterable[OpRecord]) -> list[ModuleType]:
    """`torch_npu` and its submodules, with every op where the release shows it."""
    machine = machine_now()
    torch_npu, atb, private, utils = (
        _module(name) for name in ("torch_npu", "torch_npu.atb", "torch_npu._C", "torch_npu.utils")
    )
    top: Any = torch_npu
    top.__version__ = machine.settings.torch_npu
    top.npu, top.atb, top._C, top.utils = npu, atb, private, utils
    for record in records:
        if record.python is None:
            continue
        where = atb if record.python.startswith("torch_npu.atb.") else torch_npu
        setattr(where, record.packet, getattr(getattr(torch.ops, record.namespace), record.packet))

    op_format = torch.ops.npu.get_npu_format
    names_formats = machine.settings.release >= _FORMATS_HAVE_NAMES_SINCE
    top.get_npu_format = (lambda tensor: Format(op_format(tensor))) if names_formats else op_format
    if names_formats:
        top.Format = Format

    def get_cann_version(module: str = "CANN") -> str:
        """The version of CANN or one of its parts."""
        return machine_now().settings.cann

    def get_soc_version() -> int:
        return machine_now().soc.id

    setattr(private, "_npu_get_soc_version", get_soc_version)  # noqa: B010
    setattr(utils, "get_cann_version", get_cann_version)  # noqa: B010
    npu_utils = _module("torch_npu.npu.utils")
    setattr(npu_utils, "get_cann_version", get_cann_version)  # noqa: B010
    setattr(npu, "utils", npu_utils)  # noqa: B010
    return [torch_npu, atb, private, utils, npu_utils]


def show(npu: NpuModule, modules: Iterable[ModuleType]) -> None:
    """Make `import torch_npu` find them."""
    for module in modules:
        sys.modules[module.__name__] = module
    sys.modules["torch_npu.npu"] = npu
    sys.modules["torch.npu"] = npu


def hide() -> None:
    """Undo `show`."""
    for name in [name for name in sys.modules if name == "torch_npu" or name.startswith("torch_npu.")]:
        del sys.modules[name]
