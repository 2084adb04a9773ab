"""Machines with and without NPUs, as files below a folder: what a host, its commands and its packages are to `doctor`.

Everything is replaced at the process's boundary: device files, /usr/local/Ascend, /proc and /sys below `root`, npu-smi
as a script on PATH, torch and torch_npu as packages in a folder of their own, which a real child process imports.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

from text_generation_launcher.doctor.ascend_files import LIBRARIES
from text_generation_launcher.doctor.examination import Examination, examine
from text_generation_launcher.doctor.findings import Finding
from text_generation_launcher.doctor.host import Host
from text_generation_launcher.doctor.packages import CANN_PYTHON
from text_generation_launcher.doctor.target import Asked
from text_generation_launcher.settings import parse_command_line

GIB = 2**30
USER, DRIVER_GROUP = 54321, 54322  # of nobody who runs the tests
TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"
NNAL = "/usr/local/Ascend/nnal/atb"

# What `npu-smi info` prints on hosts with these cards.
TABLE_910B = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4               | OK            | 94.6        49                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3373 / 32768         |
+===========================+===============+====================================================+
| 1     910B4               | OK            | 97.8        48                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3367 / 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
MAPPING_910B = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t0                              0                              0                              Ascend 910B4
\t0                              1                              -                              Mcu
\t1                              0                              1                              Ascend 910B4
\t1                              1                              -                              Mcu
"""
TABLE_310P = """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                                 Version: 24.1.rc2                                     |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 1       310P3                 | OK              | NA           59                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1397 / 44280                            |
+-------------------------------+-----------------+------------------------------------------------------+
| 1       310P3                 | Alarm           | NA           58                0     / 0             |
| 1       1                     | 0000:01:00.0    | 0            1520 / 43693                            |
+===============================+=================+======================================================+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| 1       0                     | 19341           | VLLMWorker_TP            | 1200                      |
+===============================+=================+======================================================+
"""
MAPPING_310P = """\
NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
1                              0                              0                              Ascend 310P3
1                              1                              1                              Ascend 310P3
"""
_TORCH_NPU = """\
import os, types, torch
__version__ = {version!r}
_there, _ids = {num_cards}, os.environ.get("ASCEND_RT_VISIBLE_DEVICES")

def device_count():
    count = 0
    for device in range(_there) if _ids is None else map(int, _ids.split(",")):
        if device >= _there:
            break
        count += 1
    return count

torch.npu = types.SimpleNamespace(
    device_count=device_count,
    get_device_name=lambda index: {soc_name!r},
    get_soc_version=lambda: {soc_id},
    set_device=lambda index: None,
    mem_get_info=lambda index: ({free}, {total}),
)
"""


