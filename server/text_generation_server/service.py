"""The shard's gRPC service: the wire on one side, the engine on its device thread on the other.

An exception in a step is a bug or a failing device, never something to carry on after: it is reported with rank, step
and op, and the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import grpc
import torch

from text_generation_cli import __version__
from text_generation_cli.program import describe
from text_generation_kernels.errors import first_line
from text_generation_kernels.interface import Ops
from text_generation_proto import PROTOCOL_VERSION
from text_generation_proto import generate_pb2 as pb
from text_generation_proto.generate_pb2_grpc import ShardServicer, ShardStub, add_ShardServicer_to_server
from text_generation_server.engine import Engine
from text_generation_server.memory_budget import MemoryBudget
from text_generation_server.parallel import GroupError
from text_generation_server.selfcheck.verdict import Verdict
from text_generation_server.step_socket import StepSocket, answer_steps, step_socket_path
from text_generation_server.warmup import NotEnoughMemory, Wanted, warm_up

logger = logging.getLogger(__name__)

_STEP_DEADLINE_S = 60.0  # a device thread that is longer inside one step hangs
_STEP_SOCKET = "step-socket"  # in a call's metadata: its steps come on a socket of their own
_MESSAGE_OPTIONS = (("grpc.max_send_message_length", 64 << 20), ("grpc.max_receive_message_length", 64 << 20))


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What a shard says of itself."""

    model_id: str
    model_sha: str
    dtype: str
    sockets: tuple[str, ...]  # of all ranks, in rank order
    speculate: int = 0  # most tokens to be guessed ahead
    verdict: Verdict | None = None  # of the self-check; None: there was none


class StepFailed(RuntimeError):
    """A step raised; the message names rank, step and op."""


