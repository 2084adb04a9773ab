"""Findings about what was asked for: the device, options that contradict each other, ports, runtime variables."""

from __future__ import annotations

from collections.abc import Iterator

from text_generation_launcher.doctor.facts import Facts
from text_generation_launcher.doctor.findings import Finding, error, note, ok, warning
from text_generation_launcher.doctor.host import Host
from text_generation_launcher.doctor.target import Asked, Target
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.hccl_ports import NUM_PORTS, taken_ports
from text_generation_launcher.hccl_ports import VARIABLE as HCCL_PORT_VARIABLE
from text_generation_launcher.ports import check_http_port, choose_master_port

VARIABLES = (
    "ASCEND_LAUNCH_BLOCKING",
    "HCCL_BUFFSIZE",
    "HCCL_IF_BASE_PORT",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF",
)


def judge_settings(facts: Facts, target: Target, asked: Asked) -> Iterator[Finding]:
    for problem in target.problems:
        yield error("options", problem, "")
    if target.devices is not None:
        message = target.devices.message
        if target.devices.is_surprising:
            yield warning("device", message, "unset the variable, or install torch_npu")
        else:
            yield ok("device", message)
    yield from _ports(facts, target, asked)
    if target.is_npu:
        yield from _variables(facts, asked)


def taken_hccl_ports(host: Host) -> tuple[int, ...]:
    """Ports in use of the range that the user has chosen for HCCL; the launcher's own choice is free."""
    text = host.environ.get(HCCL_PORT_VARIABLE, "")
    return taken_ports(int(text)) if text.isdigit() and int(text) + NUM_PORTS <= 65536 else ()


def _ports(facts: Facts, target: Target, asked: Asked) -> Iterator[Finding]:
    router, serve = asked.router, asked.serve
    try:
        check_http_port(router.hostname, router.port)
        which = f"port {router.port}" if router.port else "some port"
        yield ok("http-port", f"{which} on {router.hostname} is free")
    except LauncherError as taken:
        yield error("http-port", taken.message, "")
    if target.num_shards == 1:
        return
    try:
        choose_master_port(serve.master_port, is_given=asked.gave_master_port, may_use_default=True)
    except LauncherError as taken:
        yield error("master-port", taken.message, "")
    if target.is_npu and facts.taken_ports:
        seen = f"of HCCL's ports, {', '.join(map(str, facts.taken_ports))} are in use, perhaps by another server"
        remedy = "unset HCCL_IF_BASE_PORT, or set it to the first of 16 free ports, another for each server"
        yield warning("hccl-ports", seen, remedy)


def _variables(facts: Facts, asked: Asked) -> Iterator[Finding]:
    allocator = facts.variables.get("PYTORCH_NPU_ALLOC_CONF", "")
    clashing = [name for name in ("max_split_size_mb", "garbage_collection_threshold") if name in allocator]
    if "expandable_segments:True" in allocator.replace(" ", "") and clashing:
        seen = f"PYTORCH_NPU_ALLOC_CONF={allocator} combines expandable_segments with {' and '.join(clashing)}"
        yield error("allocator", seen, "keep one of them", "expandable_segments alone")
    if allocator and "PYTORCH_ALLOC_CONF" in facts.variables:
        yield warning(
            "allocator-twice",
            "PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set, which new torch_npu refuses",
            "unset one of them",
        )
    captures = any(asked.serve.cuda_graphs)
    if facts.variables.get("ASCEND_LAUNCH_BLOCKING") == "1":
        seen = "ASCEND_LAUNCH_BLOCKING=1 makes every op wait"
        if captures:
            remedy = "unset it, or give --cuda-graphs 0"
            yield warning("launch-blocking", f"{seen}, and no step can be captured with it", remedy)
        else:
            yield note("launch-blocking", seen, "unset it to serve at full speed")
