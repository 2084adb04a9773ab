"""One shard and two give the same tokens, whatever the shapes, and shapes that cannot be split are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.integration.conftest import EXACT, serving_quietly
from tests.support.asking import ask, client_of, prompt_of
from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from tests.support.servers import Server, start_launcher
from tests.support.witness import TIE, Witness
from text_generation_router.scheduling.request import Request, SamplingParameters

PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "seed": 7},
    "penalized": {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "everything": {
        "do_sample": True,
        "top_k": 40,
        "typical_p": 0.9,
        "repetition_penalty": 1.1,
        "watermark": True,
        "seed": 2**64 - 1,
    },
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_two_shards_give_the_tokens_of_one(one_shard: Server, two_shards: Server, name: str) -> None:
    """Llama; ids, and logprobs to 1e-4."""
    prompt = prompt_of(50, seed=3)
    with client_of(one_shard) as one, client_of(two_shards) as two:
        expected = ask(one, prompt, max_new_tokens=24, **PARAMETERS[name])
        answer = ask(two, prompt, max_new_tokens=24, **PARAMETERS[name])
    assert answer.ids == expected.ids
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=TIE)


def test_a_vocabulary_of_259_is_split_over_two_shards(tmp_path: Path) -> None:
    """G27: Qwen2 with biases; greedy text is transformers', and all is what one rank gives without a server."""
    folder = make_checkpoint(tmp_path / "qwen2", "qwen2", seed=5, vocab_size=259)
    prompt = prompt_of(33, seed=27)
    prompt_ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(prompt).ids
    replica = InProcessReplica(load_engine(folder))
    arguments = ["--model-id", str(folder), *EXACT, "--num-shard", "2"]
    with serving_quietly(*arguments) as server, client_of(server) as client:
        for name, parameters in PARAMETERS.items():
            answer = ask(client, prompt, max_new_tokens=24, **parameters)
            events = replica.answer(
                Request(tuple(prompt_ids), 24, eos_token_ids=frozenset({2}), sampling=SamplingParameters(**parameters))
            )
            assert answer.ids == [event.token_id for event in events], name
            assert answer.logprobs == pytest.approx([event.logprob for event in events], abs=TIE)
            if name == "greedy":
                Witness(folder).assert_greedy(prompt_ids, answer.ids)


def test_five_heads_over_two_shards_are_refused(tmp_path: Path) -> None:
    """G27: one line with both numbers, and no process stays."""
    folder = make_checkpoint(tmp_path / "five", num_attention_heads=5, num_key_value_heads=5, hidden_size=80)
    with start_launcher("--model-id", str(folder), "--num-shard", "2") as server:
        assert server.process.wait(60) == 1
        assert "num_attention_heads=5" in server.log
        assert "num_shard=2" in server.log or "2 shards" in server.log
        assert "Traceback" not in server.log
