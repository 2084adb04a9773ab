"""What `npu-smi` prints, taken apart. Its tables differ by card: 310P has no HBM column, a card may have two chips."""

from __future__ import annotations

import re

from text_generation_launcher.doctor.facts import Chip, SmiFacts
from text_generation_launcher.doctor.host import Host

# Where hosts keep it, since a container's PATH need not have it.
_FOLDERS = ("/usr/local/bin", "/usr/local/sbin", "/usr/local/Ascend/driver/tools")
_TIMEOUT_S = 15.0
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]")


def probe_smi(host: Host) -> SmiFacts:
    path = host.find_command("npu-smi", _FOLDERS)
    if path is None:
        return SmiFacts()
    table = host.run([path, "info"], _TIMEOUT_S)
    version = re.search(r"npu-smi\s+(\S+)", table.stdout)
    if not table.succeeded:
        return SmiFacts(path, version[1] if version else "", table.last_words)
    mapping = host.run([path, "info", "-m"], _TIMEOUT_S)
    return SmiFacts(
        path=path,
        version=version[1] if version else "",
        chips=parse_chips(table.stdout, parse_logic_ids(mapping.stdout)),
        processes=parse_processes(table.stdout),
    )


def parse_logic_ids(text: str) -> dict[tuple[int, int], int]:
    """(NPU, chip) -> logic id, from `npu-smi info -m`. Rows without one are management chips."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*([0-9]+)\s+([0-9]+)\s+([0-9]+)\s", line)
        if match:
            found[int(match[1]), int(match[2])] = int(match[3])
    return found


def parse_chips(text: str, logic_ids: dict[tuple[int, int], int]) -> tuple[Chip, ...]:
    """The chips in the table of `npu-smi info`: two lines for each."""
    chips = []
    npu, name, health = -1, "", ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3:
            continue
        numbers = cells[0].split()
        if _BUS_ID.fullmatch(cells[1]) and npu >= 0 and numbers and numbers[0].isdigit():
            chip = int(numbers[0])
            used, total = _memory(cells[2])
            chips.append(Chip(npu, chip, logic_ids.get((npu, chip)), name, health, cells[1], used, total))
        elif len(numbers) == 2 and numbers[0].isdigit():
            npu, name, health = int(numbers[0]), numbers[1], cells[1]
    if not logic_ids:  # an npu-smi without -m: cards are counted in the order of the table
        return tuple(Chip(**{**vars(chip), "logic_id": index}) for index, chip in enumerate(chips))
    return tuple(chips)


def parse_processes(text: str) -> tuple[str, ...]:
    """Who uses which chip, from the second table of `npu-smi info`."""
    pattern = re.compile(r"\|\s*([0-9]+)\s+([0-9]+)\s*\|\s*([0-9]+)\s*\|\s*(\S*)\s*\|\s*([0-9]+)\s*\|")
    return tuple(
        f"NPU {match[1]} chip {match[2]}: {match[4] or 'an unnamed process'} (pid {match[3]}), {match[5]} MB"
        for match in pattern.finditer(text)
    )


def _memory(cell: str) -> tuple[int, int]:
    """(used, total) MB. A chip with HBM also has a pair for its other memory, which then comes first."""
    pairs = [(int(used), int(total)) for used, total in re.findall(r"([0-9]+)\s*/\s*([0-9]+)", cell)]
    return next((pair for pair in reversed(pairs) if pair[1]), (0, 0))
