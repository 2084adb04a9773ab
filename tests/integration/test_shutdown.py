"""Stopping, being killed, and two servers on one machine: what was taken is answered, and nothing stays."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.asking import client_of, prompt_of, stream
from tests.support.servers import Server, free_port, launcher_command, serving, start_launcher, wait_healthy

_NUM_TOKENS = 1500
# It takes two seconds, and ten are promised; more only because tests may share the machine with other work.
_END_S = 30.0


def assert_gone(processes: list[psutil.Process], timeout_s: float = _END_S) -> None:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    assert not alive, [process.cmdline() for process in alive]


def assert_port_is_free(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", port))


def stale_socket(path: Path) -> None:
    """What a crash leaves: a socket file that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert path.is_socket()


def test_sigterm_finishes_what_runs_and_refuses_the_rest(llama: Path, tmp_path: Path) -> None:
    """G39 with three streams in flight; G40: a stale socket file of a crash was in the way at the start."""
    prefix = tmp_path / "shard"
    stale_socket(Path(f"{prefix}-0"))
    with serving("--model-id", str(llama), "--shard-uds-path", str(prefix)) as server, client_of(server) as client:
        children = server.children()
        began = threading.Barrier(4)

        def count_events(seed: int) -> int:
            events = stream(client, prompt_of(9, seed), max_new_tokens=_NUM_TOKENS)
            next(events)
            began.wait(30)
            rest = list(events)
            assert rest[-1]["details"]["finish_reason"] == "length"
            return 1 + len(rest)

        with ThreadPoolExecutor(3) as pool:
            answers = [pool.submit(count_events, seed) for seed in range(3)]
            began.wait(30)
            server.process.send_signal(signal.SIGTERM)
            statuses = set()
            while not all(answer.done() for answer in answers):
                try:
                    response = client.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1}})
                except httpx.TransportError:  # the last answer is out and the port is closed
                    break
                statuses.add(response.status_code)
                if response.status_code == 503:
                    assert response.json() == {"error": "Server is shutting down", "error_type": "overloaded"}
                time.sleep(0.02)
            assert [answer.result() for answer in answers] == [_NUM_TOKENS] * 3
        assert 503 in statuses
        assert statuses <= {200, 503}
        assert server.process.wait(_END_S) == 0
        assert_gone(children)
        assert_port_is_free(server.port)
        assert list(tmp_path.iterdir()) == []
        assert "Traceback" not in server.log
        assert " ERROR " not in server.log


@pytest.fixture(scope="module")
def pair(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two launchers with two shards each and otherwise default flags; loading at the same time."""
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            server = stack.enter_context(
                start_launcher("--model-id", str(llama), "--num-shard", "2", default_sockets=True)
            )
            servers.append(server)
        for server in servers:
            wait_healthy(server)
        yield servers[0], servers[1]


def test_two_servers_with_default_sockets_and_master_port_both_serve(pair: tuple[Server, Server]) -> None:
    """G40; comes before the tests that end one of them."""
    texts = [server.generate("together", max_new_tokens=20)["generated_text"] for server in pair]
    assert texts[0] == texts[1] != ""


def test_ctrl_c_ends_everything_with_status_0(pair: tuple[Server, Server]) -> None:
    """G39: SIGINT to the launcher; the other server goes on."""
    server, other = pair
    children = server.children()
    assert len(children) == 3
    assert server.stop(signal.SIGINT) == 0
    assert_gone(children)
    assert_port_is_free(server.port)
    assert "Traceback" not in server.log
    assert other.generate("alone now", max_new_tokens=3)["generated_text"]


def test_a_killed_launcher_takes_router_and_shards_along(pair: tuple[Server, Server]) -> None:
    """G39: SIGKILL with an answer in flight; afterwards the port and the sockets are free."""
    _, server = pair
    children = server.children()
    assert len(children) == 3
    sockets = [Path(path) for path in re.findall(r"Server started at unix://(\S+)", server.log)]
    assert len(sockets) == 2
    assert all(path.is_socket() for path in sockets)
    with client_of(server) as client:
        events = stream(client, "abc", max_new_tokens=_NUM_TOKENS)
        next(events)
        server.process.kill()
        assert_gone(children)
        events.close()
    assert_port_is_free(server.port)
    assert not any(path.exists() for path in sockets)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_socket_of_another_user_is_refused_with_the_flag_to_change(llama: Path, tmp_path: Path) -> None:
    """G40."""
    path = tmp_path / "shard-0"
    stale_socket(path)
    os.chown(path, 12345, 12345)
    with start_launcher("--model-id", str(llama), "--shard-uds-path", str(tmp_path / "shard")) as server:
        assert server.process.wait(60) == 1
        (line,) = (line for line in server.log.splitlines() if line.startswith("Error: "))
        assert str(path) in line
        assert "another user" in line
        assert "--shard-uds-path" in line
    assert path.is_socket()


def test_the_recipe_for_a_card_runs_as_typed(llama: Path, tmp_path: Path) -> None:
    """The console script with variables of the Ascend fork in front and nothing but model and port behind."""
    script = Path(sys.executable).with_name("text-generation-launcher")
    port = free_port()
    typed = (
        "ASCEND_RT_VISIBLE_DEVICES=0 BIND_CPU=0 FLASH_ATTENTION=1 MAX_MEMORY_GB=28 "
        f"exec {script} --model-id {llama} --port {port}"
    )
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(["sh", "-c", typed], stdout=log, stderr=subprocess.STDOUT)
    server = Server(process, port, log_path)
    try:
        wait_healthy(server)
        assert len(server.generate("as typed", max_new_tokens=4, details=True)["details"]["tokens"]) == 4
        assert "ASCEND_RT_VISIBLE_DEVICES" in server.log
        assert server.stop(signal.SIGINT) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "Traceback" not in server.log


def test_a_port_in_use_is_one_line_before_anything_is_loaded(one_shard: Server, llama: Path) -> None:
    """And the server that holds it is not disturbed."""
    result = subprocess.run(
        launcher_command("--model-id", str(llama), "--port", str(one_shard.port)),
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert f"port {one_shard.port} is in use" in line
    assert "--port" in line
    assert "Starting shard" not in result.stdout
    assert one_shard.generate("still here", max_new_tokens=2)["generated_text"]
