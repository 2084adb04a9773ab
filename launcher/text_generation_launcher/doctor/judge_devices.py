"""Findings about devices: which are there, who may open them, which shard gets which, and what the chip can do.

A chip is judged by its SoC id alone, which only torch_npu tells: names of different families begin alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from text_generation_kernels.npu.soc import Family, UnsupportedSoc, classify
from text_generation_launcher.doctor.facts import Chip, Facts
from text_generation_launcher.doctor.findings import Finding, Severity, error, note, ok, warning
from text_generation_launcher.doctor.target import Asked, Target

_DRIVER_GROUP = "HwHiAiUser"
# The folders that CANN keeps its compiled kernels in. That of family A5 is not known here.
_KERNEL_FOLDERS = {"A1": "ascend910", "310P": "ascend310p", "A2": "ascend910b", "A3": "ascend910_93"}
_HEALTHY = ("OK",)


def judge_devices(facts: Facts, target: Target, asked: Asked) -> Iterator[Finding]:
    if not facts.emulated_chip:
        yield from _nodes(facts, target)
        yield from _smi(facts, target)
    yield from _seen_by_torch(facts, target)
    yield from _visible(facts, target)
    yield from _chip(facts, target)
    yield from _dtype(facts, target, asked)
    yield from _affinity(facts, target, asked)


def family_of(facts: Facts) -> Family | None:
    """The chips' family, None if it is not known or not supported."""
    if facts.imports.soc_id is None:
        return None
    try:
        return classify(facts.imports.soc_id, facts.imports.soc_name)
    except UnsupportedSoc:
        return None


def _nodes(facts: Facts, target: Target) -> Iterator[Finding]:
    nodes = facts.nodes
    if not nodes.cards:
        if target.is_npu and facts.imports.num_devices is None:
            remedy = (
                "start the container with --device /dev/davinci0 (one for each card), or ask for an NPU in the pod"
                if nodes.in_container
                else "install the driver, or use --device cpu"
            )
            yield error("device-nodes", "no card: there is no /dev/davinci0 or another number", remedy)
        return
    # Cards that answered can be opened, whatever the permission bits say: there are lists of rights beside them.
    severity = Severity.ERROR if target.is_npu and not facts.imports.memory else Severity.NOTE
    closed = [node for node in (*nodes.cards, *nodes.managers) if not node.may_open]
    if closed:
        first = closed[0]
        seen = (
            f"{nodes.user} (groups {', '.join(nodes.groups)}) may not open {', '.join(node.path for node in closed)} "
            f"({first.mode} {first.owner})"
        )
        group = first.owner.partition(":")[2]
        remedy = (
            f"start the container with --group-add NUMBER of group {group}, or take an image whose user is in it"
            if nodes.in_container
            else f"sudo usermod -aG {group} {nodes.user}, and log in again"
        )
        yield Finding(severity, "device-permission", seen, f"members of group {group}", remedy)
    if nodes.missing_managers:
        # Not an error: drivers differ in which of these they have.
        seen = f"{', '.join(nodes.missing_managers)} not there beside the cards"
        remedy = (
            "add --device for each, if the host has it" if nodes.in_container else "check the driver's installation"
        )
        yield warning("device-managers", seen, remedy) if target.is_npu else note("device-managers", seen)
    if not closed:
        yield ok("device-nodes", f"{', '.join(node.path for node in nodes.cards)} can be opened by {nodes.user}")


def _smi(facts: Facts, target: Target) -> Iterator[Finding]:
    smi = facts.smi
    if smi.path is None:
        if facts.nodes.cards:
            yield note("npu-smi", "npu-smi is not there: health and memory of the cards are not checked")
        elif not target.is_npu:
            yield note("npu-smi", "npu-smi is not there")
        return
    if smi.error:
        yield warning("npu-smi", f"npu-smi info fails: {smi.error}", _smi_remedy(facts))
        return
    names = ", ".join(f"{_spell(chip)} {chip.name} {chip.used_mb} of {chip.total_mb} MB" for chip in smi.chips)
    yield ok("npu-smi", f"npu-smi {smi.version} sees {names or 'no card'}")
    ill = [chip for chip in smi.chips if chip.health not in _HEALTHY]
    if ill:
        listed = ", ".join(f"{_spell(chip)}: {chip.health}" for chip in ill)
        remedy = f"npu-smi info -t health -i {ill[0].npu} says more; leave it out of ASCEND_RT_VISIBLE_DEVICES"
        yield warning("npu-health", f"npu-smi reports {listed}", remedy, "OK")
    if smi.processes:
        yield note(
            "device-busy", f"in use by others: {'; '.join(smi.processes)}", "only the rest of the memory is left"
        )


def _smi_remedy(facts: Facts) -> str:
    """npu-smi's own messages mislead: a missing mount and a missing group are reported as a card in use."""
    if any(not node.may_open for node in facts.nodes.cards):
        return f"{facts.nodes.user} must be in group {_DRIVER_GROUP}"
    if facts.nodes.in_container:
        return (
            "mount /usr/local/dcmi, /usr/local/Ascend/driver/lib64 and /etc/ascend_install.info into the container, "
            "and see that no other container holds the cards"
        )
    return "see that the driver is loaded (lsmod | grep drv_davinci) and that no container holds the cards"


