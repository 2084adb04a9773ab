"""The parts of a report, each as text. What cannot be had is said in its place; nothing here fails."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from text_generation_cli import __version__
from text_generation_server.report.secrets import HIDDEN, belongs_to_serving, is_secret

_SMI_FOLDERS = ("/usr/local/bin", "/usr/local/sbin", "/usr/local/Ascend/driver/tools")
_SMI_TIMEOUT_S = 20.0
_SMI_QUERIES = (("info",), ("info", "-m"), ("info", "-t", "topo"))
_MAX_SELFCHECKS = 3
_MAX_LOG_LINE = 4000
# Beside what our own metadata requires: what an Ascend host has and what gets into its way.
_OTHER_PACKAGES = (
    "absl-py", "attrs", "cffi", "cloudpickle", "decorator", "hf-transfer", "hccl", "mindie-llm", "mindspore",
    "ml-dtypes", "modelscope", "op-compile-tool", "pyyaml", "ray", "schedule-search", "scipy", "sympy", "te",
    "text-generation-ascend", "torch-npu", "torchvision", "tornado", "triton", "triton-ascend", "vllm", "vllm-ascend",
)  # fmt: skip
# A requirement's name, and nothing of those that belong to an extra.
_REQUIRED = re.compile(r"([A-Za-z0-9._-]+)(?!.*;.*extra)")


def versions() -> str:
    return "\n".join(
        [
            f"text-generation {__version__}",
            f"Python {platform.python_version()} ({platform.python_implementation()})",
            f"{platform.system()} {platform.release()} {platform.machine()}",
            f"C library {' '.join(platform.libc_ver())}",
        ]
    )


def packages() -> str:
    """What `pip freeze` says of the packages that matter, from their metadata."""
    names = set(_OTHER_PACKAGES)
    try:
        requires = metadata.requires("text-generation-ascend") or []
    except metadata.PackageNotFoundError:
        requires = []
    names |= {match[1] for match in map(_REQUIRED.match, requires) if match}
    found = []
    for name in sorted(names, key=str.lower):
        try:
            found.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return "\n".join(found)


def environment(environ: Mapping[str, str], options: Collection[str]) -> tuple[str, int, list[str]]:
    """(lines, how many variables are left out, names of those shown without their value)."""
    shown = [name for name in sorted(environ) if belongs_to_serving(name, options)]
    hidden = [name for name in shown if is_secret(name)]
    lines = [f"{name}={HIDDEN}" if name in hidden else f"{name}={environ[name]}" for name in shown]
    return "\n".join(lines), len(environ) - len(shown), hidden


def npu_smi(environ: Mapping[str, str]) -> str:
    places = [environ.get("PATH", os.defpath), *_SMI_FOLDERS]
    path = shutil.which("npu-smi", path=os.pathsep.join(places))
    if path is None:
        return "npu-smi is not there"
    return "\n\n".join(f"$ npu-smi {' '.join(query)}\n{run([path, *query], _SMI_TIMEOUT_S)}" for query in _SMI_QUERIES)


def doctor(model_id: str | None, timeout_s: float) -> str:
    """The launcher's doctor, which is a program of its own: a broken torch_npu ends it and not us."""
    arguments = ["--model-id", model_id] if model_id else []
    return run([sys.executable, "-m", "text_generation_launcher", "doctor", "--json", *arguments], timeout_s)


def selfchecks(cache: Path) -> str:
    """What the last self-checks said, as they are kept beside the other things that are made once."""
    files = sorted(cache.glob("selfcheck/**/*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not files:
        return f"no self-check is kept in {cache / 'selfcheck'}; text-generation-server selfcheck makes one"
    parts = (f"{path.name}:\n{path.read_text(errors='replace').strip()}" for path in files[:_MAX_SELFCHECKS])
    return "\n\n".join(parts)


def last_lines(file: str, count: int) -> str:
    """The end of a log."""
    try:
        with Path(file).open(errors="replace") as lines:
            last = deque((line.rstrip("\n")[:_MAX_LOG_LINE] for line in lines), maxlen=count)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    return "\n".join(last)


def run(arguments: Sequence[str], timeout_s: float) -> str:
    """What a program prints, or why it printed nothing. It and what it started are ended if it takes too long."""
    try:
        process = subprocess.Popen(
            arguments,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"{arguments[0]} cannot be started: {error.strerror}"
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return f"{output.decode(errors='replace')}\n(it did not end in {timeout_s:g} s)".strip()
    text = output.decode(errors="replace").strip()
    if process.returncode < 0:
        return f"{text}\n(signal {-process.returncode})".strip()
    return text or f"(nothing, exit status {process.returncode})"
