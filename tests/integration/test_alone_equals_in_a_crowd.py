"""A row's numbers do not depend on its neighbours, nor on how the work was cut (architecture D14).

With the native kernels that is to the last bit, whether steps are captured or not and with one thread or two; with
torch's matrix products, whose rounding depends on the number of rows, to 1e-4.
Kept for good: random schedules of one greedy, one seeded and one penalized request among others that join and leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.implementations import library_or_skip
from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_router.scheduling.request import Request, SamplingParameters, TokenEvent
from text_generation_router.scheduling.sequence import Sequence
from text_generation_server.engine import Engine

PROMPT = tuple(4 + (7 * position + position * position) % 300 for position in range(37))
TOLERANCE = 1e-4  # of the plain torch ops

SUBJECTS = {
    "greedy": Request(PROMPT, 24, top_n_tokens=3),
    "seeded": Request(PROMPT, 24, sampling=SamplingParameters(do_sample=True, temperature=0.9, top_p=0.95, seed=42)),
    "penalized": Request(PROMPT, 24, sampling=SamplingParameters(repetition_penalty=1.3, frequency_penalty=0.5)),
    "watermarked": Request(
        PROMPT, 24, sampling=SamplingParameters(do_sample=True, top_k=40, typical_p=0.9, watermark=True, seed=2**64 - 1)
    ),
}


@dataclass(frozen=True)
class Kind:
    """How an engine computes, and how near a row then stays to itself."""

    native: bool
    num_threads: int
    capture_steps: bool
    tolerance: float

    def engine(self, folder: Path) -> Engine:
        if self.native:
            library = library_or_skip()
            device = CpuDevice(native=True)
            device.ops = NativeCpuOps(library, self.num_threads, library.instruction_sets[0], torch.bfloat16)
        else:
            device = CpuDevice(native=False)
        return load_engine(folder, device=device, capture_steps=self.capture_steps)


KINDS = {
    "captured": Kind(native=True, num_threads=2, capture_steps=True, tolerance=0),
    "op by op": Kind(native=True, num_threads=1, capture_steps=False, tolerance=0),
    "torch": Kind(native=False, num_threads=1, capture_steps=False, tolerance=TOLERANCE),
}


@dataclass(frozen=True)
class Subject:
    """An engine, and what each request gets there alone."""

    engine: Engine
    alone: dict[str, list[TokenEvent]]
    tolerance: float

    def assert_same(self, events: list[TokenEvent], name: str) -> None:
        assert_same(events, self.alone[name], self.tolerance)


def answers_alone(engine: Engine) -> dict[str, list[TokenEvent]]:
    return {name: InProcessReplica(engine, depth=1).answer(request) for name, request in SUBJECTS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama", seed=11)


@pytest.fixture(scope="module", params=list(KINDS.values()), ids=list(KINDS))
def subject(request: pytest.FixtureRequest, folder: Path) -> Subject:
    kind: Kind = request.param
    engine = kind.engine(folder)
    return Subject(engine, answers_alone(engine), kind.tolerance)


def test_captured_and_op_by_op_and_any_number_of_threads_are_the_same(folder: Path) -> None:
    captured, op_by_op = (answers_alone(KINDS[name].engine(folder)) for name in ("captured", "op by op"))
    for name, events in captured.items():
        assert_same(events, op_by_op[name], tolerance=0)


def assert_same(events: list[TokenEvent], expected: list[TokenEvent], tolerance: float) -> None:
    assert [event.token_id for event in events] == [event.token_id for event in expected]
    for event, other in zip(events, expected, strict=True):
        assert event.logprob == pytest.approx(other.logprob, rel=0, abs=tolerance)
        assert len(event.top_tokens) == len(other.top_tokens)
        for (token_id, logprob), (other_id, other_logprob) in zip(event.top_tokens, other.top_tokens, strict=True):
            assert token_id == other_id
            assert logprob == pytest.approx(other_logprob, rel=0, abs=tolerance)


def neighbour(index: int) -> Request:
    """One of many kinds: every length, greedy and sampled, sharing the subject's prefix or not."""
    length = 1 + (index * 13) % 60
    own = tuple(4 + (index * 31 + position * 17) % 300 for position in range(length))
    token_ids = PROMPT[: 16 * (index % 3)] + own
    sampling = SamplingParameters(
        do_sample=index % 2 == 0, temperature=0.5 + index % 3, top_k=(index % 4) * 10, seed=index,
        repetition_penalty=1.0 + 0.1 * (index % 3),
    )  # fmt: skip
    return Request(
        token_ids,
        1 + (index * 7) % 40,
        sampling=sampling,
        top_n_tokens=index % 3,
        prompt_logprobs=index % 5 == 0,
        eos_token_ids=frozenset({index % 320}),
    )


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("max_step_tokens", [16, 512])
def test_among_31_others_that_join_and_leave(subject: Subject, name: str, max_step_tokens: int) -> None:
    replica = InProcessReplica(subject.engine, max_step_tokens=max_step_tokens)
    for index in range(15):
        replica.submit(neighbour(index))
    for _ in range(3):
        replica.tick()
    sequence = replica.submit(SUBJECTS[name])
    for index in range(15, 31):
        replica.submit(neighbour(index))
        replica.tick()
    replica.run()
    subject.assert_same(replica.events[id(sequence)], name)