def _seen_by_torch(facts: Facts, target: Target) -> Iterator[Finding]:
    imports = facts.imports
    if not target.is_npu or imports.torch_npu is None:
        return
    if imports.num_devices == 0:
        variable = target.devices.variable if target.devices else None
        remedy = (
            f"see that {variable} lists devices of this machine or container, counted from 0"
            if variable
            else "see that the driver and the device files are there and may be opened"
        )
        yield error("device-count", "torch_npu loads and sees no card", f"{remedy}, or use --device cpu")
    elif imports.stage in ("devices", "chip", "memory"):
        remedy = "restart or reset the card (npu-smi set -t reset -i N -c 0), or leave it out"
        if imports.timed_out:
            yield warning("device-answer", f"the cards do not answer in time: {imports.error}", remedy)
        else:
            yield error("device-answer", f"the cards do not answer: {imports.error}", remedy)


def _visible(facts: Facts, target: Target) -> Iterator[Finding]:
    """Which shard uses what (shards count from 0 within what is visible)."""
    devices = target.devices
    if not target.is_npu or devices is None:
        return
    there = tuple(chip.logic_id for chip in facts.smi.chips if chip.logic_id is not None)
    there = there or tuple(range(0 if facts.emulated_chip else len(facts.nodes.cards)))
    seen = facts.imports.num_devices
    if devices.variable is not None:
        # What torch_npu sees decides: npu-smi may count the host's cards where a container has some of them.
        unknown = [device for device in devices.visible if not seen and there and device not in there]
        dropped = seen is not None and 0 < seen < len(devices.visible)
        if unknown or dropped:
            listed = ",".join(map(str, devices.visible))
            what = f"torch_npu sees {seen} of them" if dropped else f"{_listed(unknown)} not there"
            yield error(
                "visible-devices",
                f"{devices.variable}={listed}, and {what}",
                "correct the list: the runtime stops at the first id that is not there",
                f"ids of {_listed(there)}" if there else "",
            )
            return
    cards = target.num_cards(facts)
    if cards and target.num_shards > cards:
        yield error(
            "visible-devices",
            f"{target.num_shards} shards are asked for, and {cards} devices are visible",
            f"give --num-shard {cards} or make more devices visible",
        )
        return
    chips = {chip.logic_id: chip for chip in facts.smi.chips}
    ids = devices.visible if devices.variable is not None else there
    used = [f"shard {rank} = device {device}{_what(chips.get(device))}" for rank, device in enumerate(ids)]
    if used:
        yield ok("visible-devices", ", ".join(used[: target.num_shards]))


def _what(chip: Chip | None) -> str:
    return "" if chip is None else f" ({_spell(chip)}, {chip.name}, {chip.bus_id})"


def _spell(chip: Chip) -> str:
    return f"NPU {chip.npu} chip {chip.chip}"


def _chip(facts: Facts, target: Target) -> Iterator[Finding]:
    imports = facts.imports
    if imports.soc_id is None:
        return
    try:
        family = classify(imports.soc_id, imports.soc_name)
    except UnsupportedSoc as refusal:
        severity = Severity.ERROR if target.is_npu else Severity.NOTE
        yield Finding(severity, "chip", str(refusal), "", "use --device cpu")
        return
    traits = "saturates silently, so the self-check compares values" if family.saturates else "has bfloat16"
    yield ok("chip", f"{imports.soc_name} (SoC id {imports.soc_id}) is of family {family.name}; it {traits}")
    folder, kernels = _KERNEL_FOLDERS.get(family.name), facts.ascend.kernels
    if folder and kernels and folder not in kernels and target.is_npu:
        seen = f"CANN has compiled kernels for {', '.join(kernels)}, and none for {imports.soc_name}"
        yield warning("cann-kernels", seen, f"install CANN's kernels package for this chip (folder {folder})")


def _dtype(facts: Facts, target: Target, asked: Asked) -> Iterator[Finding]:
    family = family_of(facts)
    if not target.is_npu or family is None or family.has_bfloat16:
        return
    if asked.serve.dtype == "bfloat16":
        yield error(
            "dtype",
            f"bfloat16 is asked for, and {facts.imports.soc_name} (family {family.name}) has none",
            "leave --dtype out: weights are then converted to float16",
            "float16, float32",
        )
    elif asked.serve.dtype is None and "bfloat16" in facts.model.dtypes:
        yield warning(
            "dtype",
            f"the weights are bfloat16; {facts.imports.soc_name} (family {family.name}) has none: they become float16",
            "see that the self-check passes: float16 ends at 65504",
        )


def _affinity(facts: Facts, target: Target, asked: Asked) -> Iterator[Finding]:
    machine = facts.machine
    cores = f"{machine.num_cores} CPU cores may be used, on {max(1, len(machine.numa_cores))} NUMA node(s)"
    if not target.is_npu:
        yield ok("cores", cores)
        return
    if not asked.serve.bind_cpu:
        yield note("affinity", f"{cores}; --bind-cpu is off")
        return
    if not machine.chip_nodes:
        yield note("affinity", f"{cores}; which of them are beside the cards is not readable: shards are not bound")
        return
    lines, far = [], []
    for bus_id, node in sorted(machine.chip_nodes.items()):
        near = machine.allowed_cores.intersection(machine.numa_cores.get(node, ()))
        lines.append(f"{bus_id} on node {node} ({len(near)} usable cores)")
        if not near:
            far.append(bus_id)
    yield ok("affinity", f"{cores}; {', '.join(lines)}")
    if far:
        seen = f"none of the cores that may be used is beside {', '.join(far)}"
        yield warning("affinity-far", seen, "widen the cpuset of the container, or choose cards of its NUMA node")


def _listed(ids: tuple[int, ...] | list[int]) -> str:
    return ",".join(map(str, ids)) or "none"
