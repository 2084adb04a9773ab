"""One replica: its scheduler, its blocks, and the stream that keeps its shards busy.

Requests come in and token events go out as plain records of ids and numbers. Up to `pipeline_depth` steps are in
flight: the next one is planned and sent before the events of the last are handed to their readers, so that text work in
the router overlaps with the shards' computing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Protocol

from text_generation_proto import generate_pb2 as pb
from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.plan import StepPlan, StepResult
from text_generation_router.scheduling.request import (
    Constraint,
    ConstraintFailed,
    GenerationFailed,
    LogitsFault,
    NotFinishedInTime,
    NotStartedInTime,
    Request,
    TokenEvent,
)
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig, SchedulerStats
from text_generation_router.scheduling.sequence import Sequence, State
from text_generation_router.shard_client import ShardGroup, WarmupLimits
from text_generation_router.wire import decode_result, encode_plan

logger = logging.getLogger(__name__)

_HEALTH_TIMEOUT_S = 5.0
# Requests ended by the model's logits, none answered between them: then it is the device, not a prompt.
_MAX_FAULTS_IN_A_ROW = 10


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What warm-up settled."""

    max_total_tokens: int  # of one sequence, prompt and output
    max_batch_prefill_tokens: int  # of one step
    max_batch_total_tokens: int  # tokens that the KV cache holds
    block_size: int


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What one step was, and where its time went, in seconds."""

    is_prefill: bool  # the step admitted a sequence, or computed more than one token of some
    num_rows: int
    num_admitted: int  # sequences that came from the queue
    joined: bool  # they joined others that were running
    num_sampled: int  # rows that got a token
    row_num_sampled: tuple[int, ...]  # tokens that each of them got, where guesses were right; empty: one each
    total_s: float  # from planning to the answer's arrival; with a step in front of it, the wait included
    plan_s: float  # choosing rows and blocks
    encode_s: float  # writing the message and handing it to the ranks' streams
    wire_s: float  # from then, or from the answer before if that came later, to the answer, less the device's share
    forward_s: float
    sample_s: float
    complete_s: float  # taking the answer in


class StepObserver(Protocol):
    """Who wants to know how the steps go. Called once a step, whatever the number of rows."""

    def step_finished(self, timing: StepTiming) -> None: ...

    def step_failed(self, *, is_prefill: bool) -> None: ...

    def tokens_delivered(self, gap_s: float, count: int) -> None:
        """`count` sequences got a token, so long after the one before."""

    def text_finished(self, duration_s: float) -> None:
        """The readers have turned the tokens of a step into text and events."""


class NoObserver:
    """Of a replica that nobody watches."""

    def step_finished(self, timing: StepTiming) -> None:
        pass

    def step_failed(self, *, is_prefill: bool) -> None:
        pass

    def tokens_delivered(self, gap_s: float, count: int) -> None:
        pass

    def text_finished(self, duration_s: float) -> None:
        pass


@dataclass(slots=True)
class _SentStep:
    plan: StepPlan
    is_prefill: bool
    joined: bool
    is_probe: bool  # a health check's, which metrics leave out
    planning_s: float  # moments of time.monotonic()
    planned_s: float
    sent_s: float = 0.0  # 0: being handed over


class _Reader:
    """Who waits for the tokens of one sequence."""

    __slots__ = ("events", "last_token_s")

    def __init__(self) -> None:
        self.events: asyncio.Queue[TokenEvent | Exception] = asyncio.Queue()
        self.last_token_s = 0.0  # 0: none yet


class Replica:
    """Runs requests on one group of shards. All methods belong to one event loop."""

    step_deadline_s = 60.0  # a step that takes longer means a hung device or collective

    def __init__(
        self,
        shards: ShardGroup,
        scheduler: Scheduler,
        limits: ReplicaLimits,
        *,
        pipeline_depth: int = 2,
    ) -> None:
        self.info: pb.InfoResponse = shards.info
        self.limits = limits
        self.observer: StepObserver = NoObserver()
        self._shards = shards
        self._scheduler = scheduler
        self._depth = pipeline_depth
        self._readers: dict[int, _Reader] = {}  # by id(sequence)
        self._constraints: dict[int, Constraint] = {}  # by id(sequence)
        self._advancing: set[asyncio.Task[None]] = set()
        self._answers: deque[tuple[pb.StepResponse, float]] = deque()  # with the time each arrived
        self._last_answer_s = 0.0
        self._sent: deque[_SentStep] = deque()  # steps in flight
        self._probe: Sequence | None = None  # a health check's own
        self._health_check: asyncio.Task[bool] | None = None
        self._wake = asyncio.Event()
        self._failure: str | None = None
        self._faults_in_a_row = 0
        self._stream = shards.open_steps(self._take_answer, self._fail)
        self._loop_task = asyncio.create_task(self._run())

    @classmethod
    async def start(
        cls,
        shards: ShardGroup,
        wanted: WarmupLimits,
        *,
        mixed_steps: bool = True,
        pipeline_depth: int = 2,
        prefix_caching: bool = True,
    ) -> Replica:
        """Warm the shards up and open the stream. Raises: ShardError."""
        answer = await shards.warmup(wanted)
        config = SchedulerConfig(
            max_step_tokens=answer.max_batch_prefill_tokens,
            max_sequences=wanted.max_sequences,
            mixed_steps=mixed_steps,
            prefix_caching=prefix_caching,
            max_guesses=shards.info.speculate,
            max_guessing_tokens=answer.max_guessing_tokens,
        )
        scheduler = Scheduler(config, BlockPool(answer.num_blocks, answer.block_size))
        limits = ReplicaLimits(
            max_total_tokens=answer.max_total_tokens,
            max_batch_prefill_tokens=answer.max_batch_prefill_tokens,
            max_batch_total_tokens=answer.num_blocks * answer.block_size,
            block_size=answer.block_size,
        )
        return cls(shards, scheduler, limits, pipeline_depth=pipeline_depth)

    @property
    def max_total_tokens(self) -> int:
        return self.limits.max_total_tokens

    def submit(self, request: Request, constraint: Constraint | None = None) -> AsyncGenerator[TokenEvent, None]:
        """Run one request. Closing the generator, or cancelling who iterates it, gives back all that it holds.

        Args:
            constraint: which tokens may come; belongs to this request from now on.
        Raises: GenerationFailed when the shards fail, ConstraintFailed, NotStartedInTime, NotFinishedInTime.
        """
        return self._run_request(request, constraint, is_probe=False)

    async def _run_request(
        self, request: Request, constraint: Constraint | None, *, is_probe: bool
    ) -> AsyncGenerator[TokenEvent, None]:
        mask = None if constraint is None else await asyncio.to_thread(constraint.mask)
        if self._failure is not None:
            raise GenerationFailed(self._failure)
        sequence = self._scheduler.submit(request, mask)
        if is_probe:
            self._probe = sequence
        if constraint is not None:
            self._constraints[id(sequence)] = constraint
        reader = self._readers[id(sequence)] = _Reader()
        timers = self._start_timers(sequence)
        failed = False
        self._wake.set()
        try:
            while True:
                event = await reader.events.get()
                if isinstance(event, Exception):
                    failed = True
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            for timer in timers:
                timer.cancel()
            del self._readers[id(sequence)]
            self._constraints.pop(id(sequence), None)
            self._scheduler.abort(sequence)
            if reader.last_token_s and not failed:
                self._faults_in_a_row = 0
            if is_probe:
                self._probe = None
            self._wake.set()

    def _start_timers(self, sequence: Sequence) -> list[asyncio.TimerHandle]:
        """A request whose time is over gives back what it holds at once, even if its reader is slow to notice."""
        loop, request = asyncio.get_running_loop(), sequence.request
        timers: list[asyncio.TimerHandle] = []

        def end_if_waiting() -> None:
            if sequence.started_s == 0.0:
                self._end(sequence, NotStartedInTime())

        if request.start_by_s is not None:
            timers.append(loop.call_later(request.start_by_s - time.monotonic(), end_if_waiting))
        if request.finish_by_s is not None:
            timers.append(
                loop.call_later(request.finish_by_s - time.monotonic(), self._end, sequence, NotFinishedInTime())
            )
        return timers

    def stats(self) -> SchedulerStats:
        """As the clients' requests make it: a health check's token is left out."""
        stats = self._scheduler.stats()
        if self._probe is not None and self._probe.state is State.RUNNING:
            return replace(stats, running=stats.running - 1)
        if self._probe is not None and self._probe.state is State.WAITING:
            return replace(stats, waiting=stats.waiting - 1)
        return stats

    async def check_health(self) -> bool:
        """Whether a request would be served: every rank's device thread is alive, and, when idle, one token is made;
        when busy, some request has been answered since the last ten whose logits were no numbers.

        Who asks while a check is under way gets its result.
        """
        if self._health_check is None or self._health_check.done():
            self._health_check = asyncio.create_task(self._check_health())
        return await asyncio.shield(self._health_check)

    async def _check_health(self) -> bool:
        if self._failure is not None:
            return False
        if self._sent and time.monotonic() - self._sent[0].planning_s > self.step_deadline_s:
            return False
        if not await self._shards.check_health(_HEALTH_TIMEOUT_S):
            return False
        stats = self._scheduler.stats()
        if stats.running or stats.waiting:
            return self._faults_in_a_row < _MAX_FAULTS_IN_A_ROW
        try:
            return await asyncio.wait_for(self._make_one_token(), _HEALTH_TIMEOUT_S)
        except (GenerationFailed, asyncio.TimeoutError):
            return False

    async def close(self) -> None:
        self._loop_task.cancel()
        if self._health_check is not None:
            self._health_check.cancel()
        await self._stream.close()
        await self._shards.close()

    async def _make_one_token(self) -> bool:
        async for _ in self._run_request(Request(token_ids=(0,), max_new_tokens=1), None, is_probe=True):
            pass
        return True

    # ------------------------------------------------------------------------------------------------ the loop

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                events: list[tuple[Sequence, TokenEvent]] = []
                faults: list[tuple[Sequence, str]] = []
                while self._answers:
                    answer, arrived_s = self._answers.popleft()
                    result = decode_result(answer)
                    faults.extend(self._scheduler.end_faulty(result))
                    events.extend(self._complete(answer, result, arrived_s))
                for sequence, event in events:
                    if sequence.is_constrained and event.finish_reason is None:
                        self._start_advancing(sequence, event.token_id)
                await self._send_steps()
                self._deliver(events)
                for sequence, message in faults:
                    self._end_faulty(sequence, message)
        except Exception as error:
            logger.exception("The scheduling loop failed")
            self._fail(f"the router's scheduling loop failed: {error!r}")

    def _start_advancing(self, sequence: Sequence, token_id: int) -> None:
        constraint = self._constraints.get(id(sequence))
        if constraint is not None:
            task = asyncio.create_task(self._advance(sequence, constraint, token_id))
            self._advancing.add(task)
            task.add_done_callback(self._advancing.discard)

    async def _advance(self, sequence: Sequence, constraint: Constraint, token_id: int) -> None:
        """Work out a constrained sequence's next mask beside the loop; other sequences' steps go on meanwhile."""

        def next_mask() -> bytes:
            constraint.accept(token_id)
            return constraint.mask()

        try:
            mask = await asyncio.to_thread(next_mask)
        except ConstraintFailed as error:
            logger.warning("A grammar ended its request: %s; its sender should use a simpler one", error)
            self._end(sequence, error)
            return
        except Exception as error:
            logger.exception("A grammar failed")
            self._end(sequence, GenerationFailed(f"the grammar failed: {error!r}"))
            return
        self._scheduler.set_mask(sequence, mask)
        self._wake.set()

    def _end(self, sequence: Sequence, reason: Exception) -> None:
        """The sequence gives back what it holds at once, and its reader is told."""
        self._scheduler.abort(sequence)
        reader = self._readers.get(id(sequence))
        if reader is not None:
            reader.events.put_nowait(reason)
        self._wake.set()

    def _end_faulty(self, sequence: Sequence, message: str) -> None:
        self._end(sequence, LogitsFault(message))
        logger.error("A request was ended: %s", message)
        self._faults_in_a_row += 1
        if self._faults_in_a_row == _MAX_FAULTS_IN_A_ROW:
            logger.error(
                "%d requests in a row were ended like this: /health says unhealthy until one is answered",
                _MAX_FAULTS_IN_A_ROW,
            )

    async def _send_steps(self) -> None:
        while self._scheduler.num_steps_in_flight < self._depth and self._failure is None:
            planning_s = time.monotonic()
            plan = self._scheduler.plan()
            if plan is None:
                return
            probe = self._probe
            step = _SentStep(
                plan=plan,
                is_prefill=bool(plan.admit) or any(num_tokens > 1 for _, num_tokens in plan.rows),
                joined=0 < len(plan.admit) < len(plan.rows),
                is_probe=probe is not None and len(plan.rows) == 1 and plan.rows[0][0] == probe.table_index,
                planning_s=planning_s,
                planned_s=time.monotonic(),
            )
            self._sent.append(step)
            await self._stream.send(encode_plan(plan))
            step.sent_s = time.monotonic()

    def _complete(
        self, answer: pb.StepResponse, result: StepResult, arrived_s: float
    ) -> list[tuple[Sequence, TokenEvent]]:
        step = self._sent.popleft()
        completing_s = time.monotonic()
        events = self._scheduler.complete(result)
        if not step.is_probe:
            forward_s, sample_s = answer.forward_ns / 1e9, answer.sample_ns / 1e9
            # A step that was sent ahead begins when the shards have answered the one before.
            begun_s = max(step.sent_s, self._last_answer_s)
            self.observer.step_finished(
                StepTiming(
                    is_prefill=step.is_prefill,
                    num_rows=len(step.plan.rows),
                    num_admitted=len(step.plan.admit),
                    joined=step.joined,
                    num_sampled=len(answer.row_num_sampled or answer.token_ids),
                    row_num_sampled=tuple(answer.row_num_sampled),
                    total_s=arrived_s - step.planning_s,
                    plan_s=step.planned_s - step.planning_s,
                    encode_s=step.sent_s - step.planned_s,
                    wire_s=max(arrived_s - begun_s - forward_s - sample_s, 0.0),
                    forward_s=forward_s,
                    sample_s=sample_s,
                    complete_s=time.monotonic() - completing_s,
                )
            )
        self._last_answer_s = arrived_s
        return events

    def _deliver(self, events: list[tuple[Sequence, TokenEvent]]) -> None:
        """Hand tokens to their readers, and note how long each had waited for it.

        Most sequences of a step got their last token at the same moment: they are counted together.
        """
        if not events:
            return
        now_s = time.monotonic()
        gap_s, count = 0.0, 0
        for sequence, event in events:
            reader = self._readers.get(id(sequence))
            if reader is None:
                continue
            reader.events.put_nowait(event)
            if reader.last_token_s:
                if now_s - reader.last_token_s != gap_s:
                    if count:
                        self.observer.tokens_delivered(gap_s, count)
                    gap_s, count = now_s - reader.last_token_s, 0
                count += 1
            reader.last_token_s = now_s
        if count:
            self.observer.tokens_delivered(gap_s, count)
        if events[0][0] is not self._probe:
            # Runs after the readers, which were woken above, and do all their work at once unless a socket is full.
            asyncio.get_running_loop().call_soon(self._text_finished, now_s)

    def _text_finished(self, began_s: float) -> None:
        self.observer.text_finished(time.monotonic() - began_s)

    def _take_answer(self, answer: pb.StepResponse) -> None:
        self._answers.append((answer, time.monotonic()))
        self._wake.set()

    def _fail(self, message: str) -> None:
        """The shards are gone: everyone who waits is told, and nobody new is taken."""
        if self._failure is not None:
            return
        self._failure = message
        logger.error("The shards failed: %s", message)
        for step in self._sent:
            if not step.is_probe:
                self.observer.step_failed(is_prefill=step.is_prefill)
        self._answers.clear()
        self._sent.clear()
        self._scheduler.abort_all()
        for reader in self._readers.values():
            reader.events.put_nowait(GenerationFailed(message))
