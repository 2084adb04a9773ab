"""Scheduler, run against a model of the shards that refuses a wrong plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.router.scheduling.rig import ECHO, NEXT, VOCAB, Rig, expected, prompt
from tests.support.shard_model import reference_tokens, scripted_logprob
from text_generation_router.scheduling.request import FinishReason, Request
from text_generation_router.scheduling.scheduler import SchedulerConfig
from text_generation_router.scheduling.sequence import Sequence, State


def test_one_sequence_gets_its_tokens_and_ends_by_length() -> None:
    rig = Rig()
    request = Request(prompt(5), max_new_tokens=7)
    sequence = rig.submit(request)
    rig.run()
    assert rig.output(sequence) == expected(request)[0]
    reasons = [event.finish_reason for event in rig.events[id(sequence)]]
    assert reasons == [None] * 6 + [FinishReason.LENGTH]
    assert rig.pool.counts().owned == 0


def test_end_token_on_the_last_allowed_place_counts_as_length() -> None:
    first = NEXT(prompt(3))
    rig = Rig()
    last = rig.submit(Request(prompt(3), max_new_tokens=1, eos_token_ids=frozenset({first})))
    early = rig.submit(Request(prompt(3), max_new_tokens=2, eos_token_ids=frozenset({first})))
    rig.run()
    assert [event.finish_reason for event in rig.events[id(last)]] == [FinishReason.LENGTH]
    assert [event.finish_reason for event in rig.events[id(early)]] == [FinishReason.EOS_TOKEN]


def test_two_steps_in_flight_cost_one_wasted_row_at_most() -> None:
    request = Request(prompt(3), max_new_tokens=50, eos_token_ids=frozenset({expected_token(4)}))
    rig = Rig(depth=2)
    sequence = rig.submit(request)
    rig.run()
    rows = sum(len(plan.rows) for plan in rig.plans)
    assert rows <= len(rig.output(sequence)) + 1


def expected_token(position: int) -> int:
    return reference_tokens(prompt(3), position + 1, NEXT)[position]


def test_long_prompt_is_computed_in_chunks_beside_decoding_rows() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=8, max_sequences=4))
    short = rig.submit(Request(prompt(2), max_new_tokens=20))
    rig.tick()
    long = rig.submit(Request(prompt(40, first=9), max_new_tokens=2))
    rig.run()
    chunked = [plan for plan in rig.plans if any(num_tokens == 7 for _, num_tokens in plan.rows)]
    assert len(chunked) >= 5
    assert all(len(plan.rows) == 2 for plan in chunked), "the short one decodes in every step"
    assert rig.output(short) == expected(short.request)[0]
    assert rig.output(long) == expected(long.request)[0]


def test_full_house_of_decoding_rows_does_not_starve_a_prompt() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=8, max_sequences=12))
    for index in range(10):
        rig.submit(Request(prompt(2, first=index), max_new_tokens=30))
    for _ in range(6):
        rig.tick()
    late = rig.submit(Request(prompt(12, first=20), max_new_tokens=1))
    before = len(rig.plans)
    while not rig.output(late):
        rig.tick()
    assert len(rig.plans) - before <= 8
    assert all(plan.num_tokens <= 8 + 12 for plan in rig.plans)


def test_second_identical_prompt_computes_only_its_last_block() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=64, max_sequences=4))
    request = Request(prompt(18), max_new_tokens=3)
    first = rig.submit(request)
    rig.run()
    second = rig.submit(request)
    before = len(rig.plans)
    rig.run()
    assert rig.plans[before].admit[0].num_computed_tokens == 16
    assert rig.output(first) == rig.output(second)
    assert rig.scheduler.stats().prefix_hit_tokens == 16


def test_prompt_of_whole_blocks_still_computes_one_token() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=64, max_sequences=4))
    request = Request(prompt(16), max_new_tokens=3)
    rig.submit(request)
    rig.run()
    again = rig.submit(request)
    rig.run()
    assert rig.plans[-3].admit[0].num_computed_tokens == 12
    assert rig.output(again) == expected(request)[0]


def test_prefix_is_shared_while_its_first_owner_still_runs() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=64, max_sequences=4))
    first = rig.submit(Request(prompt(16), max_new_tokens=20))
    rig.tick()
    second = rig.submit(Request((*prompt(16), 3, 4), max_new_tokens=5))
    rig.run()
    assert rig.scheduler.stats().prefix_hit_tokens == 16
    assert rig.output(first) == expected(first.request)[0]
    assert rig.output(second) == expected(second.request)[0]


def test_answers_are_cached_too() -> None:
    """A conversation's next turn starts with the last answer."""
    rig = Rig(config=SchedulerConfig(max_step_tokens=64, max_sequences=4))
    first = rig.submit(Request(prompt(8), max_new_tokens=13))
    rig.run()
    turn = (*prompt(8), *rig.output(first), 1, 2)
    rig.submit(Request(turn, max_new_tokens=1))
    rig.run()
    assert rig.scheduler.stats().prefix_hit_tokens == 20


