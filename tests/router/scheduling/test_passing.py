"""Who passes whom in the queue, who yields, and by when everyone has ended."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.router.scheduling.rig import VOCAB, Rig, expected, prompt
from text_generation_router.scheduling.request import Request
from text_generation_router.scheduling.scheduler import SchedulerConfig
from text_generation_router.scheduling.sequence import Sequence, State


def first_step_of(rig: Rig, sequence: Sequence) -> int:
    """The step that first admitted it; prompts of a test begin differently."""
    prompt_ids = sequence.request.token_ids
    return next(
        plan.step_id
        for plan in rig.plans
        for admission in plan.admit
        if admission.token_ids[: len(prompt_ids)] == prompt_ids
    )


def test_short_ones_pass_a_prompt_that_does_not_fit_yet() -> None:
    rig = Rig(num_blocks=16, config=SchedulerConfig(max_step_tokens=64, max_sequences=8))
    running = rig.submit(Request(prompt(20), max_new_tokens=12))
    rig.tick()
    large = rig.submit(Request(prompt(44, first=7), max_new_tokens=4))
    short = [rig.submit(Request(prompt(3, first=30 + index), max_new_tokens=2)) for index in range(3)]
    rig.run()
    assert max(first_step_of(rig, sequence) for sequence in short) == first_step_of(rig, running) + 2
    assert first_step_of(rig, large) > first_step_of(rig, running) + 10
    assert rig.scheduler.stats().preemptions == 0
    for sequence in (running, large, *short):
        assert rig.output(sequence) == expected(sequence.request)[0]


def test_short_ones_pass_a_preempted_one() -> None:
    """G31: four that ask for twice the cache have filled it when the short ones come."""
    rig = Rig(num_blocks=64, config=SchedulerConfig(max_step_tokens=64, max_sequences=32))
    long = [rig.submit(Request(prompt(4, first=index), max_new_tokens=124)) for index in range(4)]
    while not rig.scheduler.stats().preemptions:
        rig.tick()
    assert not any(sequence.state is State.FINISHED for sequence in long)
    short = [rig.submit(Request(prompt(4, first=index + 10), max_new_tokens=5)) for index in range(20)]
    while any(sequence.state is not State.FINISHED for sequence in short):
        rig.tick()
        assert not any(sequence.state is State.FINISHED for sequence in long)
    rig.run()
    for sequence in (*long, *short):
        assert rig.output(sequence) == expected(sequence.request)[0]


def test_those_who_passed_yield_as_soon_as_the_first_fits_without_them() -> None:
    """Endless short ones keep the cache full; the large one starts with the step after the older one's last."""
    rig = Rig(num_blocks=32, config=SchedulerConfig(max_step_tokens=64, max_sequences=32, prefix_caching=False))
    older = rig.submit(Request(prompt(20), max_new_tokens=30))
    rig.tick()
    large = rig.submit(Request(prompt(112, first=7), max_new_tokens=4))
    num_short = num_plans = 0
    while not rig.output(large):
        for _ in range(3):
            num_short += 1
            rig.submit(Request(prompt(3, first=num_short), max_new_tokens=8))
        if older.state is not State.FINISHED:
            num_plans = len(rig.plans)
        rig.tick()
    assert num_plans > 25
    assert first_step_of(rig, large) <= num_plans + 1
    assert rig.output(older) == expected(older.request)[0]


def test_table_rows_are_yielded_like_blocks() -> None:
    rig = Rig(num_blocks=32, config=SchedulerConfig(max_step_tokens=64, max_sequences=2))
    first = rig.submit(Request(prompt(80), max_new_tokens=6))
    rig.tick()
    large = rig.submit(Request(prompt(70, first=7), max_new_tokens=4))
    passing = rig.submit(Request(prompt(3, first=20), max_new_tokens=9))
    rig.submit(Request(prompt(3, first=30), max_new_tokens=40))
    rig.run()
    assert first_step_of(rig, passing) < first_step_of(rig, large)
    assert first_step_of(rig, large) <= first_step_of(rig, first) + 8
    assert rig.output(passing) == expected(passing.request)[0]


def test_what_would_have_to_yield_before_its_end_does_not_pass() -> None:
    """Else what a preempted sequence gave back would be filled with work that is lost a few steps later."""
    rig = Rig(num_blocks=16, config=SchedulerConfig(max_step_tokens=64, max_sequences=8))
    rig.submit(Request(prompt(20), max_new_tokens=12))
    rig.tick()
    large = rig.submit(Request(prompt(44, first=7), max_new_tokens=4))
    talkative = rig.submit(Request(prompt(3, first=30), max_new_tokens=40))
    rig.run()
    assert first_step_of(rig, large) <= first_step_of(rig, talkative)
    assert rig.scheduler.stats().preemptions == 0


def test_a_preempted_one_comes_back_before_those_that_came_later() -> None:
    rig = Rig(num_blocks=16, config=SchedulerConfig(max_step_tokens=64, max_sequences=8))
    sequences = [rig.submit(Request(prompt(8, first=10 * index), max_new_tokens=30)) for index in range(4)]
    finished: list[Sequence] = []
    while rig.tick():
        finished += [one for one in sequences if one.state is State.FINISHED and one not in finished]
    assert rig.scheduler.stats().preemptions > 0
    assert finished == sequences


