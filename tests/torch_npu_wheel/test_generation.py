"""Whole servers on the real torch_npu: one chip of each family, one of them with captured graphs and one in shards.

As tests/integration/test_npu.py on the other host, with fewer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.support.asking import ask, client_of
from tests.support.checkpoints import make_checkpoint
from tests.support.servers import start_launcher, wait_healthy
from tests.support.witness import Witness
from tests.torch_npu_wheel.environment import on_wheel

NUM_NEW_TOKENS = 8
START_TIMEOUT_S = 240.0  # torch_npu is imported three times on the way, in four seconds each where nothing else runs
# In logits: nearer ones may change places by rounding to float16.
NEAR_TIE = 0.02
LIMITS = ("--max-total-tokens", "256", "--max-batch-prefill-tokens", "96", "--max-concurrent-requests", "4")
SENTENCE = "The quick brown fox jumps over the lazy dog. "


@dataclass(frozen=True)
class Case:
    """One server, and lines that its log must and must not have."""

    chip: str
    options: tuple[str, ...]
    said: str
    unsaid: str = "Traceback"


CASES = (
    Case("Ascend910PremiumA", ("--weight-layout", "nz"), "family A1, linear weights: NZ 17/17"),
    Case("Ascend310P3", ("--num-shard", "2"), "blocks of 128 in nz: using _npu_paged_attention by tokens"),
    Case("Ascend910B4", ("--cuda-graphs", "1,2"), "family A2, linear weights: ND 17/17", "run op by op"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("model") / "wide",
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        intermediate_size=512,
        num_hidden_layers=4,
        dtype="bfloat16",
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.chip)
def test_greedy_text_is_the_models_up_to_near_ties(case: Case, model: Path, wheel_python: Path) -> None:
    prompts = ("One two three", SENTENCE * 4)
    server_options = ("--model-id", str(model), "--device", "npu", "--dtype", "float16", *LIMITS, *case.options)
    with start_launcher(*server_options, environ=on_wheel(case.chip), python=wheel_python) as server:
        wait_healthy(server, START_TIMEOUT_S)
        with client_of(server) as client:
            answers = [ask(client, prompt, max_new_tokens=NUM_NEW_TOKENS) for prompt in prompts]
        log = server.log
    tokenizer, witness = Tokenizer.from_file(str(model / "tokenizer.json")), Witness(model)
    for prompt, answer in zip(prompts, answers, strict=True):
        witness.assert_greedy(tokenizer.encode(prompt).ids, answer.ids, NEAR_TIE)
    assert len(tokenizer.encode(prompts[1]).ids) > 96  # more than a step takes
    assert case.said in log
    assert case.unsaid not in log
    assert "Traceback" not in log