def test_prompt_logprobs_recompute_the_prompt_and_come_with_the_first_token() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=6, max_sequences=4))
    plain = Request(prompt(17), max_new_tokens=2)
    rig.submit(plain)
    rig.run()
    asking = rig.submit(Request(prompt(17), max_new_tokens=2, prompt_logprobs=True))
    rig.run()
    assert rig.scheduler.stats().prefix_hit_tokens == 0
    events = rig.events[id(asking)]
    assert events[0].prompt_logprobs == tuple(scripted_logprob(token_id) for token_id in prompt(17)[1:])
    assert events[1].prompt_logprobs is None


def test_small_cache_preempts_the_newest_and_everyone_finishes() -> None:
    """G35: eight requests in a cache for about two, each with the ids it gets alone."""
    rig = Rig(num_blocks=10, config=SchedulerConfig(max_step_tokens=16, max_sequences=8))
    sequences = [rig.submit(Request(prompt(7, first=index), max_new_tokens=25)) for index in range(8)]
    rig.run()
    assert rig.scheduler.stats().preemptions > 0
    for sequence in sequences:
        assert rig.output(sequence) == expected(sequence.request)[0]
    assert rig.pool.counts().owned == 0


def test_oldest_sequence_is_never_preempted() -> None:
    rig = Rig(num_blocks=8, config=SchedulerConfig(max_step_tokens=16, max_sequences=8))
    oldest = rig.submit(Request(prompt(6), max_new_tokens=20))
    for index in range(5):
        rig.submit(Request(prompt(6, first=index + 10), max_new_tokens=20))
    rig.run()
    admitted = [a.table_index for plan in rig.plans for a in plan.admit if a.token_ids[:6] == prompt(6)]
    assert len(admitted) == 1
    assert rig.output(oldest) == expected(oldest.request)[0]


def test_long_answers_do_not_hold_back_short_ones() -> None:
    """G31: nothing is reserved for tokens that may never come."""
    rig = Rig(num_blocks=64, config=SchedulerConfig(max_step_tokens=64, max_sequences=32))
    long = [rig.submit(Request(prompt(4, first=index), max_new_tokens=200)) for index in range(4)]
    rig.tick()
    short = [rig.submit(Request(prompt(4, first=index + 10), max_new_tokens=5)) for index in range(20)]
    for _ in range(12):
        rig.tick()
    assert all(len(rig.output(sequence)) == 5 for sequence in short)
    rig.run()
    assert all(len(rig.output(sequence)) == 200 for sequence in long)


def test_aborting_gives_everything_back_in_every_state() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=8, max_sequences=2))
    running = rig.submit(Request(prompt(4), max_new_tokens=100))
    chunking = rig.submit(Request(prompt(40), max_new_tokens=5))
    waiting = rig.submit(Request(prompt(3), max_new_tokens=5))
    rig.tick()
    for sequence in (running, chunking, waiting):
        rig.scheduler.abort(sequence)
        rig.scheduler.abort(sequence)
    rig.run()
    assert rig.pool.counts().owned == 0
    stats = rig.scheduler.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    survivor = rig.submit(Request(prompt(5), max_new_tokens=3))
    rig.run()
    assert rig.output(survivor) == expected(survivor.request)[0]


def test_one_table_row_serves_one_sequence_after_the_other() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=8, max_sequences=1))
    sequences = [rig.submit(Request(prompt(3, first=index), max_new_tokens=4)) for index in range(3)]
    rig.run()
    for sequence in sequences:
        assert rig.output(sequence) == expected(sequence.request)[0]


def test_prompts_and_decode_rows_are_kept_apart_when_steps_may_not_be_mixed() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=8, max_sequences=4, mixed_steps=False))
    sequences = [rig.submit(Request(prompt(3, first=index), max_new_tokens=6)) for index in range(2)]
    rig.tick()
    sequences += [rig.submit(Request(prompt(30, first=index), max_new_tokens=6)) for index in range(2)]
    rig.run()
    for plan in rig.plans:
        admitted = {admission.table_index for admission in plan.admit}
        kinds = {num_tokens > 1 or table_index in admitted for table_index, num_tokens in plan.rows}
        assert len(kinds) == 1
    for sequence in sequences:
        assert rig.output(sequence) == expected(sequence.request)[0]