# Tokens of prompt and answer.
small = st.tuples(st.integers(1, 8), st.integers(1, 12))
sizes = st.one_of(small, st.tuples(st.integers(20, 60), st.integers(1, 8)))


@settings(max_examples=150, deadline=None)
@given(
    arrivals=st.lists(st.tuples(sizes, st.integers(0, 3)), min_size=1, max_size=25),
    endless=small,
    depth=st.integers(1, 3),
    num_blocks=st.integers(17, 21),
    max_step_tokens=st.integers(1, 32),
    max_sequences=st.integers(1, 6),
    mixed_steps=st.booleans(),
    prefix_caching=st.booleans(),
)
def test_everyone_ends_within_a_bound_that_those_who_come_later_do_not_move(
    *,
    arrivals: list[tuple[tuple[int, int], int]],
    endless: tuple[int, int],
    depth: int,
    num_blocks: int,
    max_step_tokens: int,
    max_sequences: int,
    mixed_steps: bool,
    prefix_caching: bool,
) -> None:
    """Requests come some steps apart, and then three with each step for as long as any of them runs.

    The oldest of all waits for prompts that are being computed, which the cache holds, then for its own chunks and
    tokens; a step gives prompts at least a quarter of the budget. Then the next one is the oldest.
    """
    config = SchedulerConfig(max_step_tokens, max_sequences, mixed_steps, prefix_caching)
    rig = Rig(num_blocks=num_blocks, depth=depth, config=config)
    sequences: list[Sequence] = []
    ended_by: dict[int, int] = {}  # by place in `sequences`, the number of steps answered
    came_at: list[int] = []
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        rig.tick()
        num_steps += 1
        running = [sequence for sequence in sequences if sequence.state is State.RUNNING]
        assert rig.pool.counts().owned == len({block for sequence in running for block in sequence.block_ids})
        for place, sequence in enumerate(sequences):
            if sequence.state is State.FINISHED:
                ended_by.setdefault(place, num_steps)

    def submit(size: tuple[int, int]) -> None:
        place = len(sequences)
        came_at.append(num_steps)
        # Each begins with a token of its own, as far as there are so many.
        sequences.append(rig.submit(Request(prompt(size[0], first=place % VOCAB), max_new_tokens=size[1])))

    for size, steps_before in arrivals:
        for _ in range(steps_before):
            step()
        submit(size)
    num_watched = len(sequences)
    chunk = max(max_step_tokens // 4, 1)
    bound = 0
    for place in range(num_watched):
        request = sequences[place].request
        num_tokens = len(request.token_ids) + request.max_new_tokens
        own = 2 * (num_blocks * rig.block_size // chunk + num_tokens // chunk + request.max_new_tokens + depth + 2)
        bound = max(bound, came_at[place]) + own
        while place not in ended_by:
            for _ in range(3):
                submit(endless)
            step()
            assert num_steps <= bound, f"sequence {place} of {num_watched} has not ended"
        assert rig.output(sequences[place]) == expected(request)[0]
    for sequence in sequences[num_watched:]:
        rig.scheduler.abort(sequence)
    rig.run()
    assert rig.pool.counts().owned == 0


@settings(max_examples=100, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(((3, 2), (12, 6), (44, 8), (60, 4))), min_size=2, max_size=30),
    steps_between=st.integers(0, 2),
    depth=st.integers(1, 2),
    num_blocks=st.integers(18, 40),
    max_sequences=st.integers(1, 6),
    mixed_steps=st.booleans(),
)
def test_equals_start_in_the_order_in_which_they_came(
    *,
    kinds: list[tuple[int, int]],
    steps_between: int,
    depth: int,
    num_blocks: int,
    max_sequences: int,
    mixed_steps: bool,
) -> None:
    config = SchedulerConfig(max_step_tokens=24, max_sequences=max_sequences, mixed_steps=mixed_steps)
    rig = Rig(num_blocks=num_blocks, depth=depth, config=config)
    sequences: dict[tuple[int, int], list[Sequence]] = {}
    for place, kind in enumerate(kinds):
        request = Request((place, *prompt(kind[0] - 1)), max_new_tokens=kind[1])
        sequences.setdefault(kind, []).append(rig.submit(request))
        for _ in range(steps_between):
            rig.tick()
    rig.run()
    for equals in sequences.values():
        for earlier, later in pairwise(equals):
            assert first_step_of(rig, earlier) <= first_step_of(rig, later)
        for sequence in equals:
            assert rig.output(sequence) == expected(sequence.request)[0]


@pytest.mark.parametrize("num_waiting", [1, 200])
def test_a_full_queue_of_large_ones_is_looked_through_only_so_far(num_waiting: int) -> None:
    """A short one behind a few large ones passes them; behind hundreds it waits, and planning stays as quick."""
    rig = Rig(num_blocks=16, config=SchedulerConfig(max_step_tokens=64, max_sequences=8, prefix_caching=False))
    running = rig.submit(Request(prompt(20), max_new_tokens=20))
    rig.tick()
    for _ in range(num_waiting):
        rig.submit(Request(prompt(50, first=7), max_new_tokens=1))
    short = rig.submit(Request(prompt(3, first=30), max_new_tokens=2))
    while running.state is not State.FINISHED:
        rig.tick()
    assert (short.state is State.FINISHED) == (num_waiting == 1)
