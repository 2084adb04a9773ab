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
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from text_generation_proto import generate_pb2 as pb

from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.plan import StepPlan
from text_generation_router.scheduling.request import Constraint, GenerationFailed, Request, TokenEvent
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig, SchedulerStats
from text_generation_router.scheduling.sequence import Sequence
from text_generation_router.shard_client import ShardGroup, WarmupLimits
from text_generation_router.wire import decode_result, encode_plan

logger = logging.getLogger(__name__)

_HEALTH_TIMEOUT_S = 5.0
_STEP_DEADLINE_S = 60.0  # a step that takes longer means a hung device or collective


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What warm-up settled."""

    max_total_tokens: int  # of one sequence, prompt and output
    max_batch_prefill_tokens: int  # of one step
    max_batch_total_tokens: int  # tokens that the KV cache holds
    block_size: int


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One step's durations in seconds, for metrics."""

    is_prefill: bool  # the step computed more than one token of some sequence
    num_rows: int
    total_s: float  # from sending to the answer's arrival; with steps queued behind each other, the wait included
    forward_s: float
    sample_s: float


class Replica:
    """Runs requests on one group of shards. All methods belong to one event loop."""

    def __init__(
        self,
        shards: ShardGroup,
        scheduler: Scheduler,
        limits: ReplicaLimits,
        *,
        pipeline_depth: int = 2,
        on_step: Callable[[StepTiming], None] = lambda timing: None,
    ) -> None:
        self.info: pb.InfoResponse = shards.info
        self.limits = limits
        self.on_step = on_step
        self._shards = shards
        self._scheduler = scheduler
        self._depth = pipeline_depth
        self._events: dict[int, asyncio.Queue[TokenEvent | GenerationFailed]] = {}  # by id(sequence)
        self._constraints: dict[int, Constraint] = {}  # by id(sequence)
        self._advancing: set[asyncio.Task[None]] = set()
        self._answers: deque[pb.StepResponse] = deque()
        self._sent: deque[tuple[StepPlan, float]] = deque()  # steps in flight, with the time each was sent
        self._wake = asyncio.Event()
        self._failure: str | None = None
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

    async def submit(self, request: Request, constraint: Constraint | None = None) -> AsyncGenerator[TokenEvent, None]:
        """Run one request. Closing the generator, or cancelling who iterates it, gives back all that it holds.

        Args:
            constraint: which tokens may come; belongs to this request from now on.
        Raises: GenerationFailed when the shards fail.
        """
        mask = None if constraint is None else await asyncio.to_thread(constraint.mask)
        if self._failure is not None:
            raise GenerationFailed(self._failure)
        sequence = self._scheduler.submit(request, mask)
        if constraint is not None:
            self._constraints[id(sequence)] = constraint
        events: asyncio.Queue[TokenEvent | GenerationFailed] = asyncio.Queue()
        self._events[id(sequence)] = events
        self._wake.set()
        try:
            while True:
                event = await events.get()
                if isinstance(event, GenerationFailed):
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            del self._events[id(sequence)]
            self._constraints.pop(id(sequence), None)
            self._scheduler.abort(sequence)
            self._wake.set()

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    async def check_health(self) -> bool:
        """Whether a request would be served: every rank's device thread is alive, and, when idle, one token is made."""
        if self._failure is not None:
            return False
        if self._sent and time.monotonic() - self._sent[0][1] > _STEP_DEADLINE_S:
            return False
        if not await self._shards.check_health(_HEALTH_TIMEOUT_S):
            return False
        stats = self._scheduler.stats()
        if stats.running or stats.waiting:
            return True
        try:
            return await asyncio.wait_for(self._make_one_token(), _HEALTH_TIMEOUT_S)
        except (GenerationFailed, asyncio.TimeoutError):
            return False

    async def close(self) -> None:
        self._loop_task.cancel()
        await self._stream.close()
        await self._shards.close()

    async def _make_one_token(self) -> bool:
        async for _ in self.submit(Request(token_ids=(0,), max_new_tokens=1)):
            pass
        return True

    # ------------------------------------------------------------------------------------------------ the loop

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                events: list[tuple[Sequence, TokenEvent]] = []
                while self._answers:
                    events.extend(self._complete(self._answers.popleft()))
                for sequence, event in events:
                    if sequence.is_constrained and event.finish_reason is None:
                        self._start_advancing(sequence, event.token_id)
                await self._send_steps()
                for sequence, event in events:
                    queue = self._events.get(id(sequence))
                    if queue is not None:
                        queue.put_nowait(event)
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
        except Exception as error:
            logger.exception("A grammar failed")
            queue = self._events.get(id(sequence))
            if queue is not None:
                queue.put_nowait(GenerationFailed(f"the grammar failed: {error}"))
            return
        self._scheduler.set_mask(sequence, mask)
        self._wake.set()

    async def _send_steps(self) -> None:
        while self._scheduler.num_steps_in_flight < self._depth and self._failure is None:
            plan = self._scheduler.plan()
            if plan is None:
                return
            self._sent.append((plan, time.monotonic()))
            await self._stream.send(encode_plan(plan))

    def _complete(self, answer: pb.StepResponse) -> list[tuple[Sequence, TokenEvent]]:
        plan, sent_s = self._sent.popleft()
        timing = StepTiming(
            is_prefill=any(num_tokens > 1 for _, num_tokens in plan.rows),
            num_rows=len(plan.rows),
            total_s=time.monotonic() - sent_s,
            forward_s=answer.forward_ns / 1e9,
            sample_s=answer.sample_ns / 1e9,
        )
        self.on_step(timing)
        return self._scheduler.complete(decode_result(answer))

    def _take_answer(self, answer: pb.StepResponse) -> None:
        self._answers.append(answer)
        self._wake.set()

    def _fail(self, message: str) -> None:
        """The shards are gone: everyone who waits is told, and nobody new is taken."""
        if self._failure is not None:
            return
        self._failure = message
        logger.error("The shards failed: %s", message)
        self._answers.clear()
        self._sent.clear()
        self._scheduler.abort_all()
        for queue in self._events.values():
            queue.put_nowait(GenerationFailed(message))