@pytest.mark.parametrize("preempted", [False, True])
def test_a_faulty_sequence_ends_and_its_prefix_is_not_found_again(preempted: bool) -> None:
    """Its step may be answered when it has yielded already: its place in the tables is then another's, or nobody's."""
    rig = Rig(num_blocks=14 if preempted else 64, config=SchedulerConfig(max_step_tokens=64, max_sequences=4))
    first = rig.submit(Request(prompt(20), max_new_tokens=34))
    faulty = rig.submit(Request(prompt(18, first=30), max_new_tokens=20))
    rig.tick()
    table_index = faulty.table_index
    while preempted and faulty.state is State.RUNNING:
        if len(rig.sent) == 2:
            rig.answer()
        rig.send()
    assert any(row[0] == table_index for row in rig.sent[0].rows)
    received = rig.output(faulty)
    result = rig.shard.run(rig.sent.popleft())
    result = replace(result, faults={table_index: "NaN"})
    assert rig.scheduler.end_faulty(result) == [(faulty, "NaN")]
    events = rig.scheduler.complete(result)
    assert [sequence for sequence, _ in events] == [first]
    rig.events[id(first)] += [event for _, event in events]
    rig.run()
    assert rig.output(faulty) == received
    assert rig.output(first) == expected(first.request)[0]
    assert rig.scheduler.stats().logits_faults == 1
    hits = rig.scheduler.stats().prefix_hit_tokens
    again = rig.submit(Request(prompt(18, first=30), max_new_tokens=2))
    rig.run()
    assert rig.output(again) == expected(again.request)[0]
    assert rig.scheduler.stats().prefix_hit_tokens == hits


def mask_of(*token_ids: int) -> bytes:
    bits = sum(1 << token_id for token_id in token_ids)
    return bits.to_bytes(-(-VOCAB // 32) * 4, "little")


def test_constrained_sequence_waits_for_its_mask_while_others_keep_two_steps_in_flight() -> None:
    rig = Rig(config=SchedulerConfig(max_step_tokens=64, max_sequences=4))
    free = rig.submit(Request(prompt(3), max_new_tokens=12))
    constrained = rig.scheduler.submit(Request(prompt(4, first=7), max_new_tokens=3), mask_of(5))
    rig.events[id(constrained)] = []
    for expected_count, token_id in ((1, 8), (2, 9)):
        while len(rig.output(constrained)) < expected_count:
            rig.tick()
        before = len(rig.output(free))
        for _ in range(3):
            rig.tick()
        assert len(rig.output(free)) == before + 3
        assert len(rig.output(constrained)) == expected_count
        rig.scheduler.set_mask(constrained, mask_of(token_id))
    rig.run()
    assert rig.output(constrained) == [5, 8, 9]
    assert rig.output(free) == expected(free.request)[0]


def test_preempted_constrained_sequence_comes_back_with_its_mask() -> None:
    rig = Rig(num_blocks=8, config=SchedulerConfig(max_step_tokens=16, max_sequences=8, prefix_caching=False))
    oldest = rig.submit(Request(prompt(6), max_new_tokens=22))
    rig.tick()
    constrained = rig.scheduler.submit(Request(prompt(12, first=7), max_new_tokens=8), mask_of(3))
    rig.events[id(constrained)] = []
    for _ in range(200):
        rig.tick()
        if constrained.mask is None and constrained.num_pending_tokens == 0:
            rig.scheduler.set_mask(constrained, mask_of(len(rig.output(constrained)) + 3))
    assert rig.scheduler.stats().preemptions > 0
    assert rig.output(constrained) == list(range(3, 11))
    assert rig.output(oldest) == expected(oldest.request)[0]


requests = st.builds(
    Request,
    token_ids=st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=30).map(tuple),
        st.integers(1, 30).map(prompt),
    ),
    max_new_tokens=st.integers(1, 20),
    eos_token_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
    prompt_logprobs=st.booleans(),
    top_n_tokens=st.integers(0, 2),
)
actions = st.lists(st.one_of(requests, st.just("tick"), st.integers(0, 20)), max_size=40)


def test_right_guesses_save_steps_and_change_no_token() -> None:
    config = SchedulerConfig(max_step_tokens=64, max_sequences=8, max_guesses=4, max_guessing_tokens=8)
    rig = Rig(config=config, next_token=ECHO)
    sequence = rig.submit(Request(token_ids=prompt(12), max_new_tokens=60))
    rig.run()
    assert rig.output(sequence) == expected(sequence.request, ECHO)[0]
    assert len(rig.plans) < 50
    stats = rig.scheduler.stats()
    assert 60 - len(rig.plans) <= stats.guessed_right_tokens < stats.guessed_tokens
    assert rig.pool.counts().owned == 0


