"""What goes wrong is said in one line or in TGI's error body, and nothing that was accepted is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.conftest import serving_quietly
from tests.support.asking import ask, client_of, prompt_of, stream
from tests.support.checkpoints import make_checkpoint
from tests.support.servers import Server, serving, start_launcher

_NUM_TOKENS = 1500


# ---------------------------------------------------------------------------------------------- bad requests


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"inputs": "a', 400, "Failed to parse the request body as JSON"),
        (b"", 400, "Failed to parse the request body as JSON"),
        (b'{"inputs": "a", "parameters": {"max_new_tokens": "ten"}}', 422, "max_new_tokens"),
        (b'{"inputs": ["a"]}', 422, "inputs"),
        (json.dumps({"inputs": prompt_of(2048)}).encode(), 422, "Given: 2048"),
        (b'{"inputs": "a", "parameters": {"temperature": -1}}', 422, "`temperature` must be strictly positive"),
    ],
    ids=["broken JSON", "empty body", "wrong type", "list of prompts", "prompt too long", "bad temperature"],
)
def test_a_bad_request_gets_the_error_body_and_harms_nobody(
    one_shard: Server, body: bytes, status: int, message: str
) -> None:
    """While an answer is streamed, which goes on."""
    with client_of(one_shard) as client:
        events = stream(client, "go on", max_new_tokens=40)
        next(events)
        for path in ("/generate", "/generate_stream", "/"):
            response = client.post(path, content=body, headers={"content-type": "application/json"})
            assert response.status_code == status
            assert set(response.json()) == {"error", "error_type"}
            assert response.json()["error_type"] == "validation"
            assert message in response.json()["error"]
            assert "Traceback" not in response.text
        assert sum(1 for _ in events) == 39


# ---------------------------------------------------------------------------------------------- a full server


@pytest.fixture(scope="module")
def for_two(llama: Path) -> Iterator[Server]:
    with serving_quietly("--model-id", str(llama), "--max-concurrent-requests", "2") as server:
        yield server


def test_a_full_server_answers_429_at_once_and_goes_on(for_two: Server) -> None:
    """The two that were accepted end whole, /health is well all the while, and then there is room again."""
    with client_of(for_two) as client:
        running = [stream(client, prompt_of(5, seed), max_new_tokens=400) for seed in range(2)]
        for events in running:
            next(events)
        for path in ("/generate", "/generate_stream"):
            response = client.post(path, json={"inputs": "x", "parameters": {"max_new_tokens": 1}})
            assert response.status_code == 429
            assert response.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
        assert client.get("/health").status_code == 200
        assert [sum(1 for _ in events) for events in running] == [399, 399]
        assert ask(client, "room again", max_new_tokens=1).ids


# ---------------------------------------------------------------------------------------------- a dead shard


def test_a_killed_shard_is_told_to_everyone_and_ends_the_launcher(llama: Path) -> None:
    """One of two: a stream ends with an error event, a plain request with 424, the launcher with status 1."""
    with serving("--model-id", str(llama), "--num-shard", "2") as server, client_of(server) as client:
        children = server.children()
        began = threading.Event()

        def streamed() -> dict[str, Any]:
            events = stream(client, prompt_of(5), max_new_tokens=_NUM_TOKENS)
            next(events)
            began.set()
            *_, last = events
            return last

        with ThreadPoolExecutor(2) as pool:
            plain = pool.submit(
                client.post, "/generate", json={"inputs": "x", "parameters": {"max_new_tokens": _NUM_TOKENS}}
            )
            last = pool.submit(streamed)
            began.wait(30)
            server.shards()[1].kill()
            assert plain.result().status_code == 424
            assert plain.result().json()["error_type"] == "generation"
            assert set(last.result()) == {"error", "error_type"}
            assert last.result()["error_type"] == "generation"
            for error in (plain.result().json()["error"], last.result()["error"]):
                assert error.startswith("Request failed during generation: Server error: ")
        assert server.process.wait(60) == 1
        assert "Shard 1 crashed" in server.log
        assert "Shard process was signaled to shutdown with signal 9" in server.log
        assert "Traceback" not in server.log
        assert not psutil.wait_procs(children, timeout=30)[1]


# ---------------------------------------------------------------------------------------------- bad folders


def break_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def test_a_broken_weight_file_is_named_and_ends_both_shards(llama: Path, tmp_path: Path) -> None:
    """G38: the real error, once, and no process stays."""
    folder = shutil.copytree(llama, tmp_path / "broken")
    break_weights(folder)
    with start_launcher("--model-id", str(folder), "--num-shard", "2") as server:
        seen: set[psutil.Process] = set()
        while server.process.poll() is None:
            seen.update(server.children())
            try:
                server.process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        assert server.process.returncode == 1
        assert "model.safetensors" in server.log
        assert "Error: ShardCannotStart" in server.log
        assert "Traceback" not in server.log
        assert not psutil.wait_procs(seen, timeout=30)[1]


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama", ')


def unknown_model(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt_nonsense"}))


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (no_config, "config.json"),
        (broken_config, "config.json"),
        (unknown_model, "gpt_nonsense"),
        (no_weights, ".safetensors"),
        (broken_tokenizer, "tokenizer.json"),
    ],
)
def test_a_folder_that_cannot_be_served_is_named_with_what_is_wrong(
    llama: Path, tmp_path: Path, spoil: Callable[[Path], None], name: str
) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    spoil(folder)
    with start_launcher("--model-id", str(folder)) as server:
        assert server.process.wait(60) == 1
        lines = [line for line in server.log.splitlines() if " ERROR " in line or line.startswith("Error: ")]
        assert any(name in line for line in lines), server.log
        assert "Traceback" not in server.log


def test_a_missing_part_of_the_weights_is_named_within_seconds(tmp_path: Path) -> None:
    """G26."""
    folder = make_checkpoint(tmp_path / "model", layout="sharded")
    part = sorted(folder.glob("*.safetensors"))[1]
    part.unlink()
    with start_launcher("--model-id", str(folder)) as server:
        assert server.process.wait(20) == 1
        assert f"lacks {part.name}" in server.log
        assert "Traceback" not in server.log


def test_the_root_of_a_hub_cache_names_the_snapshot_to_use(llama: Path, tmp_path: Path) -> None:
    """G26."""
    root = tmp_path / "models--x--y"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("abc")
    shutil.copytree(llama, root / "snapshots" / "abc")
    with start_launcher("--model-id", str(root)) as server:
        assert server.process.wait(20) == 1
        assert str(root / "snapshots" / "abc") in server.log
        assert "Traceback" not in server.log


def gptq_in_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


def awq_in_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


def gptq_in_a_file_of_its_own(folder: Path) -> None:
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 8, "group_size": -1, "desc_act": False}))


@pytest.mark.parametrize(
    ("spoil", "arguments", "line"),
    [
        (gptq_in_config, [], "config.json: quantization_config: gptq is not supported"),
        (awq_in_config, ["--num-shard", "2"], "config.json: quantization_config: awq is not supported"),
        (gptq_in_a_file_of_its_own, [], "quantize_config.json: gptq is not supported"),
        (gptq_in_config, ["--quantize", "awq"], "--quantize awq is not served yet"),
    ],
)
def test_a_quantized_folder_that_cannot_be_served_is_refused_in_one_line(
    llama: Path, tmp_path: Path, spoil: Callable[[Path], None], arguments: list[str], line: str
) -> None:
    """G28: wherever the settings stand, on every shard, said once."""
    folder = shutil.copytree(llama, tmp_path / "model")
    spoil(folder)
    with start_launcher("--model-id", str(folder), *arguments) as server:
        assert server.process.wait(60) == 1
        errors = [logged for logged in server.log.splitlines() if " ERROR " in logged]
        assert [line in logged for logged in errors].count(True) == 1, server.log
        assert all("failed to start" in logged for logged in errors if line not in logged)
        assert "Traceback" not in server.log


# ---------------------------------------------------------------------------------------------- what nobody expects


def test_an_address_that_is_none_is_named_with_its_option(llama: Path) -> None:
    with start_launcher("--model-id", str(llama), "--otlp-endpoint", "http://[") as server:
        assert server.process.wait(60) == 1
        (line,) = [line for line in server.log.splitlines() if "--otlp-endpoint http://[ is no address" in line]
        assert line.endswith("; give one like http://localhost:4317")
        assert "Traceback" not in server.log


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_shard_whose_installation_is_broken_is_one_line(llama: Path, tmp_path: Path, level: str) -> None:
    """With the traceback at level debug."""
    (tmp_path / "torch.py").write_text('raise ImportError("libgomp.so.1: cannot open shared object file")')
    environ = {"PYTHONPATH": str(tmp_path), "LOG_LEVEL": level}
    with start_launcher("--model-id", str(llama), environ=environ) as server:
        assert server.process.wait(60) == 1
        lines = [line for line in server.log.splitlines() if " ERROR " in line]
        assert "ImportError: libgomp.so.1: cannot open shared object file; LOG_LEVEL=debug shows where" in lines[0]
        assert len(lines) == 2
        assert ("Traceback" in server.log) == (level == "debug")


# ---------------------------------------------------------------------------------------------- no folder


def test_a_folder_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with start_launcher("--model-id", str(tmp_path / "nowhere")) as server:
        assert server.process.wait(60) == 1
        assert server.log.splitlines()[-1].startswith("Error: ")
        assert f"{tmp_path / 'nowhere'} does not exist" in server.log.splitlines()[-1]
        assert "Traceback" not in server.log