@pytest.mark.parametrize("name", SUBJECTS)
def test_after_a_prefix_cache_hit(subject: Subject, name: str) -> None:
    replica = InProcessReplica(subject.engine)
    replica.answer(Request(PROMPT, 3))
    events = replica.answer(SUBJECTS[name])
    assert replica.scheduler.stats().prefix_hit_tokens == 32
    subject.assert_same(events, name)


@pytest.mark.parametrize("name", SUBJECTS)
def test_after_a_preemption(subject: Subject, name: str) -> None:
    """Others are older, and the cache holds two sequences and a bit: the subject is the one that must yield."""
    replica = InProcessReplica(subject.engine, num_blocks=8, max_total_tokens=128, prefix_caching=False)
    other = replica.submit(Request(tuple(range(4, 44)), 60))
    replica.tick()
    sequence = replica.submit(SUBJECTS[name])
    replica.run()
    assert replica.scheduler.stats().preemptions >= 1
    assert len(replica.events[id(other)]) == 60
    subject.assert_same(replica.events[id(sequence)], name)


actions = st.lists(
    st.one_of(
        st.integers(0, 99),  # a neighbour joins
        st.just("tick"),
        st.just("cut"),  # the oldest neighbour hangs up
        st.sampled_from(sorted(SUBJECTS)),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=actions,
    depth=st.integers(1, 2),
    num_blocks=st.integers(9, 60),
    max_step_tokens=st.sampled_from([1, 5, 16, 33, 64, 512]),
    max_sequences=st.integers(2, 33),
    mixed_steps=st.booleans(),
    prefix_caching=st.booleans(),
)
def test_in_any_schedule(
    *,
    subject: Subject,
    actions: list[int | str],
    depth: int,
    num_blocks: int,
    max_step_tokens: int,
    max_sequences: int,
    mixed_steps: bool,
    prefix_caching: bool,
) -> None:
    replica = InProcessReplica(
        subject.engine,
        num_blocks=num_blocks,
        max_total_tokens=144,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        mixed_steps=mixed_steps,
        prefix_caching=prefix_caching,
        depth=depth,
    )
    subjects: list[tuple[str, Sequence]] = []
    neighbours: list[Sequence] = []
    for action in actions:
        if action == "tick":
            replica.tick()
        elif action == "cut":
            if neighbours:
                replica.scheduler.abort(neighbours.pop(0))
        elif isinstance(action, int):
            neighbours.append(replica.submit(neighbour(action)))
        else:
            subjects.append((action, replica.submit(SUBJECTS[action])))
    replica.run()
    for name, sequence in subjects:
        subject.assert_same(replica.events[id(sequence)], name)
    assert replica.pool.counts().owned == 0
