"""A scheduler run against a model of the shards that refuses a wrong plan, and what each sequence is to get."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from tests.support.shard_model import NextToken, ShardModel, echoing_token, hashed_token, reference_tokens
from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.plan import StepPlan
from text_generation_router.scheduling.request import FinishReason, Request, TokenEvent
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig
from text_generation_router.scheduling.sequence import Sequence

VOCAB = 50
NEXT = hashed_token(VOCAB)
ECHO = echoing_token(VOCAB, period=5)


@dataclass
class Rig:
    """A scheduler with its shards; `depth` steps are in flight at most."""

    num_blocks: int = 64
    block_size: int = 4
    depth: int = 2
    config: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_step_tokens=16, max_sequences=8))
    events: dict[int, list[TokenEvent]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    next_token: NextToken = NEXT

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(self.config, self.pool)
        self.shard = ShardModel(self.num_blocks, self.block_size, self.next_token)
        self.sent: deque[StepPlan] = deque()

    def submit(self, request: Request) -> Sequence:
        sequence = self.scheduler.submit(request)
        self.events[id(sequence)] = []
        return sequence

    def tick(self) -> bool:
        """Plan up to the depth, then answer the oldest step. False when there is nothing left to do."""
        while len(self.sent) < self.depth and self.send():
            pass
        return self.answer()

    def send(self) -> bool:
        """Plan a step. False when nothing can run."""
        plan = self.scheduler.plan()
        if plan is None:
            return False
        self.plans.append(plan)
        self.sent.append(plan)
        return True

    def answer(self) -> bool:
        """Answer the oldest step. False when there is none."""
        if not self.sent:
            return False
        for sequence, event in self.scheduler.complete(self.shard.run(self.sent.popleft())):
            self.events[id(sequence)].append(event)
        return True

    def run(self) -> None:
        for _ in range(10_000):
            if not self.tick():
                return
        pytest.fail("the scheduler never came to rest")

    def output(self, sequence: Sequence) -> list[int]:
        return [event.token_id for event in self.events[id(sequence)]]


def expected(request: Request, next_token: NextToken = NEXT) -> tuple[list[int], FinishReason]:
    tokens = reference_tokens(request.token_ids, request.max_new_tokens, next_token)
    for position, token_id in enumerate(tokens):
        if position + 1 < request.max_new_tokens and token_id in request.eos_token_ids:
            return tokens[: position + 1], FinishReason.EOS_TOKEN
    return tokens, FinishReason.LENGTH


def prompt(length: int, first: int = 1) -> tuple[int, ...]:
    return tuple((first + position) % VOCAB for position in range(length))
