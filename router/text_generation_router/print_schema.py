"""`text-generation-router print-schema`: the OpenAPI document, without a model and without shards."""

from __future__ import annotations

import asyncio
import json

import tokenizers

from text_generation_proto import generate_pb2 as pb
from text_generation_router.app import build_app
from text_generation_router.openai.templates import ChatTemplates
from text_generation_router.replica import Replica, ReplicaLimits
from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig
from text_generation_router.settings import RouterSettings
from text_generation_router.shard_client import ShardGroup
from text_generation_router.tokenizer import Tokenizer


def schema_text() -> str:
    """JSON, as /api-doc/openapi.json serves it."""
    return asyncio.run(_schema_text())


async def _schema_text() -> str:
    # A replica of no shards, which nobody will ask for anything, and a tokenizer of no tokens.
    replica = Replica(
        ShardGroup([], pb.InfoResponse(device_type="cpu", vocab_size=1)),
        Scheduler(SchedulerConfig(max_step_tokens=1, max_sequences=1), BlockPool(1, 1)),
        ReplicaLimits(max_total_tokens=2, max_batch_prefill_tokens=1, max_batch_total_tokens=1, block_size=1),
    )
    tokenizer = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), frozenset())
    try:
        document = build_app(
            RouterSettings(disable_grammar_support=True), replica, tokenizer, ChatTemplates({}, {})
        ).openapi()
        return json.dumps(document, indent=2, ensure_ascii=False)
    finally:
        tokenizer.close()
        await replica.close()
