"""A sequence whose logits are no numbers ends with the reason; those in the same steps get the bits they get alone.

The model's embedding of one token is NaN, so whoever reads that token, given or made, is lost from there on.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from text_generation_router.scheduling.request import Request, SamplingParameters
from text_generation_router.scheduling.sequence import Sequence, State
from text_generation_server.engine import Engine

BROKEN = 300  # the token
# Greedy text never holds it, and with this bias holds nothing else.
AFTER_ALL = SamplingParameters(logit_bias=((BROKEN, 1e4),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint(tmp_path_factory.mktemp("broken"), "llama", seed=3)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][BROKEN] = math.nan
    weights["lm_head.weight"][BROKEN] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["captured", "op by op"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Engine:
    return load_engine(folder, capture_steps=request.param)


def prompt(length: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(4, 290, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def bits(replica: InProcessReplica, sequence: Sequence) -> list[tuple[int, float]]:
    return [(event.token_id, event.logprob) for event in replica.events[id(sequence)]]


GOOD = [
    Request(prompt(9, 1), 20),
    Request(prompt(40, 2), 20, sampling=SamplingParameters(do_sample=True, seed=5, top_p=0.9)),
    Request(prompt(17, 3), 20, top_n_tokens=2),
]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_guesses", [0, 3])
def test_the_broken_one_ends_and_its_neighbours_keep_their_bits(engine: Engine, depth: int, max_guesses: int) -> None:
    alone = [InProcessReplica(engine).answer(request) for request in GOOD]
    replica = InProcessReplica(engine, depth=depth, max_guesses=max_guesses, max_step_tokens=64)
    broken_at_once = replica.submit(Request((*prompt(12, 4), BROKEN, *prompt(20, 5)), 30))
    good = [replica.submit(request) for request in GOOD]
    broken_later = replica.submit(Request(prompt(14, 6), 30, sampling=AFTER_ALL))
    replica.run()
    for sequence, events in zip(good, alone, strict=True):
        assert bits(replica, sequence) == [(event.token_id, event.logprob) for event in events]
        assert id(sequence) not in replica.faults
    assert replica.events[id(broken_at_once)] == []
    assert [event.token_id for event in replica.events[id(broken_later)]] == [BROKEN]
    for sequence in (broken_at_once, broken_later):
        assert sequence.state is State.FINISHED
        message = replica.faults[id(sequence)]
        assert message.startswith("the model gave NaN in 320 of 320 logits, by which no token can be chosen (step ")
        assert f", {engine.device.name}); run `text-generation-server selfcheck`" in message
        assert "`text-generation-server report`" in message
    assert replica.scheduler.stats().logits_faults == 2
    assert replica.pool.counts().owned == 0


def test_blocks_of_a_broken_sequence_are_neither_found_again_nor_harm_those_who_get_them(engine: Engine) -> None:
    """NaN that is left in a block, behind the tokens of its next owner, reaches nothing."""
    clean = Request(prompt(40, 2), 20)
    alone = InProcessReplica(engine).answer(clean)
    replica = InProcessReplica(engine, num_blocks=8, max_total_tokens=112)
    broken = replica.submit(Request((*prompt(60, 4), *[BROKEN] * 50), 2))
    replica.run()
    assert id(broken) in replica.faults
    assert replica.pool.counts().free == 8
    for seed in range(3):
        replica.answer(Request(prompt(50, 10 + seed), 3))
    again = replica.submit(clean)
    replica.run()
    assert bits(replica, again) == [(event.token_id, event.logprob) for event in alone]
    assert len(replica.faults) == 1


def test_a_grammar_beside_it_goes_on_and_under_a_grammar_it_ends_too(engine: Engine) -> None:
    replica = InProcessReplica(engine)
    allowed = (1 << 7 | 1 << 8).to_bytes(40, "little")
    sequences = [
        replica.scheduler.submit(Request(ids, 1), allowed) for ids in (prompt(10, 1), (*prompt(10, 1), BROKEN, 5))
    ]
    replica.events.update({id(sequence): [] for sequence in sequences})
    replica.run()
    good, broken = sequences
    assert bits(replica, good)[0][0] in (7, 8)
    assert replica.events[id(broken)] == []
    assert list(replica.faults) == [id(broken)]


def test_no_log_probability_of_a_prompt_is_nan(engine: Engine) -> None:
    """It ends when its prompt has been scored up to the broken token, before anything is sampled."""
    replica = InProcessReplica(engine, max_step_tokens=16)
    asking = replica.submit(Request((*prompt(20, 1), BROKEN, *prompt(40, 2)), 2, prompt_logprobs=True))
    replica.run()
    assert replica.faults[id(asking)].startswith("the model gave logits that are no numbers behind its prompt's tokens")
    assert replica.events[id(asking)] == []
