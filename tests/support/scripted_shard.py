"""A shard process without a model: true gRPC on a true socket, tokens by a rule (see shard_model).

As a program, `python -m tests.support.scripted_shard --uds-path PREFIX`, or inside a test through `ScriptedShard`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import grpc

from tests.support.shard_model import NextToken, ShardModel, hashed_token
from text_generation_proto import PROTOCOL_VERSION
from text_generation_proto import generate_pb2 as pb
from text_generation_proto.frames import Frames, frame
from text_generation_proto.generate_pb2_grpc import ShardServicer, add_ShardServicer_to_server
from text_generation_router.scheduling.plan import Admission, StepPlan, StepResult
from text_generation_router.scheduling.request import SamplingParameters, TokenNumbers
from text_generation_server.step_socket import StepSocket


def decode_plan(message: pb.StepRequest) -> StepPlan:
    counts = message.row_num_tokens or [1] * len(message.row_table_index)
    return StepPlan(
        step_id=message.step_id,
        release=tuple(message.release),
        admit=tuple(
            Admission(
                admission.table_index,
                tuple(admission.token_ids),
                admission.num_prompt_tokens,
                admission.num_computed_tokens,
                tuple(admission.block_ids),
                SamplingParameters(),
                admission.top_n_tokens,
                admission.prompt_logprobs,
            )
            for admission in message.admit
        ),
        append=tuple(zip(message.append_table_index, message.append_block_id, strict=True)),
        rows=tuple(zip(message.row_table_index, counts, strict=True)),
        masks=_decode_masks(message),
        guesses=_decode_guesses(message),
    )


def _decode_guesses(message: pb.StepRequest) -> tuple[tuple[int, tuple[int, ...]], ...]:
    token_ids = iter(message.guess_token_ids)
    return tuple(
        (place, tuple(islice(token_ids, count)))
        for place, count in zip(message.guess_rows, message.guess_counts, strict=True)
    )


def _decode_masks(message: pb.StepRequest) -> tuple[tuple[int, bytes], ...]:
    if not message.masked_rows:
        return ()
    size = len(message.masks) // len(message.masked_rows)
    return tuple(
        (place, message.masks[index * size : (index + 1) * size]) for index, place in enumerate(message.masked_rows)
    )


def encode_result(result: StepResult) -> pb.StepResponse:
    flat = [pair for row in result.top_tokens for pair in row]
    # The rule of this shard gives some of the numbers; 0 stands for the others.
    columns: dict[str, Any] = {
        f"{name}s": [value or 0 for value in values]
        for name, values in zip(TokenNumbers._fields, zip(*result.numbers, strict=True), strict=False)
    }
    return pb.StepResponse(
        step_id=result.step_id,
        token_ids=result.token_ids,
        **columns,
        row_num_sampled=result.row_num_sampled,
        top_counts=[len(row) for row in result.top_tokens],
        top_token_ids=[token_id for token_id, _ in flat],
        top_logprobs=[logprob for _, logprob in flat],
        prompt_logprobs=[
            pb.PromptLogprobs(table_index=table_index, first_position=first, logprobs=values)
            for table_index, (first, values) in result.prompt_logprobs.items()
        ],
    )


class ScriptedShard(ShardServicer):
    """Serves one rank. `fail_at_step` ends the stream with an error at that step; `step_s` is a step's duration; the
    logits behind a sequence that holds the token `broken_token` are no numbers; without `step_socket` all steps come by
    gRPC."""

    def __init__(
        self,
        socket_path: str,
        *,
        next_token: NextToken | None = None,
        vocab_size: int = 256,
        num_blocks: int = 256,
        block_size: int = 16,
        max_total_tokens: int = 1024,
        step_s: float = 0.0,
        fail_at_step: int | None = None,
        broken_token: int | None = None,
        protocol_version: int = PROTOCOL_VERSION,
        step_socket: bool = True,
    ) -> None:
        self.socket_path = socket_path
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_total_tokens = max_total_tokens
        self.step_s = step_s
        self.fail_at_step = fail_at_step
        self.broken_token = broken_token
        self.protocol_version = protocol_version
        self.step_socket = f"{socket_path}s" if step_socket else None
        self.next_token = next_token or hashed_token(vocab_size)
        self.model = ShardModel(num_blocks, block_size, self.next_token)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        add_ShardServicer_to_server(_WithStepSocket(self), self._server)
        self._server.add_insecure_port(f"unix://{self.socket_path}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def wait(self) -> None:
        if self._server is not None:
            await self._server.wait_for_termination()

    async def Info(self, request: pb.InfoRequest, context: grpc.aio.ServicerContext) -> pb.InfoResponse:  # noqa: N802
        return pb.InfoResponse(
            protocol_version=self.protocol_version,
            server_version="scripted",
            model_id="scripted",
            model_type="scripted",
            dtype="float32",
            device_type="cpu",
            device_name="scripted",
            world_size=1,
            sockets=[self.socket_path],
            step_sockets=[] if self.step_socket is None else [self.step_socket],
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_total_tokens,
        )

    async def Health(  # noqa: N802
        self, request: pb.HealthRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthResponse:
        return pb.HealthResponse(num_steps=self.model.num_steps)

    async def Warmup(  # noqa: N802
        self, request: pb.WarmupRequest, context: grpc.aio.ServicerContext
    ) -> pb.WarmupResponse:
        return pb.WarmupResponse(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_batch_prefill_tokens=request.max_batch_prefill_tokens or 64,
            max_total_tokens=request.max_total_tokens or self.max_total_tokens,
        )

    async def Steps(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        self.model = ShardModel(self.num_blocks, self.block_size, self.next_token)
        async for request in request_iterator:
            if request.step_id == self.fail_at_step:
                await context.abort(grpc.StatusCode.INTERNAL, f"step {request.step_id}: scripted failure")
            if self.step_s:
                await asyncio.sleep(self.step_s)
            plan = decode_plan(request)
            answer = encode_result(self.model.run(plan))
            for table_index, _ in plan.rows:
                # Its last token was sampled by this step.
                if self.broken_token in self.model.rows[table_index].token_ids[:-1]:
                    answer.faults.add(table_index=table_index, message="the model gave no numbers (scripted)")
            yield answer


class _WithStepSocket(ShardServicer):
    """A shard whose steps come by the way that the stream's metadata ask for."""

    def __init__(self, shard: ScriptedShard) -> None:
        self._shard = shard
        self.Info, self.Health, self.Warmup = shard.Info, shard.Health, shard.Warmup

    async def Steps(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        path = self._shard.step_socket
        if path is None or "step-socket" not in dict(context.invocation_metadata() or ()):
            async for answer in self._shard.Steps(request_iterator, context):
                yield answer
            return
        with StepSocket(path) as listening:
            await context.send_initial_metadata(())
            reader, writer = await asyncio.open_unix_connection(sock=await listening.accept())

        async def requests() -> AsyncIterator[pb.StepRequest]:
            frames = Frames()
            while data := await reader.read(1 << 16):
                for message in frames.feed(data):
                    yield pb.StepRequest.FromString(message)

        try:
            async for answer in self._shard.Steps(requests(), context):
                writer.write(frame(answer.SerializeToString()))
        finally:
            writer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds-path", required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    arguments = parser.parse_args()

    async def serve() -> None:
        shard = ScriptedShard(f"{arguments.uds_path}-0", step_s=arguments.step_s)
        await shard.start()
        await shard.wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
