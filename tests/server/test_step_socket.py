"""Steps by a socket of their own, with a real engine: the same answers, and the stream tells how a session ends."""

from __future__ import annotations

import asyncio
import os
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from torch import Tensor

from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import load_engine
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.interface import KVCache, StepMetadata
from text_generation_proto import generate_pb2 as pb
from text_generation_proto.generate_pb2_grpc import ShardStub
from text_generation_server.engine import Engine
from text_generation_server.memory_budget import MemoryBudget
from text_generation_server.service import ShardFacts, ShardService, serve
from text_generation_server.step_socket import step_socket_path

BY_SOCKET = (("step-socket", "1"),)
WARMUP = pb.WarmupRequest(max_batch_prefill_tokens=64, max_sequences=4, max_total_tokens=64)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load_engine(make_checkpoint(tmp_path_factory.mktemp("llama"), "llama"))


def run(
    engine: Engine,
    folder: Path,
    test: Callable[[ShardService, ShardStub, str], Awaitable[None]],
    rank_socket: str = "s-0",
) -> None:
    async def bounded() -> None:
        socket_path = str(folder / rank_socket)
        service = ShardService(engine, ShardFacts("tiny", "abc", "float32", (socket_path,)), MemoryBudget())
        server = await serve(service, socket_path)
        async with grpc.aio.insecure_channel(f"unix://{socket_path}") as channel:
            stub = ShardStub(channel)
            info = await stub.Info(pb.InfoRequest())
            await stub.Warmup(WARMUP)
            await asyncio.wait_for(test(service, stub, next(iter(info.step_sockets), "")), 30)
        await server.stop(None)

    asyncio.run(bounded())


def steps() -> list[pb.StepRequest]:
    admission = pb.Admission(table_index=0, token_ids=[5, 6, 7], num_prompt_tokens=3, block_ids=[0])
    first = pb.StepRequest(step_id=0, admit=[admission], row_table_index=[0], row_num_tokens=[3])
    return [first, *(pb.StepRequest(step_id=step_id, row_table_index=[0]) for step_id in range(1, 6))]


async def connect(call: grpc.aio.StreamStreamCall, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    await call.initial_metadata()
    return await asyncio.open_unix_connection(path)


async def read_answer(reader: asyncio.StreamReader) -> pb.StepResponse:
    (size,) = struct.unpack("<I", await reader.readexactly(4))
    return pb.StepResponse.FromString(await reader.readexactly(size))


def framed(request: pb.StepRequest) -> bytes:
    message = request.SerializeToString()
    return struct.pack("<I", len(message)) + message


async def accepts_warmup(stub: ShardStub) -> bool:
    try:
        await stub.Warmup(WARMUP)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return False
        raise
    return True


def facts_of(answer: pb.StepResponse) -> tuple[int, list[int], list[float]]:
    return answer.step_id, list(answer.token_ids), list(answer.logprobs)


def test_steps_sent_at_once_are_answered_in_order_as_grpc_answers_them(engine: Engine, tmp_path: Path) -> None:
    async def test(service: ShardService, stub: ShardStub, path: str) -> None:
        call = stub.Steps()
        expected = []
        for request in steps():
            await call.write(request)
            expected.append(facts_of(await call.read()))
        await call.done_writing()
        assert await call.read() == grpc.aio.EOF

        call = stub.Steps(metadata=BY_SOCKET)
        reader, writer = await connect(call, path)
        writer.write(b"".join(map(framed, steps())))
        assert [facts_of(await read_answer(reader)) for _ in steps()] == expected
        writer.close()
        assert await call.read() == grpc.aio.EOF

    run(engine, tmp_path, test)


def test_connection_that_ends_ends_the_session_and_forgets_every_sequence(engine: Engine, tmp_path: Path) -> None:
    async def test(service: ShardService, stub: ShardStub, path: str) -> None:
        for _ in range(3):
            call = stub.Steps(metadata=BY_SOCKET)
            reader, writer = await connect(call, path)
            writer.write(framed(steps()[0]))  # the same table row each time
            await read_answer(reader)
            writer.close()
            assert await call.read() == grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK

    run(engine, tmp_path, test)


def test_stream_that_ends_closes_the_connection_and_frees_the_device_thread(engine: Engine, tmp_path: Path) -> None:
    async def test(service: ShardService, stub: ShardStub, path: str) -> None:
        call = stub.Steps(metadata=BY_SOCKET)
        reader, writer = await connect(call, path)
        writer.write(framed(steps()[0]))
        await read_answer(reader)
        call.cancel()
        assert await reader.read() == b""
        writer.close()
        while not await accepts_warmup(stub):
            pass  # the shard takes the next caller once the last one is gone
        assert not service.failed.done()

    run(engine, tmp_path, test)


def test_second_session_is_refused_while_one_waits_for_its_connection(engine: Engine, tmp_path: Path) -> None:
    async def test(service: ShardService, stub: ShardStub, path: str) -> None:
        first = stub.Steps(metadata=BY_SOCKET)
        await first.initial_metadata()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(grpc.aio.AioRpcError, match="one at a time"):
            await stub.Steps(metadata=BY_SOCKET).read()
        first.cancel()

    run(engine, tmp_path, test)
    assert list(tmp_path.glob("*")) == []


class FailingOps(CpuOps):
    """Ops whose attention fails, as a device would, once `broken` is set."""

    broken = False

    def attention(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        if self.broken:
            raise RuntimeError("device lost")
        return super().attention(q, cache, step, scale)


def test_stream_names_the_step_and_op_that_failed(tmp_path: Path) -> None:
    device = CpuDevice()
    device.ops = ops = FailingOps()
    engine = load_engine(make_checkpoint(tmp_path / "model", "llama"), device=device)

    async def test(service: ShardService, stub: ShardStub, path: str) -> None:
        ops.broken = True
        call = stub.Steps(metadata=BY_SOCKET)
        _, writer = await connect(call, path)
        writer.write(framed(steps()[0]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert caught.value.details() == "step 0 failed in attention: RuntimeError: device lost"
        assert service.failed.done()
        writer.close()

    run(engine, tmp_path, test)


def test_path_without_room_for_one_more_byte_offers_no_step_socket() -> None:
    assert step_socket_path("/" + "x" * 105) == "/" + "x" * 105 + "s"
    assert step_socket_path("/" + "x" * 106) is None
