"""The shard's gRPC service with a real engine behind it, over a real socket."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from torch import Tensor

from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import load_engine
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.interface import KVCache, StepMetadata
from text_generation_proto import PROTOCOL_VERSION
from text_generation_proto import generate_pb2 as pb
from text_generation_proto.generate_pb2_grpc import ShardStub
from text_generation_server.engine import Engine
from text_generation_server.memory_budget import MemoryBudget
from text_generation_server.service import ShardFacts, ShardService, answers_health, serve


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load_engine(make_checkpoint(tmp_path_factory.mktemp("llama"), "llama"))


@asynccontextmanager
async def serving(engine: Engine, socket_path: Path) -> AsyncIterator[tuple[ShardService, ShardStub]]:
    facts = ShardFacts("tiny", "abc", "float32", (str(socket_path),))
    service = ShardService(engine, facts, MemoryBudget())
    server = await serve(service, str(socket_path))
    async with grpc.aio.insecure_channel(f"unix://{socket_path}") as channel:
        yield service, ShardStub(channel)
    await server.stop(None)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


WARMUP = pb.WarmupRequest(max_batch_prefill_tokens=64, max_sequences=4, max_total_tokens=64)


def first_step(token_ids: list[int]) -> pb.StepRequest:
    admission = pb.Admission(table_index=0, token_ids=token_ids, num_prompt_tokens=len(token_ids), block_ids=[0])
    return pb.StepRequest(step_id=0, admit=[admission], row_table_index=[0], row_num_tokens=[len(token_ids)])


def test_facts_warm_up_and_steps(engine: Engine, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(engine, tmp_path / "s-0") as (_, stub):
            info = await stub.Info(pb.InfoRequest())
            assert (info.protocol_version, info.vocab_size, info.device_type) == (PROTOCOL_VERSION, 320, "cpu")
            assert list(info.sockets) == [str(tmp_path / "s-0")]
            sizing = await stub.Warmup(WARMUP)
            assert (sizing.num_blocks, sizing.block_size, sizing.max_total_tokens) == (16, 16, 64)
            call = stub.Steps()
            await call.write(first_step([5, 6, 7]))
            first = await call.read()
            assert (first.step_id, len(first.token_ids)) == (0, 1)
            await call.write(pb.StepRequest(step_id=1, row_table_index=[0]))
            second = await call.read()
            assert second.step_id == 1
            assert second.forward_ns > 0
            await call.done_writing()
            assert await call.read() == grpc.aio.EOF
            assert (await stub.Health(pb.HealthRequest())).num_steps == 2

    run(test)


async def accepts_warmup(stub: ShardStub) -> bool:
    try:
        await stub.Warmup(WARMUP)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return False
        raise
    return True


def test_end_of_a_stream_forgets_every_sequence(engine: Engine, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(engine, tmp_path / "s-0") as (_, stub):
            await stub.Warmup(WARMUP)
            answers = []
            for _ in range(2):
                call = stub.Steps()
                await call.write(first_step([5, 6, 7]))  # the same table row both times
                answers.append(await call.read())
                call.cancel()
                while not await accepts_warmup(stub):
                    pass  # the shard takes the next stream once the last one is gone
            assert answers[0].token_ids == answers[1].token_ids

    run(test)


def test_second_stream_is_refused_in_one_line(engine: Engine, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(engine, tmp_path / "s-0") as (_, stub):
            await stub.Warmup(WARMUP)
            first = stub.Steps()
            await first.write(first_step([5]))
            await first.read()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Steps().read()
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "one at a time" in (caught.value.details() or "")
            first.cancel()

    run(test)


def test_limits_that_do_not_fit_are_an_answer_and_not_the_end(engine: Engine, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(engine, tmp_path / "s-0") as (service, stub):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Warmup(pb.WarmupRequest(max_sequences=4, max_total_tokens=64, max_batch_total_tokens=48))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "lower --max-total-tokens to 48" in (caught.value.details() or "")
            assert not service.failed.done()
            await stub.Warmup(WARMUP)

    run(test)


class FailingOps(CpuOps):
    """Ops whose attention fails, as a device would, once `broken` is set."""

    broken = False

    def attention(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        if self.broken:
            raise RuntimeError("device lost\nsecond line")
        return super().attention(q, cache, step, scale)


def test_failing_step_names_step_and_op_and_ends_the_process(tmp_path: Path) -> None:
    device = CpuDevice()
    device.ops = ops = FailingOps()
    engine = load_engine(make_checkpoint(tmp_path / "model", "llama"), device=device)

    async def test() -> None:
        async with serving(engine, tmp_path / "s-0") as (service, stub):
            await stub.Warmup(WARMUP)
            ops.broken = True
            call = stub.Steps()
            await call.write(first_step([5, 6, 7]))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert caught.value.details() == "step 0 failed in attention: RuntimeError: device lost"
            assert service.failed.done()

    run(test)


def test_failing_warmup_is_one_line_with_its_traceback_at_level_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = CpuDevice()
    device.ops = ops = FailingOps()
    ops.broken = True
    engine = load_engine(make_checkpoint(tmp_path / "model", "llama"), device=device)

    async def test() -> None:
        async with serving(engine, tmp_path / "s-0") as (service, stub):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Warmup(WARMUP)
            assert caught.value.details() == "device lost"
            assert service.failed.done()

    with caplog.at_level(logging.DEBUG, "text_generation_server"):
        run(test)
    (line,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.getMessage() == "rank 0: warm-up failed: RuntimeError: device lost"
    assert not line.exc_info
    assert any(record.exc_info for record in caplog.records if record.levelno == logging.DEBUG)


def test_socket_is_for_this_user_alone(engine: Engine, tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(engine, tmp_path / "s-0"):
            await answers_health(str(tmp_path / "s-0"))
            mode = (tmp_path / "s-0").stat().st_mode
            assert stat.S_IMODE(mode) == 0o600

    run(test)
