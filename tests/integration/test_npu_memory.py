"""The limits that a server accepts hold: at the cap of a card's memory the largest request runs, again and again.

The emulated card has 4 GB, most of it held by another process, and nothing is held back: weights, tables, captured
graphs, the largest step and the cache are then all that there is, and what was not counted would show.
"""

from __future__ import annotations

import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.asking import ask, client_of, prompt_of
from tests.support.checkpoints import make_checkpoint
from tests.support.servers import START_TIMEOUT_S, Server, serving, start_launcher
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE

ROOT = Path(__file__).parents[2]
NUM_TIMES = 20
NUM_NEW_TOKENS = 4
MEMORY_MB = 4096
OPTIONS = (
    *("--device", "npu", "--max-batch-prefill-tokens", "256", "--max-concurrent-requests", "4"),
    *("--cuda-graphs", "1,2,4"),
    "--skip-selfcheck",  # which wants more memory than is left here
)
REFUSED = re.compile(
    r"Not enough memory to handle `max_total_tokens=1024`: .*; lower --max-total-tokens to (\d+) or less"
)
SUM = re.compile(
    r"Memory in GiB: 4\.00: weights ([\d.]+) \+ largest step ([\d.]+) \+ HCCL's buffers and what else is outside torch "
    r"([\d.]+) \+ held back 0\.00 \+ KV cache ([\d.]+) \((\d+) tokens\) of ([\d.]+) that it may take"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small, but for its keys and values: 8 KiB a token in float16, so that a block of tokens counts."""
    return make_checkpoint(
        tmp_path_factory.mktemp("model"),
        hidden_size=128,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=256,
        num_hidden_layers=2,
        max_position_embeddings=1024,
    )


def environment(chip: str, free_mb: int) -> dict[str, str]:
    return {
        EMULATOR_VARIABLE: chip,
        f"{EMULATOR_VARIABLE}_MEMORY_MB": str(MEMORY_MB),
        f"{EMULATOR_VARIABLE}_OTHERS_MB": str(MEMORY_MB - free_mb),
        "RESERVED_MEMORY_GB": "0",
        "PYTHONPATH": str(ROOT / "emulator"),
    }


def assert_refuses_to_start(server: Server) -> None:
    try:
        status = server.process.wait(START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it goes on:\n{server.log}")
    assert status != 0


def largest_safe_value(server: Server) -> int:
    """What the refusal of a start names."""
    assert_refuses_to_start(server)
    refused = REFUSED.search(server.log)
    assert refused is not None, server.log
    assert SUM.search(server.log) is not None, server.log
    assert "Traceback" not in server.log
    return int(refused[1])


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "free_mb"), [("Ascend910B4", 68), ("Ascend910PremiumA", 40)])
def test_the_largest_request_runs_at_the_cap_of_memory_and_one_token_more_is_refused(
    chip: str, free_mb: int, model: Path
) -> None:
    arguments = ("--model-id", str(model), *OPTIONS)
    environ = environment(chip, free_mb)
    with start_launcher(*arguments, "--max-total-tokens", "1024", environ=environ) as refused:
        largest = largest_safe_value(refused)
    assert 256 < largest < 1024
    draws = random.Random(0)
    with serving(*arguments, "--max-total-tokens", str(largest), environ=environ) as server:
        with client_of(server) as client, ThreadPoolExecutor(3) as pool:

            def ask_small(seed: int) -> None:
                sampling = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 1}
                prompt = prompt_of(draws.randrange(1, 150), seed)
                ask(client, prompt, max_new_tokens=draws.randrange(1, 8), **draws.choice([{}, sampling]))

            for time in range(NUM_TIMES):
                small = [pool.submit(ask_small, 10 * time + number) for number in range(draws.randrange(3))]
                prompt = prompt_of(largest - NUM_NEW_TOKENS, seed=time)
                answer = ask(client, prompt, max_new_tokens=NUM_NEW_TOKENS, ignore_eos_token=True)
                assert len(answer.ids) == NUM_NEW_TOKENS
                for future in small:
                    future.result()
            too_long = client.post(
                "/generate",
                json={
                    "inputs": prompt_of(largest + 1 - NUM_NEW_TOKENS),
                    "parameters": {"max_new_tokens": NUM_NEW_TOKENS},
                },
            )
        assert too_long.status_code == 422, too_long.text
        assert too_long.json()["error_type"] == "validation"
        assert str(largest) in too_long.json()["error"]
        log = server.log
    found = SUM.search(log)
    assert found is not None, log
    weights, step, outside, cache, cache_tokens, usable = found.groups()
    assert sum(map(float, (weights, step, outside, usable))) == pytest.approx(MEMORY_MB / 1024, abs=0.03)
    assert float(cache) == pytest.approx(float(usable), abs=0.011)  # nothing is left over
    assert int(cache_tokens) >= largest  # more, where steps of shorter sequences take less
    assert "Traceback" not in log
    assert "out of memory" not in log
    if chip == "Ascend910B4":
        assert "op by op" not in log  # graphs are captured, whose memory is part of the sum


@pytest.mark.slow
def test_a_step_that_does_not_fit_beside_the_weights_is_refused_with_one_that_does(model: Path) -> None:
    arguments = ("--model-id", str(model), *OPTIONS, "--max-total-tokens", "1024", "--cuda-graphs", "0")
    with start_launcher(*arguments, environ=environment("Ascend910PremiumA", 20)) as refused:
        assert_refuses_to_start(refused)
        log = refused.log
    told = re.search(
        r"Not enough memory for a step of 256 prompt tokens and 4 sequences beside the weights; "
        r"--max-batch-prefill-tokens (\d+) fits \(NPU out of memory",
        log,
    )
    assert told is not None, log
    assert 0 < int(told[1]) < 256
    assert "Traceback" not in log
