"""One examination: facts gathered, findings drawn from them. What takes long runs beside the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_launcher.doctor.ascend_files import probe_ascend
from text_generation_launcher.doctor.checkpoint import probe_model
from text_generation_launcher.doctor.devices_seen import probe_nodes
from text_generation_launcher.doctor.facts import Facts, ImportFacts, SmiFacts
from text_generation_launcher.doctor.findings import Finding
from text_generation_launcher.doctor.host import Host, ImportChild
from text_generation_launcher.doctor.imports import import_facts
from text_generation_launcher.doctor.judge_devices import judge_devices
from text_generation_launcher.doctor.judge_model import judge_model
from text_generation_launcher.doctor.judge_settings import VARIABLES, judge_settings, taken_hccl_ports
from text_generation_launcher.doctor.judge_software import judge_software
from text_generation_launcher.doctor.machine_seen import probe_machine
from text_generation_launcher.doctor.npu_smi import probe_smi
from text_generation_launcher.doctor.packages import probe_packages
from text_generation_launcher.doctor.target import Asked, Target, choose_target

# On a host without torch_npu the answer must come at once, and torch alone takes a second or two.
_CPU_IMPORT_TIMEOUT_S = 1.5


@dataclass(frozen=True)
class Examination:
    """What was found, and what it means."""

    facts: Facts
    target: Target
    findings: tuple[Finding, ...]


def examine(
    host: Host,
    asked: Asked,
    *,
    import_timeout_s: float,
    brief: bool = False,
    wait: Callable[[ImportChild, float], object] = ImportChild.has_ended,
) -> Examination:
    """Look at the machine and judge what is seen.

    Args:
        import_timeout_s: how long torch_npu may take to load and to ask for the cards.
        brief: if it is to serve on the CPU, nothing is imported and no NPU is asked for.
        wait: returns once the child has ended or the timeout is over.
    """
    packages = probe_packages(host)
    emulated_chip = host.environ.get(EMULATOR_VARIABLE, "")
    has_torch_npu = bool(emulated_chip) or packages.torch_npu is not None
    target = choose_target(asked, host, has_torch_npu=has_torch_npu)
    looks_for_npus = target.is_npu or not brief
    modules: tuple[str, ...] = ()
    if packages.torch is not None and looks_for_npus:
        modules = ("torch", "torch_npu") if has_torch_npu and target.is_npu else ("torch",)
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(host.importing(modules)) if modules else None
        smi = probe_smi(host) if looks_for_npus and not emulated_chip else SmiFacts()
        ascend, nodes = probe_ascend(host), probe_nodes(host)
        machine, model = (
            probe_machine(host, smi.chips),
            probe_model(host, asked.launcher.model_id, asked.serve.revision),
        )
        taken = taken_hccl_ports(host) if target.is_npu and target.num_shards > 1 else ()
        imports = ImportFacts()
        if child is not None:
            timeout_s = import_timeout_s if "torch_npu" in modules else min(_CPU_IMPORT_TIMEOUT_S, import_timeout_s)
            wait(child, timeout_s - child.elapsed_s)
            records, end = child.result()
            imports = import_facts(modules, records, end)
    variables = {name: host.environ[name] for name in VARIABLES if name in host.environ}
    facts = Facts(packages, ascend, smi, nodes, imports, machine, model, variables, taken, emulated_chip)
    return Examination(facts, target, tuple(judge(facts, target, asked)))


def judge(facts: Facts, target: Target, asked: Asked) -> list[Finding]:
    """Everything there is to say about these facts, in the order in which it is to be read."""
    return [
        *judge_settings(facts, target, asked),
        *judge_software(facts, target),
        *judge_devices(facts, target, asked),
        *judge_model(facts, target, asked),
    ]
