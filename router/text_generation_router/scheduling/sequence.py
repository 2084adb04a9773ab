"""One prompt with its growing output, as the router knows it: tokens, blocks and counters. The scheduler changes it."""

from __future__ import annotations

from enum import Enum, auto

from text_generation_router.scheduling.blocks import BlockHash, hash_blocks
from text_generation_router.scheduling.lookup import PromptLookup
from text_generation_router.scheduling.request import Request


class State(Enum):
    WAITING = auto()  # in the queue: new, or preempted
    RUNNING = auto()  # has a table row in the shards
    FINISHED = auto()  # ended or aborted; owns nothing


class Sequence:
    """Counters of tokens, at any moment:

    [0, num_computed_tokens)              keys and values in the cache, or written by a step in flight
    [num_computed_tokens, num_known)      to be computed by the next steps
    [len(token_ids), num_known)           sampled by steps in flight: the shards know the ids already, we do not yet

    A step with guesses counts as one that samples one token; what it gives beyond that is counted with its answer.
    """

    __slots__ = (
        "arrival",
        "block_hashes",
        "block_ids",
        "is_constrained",
        "lookup",
        "mask",
        "num_computed_tokens",
        "num_guesses_in_flight",
        "num_pending_tokens",
        "num_prompt_tokens",
        "num_remembered_blocks",
        "prompt_logprobs",
        "request",
        "started_s",
        "state",
        "table_index",
        "token_ids",
    )

    def __init__(
        self, request: Request, arrival: int, mask: bytes | None = None, lookup: PromptLookup | None = None
    ) -> None:
        self.request = request
        self.arrival = arrival  # how many came before
        self.is_constrained = mask is not None
        self.mask = mask  # of the next token to be sampled, if constrained; None while it is being worked out
        self.token_ids: list[int] = list(request.token_ids)  # prompt, then output as far as it is known here
        self.num_prompt_tokens = len(request.token_ids)
        self.num_computed_tokens = 0
        self.num_pending_tokens = 0  # sampled by steps in flight
        self.lookup = lookup  # None: no guesses
        self.num_guesses_in_flight = 0  # of the one step in flight, if that has guesses
        self.block_ids: list[int] = []
        self.block_hashes: list[BlockHash] = []  # of the full blocks of token_ids, extended as needed
        self.num_remembered_blocks = 0  # of block_ids, findable or known to be findable elsewhere
        self.table_index = -1  # -1: none
        self.state = State.WAITING
        self.started_s = 0.0  # time.monotonic() of the first step; 0: not yet
        self.prompt_logprobs: list[float] = []  # of prompt tokens 1, 2, ...

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens that the next steps must compute; 0 when the last token that may be made is in flight."""
        if self.num_known_tokens - self.num_prompt_tokens >= self.request.max_new_tokens:
            # The last token of all needs no keys and values of its own.
            return 0
        if self.num_guesses_in_flight:
            return 0  # how long it is now, only the answer tells
        if self.is_constrained and self.mask is None:
            return 0  # the host has to see the last token first
        return self.num_known_tokens - self.num_computed_tokens

    @property
    def waits_to_guess(self) -> bool:
        """Whether to leave the next step out, because it would better be one with guesses after the pending token."""
        return self.lookup is not None and self.num_pending_tokens > 0 and self.lookup.has_guess(self.token_ids)

    def guess(self, at_most: int) -> tuple[int, ...]:
        """What may follow the last known token, and be kept whole if right."""
        if self.lookup is None or self.num_pending_tokens > 0:
            return ()
        num_left = self.request.max_new_tokens - (len(self.token_ids) - self.num_prompt_tokens)
        at_most = min(at_most, num_left - 1)  # a step with guesses makes one token more
        return self.lookup.guess(self.token_ids, at_most) if at_most > 0 else ()

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.request.prompt_logprobs and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    def hash_full_blocks(self, block_size: int) -> list[BlockHash]:
        """Hashes of the full blocks of the tokens known here. Each block is hashed once in a sequence's life."""
        num_hashed = len(self.block_hashes)
        if len(self.token_ids) // block_size > num_hashed:
            parent = self.block_hashes[-1] if self.block_hashes else None
            self.block_hashes += hash_blocks(parent, self.token_ids[num_hashed * block_size :], block_size)
        return self.block_hashes
