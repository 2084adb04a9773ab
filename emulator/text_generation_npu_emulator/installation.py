"""Puts an emulated machine into this process: torch's device "npu", the ops, and the module `torch_npu`.

torch takes one such device for the life of a process. A second call replaces the machine behind it: other chip, other
release, empty cards.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch._ops import OpOverloadPacket
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import text_generation_npu_emulator.kernels  # noqa: F401 - declares them
from text_generation_npu_emulator.aten import register_aten
from text_generation_npu_emulator.device_module import NpuModule
from text_generation_npu_emulator.fallback import fallback
from text_generation_npu_emulator.hccl import register_backend
from text_generation_npu_emulator.launch import Refused
from text_generation_npu_emulator.machine import Machine
from text_generation_npu_emulator.operators import DECLARED, NpuKernel
from text_generation_npu_emulator.present import replace_machine
from text_generation_npu_emulator.schemas import OpRecord, ops_of
from text_generation_npu_emulator.settings import VARIABLE, Settings, settings_from_environment
from text_generation_npu_emulator.soc import find_soc
from text_generation_npu_emulator.tensors import is_on_npu
from text_generation_npu_emulator.torch_npu_module import hide, make_torch_npu, show
from text_generation_npu_emulator.wheel.installation import install_wheel

# Ops that have no tensor to find the device by.
_WITHOUT_TENSORS = ("empty_with_format",)


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """What torch asks a device for."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    """Which device type torch's guards are about."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Installed:
    """What was registered with torch, for as long as the process lives."""

    def __init__(self) -> None:
        self.npu: NpuModule | None = None
        self.libraries: list[torch.library.Library] = []  # aten kernels and the fallback
        self.ops: list[torch.library.Library] = []  # npu:: and atb:: of one release
        self.release: tuple[int, int] | None = None
        self.records: list[OpRecord] = []

    def register_device(self) -> NpuModule:
        if self.npu is not None:
            return self.npu
        npu = NpuModule()
        _setup_privateuseone_for_python_backend("npu", backend_module=npu, hook=_Hooks(), device_guard=_Guard())
        aten = torch.library.Library("aten", "IMPL")
        register_aten(aten)
        others = torch.library.Library("_", "IMPL")
        others.fallback(fallback, "PrivateUse1", with_keyset=False)
        self.libraries = [aten, others]
        register_backend()
        _print_from_the_host()
        _make_storages_by_our_allocator()
        self.npu = npu
        return npu

    def register_ops(self, release: tuple[int, int]) -> None:
        if self.release == release:
            return
        for library in self.ops:
            library._destroy()
        self.records = ops_of(release)
        self.ops = []
        for namespace in ("npu", "atb"):
            packets = vars(getattr(torch.ops, namespace))
            for name in [name for name, value in packets.items() if isinstance(value, OpOverloadPacket)]:
                del packets[name]  # they would go on looking for the ops of the release before
            library = torch.library.Library(namespace, "FRAGMENT")
            self.ops.append(library)
            for record in self.records:
                if record.namespace == namespace:
                    library.define(record.schema)
                    if record.packet in DECLARED:
                        key = "CompositeExplicitAutograd" if record.packet in _WITHOUT_TENSORS else "PrivateUse1"
                        library.impl(record.name, NpuKernel(record), key)
        self.release = release


def _print_from_the_host() -> None:
    """Tensors are printed from a copy, as torch_npu does it: otherwise torch computes with float64 on the card."""
    original = torch._tensor_str._str_intern

    def str_intern(tensor: torch.Tensor, **options: Any) -> Any:
        if not is_on_npu(tensor):
            return original(tensor, **options)
        suffix = f", device='{tensor.device}')"
        return original(tensor.detach().cpu(), **options)[:-1] + suffix

    setattr(torch._tensor_str, "_str_intern", str_intern)  # noqa: B010


def _make_storages_by_our_allocator() -> None:
    """`torch.UntypedStorage(n, device="npu")`, for torch.load and copy.deepcopy, which torch's C++ would crash on."""
    original = torch.UntypedStorage.__new__

    def new(cls: type[torch.UntypedStorage], *args: Any, **options: Any) -> torch.UntypedStorage:
        device = torch.device(options.get("device") or "cpu")
        if device.type != "npu":
            return original(cls, *args, **options)
        nbytes = args[0] if args else 0
        flat = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return flat.untyped_storage()

    setattr(torch.UntypedStorage, "__new__", staticmethod(new))  # noqa: B010


_installed = _Installed()


def install(soc_name: str | None = None, /, **changes: object) -> Machine | None:
    """Install an emulated machine, or replace the one that is.

    Args:
        soc_name: as torch.npu.get_device_name() gives it. None: what the environment says.
        changes: fields of `Settings` that differ from what the environment says.
    Returns: the machine; None if it is one without CANN, on which torch_npu does not import.
    Raises: ValueError for an unknown SoC name, release or fault.
    """
    settings = settings_from_environment()
    if settings is None:
        if soc_name is None:
            raise ValueError(f"no SoC was named, neither here nor by {VARIABLE}")
        settings = Settings(find_soc(soc_name), environment=dict(os.environ))
    elif soc_name is not None:
        settings = replace(settings, soc=find_soc(soc_name))
    return _install(replace(settings, **changes))  # type: ignore[arg-type]


def install_from_environment() -> Machine | None:
    """Install the machine that TEXT_GENERATION_NPU_EMULATOR names; None, and nothing done, if it is not set."""
    settings = settings_from_environment()
    return None if settings is None else _install(settings)


@contextmanager
def emulated_npu(soc_name: str, /, **changes: object) -> Iterator[Machine]:
    """A machine for the length of a test, whatever the environment says; afterwards nobody finds torch_npu."""
    machine = _install(replace(Settings(find_soc(soc_name)), **changes))  # type: ignore[arg-type]
    assert machine is not None, "a machine without CANN has no torch_npu; use install()"
    try:
        yield machine
    finally:
        uninstall()


def uninstall() -> None:
    """Hide torch_npu again. torch itself knows the device until the process ends."""
    hide()
    _mend_import()


def _install(settings: Settings) -> Machine | None:
    if settings.host == "wheel":
        return install_wheel(settings)
    _mend_import()
    if settings.cann == "missing":
        hide()
        sys.meta_path.insert(0, _WithoutCann())
        return None
    check_allocator_settings(settings.environment)
    machine = Machine(settings)
    replace_machine(machine)
    npu = _installed.register_device()
    _installed.register_ops(settings.release)
    show(npu, make_torch_npu(npu, _installed.records))
    return machine


class _WithoutCann(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch_npu, as where its wheel is installed, and fails to load it, as where CANN's libraries are not."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == "torch_npu" else None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")


def _mend_import() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WithoutCann)]


def check_allocator_settings(environment: Mapping[str, str]) -> None:
    """Refuse, as torch_npu's allocator does, settings that contradict each other."""
    text = environment.get("PYTORCH_NPU_ALLOC_CONF", "")
    options = dict(part.partition(":")[::2] for part in text.split(",") if part)
    if options.get("expandable_segments") == "True":
        for other in ("max_split_size_mb", "garbage_collection_threshold"):
            if other in options:
                raise Refused(f"PYTORCH_NPU_ALLOC_CONF: {other} cannot be used together with expandable_segments:True")
    if text and environment.get("PYTORCH_ALLOC_CONF"):
        raise Refused("PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set; set one")