@dataclass
class Machine:
    """One machine; `root` and `site` are folders of the test."""

    root: Path
    site: Path
    environ: dict[str, str] = field(default_factory=dict)
    user_id: int = USER
    group_ids: frozenset[int] = frozenset({USER, DRIVER_GROUP})
    cores: frozenset[int] = frozenset(range(8))

    @property
    def host(self) -> Host:
        environ = {
            "HOME": "/home/me",
            "PATH": str(self.root / "bin"),
            "PYTHONPATH": str(self.site),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environ,
        }
        return Host(environ, self.root, (str(self.site),), self.user_id, self.group_ids, self.cores)

    def examine(self, *arguments: str, import_timeout_s: float = 30.0, brief: bool = False) -> Examination:
        values = parse_command_line(["--port", "0", *arguments], self.environ)
        return examine(self.host, Asked.from_values(values), import_timeout_s=import_timeout_s, brief=brief)

    def findings(self, *arguments: str) -> dict[str, Finding]:
        """By code; where a rule has said two things, the last."""
        return {finding.code: finding for finding in self.examine(*arguments).findings}

    def write(self, name: str, text: str = "", mode: int = 0o644) -> Path:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def remove(self, name: str) -> None:
        (self.root / name.lstrip("/")).unlink()

    def package(self, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
        """A package's metadata, of one version at a time."""
        stem = name.replace("-", "_")
        for old in self.site.glob(f"{stem}-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        folder = self.site / f"{stem}-{version}.dist-info"
        folder.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {item}" for item in requires), ""]))

    def module(self, name: str, source: str) -> None:
        (self.site / f"{name}.py").write_text(source)

    def torch(self, version: str) -> None:
        self.package("torch", version)
        self.module("torch", f"__version__ = {version!r}\n")

    def torch_npu(
        self,
        version: str,
        *,
        soc_name: str = "Ascend910B4",
        soc_id: int = 224,
        num_cards: int = 2,
        total_bytes: int = 32 * GIB,
        free_bytes: int = 31 * GIB,
    ) -> None:
        self.package("torch-npu", version)
        source = _TORCH_NPU.format(
            version=version,
            num_cards=num_cards,
            soc_name=soc_name,
            soc_id=soc_id,
            free=free_bytes,
            total=total_bytes,
        )
        self.module("torch_npu", source)

    def broken_torch_npu(self, error: str) -> None:
        """One whose import fails as the real one does: its own error around the linker's."""
        self.module(
            "torch_npu",
            f"try:\n    raise ImportError({error!r})\nexcept ImportError as error:\n"
            "    raise ImportError('torch_npu is not usable') from error\n",
        )

    def npu_smi(self, table: str, mapping: str = "", status: int = 0) -> None:
        self.write("/data/table", f"{table.rstrip()}\n")
        self.write("/data/mapping", mapping)
        script = (
            f'#!/bin/sh\nif [ "$2" = -m ]; then file=mapping; else file=table; fi\n'
            f"while read -r line; do printf '%s\\n' \"$line\"; done < {self.root}/data/$file\nexit {status}\n"
        )
        self.write("/bin/npu-smi", script, 0o755)

    def memory(self, total_gib: float, free_gib: float) -> None:
        kib = {"MemTotal": total_gib, "MemAvailable": free_gib}
        self.write("/proc/meminfo", "".join(f"{key}: {int(gib * 2**20)} kB\n" for key, gib in kib.items()))

    def model(self, **changes: object) -> str:
        """A checkpoint of 2 GiB in bfloat16, 1 GiB of it linear, with 8 KiB of cache a token; returns its folder."""
        folder = self.root / "model"
        folder.mkdir(exist_ok=True)
        config: dict[str, object] = {
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "hidden_size": 2048,
            "max_position_embeddings": 4096,
            "torch_dtype": "bfloat16",
        }
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        tensors = {"model.embed_tokens.weight": [2**18, 2048], "model.layers.0.mlp.up_proj.weight": [2**18, 2048]}
        header = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
        return str(folder)


def cpu_machine(folder: Path) -> Machine:
    """A host without anything of Ascend's, with 16 GiB."""
    machine = Machine(folder / "root", folder / "site")
    machine.root.mkdir()
    machine.site.mkdir()
    machine.torch("2.8.0+cpu")
    machine.package("numpy", "2.1.0")
    machine.memory(16, 12)
    machine.write("/etc/passwd", f"root:x:0:0::/root:/bin/sh\nme:x:{USER}:{USER}::/home/me:/bin/sh\n")
    machine.write("/etc/group", f"root:x:0:\nme:x:{USER}:\nHwHiAiUser:x:{DRIVER_GROUP}:me\n")
    machine.write("/sys/devices/system/node/node0/cpulist", "0-3\n")
    machine.write("/sys/devices/system/node/node1/cpulist", "4-7\n")
    return machine


def npu_machine(folder: Path) -> Machine:
    """A host with two 910B4 where everything fits together."""
    machine = cpu_machine(folder)
    machine.torch("2.8.0+cpu")
    machine.torch_npu("2.8.0.post2")
    for package in CANN_PYTHON:
        machine.package(package, "99.0")
    for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        machine.write(f"/dev/{name}", mode=0o666)
    machine.write("/usr/local/Ascend/driver/version.info", "Version=24.1.rc3\nascendhal_version=7.35.23\n")
    machine.write(f"{TOOLKIT}/version.cfg", "toolkit_running_version=[8.5.0.1.100:8.5.0]\n")
    machine.write("/usr/local/Ascend/ascend-toolkit/set_env.sh")
    machine.write(f"{TOOLKIT}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/x")
    for name in LIBRARIES:
        machine.write(f"{TOOLKIT}/lib64/{name}")
    machine.write(f"{NNAL}/latest/version.info", "    Ascend-cann-atb : 8.5.0\n    Platform : aarch64\n")
    machine.write(f"{NNAL}/set_env.sh")
    machine.write(f"{NNAL}/latest/atb/cxx_abi_0/lib/libatb.so")
    machine.environ |= {
        "ASCEND_HOME_PATH": TOOLKIT,
        "ATB_HOME_PATH": f"{NNAL}/latest/atb/cxx_abi_0",
        "LD_LIBRARY_PATH": f"{TOOLKIT}/lib64:{NNAL}/latest/atb/cxx_abi_0/lib",
    }
    machine.npu_smi(TABLE_910B, MAPPING_910B)
    machine.write("/sys/bus/pci/devices/0000:c1:00.0/numa_node", "1\n")
    machine.write("/sys/bus/pci/devices/0000:01:00.0/numa_node", "0\n")
    return machine
