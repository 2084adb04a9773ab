"""Replica and shard client against a scripted shard, over true gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support.scripted_shard import ScriptedShard
from tests.support.shard_model import reference_tokens, scripted_logprob
from text_generation_proto import PROTOCOL_VERSION
from text_generation_router.replica import NoObserver, Replica, StepObserver, StepTiming
from text_generation_router.scheduling.request import (
    ConstraintFailed,
    GenerationFailed,
    LogitsFault,
    NotFinishedInTime,
    NotStartedInTime,
    Request,
    TokenEvent,
)
from text_generation_router.shard_client import ShardError, ShardGroup, WarmupLimits

LIMITS = WarmupLimits(max_batch_prefill_tokens=16, max_sequences=64, max_total_tokens=200, max_batch_total_tokens=0)


async def collect(replica: Replica, request: Request) -> list[TokenEvent]:
    return [event async for event in replica.submit(request)]


def run(
    test: Callable[[Replica], Awaitable[None]],
    shard: ScriptedShard,
    *,
    depth: int = 2,
    observer: StepObserver | None = None,
) -> None:
    """Start the shard, run the test with its replica, and close both, within half a minute."""

    async def bounded() -> None:
        await shard.start()
        replica = await Replica.start(await ShardGroup.connect(shard.socket_path), LIMITS, pipeline_depth=depth)
        replica.observer = observer or replica.observer
        try:
            await asyncio.wait_for(test(replica), 30)
        finally:
            await replica.close()
            await shard.stop()

    asyncio.run(bounded())


@pytest.mark.parametrize(("depth", "step_socket"), [(1, True), (2, True), (2, False)])
def test_sixty_requests_at_once_get_the_tokens_they_get_alone(tmp_path: Path, depth: int, step_socket: bool) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), num_blocks=40, block_size=4, step_socket=step_socket)
    prompts = [tuple(range(first, first + 1 + first % 30)) for first in range(60)]

    async def test(replica: Replica) -> None:
        answers = await asyncio.gather(*(collect(replica, Request(prompt, 1 + len(prompt))) for prompt in prompts))
        for prompt, events in zip(prompts, answers, strict=True):
            expected = reference_tokens(prompt, 1 + len(prompt), shard.next_token)
            assert [event.token_id for event in events] == expected
        counts = replica.stats().blocks
        assert counts.owned == 0
        assert counts.total == 40

    run(test, shard, depth=depth)


def test_top_tokens_and_prompt_logprobs_cross_the_wire(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"))
    request = Request((5, 6, 7), 2, top_n_tokens=3, prompt_logprobs=True)

    async def test(replica: Replica) -> None:
        plain, asking = await asyncio.gather(collect(replica, Request((1, 2), 2)), collect(replica, request))
        assert all(event.top_tokens == () for event in plain)
        assert all(len(event.top_tokens) == 3 for event in asking)
        assert asking[0].top_tokens[0][0] == asking[0].token_id
        expected = [scripted_logprob(6), scripted_logprob(7)]
        assert asking[0].prompt_logprobs == pytest.approx(expected, abs=1e-6)

    run(test, shard)


class Alternating:
    """A constraint by which tokens 40 and 41 take turns."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def mask(self) -> bytes:
        return (1 << 40 + len(self.accepted) % 2).to_bytes(32, "little")

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def test_constraint_rules_its_own_sequence_only(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), vocab_size=256)

    async def constrained(replica: Replica) -> list[int]:
        events = replica.submit(Request((1, 2, 3), 9), Alternating())
        return [event.token_id async for event in events]

    async def test(replica: Replica) -> None:
        first, free, second = await asyncio.gather(
            constrained(replica), collect(replica, Request((1, 2, 3), 9)), constrained(replica)
        )
        assert first == second == [40, 41, 40, 41, 40, 41, 40, 41, 40]
        assert [event.token_id for event in free] == reference_tokens((1, 2, 3), 9, shard.next_token)

    run(test, shard)


class Broken(Alternating):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def accept(self, token_id: int) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected", "level"),
    [
        (ConstraintFailed("it is too complex"), ConstraintFailed("it is too complex"), "WARNING"),
        (ValueError("a bug"), GenerationFailed("the grammar failed: ValueError('a bug')"), "ERROR"),
    ],
)
def test_failing_constraint_ends_its_own_sequence_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, expected: Exception, level: str
) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"))

    async def broken(replica: Replica) -> None:
        async for _ in replica.submit(Request((1, 2, 3), 9), Broken(error)):
            pass

    async def test(replica: Replica) -> None:
        failed, free = await asyncio.gather(broken(replica), collect(replica, Request((4,), 9)), return_exceptions=True)
        assert repr(failed) == repr(expected)
        assert isinstance(free, list)
        assert len(free) == 9
        assert replica.stats().blocks.owned == 0

    run(test, shard)
    (record,) = caplog.records
    assert record.levelname == level
    assert bool(record.exc_info) == (level == "ERROR")  # a traceback is for bugs


