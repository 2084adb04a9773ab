"""A real shard as its own process, and whether one is free for the next who comes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from text_generation_proto import generate_pb2 as pb
from text_generation_proto.generate_pb2_grpc import ShardStub

_START_S = 60.0


@contextmanager
def running_shard(model: Path, folder: Path) -> Iterator[str]:
    """`text-generation-server serve` on one thread. Yields its socket."""
    prefix, log_path = folder / "shard", folder / "shard.log"
    command = [sys.executable, "-m", "text_generation_server", "serve", str(model), "--uds-path", str(prefix)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        deadline_s = time.monotonic() + _START_S
        while "Server started" not in log_path.read_text():
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline_s, log_path.read_text()
            time.sleep(0.05)
        yield f"{prefix}-0"
        assert process.poll() is None, log_path.read_text()
    finally:
        process.terminate()
        process.wait(30)


def is_clean(socket_path: str, timeout_s: float = 10.0) -> bool:
    """Whether the shard soon takes another client, who finds every table row and block free."""
    return asyncio.run(_is_clean(socket_path, timeout_s))


async def _is_clean(socket_path: str, timeout_s: float) -> bool:
    async with grpc.aio.insecure_channel(f"unix://{socket_path}") as channel:
        stub = ShardStub(channel)
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                await stub.Warmup(pb.WarmupRequest(max_batch_prefill_tokens=64, max_sequences=4, max_total_tokens=64))
                break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION or time.monotonic() > deadline_s:
                    return False
                await asyncio.sleep(0.05)
        call = stub.Steps()
        await call.write(
            pb.StepRequest(
                admit=[
                    pb.Admission(table_index=index, token_ids=[5, 6, 7], num_prompt_tokens=3, block_ids=[index])
                    for index in range(4)
                ],
                row_table_index=range(4),
                row_num_tokens=[3] * 4,
            )
        )
        answer = await call.read()
        call.cancel()
        return len(set(answer.token_ids)) == 1 and len(answer.token_ids) == 4
