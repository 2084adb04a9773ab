"""Which CPU cores each shard runs on: those beside its NPU, shared with the other NPUs there.

npu-smi names a chip's place on the PCI bus, the kernel the memory node of that place and the cores of that node. Where
any of this is missing, as in many containers, shards are bound to nothing, and a line says why.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_launcher.doctor.host import Host
from text_generation_launcher.doctor.npu_smi import probe_smi
from text_generation_launcher.plan import LaunchPlan

Cores = tuple[tuple[int, ...], ...]

_PART_OF_NODE = 2  # half of a node's cores, so that the host's other programs have the rest

logger = logging.getLogger("text_generation_launcher")


class NotFound(Exception):
    """Where a chip lies is not known; the message says what is missing."""


def bind_cores(plan: LaunchPlan, host: Host) -> Cores:
    """The cores of each shard, by rank; () binds none, with a warning that says why."""
    if host.environ.get(EMULATOR_VARIABLE):
        return ()  # an emulated NPU lies nowhere
    try:
        cards = plan.devices.visible[: plan.num_shards] or tuple(range(plan.num_shards))
        cores = share_out(_nodes(cards, host), _cores_of_nodes(host), host.cores, plan.serve.cpu_binding_num)
    except NotFound as missing:
        logger.warning("Shards are not bound to CPU cores: %s; --bind-cpu false leaves this out", missing)
        return ()
    for rank, own in enumerate(cores):
        logger.info("Shard %d runs on the CPU cores %s beside its NPU", rank, ",".join(map(str, own)))
    return cores


def share_out(
    nodes: Sequence[int], cores_of_nodes: Mapping[int, Sequence[int]], allowed: frozenset[int], wanted: int | None
) -> Cores:
    """
    Args:
        nodes: the memory node beside each shard's NPU, by rank.
        cores_of_nodes: all cores of each node.
        allowed: cores that this process may use.
        wanted: cores for each shard; None: half of the node's, shared among its NPUs.
    Raises: NotFound, where a shard would have no core.
    """
    ranks_of_node: dict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        ranks_of_node[node].append(rank)
    found: dict[int, tuple[int, ...]] = {}
    for node, ranks in ranks_of_node.items():
        own = sorted(allowed.intersection(cores_of_nodes.get(node, ())))
        share = wanted or max(1, len(own) // _PART_OF_NODE // len(ranks))
        if share * len(ranks) > len(own):
            raise NotFound(f"{len(ranks)} shards want {share} cores each of the {len(own)} beside their NPUs")
        for place, rank in enumerate(ranks):
            found[rank] = tuple(own[place * share : (place + 1) * share])
    return tuple(found[rank] for rank in range(len(nodes)))


def _nodes(cards: Sequence[int], host: Host) -> list[int]:
    """The memory node beside each card. Cards are counted as ASCEND_RT_VISIBLE_DEVICES does."""
    smi = probe_smi(host)
    if not smi.chips:
        raise NotFound("npu-smi, which knows where NPUs are, is not there or lists none")
    bus_ids = {chip.logic_id: chip.bus_id for chip in smi.chips}
    nodes = []
    for card in cards:
        if card not in bus_ids:
            raise NotFound(f"npu-smi lists no NPU {card}")
        text = host.text(f"/sys/bus/pci/devices/{bus_ids[card].lower()}/numa_node")
        if text is None or int(text) < 0:
            raise NotFound(f"the memory node of NPU {card} at {bus_ids[card]} is not known here")
        nodes.append(int(text))
    return nodes


def _cores_of_nodes(host: Host) -> dict[int, list[int]]:
    folder = host.path("/sys/devices/system/node")
    found = {}
    for node in folder.glob("node[0-9]*"):
        text = host.text(f"/sys/devices/system/node/{node.name}/cpulist") or ""
        found[int(node.name.removeprefix("node"))] = parse_cores(text)
    return found


def parse_cores(text: str) -> list[int]:
    """The cores of a list such as "0-3,8"."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
