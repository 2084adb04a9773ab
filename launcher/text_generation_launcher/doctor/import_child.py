"""Run as a program: imports torch and torch_npu, asks for the cards, and reports each stage as a line of JSON.

It may crash, hang or abort, which is why it is a process of its own: whoever started it reads how far it came. It loads
torch_npu, real or emulated, by the same function as a shard.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from text_generation_cli.orphans import die_with_parent

# What the report is written to; libraries that print get standard error instead.
_REPORT_FD = os.dup(1)


def main(modules: list[str]) -> int:
    os.dup2(2, 1)
    torch = _stage("torch", _import_torch)
    if torch is None:
        return 1
    if "torch_npu" not in modules:
        return 0
    torch_npu = _stage("torch_npu", _import_torch_npu)
    if torch_npu is None:
        return 1
    npu = torch.npu
    count = _stage("devices", lambda: _with_facts(int(npu.device_count())))
    if not count:
        return 1
    if _stage("chip", lambda: _chip(npu, torch_npu)) is None:
        return 1
    return 0 if _stage("memory", lambda: _memory(npu, count)) else 1


def _stage(name: str, work: Callable[[], tuple[Any, dict[str, object]]]) -> Any:
    """Do one stage's work and report its facts, or its error; None after an error."""
    _report({"stage": name})
    try:
        value, facts = work()
    except BaseException as error:
        _report({"stage": name, "error": _describe(error), "cause": _root_cause(error)})
        return None
    _report({"stage": name, "done": True, **facts})
    return value


def _import_torch() -> tuple[ModuleType, dict[str, object]]:
    torch = importlib.import_module("torch")
    return torch, {"version": str(torch.__version__)}


def _import_torch_npu() -> tuple[ModuleType, dict[str, object]]:
    torch_npu = importlib.import_module("text_generation_kernels.npu_probe").load_torch_npu()
    return torch_npu, {"version": str(getattr(torch_npu, "__version__", ""))}


def _with_facts(count: int) -> tuple[int, dict[str, object]]:
    return count, {"num_devices": count}


def _chip(npu: Any, torch_npu: Any) -> tuple[bool, dict[str, object]]:
    name = str(npu.get_device_name(0))
    get_id = getattr(npu, "get_soc_version", None) or torch_npu._C._npu_get_soc_version
    return True, {"soc_name": name, "soc_id": int(get_id())}


def _memory(npu: Any, count: int) -> tuple[bool, dict[str, object]]:
    """(free, total) bytes of each visible card."""
    memory = []
    for index in range(count):
        npu.set_device(index)  # before a process has chosen a card it is told nothing of any
        memory.append([int(size) for size in npu.mem_get_info(index)])
    return True, {"memory": memory}


def _report(record: dict[str, object]) -> None:
    os.write(_REPORT_FD, (json.dumps(record) + "\n").encode())


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _root_cause(error: BaseException) -> str:
    """The error that the others came from: torch_npu wraps the one that names the missing library."""
    cause: BaseException = error
    while (before := cause.__cause__ or cause.__context__) is not None:
        cause = before
    return _describe(cause)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1:]))
