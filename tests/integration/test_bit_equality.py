"""With the native kernels a request gets the same bits however it is computed: one way after the other, by name.

Every way is compared with one engine's answer to the request alone: one thread, op by op, the prompt in one piece. The
prompt crosses two of attention's cuts, and the model has weights in bfloat16, as checkpoints do, or in int8.
`test_alone_equals_in_a_crowd` goes through random schedules of shorter requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.kernels.implementations import library_or_skip
from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from text_generation_kernels.cpu.device import INT8_GROUP_SIZE, CpuDevice
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_router.scheduling.request import Request, SamplingParameters, TokenEvent
from text_generation_server.engine import Engine

VOCAB_SIZE = 600
PROMPT = tuple(4 + (7 * position + position * position) % 500 for position in range(270))

GREEDY = Request(PROMPT, 12, top_n_tokens=4)
SCORED = Request(PROMPT, 12, top_n_tokens=2, prompt_logprobs=True)
DRAWN = Request(
    PROMPT, 12, top_n_tokens=1,
    sampling=SamplingParameters(
        do_sample=True, temperature=1.3, top_k=200, top_p=0.95, typical_p=0.95, repetition_penalty=1.1, seed=5
    ),
)  # fmt: skip
REQUESTS = (GREEDY, SCORED, DRAWN)

Answer = tuple[tuple[int, float, tuple[tuple[int, float], ...], tuple[float, ...] | None], ...]


def bits(events: list[TokenEvent]) -> Answer:
    return tuple((event.token_id, event.logprob, event.top_tokens, event.prompt_logprobs) for event in events)


def engine(folder: Path, num_threads: int, capture_steps: bool, int8: bool) -> Engine:
    library = library_or_skip()
    device = CpuDevice(native=True)
    device.ops = NativeCpuOps(
        library, num_threads, library.instruction_sets[0], torch.bfloat16, INT8_GROUP_SIZE if int8 else None
    )
    return load_engine(folder, device=device, capture_steps=capture_steps)


def replica(
    engine: Engine, max_step_tokens: int = 512, *, num_blocks: int = 256, prefix_caching: bool = True
) -> InProcessReplica:
    return InProcessReplica(
        engine,
        num_blocks=num_blocks,
        max_total_tokens=320,
        max_step_tokens=max_step_tokens,
        prefix_caching=prefix_caching,
    )


def alone(engine: Engine, request: Request, max_step_tokens: int = 512) -> Answer:
    return bits(replica(engine, max_step_tokens).answer(request))


def among_31_others(engine: Engine, request: Request) -> Answer:
    crowd = replica(engine, num_blocks=500)
    sequence = None
    for index in range(32):
        if index == 16:
            sequence = crowd.submit(request)
        else:
            length = 3 + index * 29 % 140
            others = tuple(4 + (index * 31 + position * 17) % 500 for position in range(length))
            sampling = SamplingParameters(do_sample=index % 2 == 0, top_k=index, top_p=0.9, seed=index)
            crowd.submit(Request(others, 5 + index, top_n_tokens=index % 3, sampling=sampling))
        crowd.tick()
    crowd.run()
    return bits(crowd.events[id(sequence)])


def after_a_prefix_hit(engine: Engine, request: Request) -> Answer:
    second = replica(engine)
    second.answer(Request(PROMPT[:250], 3))
    answer = bits(second.answer(request))
    hits = second.scheduler.stats().prefix_hit_tokens
    assert hits == (0 if request.prompt_logprobs else 240)  # a scored prompt is computed again
    return answer


def after_a_preemption(engine: Engine, request: Request) -> Answer:
    """Another is older, and the cache cannot hold both to their ends: the request is the one that must yield."""
    crowded = replica(engine, num_blocks=34, prefix_caching=False)
    crowded.submit(Request(PROMPT[:250], 60))
    crowded.tick()
    sequence = crowded.submit(request)
    crowded.run()
    assert crowded.scheduler.stats().preemptions >= 1
    return bits(crowded.events[id(sequence)])


WAYS: dict[str, Callable[[Engine, Request], Answer]] = {
    "alone": alone,
    "in chunks of 1": lambda engine, request: alone(engine, request, 1),
    "in chunks of 16": lambda engine, request: alone(engine, request, 16),
    "in chunks of 100": lambda engine, request: alone(engine, request, 100),
    "in chunks of 512": lambda engine, request: alone(engine, request, 512),
    "among 31 others": among_31_others,
    "after a prefix hit": after_a_prefix_hit,
    "after a preemption": after_a_preemption,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("llama"), "llama", seed=3, dtype="bfloat16", num_hidden_layers=4, vocab_size=VOCAB_SIZE
    )


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def int8(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "int8")


@pytest.fixture(scope="module")
def expected(folder: Path, int8: bool) -> dict[Request, Answer]:
    plain = engine(folder, num_threads=1, capture_steps=False, int8=int8)
    return {request: alone(plain, request) for request in REQUESTS}


@pytest.fixture(scope="module", params=[(1, True), (2, True), (1, False), (2, False)], ids=str)
def tried(request: pytest.FixtureRequest, folder: Path, int8: bool) -> Engine:
    num_threads, capture_steps = request.param
    return engine(folder, num_threads, capture_steps, int8)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_gives_the_same_bits(
    tried: Engine, expected: dict[Request, Answer], way: Callable[[Engine, Request], Answer]
) -> None:
    for request in REQUESTS:
        assert way(tried, request) == expected[request]


def test_the_answers_are_worth_comparing(expected: dict[Request, Answer]) -> None:
    """Of many different tokens, with prompts that were scored, and not the same drawn as greedy."""
    greedy, scored, drawn = (expected[request] for request in REQUESTS)
    assert len({token_id for token_id, *_ in greedy}) >= 4
    assert [event[:2] for event in greedy] == [event[:2] for event in scored]
    assert scored[0][3] is not None
    assert len(set(scored[0][3])) > 200
    assert [token_id for token_id, *_ in drawn] != [token_id for token_id, *_ in greedy]
