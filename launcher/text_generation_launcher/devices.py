"""Which device is served on, which NPUs are visible, and so how many shards there are.

Looks at names only: torch and torch_npu are found but never imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from text_generation_launcher.errors import LauncherError, invalid

VISIBLE_DEVICES_VARIABLES = ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Devices:
    """What the shards will run on."""

    kind: str  # "cpu" or "npu"
    variable: str | None  # the variable that limits the NPUs, if one is set
    visible: tuple[int, ...]  # ids of the NPUs that may be used; () on the CPU
    message: str  # one line for the log: why this device
    is_surprising: bool  # the line is a warning


def find_devices(
    asked: str, environ: Mapping[str, str], *, has_torch_npu: bool, device_folder: Path = Path("/dev")
) -> Devices:
    """Choose the device that `--device` (`asked`: auto, cpu or npu) means on this machine.

    Raises:
        LauncherError: an NPU is asked for and cannot be had, or the variable lists no devices.
    """
    variable = next((name for name in VISIBLE_DEVICES_VARIABLES if name in environ), None)
    if asked == "npu" and not has_torch_npu:
        raise invalid("--device npu needs torch_npu, which is not installed; install it or use --device cpu")
    if asked == "cpu":
        return Devices("cpu", None, (), "Serving on the CPU, as --device says", False)
    if not has_torch_npu and variable is not None:
        line = f"{variable} is set, but torch_npu is not installed: serving on the CPU"
        return Devices("cpu", None, (), line, True)
    if not has_torch_npu:
        return Devices("cpu", None, (), "torch_npu is not installed: serving on the CPU", False)
    if variable is None:
        visible = tuple(sorted(_device_ids(device_folder)))
        return Devices("npu", None, visible, f"Serving on the NPU; devices seen: {_list(visible)}", False)
    visible = parse_device_list(variable, environ[variable])
    return Devices("npu", variable, visible, f"Serving on the NPU; {variable} allows: {_list(visible)}", False)


def parse_device_list(variable: str, text: str) -> tuple[int, ...]:
    """The ids in a list such as "0,2" or "0-3".

    Raises:
        LauncherError: an empty list, something that is not an id, or an id given twice.
    """
    ids: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part.strip())
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise invalid(f"{variable}='{text}' is not a list of device ids such as 0,1 or 0-3")
        ids += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(ids)) != len(ids):
        raise invalid(f"{variable}='{text}' names a device twice")
    return tuple(ids)


def count_shards(sharded: bool | None, num_shard: int | None, devices: Devices) -> int:
    """The number of shards, by TGI's table.

    Raises:
        LauncherError: more shards are asked for than there are devices.
    """
    if num_shard is not None:
        if devices.visible and num_shard > len(devices.visible):
            limit = devices.variable or "the machine"
            raise invalid(
                f"--num-shard {num_shard} needs {num_shard} NPUs, but {limit} has {len(devices.visible)}: "
                f"{_list(devices.visible)}"
            )
        return num_shard
    if sharded is False:
        return 1
    num_devices = len(devices.visible) if devices.kind == "npu" else 1
    if sharded:
        if num_devices <= 1:
            raise LauncherError("NotEnoughCUDADevices", f"`sharded` is true but only found {num_devices} CUDA devices")
        return num_devices
    return num_devices if devices.variable is not None else 1


def _device_ids(folder: Path) -> list[int]:
    names = (re.fullmatch(r"davinci([0-9]+)", path.name) for path in folder.glob("davinci*"))
    return [int(match[1]) for match in names if match]


def _list(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "none"
