"""Which device a process runs on. The choice is a pure function of what was asked for and what was found."""

from __future__ import annotations

import logging

import torch

from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import Device
from text_generation_kernels.npu_probe import NpuProbe, probe_npu

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
) -> Device:
    """The device of one process.

    Args:
        requested: "auto", "cpu" or "npu". Only "auto" looks for torch_npu.
        rank: of the process in its group. Rank 0 logs the choice that "auto" made.
        visible_cards: the value of ASCEND_RT_VISIBLE_DEVICES, None if it is not set.
        kv_dtype, quantize, native: of `CpuDevice`.
    Raises: DeviceUnavailable, and what `CpuDevice` raises.
    """
    npu = probe_npu() if requested == "auto" else NpuProbe(installed=False)
    require_cpu(requested, npu)
    if requested == "auto" and rank == 0:
        logger.info("torch_npu is not installed: running on the CPU")
        if visible_cards is not None:
            logger.warning("ASCEND_RT_VISIBLE_DEVICES=%s has no effect without torch_npu", visible_cards)
    return CpuDevice(kv_dtype, quantize, native)


def require_cpu(requested: str, npu: NpuProbe) -> None:
    """Raise DeviceUnavailable unless this is a case for the CPU, the one device of this version.

    "auto" falls back to the CPU only where torch_npu is not installed: on a host made for NPUs, a missing card or a
    broken installation is for its owner to see, not for us to hide behind a hundred times slower server.
    """
    if requested not in ("auto", "cpu", "npu"):
        raise DeviceUnavailable(f"unknown device {requested!r}; use auto, cpu or npu")
    if requested == "npu":
        raise DeviceUnavailable("device npu was asked for, but this version has no NPU backend; use --device cpu")
    if requested == "cpu" or not npu.installed:
        return
    if npu.error:
        raise DeviceUnavailable(
            f"torch_npu is installed but does not load ({npu.error}); source CANN's set_env.sh, or use --device cpu"
        )
    if npu.num_cards == 0:
        raise DeviceUnavailable(
            "torch_npu is installed but sees no card; make one visible (driver, container devices, "
            "ASCEND_RT_VISIBLE_DEVICES), or use --device cpu"
        )
    raise DeviceUnavailable(f"{npu.num_cards} NPU card(s) seen, but this version has no NPU backend; use --device cpu")
