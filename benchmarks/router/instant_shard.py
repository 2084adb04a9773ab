"""A shard process that answers every step at once with words of a vocabulary, so that only the router is measured.

Speaks the true gRPC. It counts tokens and checks nothing; the scripted shard of the tests does.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator

import grpc
import uvloop
from tokenizers import Tokenizer

from benchmarks.prompts import word_ids
from tests.support.scripted_shard import ScriptedShard
from text_generation_proto import generate_pb2 as pb


class InstantShard(ScriptedShard):
    def __init__(self, socket_path: str, tokenizer: Tokenizer) -> None:
        super().__init__(
            socket_path, vocab_size=tokenizer.get_vocab_size(), num_blocks=1 << 16, block_size=16, max_total_tokens=4096
        )
        self._words = list(word_ids(tokenizer))

    async def Steps(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        missing: dict[int, int] = {}  # by table index: known tokens that are not computed yet
        words = self._words
        next_word = 0
        async for request in request_iterator:
            for admission in request.admit:
                missing[admission.table_index] = len(admission.token_ids) - admission.num_computed_tokens
            counts = request.row_num_tokens or [1] * len(request.row_table_index)
            token_ids: list[int] = []
            for table_index, count in zip(request.row_table_index, counts, strict=True):
                missing[table_index] -= count
                if missing[table_index] == 0:
                    missing[table_index] = 1
                    next_word = (next_word + 7919) % len(words)
                    token_ids.append(words[next_word])
            yield pb.StepResponse(step_id=request.step_id, token_ids=token_ids, logprobs=[-1.5] * len(token_ids))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    arguments = parser.parse_args()

    async def serve() -> None:
        shard = InstantShard(arguments.socket, Tokenizer.from_file(arguments.tokenizer))
        await shard.start()
        await shard.wait()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
