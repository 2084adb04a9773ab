"""How much memory this process may still take: the host's, and that of every cgroup (v1 or v2) it lives in.

Reads `/proc` and `/sys` only; knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from text_generation_kernels.interface import MemoryInfo

PROC_CGROUP = Path("/proc/self/cgroup")
CGROUP_MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Files:
    """What a version of cgroups calls its memory files, and its lines for page cache that can be dropped."""

    limit: str
    usage: str
    reclaimable: tuple[str, str]


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))


def available_memory(proc_cgroup: Path = PROC_CGROUP, mount: Path = CGROUP_MOUNT) -> MemoryInfo:
    """The least of what the host and each cgroup above this process offer, in bytes.

    `free_bytes` counts page cache as free: the kernel drops it when a process needs the memory.
    """
    host = psutil.virtual_memory()
    levels = [MemoryInfo(host.total, host.available), *cgroup_memory(proc_cgroup, mount)]
    return MemoryInfo(
        total_bytes=min(level.total_bytes for level in levels),
        free_bytes=max(0, min(level.free_bytes for level in levels)),
    )


def cgroup_memory(proc_cgroup: Path, mount: Path) -> list[MemoryInfo]:
    """Each limited cgroup from this process's own up to the root; empty where nothing is limited.

    Inside a container the path in `/proc/self/cgroup` may be the host's and not exist below the mount; the
    container's own files are then those of a directory further up, so directories that do not exist are passed over.
    """
    found = (_read_level(directory, files) for directory, files in _levels(proc_cgroup, mount))
    return [level for level in found if level is not None]


def _levels(proc_cgroup: Path, mount: Path) -> Iterator[tuple[Path, _Files]]:
    for line in (_read(proc_cgroup) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, files = mount, _V2
        elif "memory" in controllers.split(","):
            root, files = mount / "memory", _V1
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(*parts[:depth]), files


def _read_level(directory: Path, files: _Files) -> MemoryInfo | None:
    limit, usage = _read(directory / files.limit), _read(directory / files.usage)
    if limit is None or usage is None or limit.strip() == "max":
        return None
    stat = dict(line.split() for line in (_read(directory / "memory.stat") or "").splitlines())
    reclaimable = sum(int(stat.get(key, 0)) for key in files.reclaimable)
    used = max(0, int(usage) - reclaimable)
    return MemoryInfo(total_bytes=int(limit), free_bytes=int(limit) - used)


def _read(path: Path) -> str | None:
    """None for a file that is not there or may not be read: then this level says nothing about limits."""
    try:
        return path.read_text()
    except OSError:
        return None
