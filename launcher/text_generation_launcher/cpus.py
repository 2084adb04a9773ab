"""How many CPU cores this process may really use: its affinity, and the quota of its control group."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Whole cores, at least 1. `root` is where proc and sys are mounted."""
    cores = float(len(os.sched_getaffinity(0)))
    for quota in _quotas(root):
        cores = min(cores, quota)
    return max(1, int(cores))


def _quotas(root: Path) -> list[float]:
    """The quota, in cores, of every control group that this process is in, as far as one is set."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mounted = root / "sys/fs/cgroup"
    quotas: list[float | None] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(folder / "cpu.max") for folder in _with_parents(mounted, path)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(folder) for folder in _with_parents(mounted / controllers, path)]
            quotas += [_quota_v1(folder) for folder in _with_parents(mounted / "cpu", path)]
    return [quota for quota in quotas if quota is not None]


def _with_parents(mounted: Path, path: str) -> list[Path]:
    """A container sees its own group at the mount point, whatever the path says: so look at every level."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mounted.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _quota_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
