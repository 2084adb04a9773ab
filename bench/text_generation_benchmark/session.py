"""A session on idle shards: the router's own scheduler, block pool and wire, driven run by run.

Ending the session makes the shards forget every sequence; blocks are numbers here and belong to nobody afterwards.
Knows nothing about texts or about showing results.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from text_generation_benchmark.errors import BenchmarkError
from text_generation_benchmark.events import Run
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_proto import generate_pb2 as pb
from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.plan import StepPlan
from text_generation_router.scheduling.request import Request
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig
from text_generation_router.shard_client import ShardBusy, ShardError, ShardGroup, WarmupLimits
from text_generation_router.wire import decode_result, encode_plan


def check_socket(path: str) -> None:
    """Raise BenchmarkError at once if nobody listens; a gRPC channel would wait for somebody to come."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(path)
    except OSError as error:
        reason = "the path is too long for a socket" if error.strerror is None else error.strerror
        raise BenchmarkError(f"no shard listens on {path} ({reason}); {_how_to_start('MODEL_FOLDER', path)}") from None


def _how_to_start(model: str, path: str) -> str:
    """What to type for a shard at `path`, whose last part is the rank."""
    prefix = path.removesuffix("-0")
    return (
        f"start one with `text-generation-server serve {model} --uds-path {prefix}`, and name its socket with "
        f"`--master-shard-uds-path {prefix}-0`"
    )


class Session:
    """Owns the connection to one replica's shards."""

    def __init__(self, settings: BenchmarkSettings, shards: ShardGroup) -> None:
        self._settings = settings
        self._shards = shards
        self._scheduler: Scheduler | None = None
        self._answers: asyncio.Queue[tuple[pb.StepResponse, float] | ShardError] = asyncio.Queue()

    @classmethod
    async def connect(cls, settings: BenchmarkSettings) -> Session:
        """Raises: BenchmarkError."""
        check_socket(settings.master_shard_uds_path)
        try:
            return cls(settings, await ShardGroup.connect(settings.master_shard_uds_path))
        except ShardError as error:
            raise BenchmarkError(str(error)) from None

    @property
    def info(self) -> pb.InfoResponse:
        return self._shards.info

    async def warm_up(self) -> None:
        """Have the shards run the largest prefill and make room for the largest batch. Raises: BenchmarkError."""
        settings, info = self._settings, self.info
        longest = settings.sequence_length + settings.decode_length
        if longest > info.max_position_embeddings:
            raise BenchmarkError(
                f"--sequence-length {settings.sequence_length} and --decode-length {settings.decode_length} make "
                f"{longest} tokens, and the model has {info.max_position_embeddings} positions; lower one of them"
            )
        largest = max(settings.batch_sizes)
        max_step_tokens = largest * settings.sequence_length
        try:
            # One sequence more than will run: the scheduler admits the last one only if some blocks are left over.
            sizing = await self._shards.warmup(WarmupLimits(max_step_tokens, largest + 1, longest, 0))
        except ShardBusy:
            raise BenchmarkError(
                f"the shard on {settings.master_shard_uds_path} serves a router or another benchmark, whose steps ours "
                f"must not mix with; stop that, or {_how_to_start(info.model_id, '/tmp/text-generation-benchmark')}"
            ) from None
        except ShardError as error:
            raise BenchmarkError(f"the shard could not be warmed up for batches of {largest}: {error}") from None
        needed = largest * -(-longest // sizing.block_size) + 1
        if needed > sizing.num_blocks:
            raise BenchmarkError(
                f"a batch of {largest} needs {needed} blocks of {sizing.block_size} tokens and the shard's memory has "
                f"room for {sizing.num_blocks}; lower --batch-size, --sequence-length or --decode-length"
            )
        config = SchedulerConfig(max_step_tokens, largest + 1, prefix_caching=False, low_water=0.0)
        self._scheduler = Scheduler(config, BlockPool(sizing.num_blocks, sizing.block_size))
        self._stream = self._shards.open_steps(self._take_answer, self._fail)

    async def run(self, requests: Sequence[Request], on_step: Callable[[], None]) -> Run:
        """One prefill step of all requests, then decode steps until all have their length.

        Args:
            requests: as many as the batch is large, each of the settings' lengths.
            on_step: called after each answer; quick.
        Raises: BenchmarkError when the shards fail.
        """
        scheduler = self._scheduler
        assert scheduler is not None, "a run before warm_up"
        moments = [time.perf_counter()]
        for request in requests:
            scheduler.submit(request)
        plan = scheduler.plan()
        assert plan is not None
        assert len(plan.admit) == len(plan.rows) == len(requests), "a prefill that is not one step of the whole batch"
        await self._send(plan)
        moments.append(await self._complete(scheduler))
        on_step()
        while True:
            while scheduler.num_steps_in_flight < self._settings.pipeline_depth:
                plan = scheduler.plan()
                if plan is None:
                    break
                assert len(plan.rows) == len(requests), "a decode step without a row of each sequence"
                await self._send(plan)
            if not scheduler.num_steps_in_flight:
                break
            moments.append(await self._complete(scheduler))
            on_step()
        assert scheduler.pool.counts().owned == 0, "blocks that nobody gave back"
        prefill_s, *step_s = (after - before for before, after in pairwise(moments))
        return Run(len(requests), prefill_s, tuple(step_s))

    async def close(self) -> None:
        """Whatever state a run is in: the shards finish the step they are in and forget the rest."""
        if self._scheduler is not None:
            await self._stream.close()
        await self._shards.close()

    async def _send(self, plan: StepPlan) -> None:
        await self._stream.send(encode_plan(plan))

    async def _complete(self, scheduler: Scheduler) -> float:
        """Take in the next answer. Returns: when it arrived. Raises: BenchmarkError."""
        answer = await self._answers.get()
        if isinstance(answer, ShardError):
            raise BenchmarkError(f"the shard failed: {answer}")
        response, arrived_s = answer
        scheduler.complete(decode_result(response))
        return arrived_s

    def _take_answer(self, answer: pb.StepResponse) -> None:
        self._answers.put_nowait((answer, time.perf_counter()))

    def _fail(self, message: str) -> None:
        self._answers.put_nowait(ShardError(message))
