"""Verdicts of earlier starts, one file for each device, set of versions, model and way of serving it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from text_generation_cli import __version__
from text_generation_kernels.checks.shapes import ModelSizes
from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.interface import Device
from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_server.selfcheck.verdict import FORMAT, Verdict

logger = logging.getLogger(__name__)

# Folders of CANN and ATB: their places and times tell versions apart, where nothing else does.
_FOLDERS = ("ASCEND_HOME_PATH", "ATB_HOME_PATH", "ASCEND_OPP_PATH")
# What changes how a chip computes.
_VARIABLES = ("INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE", "NPU_FAMILY", "ACL_OP_INIT_MODE")


def versions_of(device: Device, environ: Mapping[str, str]) -> dict[str, str]:
    """Of everything that computes."""
    found = {"server": __version__, "torch": torch.__version__}
    if isinstance(device, NpuDevice):
        found["torch_npu"] = device.torch_npu_version
        found["chip id"] = str(device.soc_id)
    for name in _FOLDERS:
        if name in environ:
            folder = Path(environ[name]).resolve()
            changed = folder.stat().st_mtime_ns if folder.exists() else 0
            found[name] = f"{folder} {changed}"
    return found


@dataclass(frozen=True)
class Subject:
    """What a verdict is about. Another of any of these is checked by itself."""

    device: Device
    sizes: ModelSizes
    folder: Path | None  # of the weights; None: ops only
    rank: int
    world_size: int
    weight_layout: str

    def key(self, environ: Mapping[str, str]) -> str:
        ops = self.device.ops
        parts = {
            "format": FORMAT,
            "chip": self.device.name,
            "versions": versions_of(self.device, environ),
            "variables": {name: environ[name] for name in _VARIABLES if name in environ},
            # The emulated chip is as good as its settings, faults among them.
            "emulator": {name: value for name, value in environ.items() if name.startswith(EMULATOR_VARIABLE)},
            "sizes": asdict(self.sizes),
            "dtype": dtype_name(ops.activation_dtype),
            "ops": ops.name,
            "layout": self.weight_layout,
            "ranks": [self.rank, self.world_size],
            "weights": [] if self.folder is None else _files(self.folder),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """(name, bytes, time) of a model's files: a changed weight is another model."""
    found = []
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json"), *folder.glob("*.gguf")]):
        status = path.stat()
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return found


class KeptVerdicts:
    """
    Args:
        cache: the folder of things that are made once.
    """

    def __init__(self, cache: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._folder = cache / "selfcheck"
        self._environ = environ

    def find(self, subject: Subject) -> Verdict | None:
        """A verdict on the very same thing. One that cannot be read counts as none."""
        path = self._path(subject)
        try:
            return Verdict.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.info("%s is no verdict that can be read (%s): checking again", path, error)
            return None

    def keep(self, subject: Subject, verdict: Verdict) -> None:
        """Write a verdict, or say why that cannot be: the next start then checks again."""
        path = self._path(subject)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
                file.write(verdict.to_json())
            os.replace(file.name, path)  # whole or not at all, whoever reads or writes beside us
        except OSError as error:
            logger.info("the self-check's verdict cannot be kept in %s (%s)", path.parent, error.strerror)

    def _path(self, subject: Subject) -> Path:
        chip = re.sub(r"[^A-Za-z0-9_.-]", "_", subject.device.name)
        return self._folder / f"{chip}-{subject.key(self._environ)}.json"
