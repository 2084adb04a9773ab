"""Which device a process runs on. The choice is a pure function of what was asked for and what was found."""

from __future__ import annotations

import logging
from typing import Literal

import torch

from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.interface import Device
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu_probe import NpuProbe, load_torch_npu, probe_npu, versions

logger = logging.getLogger(__name__)


class DeviceUnavailable(Exception):
    """The device that was asked for, or that this host is made for, cannot be used. The message is one line."""


def select_device(
    requested: str,
    rank: int,
    visible_cards: str | None = None,
    *,
    kv_dtype: torch.dtype | None = None,
    quantize: str | None = None,
    native: bool | None = None,
    npu: NpuOptions | None = None,
) -> Device:
    """The device of one process.

    Args:
        requested: "auto", "cpu" or "npu". "cpu" never looks for torch_npu.
        rank: of the process in its group: its card is the one of that index. Rank 0 logs the choice that "auto" made.
        visible_cards: the value of ASCEND_RT_VISIBLE_DEVICES, None if it is not set.
        kv_dtype, quantize, native: of `CpuDevice`; on the NPU keys and values have the type of the activations.
        npu: of `NpuDevice`.
    Raises: DeviceUnavailable, and what `CpuDevice` and `NpuDevice` raise.
    """
    found = NpuProbe(installed=False) if requested == "cpu" else probe_npu()
    if choose_kind(requested, found) == "npu":
        return _npu_device(rank, npu or NpuOptions(), kv_dtype, quantize)
    if requested == "auto" and rank == 0:
        logger.info("torch_npu is not installed: running on the CPU")
        if visible_cards is not None:
            logger.warning("ASCEND_RT_VISIBLE_DEVICES=%s has no effect without torch_npu", visible_cards)
    return CpuDevice(kv_dtype, quantize, native)


def choose_kind(requested: str, npu: NpuProbe) -> Literal["cpu", "npu"]:
    """The kind of device to use.

    "auto" falls back to the CPU only where torch_npu is not installed: on a host made for NPUs, a missing card or a
    broken installation is for its owner to see, not for us to hide behind a hundred times slower server.

    Raises: DeviceUnavailable.
    """
    if requested not in ("auto", "cpu", "npu"):
        raise DeviceUnavailable(f"unknown device {requested!r}; use auto, cpu or npu")
    if requested == "cpu" or (requested == "auto" and not npu.installed):
        return "cpu"
    if not npu.installed:
        raise DeviceUnavailable(
            "device npu was asked for, but torch_npu is not installed; install it or use --device cpu"
        )
    if npu.error:
        raise DeviceUnavailable(
            f"torch_npu is installed but does not load ({npu.error}; {versions()}); source CANN's "
            f"set_env.sh, such as /usr/local/Ascend/ascend-toolkit/set_env.sh, or use --device cpu"
        )
    if npu.num_cards == 0:
        raise DeviceUnavailable(
            "torch_npu is installed but sees no card; make one visible (driver, container devices, "
            "ASCEND_RT_VISIBLE_DEVICES), or use --device cpu"
        )
    return "npu"


def _npu_device(rank: int, options: NpuOptions, kv_dtype: torch.dtype | None, quantize: str | None) -> NpuDevice:
    if quantize is not None:
        raise ValueError(f"--quantize {quantize} is not served on the NPU yet; leave it out")
    device = NpuDevice(load_torch_npu(), rank, options)
    dtype = device.ops.activation_dtype
    if kv_dtype not in (None, dtype):
        name = dtype_name(dtype)
        raise ValueError(
            f"on the NPU keys and values are kept in {name}, as activations are; leave --kv-cache-dtype out"
        )
    return device