def test_a_sequence_with_guesses_is_in_one_step_at_a_time_and_others_keep_two() -> None:
    rules = {1: ECHO, 2: NEXT}  # by the first token of the prompt
    config = SchedulerConfig(max_step_tokens=64, max_sequences=8, max_guesses=4, max_guessing_tokens=8)
    rig = Rig(config=config, next_token=lambda prefix: rules[prefix[0]](prefix))
    guessing = rig.submit(Request(token_ids=prompt(12), max_new_tokens=40))
    other = rig.submit(Request(token_ids=prompt(12, first=2), max_new_tokens=40))
    rig.run()
    with_guesses = [index for index, plan in enumerate(rig.plans) if plan.guesses]
    assert with_guesses
    for index in with_guesses:
        (place, _), *more = rig.plans[index].guesses
        table_index = rig.plans[index].rows[place][0]
        assert not more
        assert table_index not in dict(rig.plans[index + 1].rows)
        assert table_index not in dict(rig.plans[index - 1].rows)
    assert sum(len(plan.rows) == 1 for plan in rig.plans) > len(with_guesses) / 2
    for sequence in (guessing, other):
        assert rig.output(sequence) == expected(sequence.request, rig.next_token)[0]


@pytest.mark.parametrize("num_sequences", [1, 4, 6])
def test_no_guesses_where_many_sequences_decode(num_sequences: int) -> None:
    config = SchedulerConfig(max_step_tokens=128, max_sequences=8, max_guesses=4, max_guessing_tokens=6)
    rig = Rig(config=config, next_token=ECHO)
    for first in range(num_sequences):
        rig.submit(Request(token_ids=prompt(12, first), max_new_tokens=20))
    rig.run()
    with_guesses = [plan for plan in rig.plans if plan.guesses]
    assert all(plan.num_tokens <= 6 for plan in with_guesses)
    assert bool(with_guesses) == (num_sequences < 6)


def test_guesses_take_no_block_that_somebody_would_have_to_yield_for() -> None:
    config = SchedulerConfig(max_step_tokens=64, max_sequences=8, max_guesses=8, max_guessing_tokens=8, low_water=0.0)
    rig = Rig(num_blocks=18, config=config, next_token=ECHO)
    sequences = [rig.submit(Request(token_ids=prompt(12, first), max_new_tokens=24)) for first in (1, 2)]
    rig.run()
    assert rig.scheduler.stats().preemptions == 0
    assert rig.scheduler.stats().guessed_right_tokens > 0
    for sequence in sequences:
        assert rig.output(sequence) == expected(sequence.request, ECHO)[0]


@settings(max_examples=200, deadline=None)
@given(
    actions=actions,
    depth=st.integers(1, 3),
    num_blocks=st.integers(13, 40),
    max_step_tokens=st.integers(1, 24),
    max_sequences=st.integers(1, 6),
    mixed_steps=st.booleans(),
    prefix_caching=st.booleans(),
    max_guesses=st.sampled_from((0, 1, 4)),
)
def test_any_schedule_gives_each_sequence_the_tokens_it_gets_alone(
    *,
    actions: list[Request | str | int],
    depth: int,
    num_blocks: int,
    max_step_tokens: int,
    max_sequences: int,
    mixed_steps: bool,
    prefix_caching: bool,
    max_guesses: int,
) -> None:
    """Requests come, run, are cut off and are preempted in any order; an int aborts that sequence."""
    config = SchedulerConfig(
        max_step_tokens, max_sequences, mixed_steps, prefix_caching, max_guesses=max_guesses, max_guessing_tokens=4
    )
    rig = Rig(num_blocks=num_blocks, depth=depth, config=config, next_token=ECHO if max_guesses else NEXT)
    sequences: list[Sequence] = []
    aborted: set[int] = set()
    for action in actions:
        if isinstance(action, Request):
            sequences.append(rig.submit(action))
        elif isinstance(action, int):
            if action < len(sequences):
                rig.scheduler.abort(sequences[action])
                aborted.add(action)
        else:
            rig.tick()
        counts = rig.pool.counts()
        assert counts.total == num_blocks
    rig.run()
    for index, sequence in enumerate(sequences):
        tokens, reason = expected(sequence.request, rig.next_token)
        events = rig.events[id(sequence)]
        if index in aborted:
            assert rig.output(sequence) == tokens[: len(events)]
            continue
        assert rig.output(sequence) == tokens
        assert [event.finish_reason for event in events] == [None] * (len(tokens) - 1) + [reason]
        if sequence.request.prompt_logprobs:
            wanted = tuple(scripted_logprob(token_id) for token_id in sequence.request.token_ids[1:])
            assert events[0].prompt_logprobs == wanted
    assert rig.pool.counts().owned == 0
    assert not rig.shard.rows or set(rig.shard.rows) <= set(range(max_sequences))
