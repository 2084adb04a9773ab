"""Servers on emulated chips whose ops go wrong: they say so, compute in another way, and serve the model's own text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from tests.support.checkpoints import make_checkpoint
from tests.support.servers import START_TIMEOUT_S, Server, serving, start_launcher
from tests.support.witness import Witness
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE

ROOT = Path(__file__).parents[2]
PROMPTS = ("The quick brown fox", "One two three four five six seven. " * 6)
NUM_NEW_TOKENS = 8
NEAR_TIE = 0.02
LIMITS = ("--max-total-tokens", "256", "--max-batch-prefill-tokens", "64", "--max-concurrent-requests", "2")
EVERYTHING = "*=noise, mm=noise, bmm=noise"


@dataclass(frozen=True)
class Case:
    chip: str
    fault: str
    op: str  # that is wrong
    candidate: str
    used: str  # instead
    options: tuple[str, ...] = ()


CASES = (
    Case("Ascend910PremiumA", "npu_rms_norm=noise", "rms_norm", "npu_rms_norm", "composed"),
    Case(
        "Ascend310P3",
        "_npu_paged_attention=zeros",
        "attention_decode",
        "_npu_paged_attention",
        "npu_incre_flash_attention",
    ),
    Case(
        "Ascend910B4",
        "npu_fused_infer_attention_score=rows:16",
        "attention_prefill",
        "npu_fused_infer_attention_score TND",
        "npu_fused_infer_attention_score BSND",
    ),
    Case(
        "Ascend910_9391",
        "npu_apply_rotary_pos_emb=stale",
        "rotary",
        "npu_apply_rotary_pos_emb",
        "npu_rotary_mul",
        ("--num-shard", "2"),
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 128, which every fused op takes."""
    return make_checkpoint(
        tmp_path_factory.mktemp("model"),
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        intermediate_size=256,
        num_hidden_layers=3,
        dtype="float16",
    )


def on_chip(chip: str, cache: Path, faults: str = "") -> dict[str, str]:
    return {
        EMULATOR_VARIABLE: chip,
        f"{EMULATOR_VARIABLE}_FAULTS": faults,
        "PYTHONPATH": str(ROOT / "emulator"),
        "TEXT_GENERATION_CACHE": str(cache),
    }


def assert_text_is_the_models(server: Server, model: Path) -> None:
    tokenizer, witness = Tokenizer.from_file(str(model / "tokenizer.json")), Witness(model)
    for prompt in PROMPTS:
        answer = server.generate(prompt, max_new_tokens=NUM_NEW_TOKENS, details=True)
        ids = [token["id"] for token in answer["details"]["tokens"]]
        witness.assert_greedy(tokenizer.encode(prompt).ids, ids, NEAR_TIE)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.chip)
def test_a_wrong_op_is_said_and_replaced_and_the_text_is_right(case: Case, model: Path, tmp_path: Path) -> None:
    environ = on_chip(case.chip, tmp_path, case.fault)
    with serving("--model-id", str(model), "--device", "npu", *LIMITS, *case.options, environ=environ) as server:
        assert f"self-check: {case.op} by {case.candidate} is wrong on {case.chip}" in server.log
        found = httpx.get(f"{server.url}/info", timeout=10).json()["self_check"]
        (fallback,) = [each for each in found["fallbacks"] if each["op"] == case.op]
        assert fallback["candidate"] == case.candidate
        assert fallback["used"] == case.used
        assert fallback["reason"]
        assert found["num_ops"] == 12
        assert found["num_samples"] >= 30
        assert found["num_model_parts"] == 6
        assert 0 < found["worst_error"] < 0.02
        assert_text_is_the_models(server, model)


@pytest.mark.slow
def test_what_was_found_is_taken_over_by_the_next_start(model: Path, tmp_path: Path) -> None:
    case = CASES[2]
    environ = on_chip(case.chip, tmp_path, case.fault)
    command = ("--model-id", str(model), "--device", "npu", *LIMITS)
    with serving(*command, environ=environ) as server:
        assert "ops in" in server.log
        first = httpx.get(f"{server.url}/info", timeout=10).json()["self_check"]
    with serving(*command, environ=environ) as server:
        assert f"self-check of {case.chip}: taken from {first['checked_at']}" in server.log
        assert f"{case.op} by {case.candidate} is not used on {case.chip}" in server.log
        assert httpx.get(f"{server.url}/info", timeout=10).json()["self_check"] == first
        assert_text_is_the_models(server, model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "options", "said"),
    [
        (EVERYTHING, (), ("linear is wrong on Ascend910B4 in every way there is", "text-generation-server report")),
        ("npu_swiglu=raises", ("--kernels", "strict"), ("silu_and_mul by npu_swiglu is wrong", "--kernels strict")),
    ],
    ids=["nothing_left", "strict"],
)
def test_a_server_that_would_be_wrong_does_not_start(
    faults: str, options: tuple[str, ...], said: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    environ = on_chip("Ascend910B4", tmp_path, faults)
    with start_launcher("--model-id", str(model), "--device", "npu", *LIMITS, *options, environ=environ) as server:
        assert server.process.wait(START_TIMEOUT_S) != 0
        log = server.log
    for line in said:
        assert line in log
    assert "Traceback" not in log
    assert not list(tmp_path.rglob("*.json"))  # what failed is checked again


@pytest.mark.slow
def test_the_check_can_be_left_out_and_that_is_said(model: Path, tmp_path: Path) -> None:
    environ = on_chip("Ascend910B4", tmp_path)
    command = ("--model-id", str(model), "--device", "npu", "--skip-selfcheck", *LIMITS)
    with serving(*command, environ=environ) as server:
        assert "are not compared with the reference, as --skip-selfcheck says" in server.log
        assert httpx.get(f"{server.url}/info", timeout=10).json()["self_check"] is None
