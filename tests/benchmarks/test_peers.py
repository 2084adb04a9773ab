"""`make bench-peers` from end to end on a tiny model, and the parts of it that compute."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.model_folder import write_endless_model
from benchmarks.peers import __main__ as peers
from benchmarks.peers.contenders import CONTENDERS, Machine, prepare
from benchmarks.peers.environments import EnvironmentNotMade
from benchmarks.peers.gguf_files import interleave
from benchmarks.peers.measuring import Results, Work, measure
from benchmarks.peers.tables import PREFILL, best_peer, columns, common_prefix, ratio_table
from benchmarks.prompts import Prompt, PromptSource
from benchmarks.rates import Run
from benchmarks.report import NoPlace
from benchmarks.streams import LoadError
from tests.support.checkpoints import EOS_ID, make_checkpoint, make_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def test_both_kinds_of_contender_are_measured_and_the_table_is_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmarks.peers: begin -->\nold\n<!-- benchmarks.peers: end -->\nafter\n")
    options = f"--model {model} --only bf16 transformers-float32 --streams 1 3 --rounds 1 --threads 1"
    lengths = "--prompt-tokens 40 --new-tokens 16 --prefill-tokens 100"
    assert peers.main([*options.split(), *lengths.split(), "--write", str(page)]) == 0

    shown = capsys.readouterr().out
    rows = [line.strip("|").split("|") for line in shown.splitlines() if " HTTP " in line or " offline " in line]
    assert [row[0].strip() for row in rows] == ["**this server**", "transformers"]
    # Two of decode, two with prompts, first token, prefill.
    assert all(float(cell) > 0 for row in rows for cell in row[3:9])
    assert rows[1][9].strip() == "reference"
    assert "left out" not in shown
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert all(line in written for line in shown.strip().splitlines())


def test_page_without_a_place_for_the_table_is_refused_before_measuring(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers\n")
    with pytest.raises(NoPlace, match="has no lines"):
        peers.main(["--write", str(page)])
    assert page.read_text() == "no markers\n"


def test_peer_that_cannot_be_installed_is_named_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(machine: Machine) -> None:
        raise EnvironmentNotMade("no wheel for this processor")

    broken = CONTENDERS["vllm-bf16"]
    monkeypatch.setitem(
        CONTENDERS,
        "vllm-bf16",
        type(broken)(broken.name, broken.weights, broken.via, broken.start, refuse),
    )
    machine = Machine(tmp_path, tmp_path, 1, None, tmp_path)
    assert prepare(["vllm-bf16", "bf16"], machine) == (["bf16"], {"vllm-bf16": "no wheel for this processor"})


class Scripted:
    """A contender whose runs take no time; it fails at its `fails_at`-th."""

    def __init__(self, fails_at: int = 0) -> None:
        self.program = self
        self.calls: list[tuple[int, int]] = []
        self.is_frozen = True
        self._fails_at = fails_at

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    def run(self, prompts: list[Prompt], max_new_tokens: int) -> Run:
        assert not self.is_frozen
        self.calls.append((len(prompts), max_new_tokens))
        if len(self.calls) == self._fails_at:
            raise LoadError("gone")
        return Run([0.0], [[1.0, 2.0]])


def test_rounds_are_interleaved_and_a_contender_that_fails_leaves_them(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    steady, fragile = Scripted(), Scripted(fails_at=3)
    works = [Work("one", 1, 8, 2), Work("four", 4, 8, 2)]
    source = PromptSource(tmp_path / "tokenizer.json", seed=1)
    running = {"steady": steady, "fragile": fragile}
    results = measure(running, works, source, max_rounds=3, budget_s=60)  # type: ignore[arg-type]
    assert steady.calls == [(1, 2), (4, 2)] * 3
    assert fragile.calls == [(1, 2), (4, 2), (1, 2)]
    assert results.failures == {"fragile": "gone"}
    assert len(results.runs["fragile", "four"]) == 1
    assert steady.is_frozen
    assert fragile.is_frozen


def test_nothing_is_measured_when_the_time_is_over(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    contender = Scripted()
    source = PromptSource(tmp_path / "tokenizer.json", seed=1)
    results = measure({"one": contender}, [Work("w", 1, 8, 2)], source, 3, budget_s=0.0)  # type: ignore[dict-item]
    assert contender.calls == []
    assert not results.runs


def run_of(rate: float, first_s: float) -> Run:
    return Run([0.0], [[first_s + index / rate for index in range(9)]])


def test_ours_is_compared_with_the_best_peer_of_no_coarser_weights() -> None:
    results = Results()
    for name, rate, first_s in (
        ("bf16", 60.0, 0.2),
        ("int8", 90.0, 0.3),
        ("transformers-float32", 20.0, 0.5),
        ("llama.cpp-F16", 40.0, 0.4),
        ("llama.cpp-Q4_1", 75.0, 0.1),
    ):
        results.runs[name, "c=1"].append(run_of(rate, first_s))
        results.runs[name, PREFILL].append(run_of(rate, first_s))
    names = ["bf16", "int8", "transformers-float32", "llama.cpp-F16", "llama.cpp-Q4_1"]
    decode, total, first, prefill = columns([1], 130, 512)
    for mine, column, peer, number in (
        ("bf16", decode, "llama.cpp-F16", 40.0),
        ("int8", decode, "llama.cpp-Q4_1", 75.0),
        ("bf16", first, "llama.cpp-Q4_1", 100.0),
        ("bf16", prefill, "llama.cpp-Q4_1", 5120.0),
    ):
        found = best_peer(mine, names, column, results)
        assert found is not None
        assert found[0] == peer
        assert found[1] == pytest.approx(number)
    table = ratio_table(names, [decode, first], results).splitlines()
    assert table[2] == "| decode, c=1 | 1.50 (llama.cpp F16 40.0) | 1.20 (llama.cpp Q4_1 75.0) |"
    assert table[3].startswith(f"| {first.title} | 0.50 (llama.cpp Q4_1 100)")
    assert total.title == "with prompts, c=1"


def test_texts_have_their_beginning_in_common() -> None:
    assert common_prefix("The capital", "The captain") == len("The cap")
    assert common_prefix("same", "same") == 4
    assert common_prefix("", "x") == 0


def test_interleaved_rows_are_what_a_gguf_reader_takes_apart_again() -> None:
    num_heads, head_dim, columns_ = 3, 8, 5
    weight = np.arange(num_heads * head_dim * columns_, dtype=np.float32).reshape(-1, columns_)
    stored = interleave(weight, num_heads)
    back = stored.reshape(num_heads, head_dim // 2, 2, columns_).swapaxes(1, 2).reshape(weight.shape)
    assert np.array_equal(back, weight)
    # A rotary pair is half a head apart in one order and side by side in the other.
    assert np.array_equal(stored[0], weight[0])
    assert np.array_equal(stored[1], weight[head_dim // 2])


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
