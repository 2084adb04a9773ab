"""How long a start takes, from the launcher's command line to the first token: `python -m benchmarks.startup`.

Phases are what lies between lines of the launcher's log. With files in the page cache and, as root, without; the system
decides which memory is at hand, so the median of some runs is shown, and the slowest. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import requests

from benchmarks.machine import load_average
from benchmarks.programs import Program
from benchmarks.report import NoPlace, check_page, heading, publish

NAME = "benchmarks.startup"
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_REST_S = 3.0  # for the memory of the run before to be given back

_LAUNCHER = "launcher: checks, the model's folder"
_IMPORTS = "shard: imports"
_WEIGHTS = "shard: weights"
_SHARD_READY = "shard: service, health"
_WARM_UP = "warm-up, cache"
_ROUTER = "router: routes, port"
_FIRST_TOKEN = "first token of a request"
TOTAL = "from command to first token"

# What ends each phase, in order.
ENDS = {
    _LAUNCHER: ": Starting shard",
    _IMPORTS: ": Loaded ",  # weights included, which that line tells
    _SHARD_READY: ": Starting Webserver",
    _WARM_UP: ": Memory in GiB",
    _ROUTER: ": Ready: ",
}
_LOADED = re.compile(r" in (?P<seconds>[\d.]+) s\b")
_URL = re.compile(r"Ready: (?P<url>\S+)")


class NoStart(Exception):
    """The server did not start, or said something else than expected."""


@dataclass(frozen=True, slots=True)
class Start:
    seconds: Mapping[str, float]  # by phase, in order, with the total
    cpu_s: Mapping[str, float]  # by program, until the first token


def phases(moments: Mapping[str, float], loaded: str, first_token_s: float) -> dict[str, float]:
    """Seconds of each phase.

    Args:
        moments: seconds since the command at which each of `ENDS` was logged.
        loaded: the line that tells how long loading took.
    Raises: NoStart.
    """
    found = _LOADED.search(loaded)
    missing = [phase for phase in ENDS if phase not in moments]
    if missing or found is None:
        raise NoStart(f"the launcher's log has no end of: {', '.join(missing) or _WEIGHTS}")
    weights_s = float(found["seconds"])
    result: dict[str, float] = {}
    before_s = 0.0
    for phase in ENDS:
        result[phase] = moments[phase] - before_s
        before_s = moments[phase]
        if phase == _IMPORTS:
            result[_IMPORTS] -= weights_s
            result[_WEIGHTS] = weights_s
    result[_FIRST_TOKEN] = first_token_s - before_s
    result[TOTAL] = first_token_s
    return result


def start_once(arguments: Sequence[str]) -> Start:
    """Start a server, ask for one token, and stop it. Raises: NoStart."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "text_generation_launcher", "--port", "0"]
        command += ["--shard-uds-path", f"{folder}/shard", *arguments]
        started_s = time.monotonic()
        program = Program("server", command, {}, pipes=True)
        try:
            moments: dict[str, float] = {}
            loaded = url = ""
            for line in program.process.stdout or ():
                now_s = time.monotonic() - started_s
                moments.update({phase: now_s for phase, text in ENDS.items() if text in line and phase not in moments})
                loaded = line if ENDS[_IMPORTS] in line else loaded
                if (ready := _URL.search(line)) is not None:
                    url = ready["url"].replace("0.0.0.0", "127.0.0.1")
                    break
            if not url:
                raise NoStart(f"the server did not start: {program.log_end().strip()}")
            body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 1}}
            requests.post(f"{url}/generate", json=body, timeout=60).raise_for_status()
            first_token_s = time.monotonic() - started_s
            names = {"shard": "text_generation_server serve", "router": "text_generation_router"}
            cpu_s = {name: program.cpu_s(part) for name, part in names.items()}
            return Start(phases(moments, loaded, first_token_s), cpu_s)
        finally:
            program.stop()


def drop_caches() -> None:
    """Have the system forget what files hold. Only root may."""
    os.sync()
    _DROP_CACHES.write_text("3")


def table(kinds: Mapping[str, Sequence[Start]]) -> str:
    """A row for each phase, columns for each kind of start: median and slowest."""
    names = list(kinds)
    lines = [
        "| seconds | " + " | ".join(f"{name} | slowest" for name in names) + " |",
        "|---|" + "---:|" * 2 * len(names),
    ]
    for phase in kinds[names[0]][0].seconds:
        cells = []
        for starts in kinds.values():
            took = [start.seconds[phase] for start in starts]
            cells += [f"{median(took):.2f}", f"{max(took):.2f}"]
        lines.append(f"| {phase} | {' | '.join(cells)} |")
    for program in kinds[names[0]][0].cpu_s:
        cells = []
        for starts in kinds.values():
            took = [start.cpu_s[program] for start in starts]
            cells += [f"{median(took):.2f}", f"{max(took):.2f}"]
        lines.append(f"| CPU of the {program} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument("--model", help="as --model-id; default: the demo model")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result between the markers of this page")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    check_page(options.write, NAME)
    model = ["--model-id", options.model] if options.model else []
    load_before = load_average()
    start_once(model)  # fetches the model if it is not there, and fills the page cache
    kinds: dict[str, list[Start]] = {"files in memory": []}
    if os.access(_DROP_CACHES, os.W_OK):
        kinds["files on disk"] = []
    for name, starts in kinds.items():
        for _ in range(options.runs):
            time.sleep(_REST_S)
            if name != "files in memory":
                drop_caches()
            starts.append(start_once(model))
            print(f"{name}: {starts[-1].seconds[TOTAL]:.2f} s", file=sys.stderr)
    text = f"{heading(None, (load_before, load_average()))} {options.runs} starts of each kind.\n\n{table(kinds)}\n"
    publish(options.write, NAME, text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (NoPlace, NoStart, requests.RequestException, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")
