"""Ports that can be had, and cores that may be used."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from text_generation_launcher.cpus import usable_cores
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.machine import describe_machine
from text_generation_launcher.ports import check_http_port, choose_master_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("hostname", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_port_in_use_is_named_with_the_way_out(taken_port: int, hostname: str) -> None:
    with pytest.raises(LauncherError) as error_info:
        check_http_port(hostname, taken_port)
    wanted = f"port {taken_port} is in use; stop the program that holds it or choose another with --port"
    assert error_info.value.message == wanted


def test_free_port_is_free_again_after_the_check(free_port: int) -> None:
    check_http_port("127.0.0.1", free_port)
    check_http_port("127.0.0.1", free_port)
    check_http_port("127.0.0.1", 0)


def test_foreign_address_is_named() -> None:
    with pytest.raises(LauncherError, match=r"192\.0\.2\.1 is not an address of this machine"):
        check_http_port("192.0.2.1", 8080)


def test_master_port_is_kept_if_free_and_replaced_only_if_not_given(taken_port: int, free_port: int) -> None:
    assert choose_master_port(free_port, is_given=False, may_use_default=True) == free_port
    assert choose_master_port(free_port, is_given=True, may_use_default=False) == free_port
    assert choose_master_port(free_port, is_given=False, may_use_default=False) != free_port
    assert choose_master_port(taken_port, is_given=False, may_use_default=True) != taken_port
    with pytest.raises(LauncherError, match=f"port {taken_port} is in use; choose another with --master-port"):
        choose_master_port(taken_port, is_given=True, may_use_default=True)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)
def test_cores_follow_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], wanted: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for path, text in files.items():
        write(tmp_path, path, text)
    assert usable_cores(tmp_path) == wanted


def test_machine_is_described_with_versions(tmp_path: Path) -> None:
    write(tmp_path, "version.cfg", "runtime_running_version=[8.0.0:8.0.RC1]\n")
    lines = describe_machine({"ASCEND_HOME_PATH": str(tmp_path)})
    assert f"CANN: in {tmp_path}, version 8.0.0:8.0.RC1" in lines
    assert any(line.startswith("torch: 2.") for line in lines)
    assert "CANN: not found (ASCEND_HOME_PATH is not set)" in describe_machine({})
