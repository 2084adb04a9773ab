"""The gRPC side of one replica: its shards' sockets, their facts, and the one stream of steps to all of them.

Knows messages and sockets; knows nothing about what a step means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from text_generation_proto import PROTOCOL_VERSION
from text_generation_proto import generate_pb2 as pb
from text_generation_proto.frames import Frames, frame
from text_generation_proto.generate_pb2_grpc import ShardStub

_STEPS_METHOD = "/text_generation.v1.Shard/Steps"
_BY_SOCKET = (("step-socket", "1"),)  # a stream's metadata: its steps come by a socket of their own
# A prompt at admission is 3 bytes a token, and prompt log-probabilities 4: far below this for any model.
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    # A unix socket needs no proxy, whatever http_proxy says.
    ("grpc.enable_http_proxy", 0),
)


class ShardError(Exception):
    """A shard could not be reached, refused, or failed. The message is one line."""


class ShardBusy(ShardError):
    """Somebody else's stream is open on the shard, which takes one at a time."""


@dataclass(frozen=True, slots=True)
class WarmupLimits:
    """What the user asked for; 0 leaves the choice to the shard."""

    max_batch_prefill_tokens: int
    max_sequences: int
    max_total_tokens: int
    max_batch_total_tokens: int


def _describe(error: grpc.aio.AioRpcError, rank: int) -> str:
    details = error.details() or "no details"
    return f"rank {rank}: {details} ({error.code().name})"


class ShardGroup:
    """The shards of one replica, in rank order."""

    def __init__(self, channels: list[grpc.aio.Channel], info: pb.InfoResponse) -> None:
        self._channels = channels
        self._stubs = [ShardStub(channel) for channel in channels]
        self.info = info  # rank 0's

    @classmethod
    async def connect(cls, master_socket: str, timeout_s: float = 10.0) -> ShardGroup:
        """Ask rank 0 who the others are, and connect to all.

        Raises: ShardError.
        """
        master = grpc.aio.insecure_channel(f"unix://{master_socket}", options=_CHANNEL_OPTIONS)
        try:
            info: pb.InfoResponse = await ShardStub(master).Info(
                pb.InfoRequest(), timeout=timeout_s, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            await master.close()
            raise ShardError(
                f"no shard answers on {master_socket}: {_describe(error, 0)}; start text-generation-server first, or "
                "name its socket with --master-shard-uds-path"
            ) from None
        if info.protocol_version != PROTOCOL_VERSION:
            await master.close()
            raise ShardError(
                f"the shard on {master_socket} (version {info.server_version}) speaks protocol "
                f"{info.protocol_version} and this router {PROTOCOL_VERSION}; install one version of both"
            )
        others = [grpc.aio.insecure_channel(f"unix://{path}", options=_CHANNEL_OPTIONS) for path in info.sockets[1:]]
        return cls([master, *others], info)

    async def warmup(self, limits: WarmupLimits) -> pb.WarmupResponse:
        """Warm all ranks up at once, as they compute together. Raises: ShardError."""
        request = pb.WarmupRequest(
            max_batch_prefill_tokens=limits.max_batch_prefill_tokens,
            max_sequences=limits.max_sequences,
            max_total_tokens=limits.max_total_tokens,
            max_batch_total_tokens=limits.max_batch_total_tokens,
        )
        answers: list[pb.WarmupResponse] = await asyncio.gather(
            *(self._warmup_rank(rank, request) for rank in range(len(self._stubs)))
        )
        return answers[0]

    async def _warmup_rank(self, rank: int, request: pb.WarmupRequest) -> pb.WarmupResponse:
        try:
            answer: pb.WarmupResponse = await self._stubs[rank].Warmup(request)
        except grpc.aio.AioRpcError as error:
            kind = ShardBusy if error.code() is grpc.StatusCode.FAILED_PRECONDITION else ShardError
            raise kind(_describe(error, rank)) from None
        return answer

    async def check_health(self, timeout_s: float) -> bool:
        """Whether every rank says in time that it is well."""
        calls = (stub.Health(pb.HealthRequest(), timeout=timeout_s) for stub in self._stubs)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return not any(isinstance(answer, BaseException) for answer in answers)

    def open_steps(self, on_answer: Callable[[pb.StepResponse], None], on_failure: Callable[[str], None]) -> StepStream:
        return StepStream(self._channels, self.info.step_sockets, on_answer, on_failure)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class _StepSocket(asyncio.Protocol):
    """A connection to one rank beside its stream, which tells how it ends."""

    def __init__(self, on_answer: Callable[[pb.StepResponse], None]) -> None:
        self.lost = asyncio.Event()
        self._on_answer = on_answer
        self._frames = Frames()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._on_answer(pb.StepResponse.FromString(message))


class StepStream:
    """One `Steps` stream to each rank: a step is serialized once and sent to all; rank 0 answers.

    Where shards have sockets for them, steps pass gRPC by. `on_answer` gets rank 0's answers in order;
    `on_failure` gets one line, once, when any of the streams ends.
    """

    def __init__(
        self,
        channels: Sequence[grpc.aio.Channel],
        step_sockets: Sequence[str],
        on_answer: Callable[[pb.StepResponse], None],
        on_failure: Callable[[str], None],
    ) -> None:
        """
        Args:
            step_sockets: one for each channel, or none.
        """
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._failed = False
        metadata = _BY_SOCKET if step_sockets else None
        self._calls = [
            channel.stream_stream(_STEPS_METHOD, response_deserializer=pb.StepResponse.FromString)(metadata=metadata)
            for channel in channels
        ]
        self._connecting = [
            asyncio.create_task(self._connect(call, path))
            for call, path in zip(self._calls, step_sockets, strict=False)
        ]
        self._readers = [asyncio.create_task(self._read(rank, call)) for rank, call in enumerate(self._calls)]

    async def send(self, step: bytes) -> None:
        """Hand one step to every rank. A rank that is gone is reported through `on_failure`."""
        if self._connecting:
            framed = frame(step)
            for connecting in self._connecting:
                connection = await connecting
                if connection is not None:
                    connection[0].write(framed)
            return
        try:
            for call in self._calls:
                await call.write(step)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # its reader sees the same end, with the reason

    async def close(self) -> None:
        """End the session: the shards forget every sequence."""
        self._failed = True
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for connection in await asyncio.gather(*self._connecting, return_exceptions=True):
            if isinstance(connection, tuple):
                transport, protocol = connection
                transport.abort()
                await protocol.lost.wait()  # only then is it closed, and may the loop be

    async def _connect(
        self, call: grpc.aio.StreamStreamCall, path: str
    ) -> tuple[asyncio.WriteTransport, _StepSocket] | None:
        """None if the shard has gone or has refused, which its stream tells."""
        await call.initial_metadata()
        try:
            return await asyncio.get_running_loop().create_unix_connection(lambda: _StepSocket(self._on_answer), path)
        except OSError:
            return None

    async def _read(self, rank: int, call: grpc.aio.StreamStreamCall) -> None:
        try:
            async for answer in call:
                self._on_answer(answer)
            self._fail(f"rank {rank}: the shard ended the stream")
        except grpc.aio.AioRpcError as error:
            self._fail(_describe(error, rank))

    def _fail(self, message: str) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(message)
