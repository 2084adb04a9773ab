"""Reading cgroup limits, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import psutil

from text_generation_kernels.cpu.memory import available_memory, cgroup_memory
from text_generation_kernels.interface import MemoryInfo

GB = 1 << 30
V1_UNLIMITED = 0x7FFFFFFFFFFFF000


def write_v2(directory: Path, limit: str, usage: int, inactive_file: int = 0, active_file: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{usage}\n")
    (directory / "memory.stat").write_text(
        f"anon {usage}\nfile 123\ninactive_file {inactive_file}\nactive_file {active_file}\nshmem 77\n"
    )


def write_v1(directory: Path, limit: int, usage: int, inactive_file: int = 0, active_file: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (directory / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (directory / "memory.stat").write_text(
        f"cache 5\ninactive_file 1\nactive_file 1\n"
        f"total_inactive_file {inactive_file}\ntotal_active_file {active_file}\n"
    )


def proc_cgroup(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text(text)
    return path


def test_v2_file_cache_counts_as_free(tmp_path: Path) -> None:
    write_v2(tmp_path / "sys", str(4 * GB), 3 * GB, inactive_file=GB, active_file=GB // 2)
    found = cgroup_memory(proc_cgroup(tmp_path, "0::/\n"), tmp_path / "sys")
    assert found == [MemoryInfo(4 * GB, 4 * GB - 3 * GB // 2)]


def test_v1_file_cache_of_child_groups_counts_as_free(tmp_path: Path) -> None:
    write_v1(tmp_path / "sys" / "memory", 4 * GB, 3 * GB, inactive_file=GB, active_file=GB // 2)
    found = cgroup_memory(proc_cgroup(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/\n0::/\n"), tmp_path / "sys")
    assert found == [MemoryInfo(4 * GB, 4 * GB - 3 * GB // 2)]


def test_limits_of_every_group_above_count(tmp_path: Path) -> None:
    write_v2(tmp_path / "sys" / "pods", str(8 * GB), 7 * GB)
    write_v2(tmp_path / "sys" / "pods" / "one", str(4 * GB), GB)
    found = cgroup_memory(proc_cgroup(tmp_path, "0::/pods/one\n"), tmp_path / "sys")
    assert found == [MemoryInfo(4 * GB, 3 * GB), MemoryInfo(8 * GB, GB)]


def test_a_path_of_the_host_falls_back_to_what_the_container_sees(tmp_path: Path) -> None:
    write_v2(tmp_path / "sys", str(2 * GB), GB)
    found = cgroup_memory(proc_cgroup(tmp_path, "0::/../docker/0123\n"), tmp_path / "sys")
    assert found == [MemoryInfo(2 * GB, GB)]


def test_v2_without_a_limit_says_nothing(tmp_path: Path) -> None:
    write_v2(tmp_path / "sys", "max", GB)
    assert cgroup_memory(proc_cgroup(tmp_path, "0::/\n"), tmp_path / "sys") == []


def test_without_cgroup_files_the_host_counts(tmp_path: Path) -> None:
    memory = available_memory(tmp_path / "none", tmp_path)
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_a_limit_below_the_host_is_the_total(tmp_path: Path) -> None:
    write_v2(tmp_path / "sys", str(64 << 20), 48 << 20)
    memory = available_memory(proc_cgroup(tmp_path, "0::/\n"), tmp_path / "sys")
    assert memory == MemoryInfo(64 << 20, 16 << 20)


def test_v1_without_a_limit_leaves_the_host(tmp_path: Path) -> None:
    write_v1(tmp_path / "sys" / "memory", V1_UNLIMITED, GB)
    memory = available_memory(proc_cgroup(tmp_path, "4:memory:/\n"), tmp_path / "sys")
    assert memory.total_bytes == psutil.virtual_memory().total


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    write_v2(tmp_path / "sys", str(GB), 2 * GB)
    assert available_memory(proc_cgroup(tmp_path, "0::/\n"), tmp_path / "sys").free_bytes == 0
