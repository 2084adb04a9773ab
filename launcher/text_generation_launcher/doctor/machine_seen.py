"""Cores, NUMA nodes and memory of the host, from /proc and /sys."""

from __future__ import annotations

import re
from collections.abc import Iterable

from text_generation_launcher.cpus import usable_cores
from text_generation_launcher.doctor.facts import Chip, MachineFacts
from text_generation_launcher.doctor.host import Host

_NODES = "/sys/devices/system/node"
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def probe_machine(host: Host, chips: Iterable[Chip] = ()) -> MachineFacts:
    numa_cores = {}
    for name in host.names(_NODES):
        match = re.fullmatch(r"node([0-9]+)", name)
        if match:
            numa_cores[int(match[1])] = parse_cores(host.text(f"{_NODES}/{name}/cpulist") or "")
    chip_nodes = {}
    for chip in chips:
        text = (host.text(f"/sys/bus/pci/devices/{chip.bus_id.lower()}/numa_node") or "").strip()
        if text.isdigit():  # -1: the host does not say
            chip_nodes[chip.bus_id] = int(text)
    total, free = _memory(host)
    return MachineFacts(
        num_cores=min(len(host.cores), usable_cores(host.root)),
        allowed_cores=host.cores,
        numa_cores=numa_cores,
        chip_nodes=chip_nodes,
        total_bytes=total,
        free_bytes=free,
    )


def parse_cores(text: str) -> tuple[int, ...]:
    """The cores of a list such as "0-3,8"."""
    cores: list[int] = []
    for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?", text):
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def _memory(host: Host) -> tuple[int, int]:
    """(total, free) bytes of the host, or of this container where that is less."""
    sizes = dict(re.findall(r"^(\w+):\s+([0-9]+) kB", host.text("/proc/meminfo") or "", re.MULTILINE))
    total, free = (int(sizes.get(key, 0)) * 1024 for key in ("MemTotal", "MemAvailable"))
    for file in _LIMITS:
        text = (host.text(file) or "").strip()
        if text.isdigit():
            total = min(total, int(text))
    return total, min(free, total)