def test_closing_the_iterator_gives_everything_back_at_once(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), step_s=0.005)

    async def test(replica: Replica) -> None:
        async with aclosing(replica.submit(Request((1, 2, 3), 150))) as events:
            async for _ in events:
                break
        stats = replica.stats()
        assert (stats.running, stats.waiting, stats.blocks.owned) == (0, 0, 0)
        assert len(await collect(replica, Request((9,), 3))) == 3

    run(test, shard)


def test_failing_step_ends_every_request_and_refuses_new_ones(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), fail_at_step=4)

    async def test(replica: Replica) -> None:
        results = await asyncio.gather(
            *(collect(replica, Request((first,), 50)) for first in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, GenerationFailed) for result in results)
        assert "step 4: scripted failure" in str(results[0])
        assert not await replica.check_health()
        with pytest.raises(GenerationFailed):
            await collect(replica, Request((1,), 1))
        assert replica.stats().blocks.owned == 0

    run(test, shard)


def test_health_is_a_real_token_when_idle(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"))

    async def test(replica: Replica) -> None:
        assert await replica.check_health()
        assert shard.model.num_steps >= 1
        await shard.stop()
        assert not await replica.check_health()

    run(test, shard)


class Watcher(NoObserver):
    def __init__(self) -> None:
        self.timings: list[StepTiming] = []
        self.failed: list[bool] = []
        self.gaps: list[tuple[float, int]] = []
        self.texts: list[float] = []

    def step_finished(self, timing: StepTiming) -> None:
        self.timings.append(timing)

    def step_failed(self, *, is_prefill: bool) -> None:
        self.failed.append(is_prefill)

    def tokens_delivered(self, gap_s: float, count: int) -> None:
        self.gaps.append((gap_s, count))

    def text_finished(self, duration_s: float) -> None:
        self.texts.append(duration_s)


def test_every_step_is_timed(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), step_s=0.01)
    watcher = Watcher()

    async def test(replica: Replica) -> None:
        began_s = time.monotonic()
        await collect(replica, Request((1, 2, 3), 4))
        # The shard says nothing of its own time, so all of it counts as the wire's; but nothing counts twice.
        assert sum(step.wire_s for step in watcher.timings) <= time.monotonic() - began_s

    run(test, shard, observer=watcher)
    first, *others = watcher.timings[:4]
    assert (first.is_prefill, first.num_admitted, first.num_sampled, first.joined) == (True, 1, 1, False)
    assert all((step.is_prefill, step.num_admitted, step.num_rows) == (False, 0, 1) for step in others)
    for step in watcher.timings:
        assert step.total_s >= 0.01
        assert step.total_s >= step.plan_s + step.encode_s
        assert step.wire_s > 0.005
    assert sum(count for _, count in watcher.gaps) == 3
    assert all(gap_s > 0.005 for gap_s, _ in watcher.gaps)


def test_readers_work_is_timed_once_a_step(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), step_s=0.005)
    watcher = Watcher()

    async def read_slowly(replica: Replica, first: int) -> None:
        async for _ in replica.submit(Request((first,), 3)):
            time.sleep(0.01)  # noqa: ASYNC251 - work that holds the loop, as making text does

    async def test(replica: Replica) -> None:
        await asyncio.gather(*(read_slowly(replica, first) for first in range(3)))

    run(test, shard, observer=watcher)
    assert sum(watcher.texts) >= 9 * 0.01
    assert len(watcher.texts) <= len(watcher.timings)


def test_sequence_that_comes_later_joins(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), step_s=0.005)
    watcher = Watcher()

    async def test(replica: Replica) -> None:
        async with aclosing(replica.submit(Request((1, 2, 3), 150))) as events:
            async for _ in events:
                break
            await collect(replica, Request((9,), 3))

    run(test, shard, observer=watcher)
    assert [step.num_admitted for step in watcher.timings if step.joined] == [1]
    # A prompt of one token is a prompt all the same.
    assert [step.is_prefill for step in watcher.timings if step.num_admitted] == [True, True]


def test_steps_in_flight_when_the_shard_ends_are_failures(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), fail_at_step=4)
    watcher = Watcher()

    async def test(replica: Replica) -> None:
        with pytest.raises(GenerationFailed):
            await collect(replica, Request((1,), 50))

    run(test, shard, observer=watcher)
    assert watcher.failed
    assert not any(watcher.failed)
    assert len(watcher.timings) == 4


def test_health_checks_leave_no_trace_in_metrics(tmp_path: Path) -> None:
    """G44."""
    shard = ScriptedShard(str(tmp_path / "s-0"), step_s=0.02)
    watcher = Watcher()

    async def test(replica: Replica) -> None:
        check = asyncio.create_task(replica.check_health())
        while not check.done():
            stats = replica.stats()
            assert (stats.running, stats.waiting) == (0, 0)
            await asyncio.sleep(0.001)
        assert await check

    run(test, shard, observer=watcher)
    assert shard.model.num_steps >= 1
    assert (watcher.timings, watcher.gaps, watcher.texts) == ([], [], [])


