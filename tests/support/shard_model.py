"""What a shard does with steps, without a model: every table, block and slot is tracked, and a wrong plan is an error.

The next token is a function of the whole prefix as it is found *in the cache*, so a plan that leaves a gap, reads a
block of somebody else or appends a block twice gives other tokens than `reference_tokens`, or an assertion.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from text_generation_router.scheduling.plan import StepPlan, StepResult
from text_generation_router.scheduling.request import TokenNumbers

NextToken = Callable[[tuple[int, ...]], int]


def hashed_token(vocab_size: int) -> NextToken:
    """A next-token rule that depends on every token before it."""

    def next_token(prefix: tuple[int, ...]) -> int:
        digest = hashlib.blake2b(repr(prefix).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") % vocab_size

    return next_token


def echoing_token(vocab_size: int, period: int) -> NextToken:
    """Says again what was said `period` tokens ago, and now and then, for no visible reason, something else."""
    hashed = hashed_token(vocab_size)

    def next_token(prefix: tuple[int, ...]) -> int:
        token_id = hashed(prefix)
        return token_id if token_id % 7 == 0 or len(prefix) < period else prefix[-period]

    return next_token


def reference_tokens(prompt: Iterable[int], count: int, next_token: NextToken) -> list[int]:
    """The tokens that a sequence gets alone."""
    prefix = tuple(prompt)
    output: list[int] = []
    for _ in range(count):
        output.append(next_token((*prefix, *output)))
    return output


def nearest_allowed(mask: bytes, token_id: int) -> int:
    """The first token at or after `token_id`, in a circle, that a mask allows."""
    bits = int.from_bytes(mask, "little")
    count = len(mask) * 8
    return next(candidate % count for candidate in range(token_id, token_id + count) if bits >> candidate % count & 1)


def scripted_logprob(token_id: int) -> float:
    return -math.log(2 + token_id % 7)


@dataclass
class _TableRow:
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    top_n_tokens: int
    prompt_logprobs: bool


@dataclass
class ShardModel:
    """The tables of one shard. `slots` holds, per slot, the token whose keys and values lie there."""

    num_blocks: int
    block_size: int
    next_token: NextToken
    rows: dict[int, _TableRow] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    num_steps: int = 0

    def run(self, plan: StepPlan) -> StepResult:
        for table_index in plan.release:
            del self.rows[table_index]
        for admission in plan.admit:
            assert admission.table_index not in self.rows, "a table row was admitted twice"
            assert admission.num_computed_tokens < len(admission.token_ids)
            self.rows[admission.table_index] = _TableRow(
                list(admission.token_ids),
                admission.num_prompt_tokens,
                admission.num_computed_tokens,
                list(admission.block_ids),
                admission.top_n_tokens,
                admission.prompt_logprobs,
            )
        for table_index, block_id in plan.append:
            assert 0 <= block_id < self.num_blocks
            self.rows[table_index].block_ids.append(block_id)

        # As in a real step, every row writes before any row reads.
        assert len({table_index for table_index, _ in plan.rows}) == len(plan.rows), "two rows of one sequence"
        guesses = dict(plan.guesses)
        for place, (table_index, num_tokens) in enumerate(plan.rows):
            row = self.rows[table_index]
            if place in guesses:
                row.token_ids.extend(guesses[place])
                assert row.num_computed_tokens + num_tokens == len(row.token_ids), "guesses before the last known token"
            for position in range(row.num_computed_tokens, row.num_computed_tokens + num_tokens):
                self.slots[self._slot(row, position)] = row.token_ids[position]
            row.num_computed_tokens += num_tokens
        row_num_sampled: list[int] = []
        allowed = dict(plan.masks)
        token_ids, numbers, top_tokens = [], [], []
        prompt_logprobs: dict[int, tuple[int, tuple[float, ...]]] = {}
        for place, (table_index, num_tokens) in enumerate(plan.rows):
            row = self.rows[table_index]
            prefix = tuple(self.slots[self._slot(row, position)] for position in range(row.num_computed_tokens))
            assert prefix == tuple(row.token_ids[: row.num_computed_tokens]), "the cache holds another prefix"
            if row.prompt_logprobs:
                first = row.num_computed_tokens - num_tokens + 1
                last = min(row.num_computed_tokens, row.num_prompt_tokens - 1)
                if first <= last:
                    values = tuple(scripted_logprob(token_id) for token_id in row.token_ids[first : last + 1])
                    prompt_logprobs[table_index] = (first, values)
            if row.num_computed_tokens == len(row.token_ids):
                guessed = guesses.get(place, ())
                # Right guesses are kept; the token behind them is the row's last.
                first = len(row.token_ids) - len(guessed)
                del row.token_ids[first:]
                row_num_sampled.append(0)
                for guess in (*guessed, None):
                    token_id = self.next_token(prefix[: len(row.token_ids)])
                    if place in allowed:
                        token_id = nearest_allowed(allowed[place], token_id)
                    row.token_ids.append(token_id)
                    row_num_sampled[-1] += 1
                    token_ids.append(token_id)
                    numbers.append(TokenNumbers(scripted_logprob(token_id)))
                    top = tuple((token_id + n, scripted_logprob(token_id)) for n in range(row.top_n_tokens))
                    top_tokens.append(top)
                    if token_id != guess:
                        break
                row.num_computed_tokens = len(row.token_ids) - 1
        self.num_steps += 1
        return StepResult(
            plan.step_id,
            tuple(token_ids),
            tuple(numbers),
            tuple(top_tokens) if any(top_tokens) else (),
            prompt_logprobs,
            row_num_sampled=tuple(row_num_sampled) if guesses else (),
        )

    def _slot(self, row: _TableRow, position: int) -> int:
        return row.block_ids[position // self.block_size] * self.block_size + position % self.block_size