class ShardService(ShardServicer):
    """One rank. `failed` is set, once, by the exception that ends the process."""

    def __init__(self, engine: Engine, facts: ShardFacts, budget: MemoryBudget) -> None:
        self._engine = engine
        self._facts = facts
        self._budget = budget
        self._device_thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="device", initializer=engine.device.enter_thread
        )
        self._streaming = False
        self._num_steps = 0
        self._step_started_s: float | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def Info(self, request: pb.InfoRequest, context: grpc.aio.ServicerContext) -> pb.InfoResponse:  # noqa: N802
        engine, facts = self._engine, self._facts
        return pb.InfoResponse(
            protocol_version=PROTOCOL_VERSION,
            server_version=__version__,
            model_id=facts.model_id,
            model_type=engine.model.config.model_type,
            dtype=facts.dtype,
            device_type=engine.device.kind,
            device_name=engine.device.name,
            rank=engine.group.rank,
            world_size=engine.group.world_size,
            sockets=facts.sockets,
            vocab_size=engine.model.config.vocab_size,
            max_position_embeddings=engine.model.max_positions,
            model_sha=facts.model_sha,
            speculate=facts.speculate,
            self_check=None if facts.verdict is None else _self_check(facts.verdict),
            step_sockets=_step_sockets(facts.sockets),
        )

    async def Health(  # noqa: N802
        self, request: pb.HealthRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthResponse:
        started_s = self._step_started_s
        if started_s is not None and time.monotonic() - started_s > _STEP_DEADLINE_S:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                f"the device has been inside step {self._num_steps} for {time.monotonic() - started_s:.0f} s",
            )
        return pb.HealthResponse(num_steps=self._num_steps)

    async def Warmup(  # noqa: N802
        self, request: pb.WarmupRequest, context: grpc.aio.ServicerContext
    ) -> pb.WarmupResponse:
        if self._streaming:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a router is using this shard")
        wanted = Wanted(
            max_batch_prefill_tokens=request.max_batch_prefill_tokens,
            max_sequences=request.max_sequences,
            max_total_tokens=request.max_total_tokens,
            max_batch_total_tokens=request.max_batch_total_tokens,
            max_guesses=self._facts.speculate,
        )
        loop = asyncio.get_running_loop()
        try:
            sizing = await loop.run_in_executor(self._device_thread, warm_up, self._engine, wanted, self._budget)
        except NotEnoughMemory as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except Exception as error:
            logger.debug("warm-up failed", exc_info=error)
            await self._fail(error, context, f"warm-up failed: {describe(error)}")
        return pb.WarmupResponse(
            num_blocks=sizing.shape.num_blocks,
            block_size=sizing.shape.block_size,
            max_batch_prefill_tokens=sizing.max_batch_prefill_tokens,
            max_total_tokens=sizing.shape.max_total_tokens,
            free_bytes=sizing.free_bytes,
            kv_cache_bytes=sizing.kv_cache_bytes,
            max_guessing_tokens=sizing.max_guessing_tokens,
        )

    async def Steps(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        if self._streaming:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this shard serves another stream; it takes one at a time"
            )
        self._streaming = True
        try:
            if any(key == _STEP_SOCKET for key, _ in context.invocation_metadata() or ()):
                await self._answer_on_socket(context)
                return
            async for response in self._answer_stream(request_iterator):
                yield response
        except StepFailed as error:
            await self._fail(error, context, "step failed", traceback_of=error)
        finally:
            self._streaming = False
            await asyncio.get_running_loop().run_in_executor(self._device_thread, self._engine.reset)

    async def _answer_stream(self, request_iterator: AsyncIterator[pb.StepRequest]) -> AsyncIterator[pb.StepResponse]:
        """Raises StepFailed."""
        loop = asyncio.get_running_loop()
        # Steps are handed to the device thread as they arrive, ahead of the answers: that is what keeps it busy.
        running: asyncio.Queue[asyncio.Future[pb.StepResponse] | None] = asyncio.Queue()

        async def read() -> None:
            async for request in request_iterator:
                running.put_nowait(loop.run_in_executor(self._device_thread, self._step, request))
            running.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (step := await running.get()) is not None:
                response = await step
                if self._engine.group.rank == 0:
                    yield response
        finally:
            reader.cancel()

    async def _answer_on_socket(self, context: grpc.aio.ServicerContext) -> None:
        """Raises StepFailed."""
        facts, rank = self._facts, self._engine.group.rank
        path = step_socket_path(facts.sockets[rank])
        assert path is not None, "a step socket was asked for, and none was offered"
        with StepSocket(path) as listening:
            await context.send_initial_metadata(())
            connection = await listening.accept()

        def answer(message: bytes) -> bytes | None:
            response = self._step(pb.StepRequest.FromString(message))
            return response.SerializeToString() if rank == 0 else None

        def answer_all() -> None:
            with torch.inference_mode():
                answer_steps(connection, answer)

        loop = asyncio.get_running_loop()
        answering = loop.run_in_executor(self._device_thread, answer_all)
        try:
            await answering
        finally:
            # The device thread leaves its loop, if it is there still, before it does what is asked of it next.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            loop.run_in_executor(self._device_thread, connection.close)

    def _step(self, request: pb.StepRequest) -> pb.StepResponse:
        """On the device thread."""
        self._step_started_s = time.monotonic()
        try:
            return self._engine.step(request)
        except Exception as error:
            raise StepFailed(
                f"step {request.step_id} failed in {_failing_op(error)}: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._step_started_s = None
            self._num_steps += 1

    async def _fail(
        self, error: Exception, context: grpc.aio.ServicerContext, what: str, *, traceback_of: Exception | None = None
    ) -> None:
        rank = self._engine.group.rank
        if isinstance(error.__cause__ or error, GroupError):  # the rank that was lost has the reason
            logger.error("rank %d: %s", rank, error)
        else:
            logger.error("rank %d: %s", rank, what, exc_info=traceback_of)
        if not self.failed.done():
            self.failed.set_result(error)
        await context.abort(grpc.StatusCode.INTERNAL, first_line(error))


def _step_sockets(sockets: Sequence[str]) -> list[str]:
    paths = [path for socket_path in sockets if (path := step_socket_path(socket_path)) is not None]
    return paths if len(paths) == len(sockets) else []


def _self_check(verdict: Verdict) -> pb.SelfCheck:
    return pb.SelfCheck(
        num_ops=len(verdict.ops),
        num_samples=verdict.num_samples,
        num_model_parts=len(verdict.model),
        worst_error=verdict.worst_error,
        seconds=verdict.seconds,
        checked_at=verdict.checked_at,
        fallbacks=[
            pb.Fallback(
                op=finding.op,
                candidate=rejection.candidate,
                reason=rejection.reason,
                used=", ".join(finding.candidates),
            )
            for finding in verdict.ops
            for rejection in finding.rejections
        ],
    )


def _failing_op(error: BaseException) -> str:
    """The op of the kernels' interface that an exception passed through, else the innermost function."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.name in Ops.__abstractmethods__:
            return frame.name
    return frames[-1].name if frames else "an unknown place"


async def serve(service: ShardService, socket_path: str) -> grpc.aio.Server:
    """Listen on a unix socket that only this user can open. Returns the running server."""
    server = grpc.aio.server(options=_MESSAGE_OPTIONS)
    add_ShardServicer_to_server(service, server)
    previous = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix://{socket_path}")
        await server.start()
    finally:
        os.umask(previous)
    return server


async def answers_health(socket_path: str, timeout_s: float = 30.0) -> None:
    """Call a shard's Health over its own socket: listening is not serving. Raises grpc's error."""
    async with grpc.aio.insecure_channel(f"unix://{socket_path}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        await ShardStub(channel).Health(pb.HealthRequest(), timeout=timeout_s, wait_for_ready=True)
