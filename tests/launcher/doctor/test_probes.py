"""What is read from files and from commands, in the forms that hosts have."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.launcher.doctor.machines import (
    DRIVER_GROUP,
    MAPPING_310P,
    MAPPING_910B,
    TABLE_310P,
    TABLE_910B,
    USER,
    Machine,
    cpu_machine,
    npu_machine,
)
from text_generation_launcher.doctor.ascend_files import probe_ascend
from text_generation_launcher.doctor.checkpoint import probe_model
from text_generation_launcher.doctor.host import FileOwner, Host
from text_generation_launcher.doctor.machine_seen import parse_cores, probe_machine
from text_generation_launcher.doctor.npu_smi import parse_chips, parse_logic_ids, parse_processes
from text_generation_launcher.doctor.versions import cann_order, cann_released_with

TABLE_A3 = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3416 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 65536         |
+===========================+===============+====================================================+
"""


def test_chips_of_three_kinds_of_cards() -> None:
    two = parse_chips(TABLE_910B, parse_logic_ids(MAPPING_910B))
    assert [(chip.npu, chip.chip, chip.logic_id, chip.name) for chip in two] == [(0, 0, 0, "910B4"), (1, 0, 1, "910B4")]
    assert [(chip.used_mb, chip.total_mb, chip.bus_id) for chip in two] == [
        (3373, 32768, "0000:C1:00.0"),
        (3367, 32768, "0000:01:00.0"),
    ]
    duo = parse_chips(TABLE_310P, parse_logic_ids(MAPPING_310P))
    assert [(chip.npu, chip.chip, chip.logic_id, chip.total_mb) for chip in duo] == [(1, 0, 0, 44280), (1, 1, 1, 43693)]
    assert [chip.health for chip in duo] == ["OK", "Alarm"]
    dies = parse_chips(TABLE_A3, {})
    assert [(chip.npu, chip.chip, chip.logic_id) for chip in dies] == [(0, 0, 0), (0, 1, 1)]


def test_processes_are_listed_and_their_absence_is_none() -> None:
    assert parse_processes(TABLE_910B) == ()
    assert parse_processes(TABLE_310P) == ("NPU 1 chip 0: VLLMWorker_TP (pid 19341), 1200 MB",)
    nameless = "| 7       0                 | 3104283       |                          | 35696                   |"
    assert parse_processes(nameless) == ("NPU 7 chip 0: an unnamed process (pid 3104283), 35696 MB",)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "version.cfg",
            "runtime_running_version=[7.3.0.1.231:8.0.RC2]\ntoolkit_running_version=[7.3.0.1.231:8.0.RC2]\n",
        ),
        ("version.cfg", "runtime_running_version=[7.3.0.1.231:8.0.RC2]\n"),
        ("x86_64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=8.0.RC2\n"),
        ("ascend_toolkit_install.info", "version=8.0.RC2\ninnerversion=V100R001C19SPC001B155\n"),
        ("runtime/version.info", "Version=8.0.RC2\n"),
    ],
)
def test_version_of_cann_is_found_wherever_a_release_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    machine = cpu_machine(tmp_path)
    machine.write(f"/usr/local/Ascend/cann-8.0/{file}", text)
    machine.write("/usr/local/Ascend/cann-8.0/set_env.sh")
    found = probe_ascend(machine.host)
    assert found.cann is not None
    assert (found.cann.path, found.cann.version) == ("/usr/local/Ascend/cann-8.0", "8.0.RC2")
    assert found.cann.set_env == "/usr/local/Ascend/cann-8.0/set_env.sh"


def test_cann_in_a_home_is_found_without_root(tmp_path: Path) -> None:
    machine = cpu_machine(tmp_path)
    machine.write("/home/me/Ascend/ascend-toolkit/latest/version.cfg", "toolkit_running_version=[1:8.2.RC1]\n")
    machine.write("/home/me/Ascend/ascend-toolkit/set_env.sh")
    found = probe_ascend(machine.host).cann
    assert found is not None
    assert found.set_env == "/home/me/Ascend/ascend-toolkit/set_env.sh"


