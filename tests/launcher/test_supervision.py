"""Real launcher, scripted children: whatever ends, nobody stays, the reason is said, and the exit status is right."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 30.0


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class RunningLauncher:
    """`python -m text_generation_launcher` whose children are the scripted programs."""

    def __init__(self, folder: Path, script: str, arguments: list[str], environ: dict[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.output = folder / "stdout"
        self.errors = folder / "stderr"
        self._model = folder / "model"
        self._model.mkdir(exist_ok=True)
        (self._model / "config.json").write_text("{}")
        command = [sys.executable, "-m", "text_generation_launcher", "--model-id", str(self._model), *arguments]
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "PYTHONPATH": str(REPOSITORY),
                    "TEXT_GENERATION_SERVER_MODULE": "tests.launcher.programs.scripted_server",
                    "TEXT_GENERATION_ROUTER_MODULE": "tests.launcher.programs.scripted_router",
                    "SCRIPT": script,
                    "SCRIPT_FOLDER": str(folder),
                    "SHARD_UDS_PATH": str(folder / "sock"),
                    "PORT": "0",
                    "OMP_NUM_THREADS": "1",
                    **environ,
                },
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def fact(self, name: str) -> Any:
        """What a child has noted about itself."""
        path = self.folder / name
        wait_until(path.exists, f"{name} of {self.folder}: {self.text}{self.error_text}")
        return json.loads(path.read_text())

    def pid(self, name: str) -> int:
        return int(self.fact(name)["pid"])

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def error_text(self) -> str:
        return self.errors.read_text()

    @property
    def pids(self) -> list[int]:
        """Every child that has ever been here."""
        names = ("download", "shard-0", "shard-1", "router")
        return [self.pid(name) for name in names if (self.folder / name).exists()]

    def wait_for_line(self, text: str) -> None:
        wait_until(lambda: text in self.text, f"'{text}' in {self.text}{self.error_text}")

    def wait_ready(self) -> None:
        self.wait_for_line("Ready: ")

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        return self.process.wait(timeout_s)

    def assert_nothing_is_left(self) -> None:
        assert [pid for pid in self.pids if is_running(pid)] == []
        assert list(self.folder.glob("sock*")) == []


def has_no_children(launcher: RunningLauncher) -> bool:
    return not any(map(is_running, launcher.pids))


Start = Callable[..., RunningLauncher]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[RunningLauncher] = []

    def start_one(script: str = "", *arguments: str, name: str = "a", **environ: str) -> RunningLauncher:
        launcher = RunningLauncher(tmp_path / name, script, list(arguments), environ)
        started.append(launcher)
        return launcher

    yield start_one
    for launcher in started:
        launcher.process.kill()
        launcher.process.wait()
        wait_until(functools.partial(has_no_children, launcher), "children ended with their launcher")


def test_serving_until_a_signal(start: Start) -> None:
    launcher = start("", "--num-shard", "2")
    launcher.wait_ready()
    for line in (
        "Starting check and download process for",
        "INFO download: text_generation_launcher: fetching 50%",
        "Successfully downloaded weights for",
        "shard-manager: text_generation_launcher: Starting shard rank=0",
        "shard-manager: text_generation_launcher: Starting shard rank=1",
        "Starting Webserver",
        "INFO text_generation_router: Connected port=0",
        "Ready: http://0.0.0.0:",
        "max_batch_total_tokens=64",
    ):
        assert line in launcher.text
    assert len(re.findall(r"Shard ready in \d+\.\ds rank=[01]", launcher.text)) == 2
    assert launcher.fact("shard-1")["folder"] == "/models/found"
    assert launcher.fact("router")["folder"] == "/models/found"
    assert launcher.fact("router")["model_id"] == str(launcher.folder / "model")
    for rank in (0, 1):
        found = (launcher.folder / f"sock-{rank}").stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) & 0o077 == 0

    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.wait() == 0
    assert launcher.fact("router-stopping")["shards"] == [True]
    order = ["Terminating webserver", "webserver terminated", "Shutting down shards", "Terminating shard"]
    assert [launcher.text.index(line) for line in order] == sorted(launcher.text.index(line) for line in order)
    assert "Traceback" not in launcher.text + launcher.error_text
    launcher.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("script", "child"), [("download-hangs", "download"), ("load-hangs", "shard-0"), ("router-hangs", "router")]
)
def test_signal_before_serving_ends_with_status_0(
    start: Start, script: str, child: str, number: signal.Signals
) -> None:
    launcher = start(script)
    launcher.fact(child)
    launcher.process.send_signal(number)
    assert launcher.wait() == 0
    assert launcher.error_text == ""
    launcher.assert_nothing_is_left()


def test_the_router_is_started_beside_the_shards_and_waits_for_them(start: Start) -> None:
    launcher = start("load-hangs")
    launcher.fact("shard-0")
    launcher.fact("router")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.wait() == 0
    assert "webserver" not in launcher.text
    assert not (launcher.folder / "router-goes-ahead").exists()
    launcher.assert_nothing_is_left()

    launcher = start("", name="b")
    launcher.wait_ready()
    assert launcher.fact("router-goes-ahead")["shards"] == [True]
    assert launcher.text.index("Shard ready in") < launcher.text.index("Starting Webserver")


def test_a_router_that_ends_before_the_shards_are_ready_is_not_waited_for(start: Start) -> None:
    launcher = start("load-hangs,router-fails")
    assert launcher.wait() == 1
    assert launcher.error_text == "Error: WebserverCannotStart\n"
    launcher.assert_nothing_is_left()


def test_running_requests_get_the_grace_time(start: Start) -> None:
    launcher = start("drain=1")
    launcher.wait_ready()
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 0
    assert (launcher.folder / "router-drained").exists()
    launcher.assert_nothing_is_left()


def test_after_the_grace_time_children_are_killed(start: Start) -> None:
    launcher = start("drain=60,stubborn", "--graceful-termination-timeout", "1")
    launcher.wait_ready()
    launcher.process.send_signal(signal.SIGTERM)
    begun_s = time.monotonic()
    assert launcher.wait() == 0
    assert 1.9 < time.monotonic() - begun_s < 10
    assert not (launcher.folder / "router-drained").exists()
    launcher.assert_nothing_is_left()


def test_second_interrupt_ends_everything_at_once(start: Start) -> None:
    launcher = start("drain=60,stubborn")
    launcher.wait_ready()
    launcher.process.send_signal(signal.SIGINT)
    launcher.fact("router-stopping")
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait(10) == 0
    launcher.assert_nothing_is_left()


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_shard_ends_everything_with_status_1(start: Start, rank: int) -> None:
    launcher = start("", "--num-shard", "2")
    launcher.wait_ready()
    os.kill(launcher.pid(f"shard-{rank}"), signal.SIGKILL)
    assert launcher.wait(10) == 1
    assert "Shard process was signaled to shutdown with signal 9" in launcher.text
    assert f"Shard {rank} crashed" in launcher.text
    assert launcher.error_text == "Error: ShardFailed\n"
    launcher.assert_nothing_is_left()


def test_killed_router_ends_everything_with_status_1(start: Start) -> None:
    launcher = start()
    launcher.wait_ready()
    os.kill(launcher.pid("router"), signal.SIGKILL)
    assert launcher.wait(10) == 1
    assert "Webserver Crashed (signal 9)" in launcher.text
    assert launcher.error_text == "Error: WebserverFailed\n"
    launcher.assert_nothing_is_left()


def test_killed_launcher_takes_its_children_along(start: Start) -> None:
    """G39: SIGKILL of the launcher alone. Only the lock stays as a file, and nobody holds it."""
    launcher = start("", "--num-shard", "2")
    launcher.wait_ready()
    launcher.process.kill()
    launcher.wait()
    wait_until(functools.partial(has_no_children, launcher), "children end", 10)
    assert [path.name for path in launcher.folder.glob("sock*")] == ["sock.lock"]


def test_killed_launcher_takes_even_children_along_that_ignore_signals(start: Start) -> None:
    launcher = start("stubborn", "--num-shard", "2")
    launcher.wait_ready()
    launcher.process.kill()
    launcher.wait()
    wait_until(functools.partial(has_no_children, launcher), "children end", 10)


def test_launcher_killed_while_loading_takes_its_children_along(start: Start) -> None:
    launcher = start("load-hangs")
    launcher.fact("shard-0")
    launcher.process.kill()
    launcher.wait()
    wait_until(functools.partial(has_no_children, launcher), "children end", 10)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("load-fails=1", "model.safetensors is broken at byte 8"),
        ("load-crashes=1", "RuntimeError: the device is gone"),
        ("load-fails=1,noisy", "model.safetensors is broken at byte 8"),
        ("load-crashes=1,noisy", "RuntimeError: the device is gone"),
    ],
)
def test_shard_that_cannot_start_is_explained_once(start: Start, script: str, error: str) -> None:
    """G38: the real error, not only that a shard failed; the other shard ends too."""
    launcher = start(script, "--num-shard", "2")
    assert launcher.wait(15) == 1
    assert launcher.text.count(error) == 1
    assert "Shard 1 failed to start (exit status 1)" in launcher.text
    errors = [line for line in launcher.text.splitlines() if " ERROR " in line]
    assert "rank=1" in launcher.text[launcher.text.index(errors[0]) :].split("Shard 1 failed")[0]
    assert "an unrelated line" not in launcher.text
    assert "Traceback" not in launcher.text
    assert launcher.error_text == "Error: ShardCannotStart\n"
    launcher.assert_nothing_is_left()


def test_error_that_every_shard_meets_is_said_once(start: Start) -> None:
    launcher = start("load-fails=all", "--num-shard", "2")
    assert launcher.wait(15) == 1
    assert launcher.text.count("model.safetensors is broken at byte 8") == 1
    launcher.assert_nothing_is_left()


def test_failed_download_is_explained(start: Start) -> None:
    launcher = start("download-fails")
    assert launcher.wait() == 1
    assert launcher.text.count(f"Download encountered an error: {launcher.folder / 'model'} is not in the cache") == 1
    assert launcher.error_text == "Error: DownloadError\n"
    launcher.assert_nothing_is_left()


def test_router_that_cannot_start_is_explained(start: Start) -> None:
    launcher = start("router-fails")
    assert launcher.wait() == 1
    assert launcher.text.count("Argument validation error: `max_total_tokens` must be") == 1
    assert launcher.error_text == "Error: WebserverCannotStart\n"
    launcher.assert_nothing_is_left()


CRASHES = [
    ("load-crashes=0", "Shard", "RuntimeError: the device is gone"),
    ("router-crashes", "Webserver", "RuntimeError: the address is odd"),
]


@pytest.mark.parametrize("json_output", [False, True])
@pytest.mark.parametrize(("script", "who", "error"), CRASHES)
def test_a_traceback_becomes_the_line_that_says_what_happened(
    start: Start, script: str, who: str, error: str, json_output: bool
) -> None:
    launcher = start(script, *(["--json-output"] if json_output else []))
    assert launcher.wait() == 1
    said = f"{who} complete standard error output: {error}; LOG_LEVEL=debug shows where it happened"
    assert launcher.text.count(said) == launcher.text.count(error) == 1
    assert "Traceback" not in launcher.text + launcher.error_text
    launcher.assert_nothing_is_left()


@pytest.mark.parametrize(("script", "who", "error"), CRASHES)
def test_at_level_debug_the_traceback_is_there(start: Start, script: str, who: str, error: str) -> None:
    launcher = start(script, LOG_LEVEL="debug")
    assert launcher.wait() == 1
    assert "DEBUG" in launcher.text
    assert "Traceback (most recent call last):" in launcher.text
    assert ", in main" in launcher.text or ", in serve" in launcher.text


def test_a_router_whose_installation_is_broken_is_one_line(start: Start, tmp_path: Path) -> None:
    """The real router, which does not come as far as its own log."""
    (tmp_path / "uvloop.py").write_text('raise ImportError("libuv.so.1: cannot open shared object file")')
    paths = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
    launcher = start("", TEXT_GENERATION_ROUTER_MODULE="text_generation_router", PYTHONPATH=paths)
    assert launcher.wait() == 1
    errors = [line for line in launcher.text.splitlines() if " ERROR " in line]
    assert len(errors) == 2
    assert "output: ImportError: libuv.so.1: cannot open shared object file; LOG_LEVEL=debug shows" in errors[0]
    assert errors[1].endswith("Webserver Crashed (exit status 1)")
    assert "Traceback" not in launcher.text + launcher.error_text
    assert launcher.error_text == "Error: WebserverCannotStart\n"
    launcher.assert_nothing_is_left()


def test_every_line_of_json_output_parses(start: Start) -> None:
    launcher = start("noisy", "--json-output", "--num-shard", "2", LOG_LEVEL="debug,text_generation_router=info")
    launcher.wait_ready()
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.wait() == 0
    records = [json.loads(line) for line in launcher.text.splitlines()]
    assert all({"timestamp", "level", "target"} <= record.keys() for record in records)
    connected = [record for record in records if record.get("message") == "Connected"]
    assert connected[0]["port"] == 0
    shard_lines = [record for record in records if "Server started" in record.get("fields", {}).get("message", "")]
    assert sorted(record["fields"]["rank"] for record in shard_lines) == [0, 1]
    assert "not json either" in [record.get("fields", {}).get("message") for record in records]


def test_port_in_use_is_said_before_anything_is_started(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launcher = start("", "--port", str(port))
        assert launcher.wait() == 1
    assert launcher.error_text == (
        f'Error: ArgumentValidation("port {port} is in use; stop the program that holds it '
        'or choose another with --port")\n'
    )
    assert launcher.pids == []
    launcher.assert_nothing_is_left()


def test_bad_option_ends_with_status_2(start: Start) -> None:
    launcher = start("", DTYPE="int3")
    assert launcher.wait() == 2
    assert "environment variable DTYPE: 'int3' is not one of float16, bfloat16, float32" in launcher.error_text
    assert launcher.text == ""


def test_forbidden_combination_ends_with_status_1(start: Start) -> None:
    launcher = start("", "--validation-workers", "0")
    assert launcher.wait() == 1
    assert launcher.error_text == 'Error: ArgumentValidation("`validation_workers` must be > 0")\n'


def test_host_name_of_a_container_means_everywhere(start: Start) -> None:
    launcher = start("", HOSTNAME="abc123")
    launcher.wait_ready()
    assert "WARN text_generation_launcher: Invalid hostname, defaulting to 0.0.0.0" in launcher.text
    argv = launcher.fact("router")["argv"]
    assert "--hostname" not in argv


def test_env_prints_versions(start: Start) -> None:
    launcher = start("download-fails", "--env")
    launcher.wait()
    assert re.search(r"text_generation_launcher: torch: \d", launcher.text)
    assert re.search(r"text_generation_launcher: python: 3\.", launcher.text)


def test_two_launchers_side_by_side_take_different_sockets_and_ports(start: Start, tmp_path: Path) -> None:
    """G40: otherwise default flags; here the default prefix is moved, so that nothing outside the test is met."""
    first = start("", "--num-shard", "2", "--shard-uds-path", str(tmp_path / "one"), name="a")
    second = start("", "--num-shard", "2", "--shard-uds-path", str(tmp_path / "two"), name="b")
    first.wait_ready()
    second.wait_ready()
    third = start("", "--shard-uds-path", str(tmp_path / "one"), name="c")
    assert third.wait() == 1
    assert "are in use by another server; choose another with --shard-uds-path" in third.error_text
    for launcher in (first, second):
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.wait() == 0
        launcher.assert_nothing_is_left()