def test_health_checks_at_once_share_one_token(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), step_s=0.02)

    async def test(replica: Replica) -> None:
        assert all(await asyncio.gather(*(replica.check_health() for _ in range(50))))
        assert shard.model.num_steps == 1

    run(test, shard)


def test_request_that_may_not_wait_is_refused_when_it_has_waited(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), num_blocks=4, block_size=4, step_s=0.005)

    async def test(replica: Replica) -> None:
        async with aclosing(replica.submit(Request(tuple(range(12)), 3))) as events:
            first = asyncio.create_task(anext(events))
            await asyncio.sleep(0)
            blocked = Request(tuple(range(20, 32)), 2, start_by_s=time.monotonic() + 0.01)
            with pytest.raises(NotStartedInTime):
                await collect(replica, blocked)
            await first
        assert replica.stats().waiting == 0
        assert len(await collect(replica, Request((1,), 2, start_by_s=time.monotonic() + 5))) == 2

    run(test, shard)


def test_request_that_takes_too_long_gives_back_what_it_holds_although_nobody_reads(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), step_s=0.005)

    async def test(replica: Replica) -> None:
        events = replica.submit(Request((1,), 150, finish_by_s=time.monotonic() + 0.1))
        await anext(events)
        await asyncio.sleep(0.15)
        stats = replica.stats()
        assert (stats.running, stats.waiting, stats.blocks.owned) == (0, 0, 0)
        with pytest.raises(NotFinishedInTime):
            async for _ in events:
                pass

    run(test, shard)


def test_other_protocol_version_is_refused_naming_both(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), protocol_version=77)

    async def test() -> None:
        await shard.start()
        with pytest.raises(ShardError, match=f"protocol 77 and this router {PROTOCOL_VERSION}; install one"):
            await ShardGroup.connect(shard.socket_path)
        await shard.stop()

    asyncio.run(test())


def test_missing_shard_is_named_with_the_flag(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(ShardError, match=r"no shard answers on .*--master-shard-uds-path"):
            await ShardGroup.connect(str(tmp_path / "nobody-0"), timeout_s=0.5)

    asyncio.run(test())


BROKEN_TOKEN = 200


def test_logits_that_are_no_numbers_end_their_request_alone(tmp_path: Path) -> None:
    """Its tokens up to there arrive, then the shard's reason; who runs beside it notices nothing."""
    shard = ScriptedShard(str(tmp_path / "s-0"), broken_token=BROKEN_TOKEN)
    generated = reference_tokens((1, 2, 3), 12, shard.next_token)
    place = 7
    shard.broken_token = generated[place]
    assert generated.index(shard.broken_token) == place
    other = (5, 5, 5)
    assert shard.broken_token not in (*other, *reference_tokens(other, 20, shard.next_token))

    async def test(replica: Replica) -> None:
        neighbour = asyncio.create_task(collect(replica, Request(other, 20)))
        received: list[int] = []

        async def receive() -> None:
            async for event in replica.submit(Request((1, 2, 3), 12)):
                received.append(event.token_id)

        with pytest.raises(LogitsFault, match=r"the model gave no numbers \(scripted\)"):
            await receive()
        assert received == generated[: place + 1]
        assert [event.token_id for event in await neighbour] == reference_tokens(other, 20, shard.next_token)
        assert replica.stats().logits_faults == 1
        assert replica.stats().blocks.owned == 0

    run(test, shard)


def test_a_busy_server_is_unhealthy_after_ten_faults_until_a_request_is_answered(tmp_path: Path) -> None:
    shard = ScriptedShard(str(tmp_path / "s-0"), broken_token=BROKEN_TOKEN, step_s=0.005)

    async def fail(replica: Replica) -> None:
        with pytest.raises(LogitsFault):
            await collect(replica, Request((BROKEN_TOKEN, 1), 2))

    async def test(replica: Replica) -> None:
        running = replica.submit(Request((5, 6), 190))
        await anext(running)
        for _ in range(9):
            await fail(replica)
        assert await replica.check_health()
        await fail(replica)
        assert not await replica.check_health()
        await collect(replica, Request((7, 8), 2))
        assert await replica.check_health()
        await running.aclose()

    run(test, shard)


def test_an_idle_server_is_as_healthy_as_the_token_it_makes(tmp_path: Path) -> None:
    """Whatever made ten requests fail, a token of its own that is right counts as an answer."""
    shard = ScriptedShard(str(tmp_path / "s-0"), broken_token=BROKEN_TOKEN)

    async def test(replica: Replica) -> None:
        for _ in range(10):
            with pytest.raises(LogitsFault):
                await collect(replica, Request((BROKEN_TOKEN, 1), 2))
        assert await replica.check_health()
        shard.broken_token = 0  # which is the token that a health check begins with
        assert not await replica.check_health()

    run(test, shard)
