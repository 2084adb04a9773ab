"""`text-generation-server download-weights` as the launcher runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from text_generation_server.download import DownloadPlaces

COMMAND = [sys.executable, "-m", "text_generation_server", "download-weights"]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environ}
    return subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_last_line_is_the_folder_as_json(checkpoint: Path) -> None:
    ended = run(str(checkpoint), "--extension", ".safetensors", "--logger-level", "INFO", "--json-output")
    assert ended.returncode == 0
    assert json.loads(ended.stdout.splitlines()[-1]) == {"model_folder": str(checkpoint)}
    assert "Files are already present on the host. Skipping download." in ended.stdout + ended.stderr


def test_failure_is_one_line_and_status_1() -> None:
    ended = run("/models/absent")
    assert ended.returncode == 1
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    assert len(lines) == 1
    assert "/models/absent does not exist" in lines[0]


def test_cache_given_as_an_option_is_the_one_looked_in(checkpoint: Path, tmp_path: Path) -> None:
    root = tmp_path / "models--owner--tiny"
    (root / "refs").mkdir(parents=True)
    (root / "snapshots").mkdir()
    (root / "refs" / "main").write_text("abc")
    (root / "snapshots" / "abc").symlink_to(checkpoint)
    ended = run("owner/tiny", "--huggingface-hub-cache", str(tmp_path), HF_HUB_OFFLINE="1", HF_HUB_CACHE="/nowhere")
    assert json.loads(ended.stdout.splitlines()[-1]) == {"model_folder": str(root / "snapshots" / "abc")}


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_ends_it_at_once_with_the_pip_that_it_runs(
    signal_number: signal.Signals, places: DownloadPlaces
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_index:
        port = silent_index.getsockname()[1]
        environment = {
            **os.environ,
            "TEXT_GENERATION_CACHE": str(places.cache),
            "PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple",
            "PIP_CONFIG_FILE": os.devnull,
        }
        process = subprocess.Popen([*COMMAND, "demo"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        silent_index.settimeout(30)
        connection, _ = silent_index.accept()  # pip is there, and waits for an answer
        with connection:
            children = psutil.Process(process.pid).children(recursive=True)
            assert children
            asked_s = time.monotonic()
            process.send_signal(signal_number)
            process.communicate(timeout=10)
            assert process.returncode == 128 + signal_number
            _, alive = psutil.wait_procs(children, timeout=5)
            assert alive == []
            assert time.monotonic() - asked_s < 5
