"""`make bench` from end to end on a tiny model, and what it writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks import load, serving
from benchmarks.model_folder import write_endless_model
from benchmarks.prompts import PromptSource
from tests.support.checkpoints import EOS_ID, make_checkpoint, make_tokenizer

ERROR_EVENT = b'data:{"error":"out of blocks","error_type":"generation"}\n\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def test_bench_measures_both_contenders_and_writes_its_table(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{serving.TABLE_BEGINS}\nold\n{serving.TABLE_ENDS}\nafter\n")
    options = f"--model {model} --streams 1 3 --rounds 1 --prompt-tokens 40 --new-tokens 16 --peer-new-tokens 8"
    assert serving.main([*options.split(), "--prefill-tokens", "100", "--write", str(page)]) == 0

    shown = capsys.readouterr().out
    assert "ended early" not in shown
    rows = [line.strip("|").split("|") for line in shown.splitlines() if line.startswith(("| 1 ", "| 3 "))]
    assert [len(row) for row in rows] == [7, 7]
    assert all(float(cell) > 0 for row in rows for cell in row)
    assert page.read_text() == (
        f"before\n{serving.TABLE_BEGINS}\n{shown.removesuffix(chr(10))}{serving.TABLE_ENDS}\nafter\n"
    )


def test_page_without_a_place_for_the_table_is_refused_before_measuring(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers\n")
    with pytest.raises(load.LoadError, match="has no lines"):
        serving.main(["--url", "http://127.0.0.1:9", "--no-peer", "--write", str(page)])
    assert page.read_text() == "no markers\n"


def test_prompts_have_the_asked_length_and_share_no_beginning(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    prompts = PromptSource(tmp_path / "tokenizer.json", seed=1).take(8, 40)
    assert {len(prompt.ids) for prompt in prompts} == {40}
    assert len({tuple(prompt.ids[:16]) for prompt in prompts}) == 8


def test_endless_model_names_another_end_and_leaves_the_model_alone(model: Path, tmp_path: Path) -> None:
    endless = write_endless_model(model, tmp_path / "endless")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((model / name).read_text())["eos_token_id"] == EOS_ID
        assert json.loads((endless / name).read_text())["eos_token_id"] != EOS_ID
    assert (endless / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 429 Too Many Requests\r\n\r\n{"error":"Model is overloaded"}',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(ERROR_EVENT), ERROR_EVENT),
    ],
)
def test_server_that_refuses_is_quoted(answer: bytes) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await load.generate_stream(f"http://127.0.0.1:{port}", "text", 4)

    with pytest.raises(load.LoadError, match=r"overloaded|out of blocks"):
        asyncio.run(ask())
