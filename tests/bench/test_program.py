"""The program as it is typed, against a real shard: progress, tables, endings, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest

from tests.bench.shards import is_clean
from tests.support.scripted_shard import ScriptedShard
from tests.support.tokenizers import byte_level_tokenizer
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_cli.options import declarations, parse
from text_generation_proto.generate_pb2_grpc import ShardStub

TIMEOUT_S = 60.0
LONG = ("-b", "1", "--decode-length", "400", "--runs", "1000")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "text_generation_benchmark", *arguments]


def run(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **(environ or {})},
    )


def fails(done: subprocess.CompletedProcess[str]) -> str:
    """The message: the one line after the progress."""
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    return last


# ---------------------------------------------------------------------------------------------------- what it prints


def test_pipe_gets_progress_lines_and_tables(shard: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = run("-m", shard, "-b", "1", "-b", "3", "--runs", "2", "-s", "20", "-d", "5", "--output-json", str(path))
    assert done.returncode == 0, done.stderr
    progress = [line for line in done.stderr.splitlines() if ", run " in line]
    assert [line.partition(":")[0] for line in progress] == [
        "batch size 1, run 1 of 2",
        "batch size 1, run 2 of 2",
        "batch size 3, run 1 of 2",
        "batch size 3, run 2 of 2",
    ]
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stdout.startswith("| Parameter")
    assert "Incomplete" not in done.stdout

    document = json.loads(path.read_text())
    assert document["is_complete"]
    assert [batch["batch_size"] for batch in document["batches"]] == [1, 3]
    for batch in document["batches"]:
        assert [len(run["step_ms"]) for run in batch["runs"]] == [4, 4]
        assert min(batch["prefill_ms"]["lowest"], batch["token_ms"]["lowest"]) > 0
        assert f"| {batch['prefill_ms']['average']:.2f} ms " in done.stdout
    assert is_clean(shard)


@pytest.mark.parametrize("depth", ["1", "2"])
def test_sampling_options_and_each_depth_run(shard: str, depth: str) -> None:
    sampling = "--temperature 0.7 --top-k 20 --top-p 0.9 --typical-p 0.9 --repetition-penalty 1.1 --watermark"
    more = f"--frequency-penalty 0.1 --top-n-tokens 4 --do-sample --pipeline-depth {depth}"
    done = run("-m", shard, "-b", "2", "-r", "1", *sampling.split(), *more.split())
    assert done.returncode == 0, done.stderr
    parameters = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    for wanted in (["Temperature", "0.7"], ["Top K", "20"], ["Top N Tokens", "4"], ["Do Sample", "True"]):
        assert wanted in parameters
    assert is_clean(shard)


def test_help_names_every_option() -> None:
    shown = run("--help", environ={"COLUMNS": "500"}).stdout
    assert all(declaration.flags[0] in shown for declaration in declarations(BenchmarkSettings))
    assert "[default: /tmp/text-generation-server-0]" in shown


def test_options_are_tgis() -> None:
    argv = "-t m -b 4 -b 8 -s 3 -d 4 -r 5 -w 0 -m /s --revision v1 --do-sample"
    settings = parse("x", BenchmarkSettings, argv.split(), {}).build(BenchmarkSettings)
    assert settings == BenchmarkSettings(
        tokenizer_name="m",
        revision="v1",
        batch_size=(4, 8),
        sequence_length=3,
        decode_length=4,
        runs=5,
        warmups=0,
        master_shard_uds_path="/s",
        do_sample=True,
    )
    variables = {"TOKENIZER_NAME": "m", "SEQUENCE_LENGTH": "3", "BATCH_SIZE": "99"}
    settings = parse("x", BenchmarkSettings, [], variables).build(BenchmarkSettings)
    assert (settings.tokenizer_name, settings.sequence_length) == ("m", 3)
    assert settings.batch_sizes == (1, 2, 4, 8, 16, 32)


# ---------------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it_with_the_tables_so_far(shard: str, number: signal.Signals) -> None:
    process = subprocess.Popen(command("-m", shard, *LONG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "run 2 of" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert "of 1000 runs" in output
    assert is_clean(shard)


def test_killed_program_leaves_neither_its_measuring_process_nor_work_on_the_shard(shard: str) -> None:
    process = subprocess.Popen(
        command("-m", shard, *LONG), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "run 1 of" not in process.stderr.readline():
        assert process.poll() is None
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    assert is_clean(shard)


def run_in_terminal(command: list[str], key: str = "", after: bytes = b"") -> tuple[int, bytes]:
    """The exit status and all that was shown. `key` is pressed once `after` has been shown."""
    main, terminal = pty.openpty()
    with open(main, "r+b", buffering=0) as keyboard:
        process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        )
        os.close(terminal)
        shown, deadline_s, pressed = b"", time.monotonic() + TIMEOUT_S, not key
        while time.monotonic() < deadline_s:
            if select.select([keyboard], [], [], 0.2)[0]:
                try:
                    shown += keyboard.read(65536)
                except OSError:  # the terminal's other end is closed
                    break
            if not pressed and after in shown:
                keyboard.write(key.encode())
                pressed = True
        return process.wait(TIMEOUT_S), shown


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_key_ends_the_view_in_a_terminal(shard: str, key: str) -> None:
    # A histogram has some values.
    status, shown = run_in_terminal(command("-m", shard, *LONG), key, after=b"values")
    assert status == 0
    screen, _, after = shown.partition(b"\x1b[?1049l")
    assert b"Prefill" in screen
    assert b"| Parameter" in after
    assert b"of 1000 runs" in after
    assert b"Traceback" not in shown
    assert is_clean(shard)


def test_terminal_without_textual_is_told_what_to_install(shard: str) -> None:
    hidden = "import sys; sys.modules['textual'] = None"
    program = f"{hidden}; from text_generation_benchmark.__main__ import main; sys.exit(main())"
    status, shown = run_in_terminal([sys.executable, "-c", program, "-m", shard, "-b", "1", "-r", "1"])
    assert status == 0
    lines = shown.decode().splitlines()
    assert lines[0] == "Progress lines instead of the live view, which needs textual: pip install textual"
    assert [line.partition(":")[0] for line in lines if ", run " in line] == ["batch size 1, run 1 of 1"]
    assert any(line.startswith("| Parameter") for line in lines)


# ---------------------------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("kind", ["missing", "stale", "too long"])
def test_no_shard_is_one_line_with_what_to_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x" * 120 if kind == "too long" else "shard-0")
    if kind == "stale":
        path.touch()
    message = fails(run("-m", str(path)))
    assert message.startswith(f"Error: no shard listens on {path} (")
    prefix = str(path).removesuffix("-0")
    assert f"`text-generation-server serve MODEL_FOLDER --uds-path {prefix}`" in message


def test_shard_that_serves_somebody_is_left_alone(shard: str) -> None:
    async def refused() -> str:
        async with grpc.aio.insecure_channel(f"unix://{shard}") as channel:
            call = ShardStub(channel).Steps()
            await call.wait_for_connection()
            # The stream is the shard's once its handler runs; a refusal, unlike a benchmark, comes at once.
            await asyncio.sleep(0.2)
            done = await asyncio.to_thread(run, "-m", shard)
            call.cancel()
            return fails(done)

    message = asyncio.run(refused())
    assert "serves a router or another benchmark" in message
    assert "text-generation-server serve" in message
    assert is_clean(shard)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-s", "500", "-d", "100"), "make 600 tokens, and the model has 512 positions"),
        (("--temperature", "0"), "`temperature` must be strictly positive"),
        (("--top-p", "1"), "`top_p` must be > 0.0 and < 1.0"),
        (("--output-json", "/nowhere/out.json"), "/nowhere/out.json cannot be written"),
    ],
)
def test_option_that_cannot_be_followed_is_one_line(shard: str, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in fails(run("-m", shard, *arguments))
    assert is_clean(shard)


def test_tokenizer_that_is_not_there_is_one_line(shard: str, tmp_path: Path) -> None:
    assert "has no tokenizer.json" in fails(run("-m", shard, "-t", str(tmp_path)))
    message = fails(run("-m", shard, "-t", "nobody/nothing", environ={"HF_HUB_OFFLINE": "1"}))
    assert "nobody/nothing is no folder here" in message


def test_tokenizer_of_another_model_is_one_line(shard: str, tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([f" {word}" for word in ("ferry", "fog", "gulls")] + [f"unused {n}" for n in range(99)])
    tokenizer.add_tokens([" village"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert "has token ids that the model of 320 has not" in fails(run("-m", shard, "-t", str(tmp_path)))


def test_shard_that_fails_half_way_is_one_line_after_the_tables_so_far(tmp_path: Path, model: Path) -> None:
    async def measured() -> subprocess.CompletedProcess[str]:
        scripted = ScriptedShard(str(tmp_path / "s-0"), vocab_size=320, fail_at_step=20)
        await scripted.start()
        try:
            arguments = ("-m", scripted.socket_path, "-t", str(model), "-b", "1", "-r", "5", "-w", "0")
            return await asyncio.to_thread(run, *arguments)
        finally:
            await scripted.stop()

    done = asyncio.run(measured())
    assert done.returncode == 1
    assert "2 of 5 runs" in done.stdout
    assert done.stderr.splitlines()[-1] == "Error: the shard failed: rank 0: step 20: scripted failure (INTERNAL)"


def test_cache_without_room_for_the_batch_is_one_line(tmp_path: Path, model: Path) -> None:
    async def refused() -> str:
        scripted = ScriptedShard(str(tmp_path / "s-0"), vocab_size=320, num_blocks=16)
        await scripted.start()
        try:
            return fails(await asyncio.to_thread(run, "-m", scripted.socket_path, "-t", str(model), "-b", "8"))
        finally:
            await scripted.stop()

    message = asyncio.run(refused())
    assert "a batch of 8 needs 17 blocks of 16 tokens and the shard's memory has room for 16" in message