def test_libraries_are_found_through_the_linkers_configuration(tmp_path: Path) -> None:
    machine = npu_machine(tmp_path)
    path = machine.environ.pop("LD_LIBRARY_PATH").split(":")[0]
    assert "libhccl.so" in probe_ascend(machine.host).missing_libraries
    machine.write("/etc/ld.so.conf.d/ascend.conf", f"# CANN\n{path}\n")
    assert probe_ascend(machine.host).missing_libraries == ()


def test_newer_and_older_cann_are_told_apart() -> None:
    ordered = [
        "7.0.0",
        "8.0.RC1",
        "8.0.RC2",
        "8.0.RC3",
        "8.0.0",
        "8.0.1",
        "8.1.RC1",
        "8.3.RC1",
        "8.5.0",
        "9.1.0",
    ]
    assert [cann_order(version) for version in ordered] == sorted(map(cann_order, ordered))
    assert cann_order("8.3.RC1.alpha003") == cann_order("8.3.RC1")
    assert cann_released_with("2.1.0.post13") == "8.2.RC1"
    assert cann_released_with("2.99.0") is None


@pytest.mark.parametrize(
    ("mode", "user_id", "group_id", "may"),
    [
        (0o660, 0, DRIVER_GROUP, True),
        (0o660, 0, 0, False),
        (0o666, 0, 0, True),
        (0o600, USER, 0, True),
        (0o066, USER, DRIVER_GROUP, False),
        (0o640, 0, DRIVER_GROUP, False),
    ],
)
def test_permission_bits_decide_who_may_open(mode: int, user_id: int, group_id: int, may: bool) -> None:
    host = Host({}, user_id=USER, group_ids=frozenset({USER, DRIVER_GROUP}))
    assert host.may_open(FileOwner(mode, user_id, group_id)) is may
    assert Host({}, user_id=0).may_open(FileOwner(mode, user_id, group_id))


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    machine = cpu_machine(tmp_path)
    started = time.monotonic()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    result = machine.host.run([sys.executable, "-c", code], 0.3)
    assert "did not end in 0.3 s" in result.error
    assert time.monotonic() - started < 10
    assert "cannot be started" in machine.host.run(["/no/such/program"], 1).error


def test_memory_is_the_containers_where_that_is_less(tmp_path: Path) -> None:
    machine = cpu_machine(tmp_path)
    assert probe_machine(machine.host).total_bytes == 16 * 2**30
    machine.write("/sys/fs/cgroup/memory.max", f"{4 * 2**30}\n")
    found = probe_machine(machine.host)
    assert (found.total_bytes, found.free_bytes) == (4 * 2**30, 4 * 2**30)
    machine.write("/sys/fs/cgroup/memory.max", "max\n")
    assert probe_machine(machine.host).free_bytes == 12 * 2**30


def test_lists_of_cores() -> None:
    assert parse_cores("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_cores("") == ()


def test_a_model_in_the_hubs_cache_is_found_by_its_id(tmp_path: Path) -> None:
    machine = cpu_machine(tmp_path)
    folder = Path(machine.model())
    cached = tmp_path / "hub/models--org--name"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("abc")
    (cached / "snapshots").mkdir()
    folder.rename(cached / "snapshots/abc")
    machine.environ["HF_HUB_CACHE"] = str(tmp_path / "hub")
    found = probe_model(machine.host, "org/name")
    assert (found.problem, found.float_elements, found.linear_elements) == ("", 2**30, 2**29)
    assert probe_model(machine.host, "org/name", "abc") == found
    assert probe_model(machine.host, "org/other").folder is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "has no safetensors header"),
        (b"\x01", "unpack requires a buffer of 8 bytes"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{]", "not valid JSON"),
    ],
)
def test_a_broken_weight_file_is_said_and_is_no_crash(tmp_path: Path, content: bytes, says: str) -> None:
    machine = cpu_machine(tmp_path)
    folder = Path(machine.model())
    (folder / "model.safetensors").write_bytes(content)
    assert says in probe_model(machine.host, str(folder)).problem


def test_a_machine_without_anything_is_no_crash(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "nothing", tmp_path / "site")
    codes = {finding.code: finding.severity.value for finding in machine.examine().findings}
    assert codes["torch"] == "error"
    assert codes["cann"] == "note"
