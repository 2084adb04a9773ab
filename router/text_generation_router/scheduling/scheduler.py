"""What runs in the next step.

There is no prefill phase and no decode phase. Each step lets `num_computed_tokens` of some sequences catch up with the
tokens they are known to have; a row that reaches the last known token samples one more. A decode row, a whole prompt,
a chunk of a prompt, the rest of a prompt whose beginning was cached and a sequence that comes back after a preemption
are all this one thing.

Steps are planned ahead of their answers: a plan counts on the shards running all earlier plans, in order. So blocks and
table rows that a plan gives back can be handed out by that very plan, and what a step in flight writes into a block
that was freed meanwhile is overwritten or unreachable.

Who came first has the first claim to every block and table row. Others run in what it cannot use, ahead of it where it
does not fit yet, and yield as soon as that makes it fit. So the oldest of all is never held up by the others, runs to
its end, and then the next one is the oldest.

Knows nothing about time limits, text, asyncio or the wire.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter

from text_generation_router.scheduling.blocks import BlockCounts, BlockPool
from text_generation_router.scheduling.lookup import PromptLookup
from text_generation_router.scheduling.plan import Admission, StepPlan, StepResult
from text_generation_router.scheduling.request import FinishReason, Request, TokenEvent
from text_generation_router.scheduling.sequence import Sequence, State

# How far behind the first in the queue a plan looks for those who may pass it: some 20 µs of work.
_MAX_PASSED = 64
_ARRIVAL = attrgetter("arrival")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_step_tokens: int  # the token budget of one step (--max-batch-prefill-tokens)
    max_sequences: int  # rows of the shards' tables
    # Whether prompt and decode rows may share a step. Off where a decode step replays a captured graph.
    mixed_steps: bool = True
    prefix_caching: bool = True
    # Share of the blocks that admission leaves alone, so that running sequences can grow a while before one must yield.
    low_water: float = 0.01
    max_guesses: int = 0  # tokens guessed ahead in a row (--speculate)
    max_guessing_tokens: int = 0  # of a step, decoding rows and guesses: with more of them, guessing does not pay


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    running: int
    waiting: int
    blocks: BlockCounts
    preemptions: int  # since start
    prefix_hit_tokens: int  # since start; prompt tokens that were not computed because they were cached
    running_tokens: int  # tokens known of running sequences
    running_max_tokens: int  # that they may have in the end
    guessed_tokens: int  # since start
    guessed_right_tokens: int  # since start
    logits_faults: int  # since start; sequences that ended because the model gave no numbers to choose by


@dataclass(slots=True)
class _Row:
    sequence: Sequence
    num_tokens: int  # guesses included
    new_block_ids: list[int]
    guesses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    step_id: int
    sampled: list[Sequence]  # in row order
    sequence_at: dict[int, Sequence]  # by table index, of the rows that report prompt logprobs
    table_rows: tuple[tuple[int, int], ...]  # the plan's rows, and their sequences
    rows: list[_Row]


class Scheduler:
    """Owns a replica's queue, its running sequences and its blocks."""

    def __init__(self, config: SchedulerConfig, pool: BlockPool, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.pool = pool
        self._clock = clock
        # Both in the order of arrival. Running ones are served in this order, and preempted in the opposite one.
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._num_arrived = 0
        self._free_table_indices = list(range(config.max_sequences - 1, -1, -1))
        self._release: list[int] = []  # table indices to be given back by the next plan
        self._in_flight: deque[_StepInFlight] = deque()
        self._next_step_id = 0
        self._last_step_was_prompts = False
        self._low_water_blocks = max(1, int(pool.num_blocks * config.low_water))
        self._preemptions = 0
        self._prefix_hit_tokens = 0
        self._guessed_tokens = 0
        self._guessed_right_tokens = 0
        self._logits_faults = 0

    # ------------------------------------------------------------------------------------------------ sequences

    def submit(self, request: Request, mask: bytes | None = None) -> Sequence:
        """Queue a request. It has been checked to fit the cache alone.

        Args:
            mask: of a constrained request, the tokens allowed first. Such a sequence samples a token only when the
                mask for it has been set: it has at most one step in flight, while all others keep two.
        """
        # Guesses are of no use under a grammar, whose next mask has to be worked out after each token.
        guesses = self.config.max_guesses > 0 and mask is None
        lookup = PromptLookup(self.config.max_guesses) if guesses else None
        sequence = Sequence(request, self._num_arrived, mask, lookup)
        self._num_arrived += 1
        self._waiting.append(sequence)
        return sequence

    def set_mask(self, sequence: Sequence, mask: bytes) -> None:
        """Say which tokens a constrained sequence may sample next."""
        sequence.mask = mask

    def abort(self, sequence: Sequence) -> None:
        """End a sequence in whatever state it is; what steps in flight still answer for it is dropped."""
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._running.remove(sequence)
            self._give_back(sequence)
        sequence.state = State.FINISHED

    def abort_all(self) -> list[Sequence]:
        """End everything, steps in flight included: the shards have forgotten it."""
        sequences = [*self._running, *self._waiting]
        for sequence in sequences:
            self.abort(sequence)
        self._in_flight.clear()
        return sequences

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._running),
            waiting=len(self._waiting),
            blocks=self.pool.counts(),
            preemptions=self._preemptions,
            prefix_hit_tokens=self._prefix_hit_tokens,
            running_tokens=sum(sequence.num_known_tokens for sequence in self._running),
            running_max_tokens=sum(
                sequence.num_prompt_tokens + sequence.request.max_new_tokens for sequence in self._running
            ),
            guessed_tokens=self._guessed_tokens,
            guessed_right_tokens=self._guessed_right_tokens,
            logits_faults=self._logits_faults,
        )

    @property
    def num_steps_in_flight(self) -> int:
        return len(self._in_flight)

    # ------------------------------------------------------------------------------------------------ planning

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can run before an answer or a request arrives.

        Every decoding sequence gets its row; prompts share what is left of the token budget, but never less than a
        quarter of it, or a full house of decoding sequences would starve them. Where few sequences decode, guesses
        share their step. So a step has at most max_step_tokens + max_sequences tokens.
        """
        rows: list[_Row] = []
        decoding = [sequence for sequence in self._running if sequence.num_remaining_tokens == 1]
        max_guesses = 0
        if self.config.max_guesses:
            max_guesses = min(self.config.max_guessing_tokens, self.config.max_sequences) - len(decoding)
        if max_guesses > 0:
            decoding = [sequence for sequence in decoding if not sequence.waits_to_guess]
        prompts_first = not self.config.mixed_steps and not (self._last_step_was_prompts and decoding)

        if not prompts_first:
            self._add_decoding_rows(rows, decoding, max_guesses)
        admit: list[Sequence] = []
        if self.config.mixed_steps or not rows:
            prompts = [sequence for sequence in self._running if sequence.num_remaining_tokens > 1]
            num_decoding = sum(row.num_tokens for row in rows)
            budget = max(self.config.max_step_tokens - num_decoding, self.config.max_step_tokens // 4, 1)
            budget = self._add_rows(rows, prompts, budget)
            admit = self._admit(rows, budget)
            self._last_step_was_prompts = bool(rows)
        else:
            self._last_step_was_prompts = False
        if prompts_first and not rows:
            self._add_decoding_rows(rows, decoding, max_guesses)
        if not rows:
            return None
        return self._commit(rows, admit)

    def _add_decoding_rows(self, rows: list[_Row], decoding: list[Sequence], max_guesses: int) -> None:
        self._add_rows(rows, decoding, len(decoding))
        for row in rows if max_guesses > 0 else ():
            max_guesses -= self._add_guesses(row, max_guesses)

    def _add_guesses(self, row: _Row, at_most: int) -> int:
        """Let a row go on with what may follow, while there are blocks that nobody would have to yield for."""
        sequence = row.sequence
        guesses = sequence.guess(at_most)
        num_blocks = self._num_blocks(sequence.num_computed_tokens + row.num_tokens + len(guesses))
        missing = num_blocks - len(sequence.block_ids)
        if missing > 0 and missing + self._low_water_blocks > self.pool.num_available:
            return 0
        new_block_ids = self.pool.allocate(missing) if missing > 0 else []
        sequence.block_ids.extend(new_block_ids)
        row.new_block_ids = [*row.new_block_ids, *new_block_ids]
        row.guesses = guesses
        row.num_tokens += len(guesses)
        return len(guesses)

    def _add_rows(self, rows: list[_Row], sequences: list[Sequence], budget: int) -> int:
        """Give each sequence a row while the budget lasts, preempting the newest when blocks run out."""
        for sequence in sequences:
            if budget == 0:
                break
            if sequence.state is not State.RUNNING:  # preempted for one of the sequences before it
                continue
            num_tokens = min(sequence.num_remaining_tokens, budget)
            missing = self._num_blocks(sequence.num_computed_tokens + num_tokens) - len(sequence.block_ids)
            while missing > self.pool.num_available and sequence.state is State.RUNNING:
                budget += self._preempt_newest(rows)
            if sequence.state is not State.RUNNING:
                continue
            new_block_ids = self.pool.allocate(missing) if missing > 0 else []
            sequence.block_ids.extend(new_block_ids)
            rows.append(_Row(sequence, num_tokens, new_block_ids))
            budget -= num_tokens
        return budget

    def _preempt_newest(self, rows: list[_Row]) -> int:
        """Take everything from the newest running sequence; to be computed anew. Returns the budget it used."""
        sequence = self._running.pop()
        self._give_back(sequence)
        sequence.num_computed_tokens = 0
        sequence.state = State.WAITING
        # In front of it wait those it had passed, and those preempted in whose place it ran: few.
        place = sum(1 for _ in takewhile(lambda other: other.arrival < sequence.arrival, self._waiting))
        self._waiting.insert(place, sequence)
        self._preemptions += 1
        for position, row in enumerate(rows):
            if row.sequence is sequence:
                del rows[position]
                return row.num_tokens
        return 0

    def _admit(self, rows: list[_Row], budget: int) -> list[Sequence]:
        """Let waiting sequences in while budget, table rows and blocks last: in the order in which they came, and past
        those that do not fit."""
        admitted: list[Sequence] = []
        place = 0  # in the queue; all in front of it have to wait
        while budget > 0 and place < min(len(self._waiting), _MAX_PASSED + 1):
            sequence = self._waiting[place]
            # All rows are taken: only the first in the queue could have one, of somebody who came later.
            if not self._free_table_indices and (place > 0 or self._running[-1].arrival < sequence.arrival):
                break
            cached_block_ids = self._room_for(sequence, rows, is_first=place == 0)
            if cached_block_ids is None:
                place += 1
                continue
            del self._waiting[place]
            self._start(sequence, cached_block_ids)
            admitted.append(sequence)
            num_tokens = min(sequence.num_remaining_tokens, budget)
            rows.append(_Row(sequence, num_tokens, []))
            budget -= num_tokens
        return admitted

    def _room_for(self, sequence: Sequence, rows: list[_Row], *, is_first: bool) -> list[int] | None:
        """The blocks of its cached prefix, if a waiting sequence can start: now, or now that younger ones have yielded
        to the first. None: it cannot."""
        if sequence.num_pending_tokens or sequence.num_remaining_tokens == 0:
            return None  # preempted, and its last token, or the mask of its next one, is still on its way here
        if not is_first:
            return self._find_cached(sequence) if self._may_pass(sequence) else None
        cached_block_ids = self._find_cached(sequence)
        if self._fits(sequence, cached_block_ids):
            return cached_block_ids
        if self._would_fit_beside_older(sequence):
            while not self._fits(sequence, cached_block_ids):
                self._preempt_newest(rows)
            return cached_block_ids
        return None

    def _fits(self, sequence: Sequence, cached_block_ids: list[int]) -> bool:
        """Whether there is a table row, and a block for all tokens known that are not cached."""
        needed = self._num_blocks(len(sequence.token_ids)) - len(cached_block_ids)
        needed += self.pool.num_cached(cached_block_ids)
        low_water = self._low_water_blocks if self._running else 0
        return bool(self._free_table_indices) and needed + low_water <= self.pool.num_available

    def _would_fit_beside_older(self, sequence: Sequence) -> bool:
        """Whether a sequence would fit without those that run and came later. False if there are none.

        Blocks that older ones share are counted once for each: then it waits for older ones still, not for younger.
        """
        num_older = bisect_left(self._running, sequence.arrival, key=_ARRIVAL)
        if num_older == len(self._running):
            return False
        kept = sum(len(older.block_ids) for older in self._running[:num_older])
        low_water = self._low_water_blocks if num_older else 0
        return self._num_blocks(len(sequence.token_ids)) + kept + low_water <= self.pool.num_blocks

    def _may_pass(self, sequence: Sequence) -> bool:
        """Whether a sequence would end before somebody needs its blocks, if all that run go on as long.

        Where that fails it yields, and what it has computed is lost: the rule is there to make this rare. Without it,
        blocks that a preempted sequence gave back would be filled at once, and taken away again a few steps later.
        """
        num_known = len(sequence.token_ids)
        num_total = sequence.num_prompt_tokens + sequence.request.max_new_tokens
        num_steps = num_total - num_known + -(-num_known // max(self.config.max_step_tokens // 4, 1))
        num_blocks = self._num_blocks(num_total + len(self._running) * num_steps)
        return num_blocks + self._low_water_blocks <= self.pool.num_available

    def _start(self, sequence: Sequence, cached_block_ids: list[int]) -> None:
        """Give a sequence a table row, and blocks for all tokens known."""
        missing = self._num_blocks(len(sequence.token_ids)) - len(cached_block_ids)
        self.pool.share(cached_block_ids)
        sequence.block_ids = [*cached_block_ids, *self.pool.allocate(missing)]
        sequence.num_computed_tokens = len(cached_block_ids) * self.pool.block_size
        sequence.num_remembered_blocks = len(cached_block_ids)
        sequence.table_index = self._free_table_indices.pop()
        sequence.state = State.RUNNING
        if sequence.started_s == 0.0:
            sequence.started_s = self._clock()
        self._prefix_hit_tokens += sequence.num_computed_tokens
        insort(self._running, sequence, key=_ARRIVAL)

    def _find_cached(self, sequence: Sequence) -> list[int]:
        if not self.config.prefix_caching or sequence.request.prompt_logprobs:
            return []
        hashes = sequence.hash_full_blocks(self.pool.block_size)
        # At least one token must be computed, since its logits choose the next one.
        usable = (len(sequence.token_ids) - 1) // self.pool.block_size
        return self.pool.find_prefix(hashes[:usable])

    def _commit(self, rows: list[_Row], admit: list[Sequence]) -> StepPlan:
        """Move the counters as if the step had run, and write the plan down."""
        admissions = tuple(
            Admission(
                table_index=sequence.table_index,
                token_ids=tuple(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_computed_tokens=sequence.num_computed_tokens,
                block_ids=tuple(sequence.block_ids),
                sampling=sequence.request.sampling,
                top_n_tokens=sequence.request.top_n_tokens,
                prompt_logprobs=sequence.wants_prompt_logprobs,
            )
            for sequence in admit
        )
        sampled: list[Sequence] = []
        masks: list[tuple[int, bytes]] = []
        for place, row in enumerate(rows):
            sequence = row.sequence
            sequence.num_computed_tokens += row.num_tokens - len(row.guesses)
            sequence.num_guesses_in_flight = len(row.guesses)
            if sequence.num_computed_tokens == sequence.num_known_tokens:
                sequence.num_pending_tokens += 1
                sampled.append(sequence)
                if sequence.mask is not None:
                    masks.append((place, sequence.mask))
                    sequence.mask = None
            self._remember_full_blocks(sequence)
        plan = StepPlan(
            step_id=self._next_step_id,
            release=tuple(self._release),
            admit=admissions,
            append=tuple((row.sequence.table_index, block_id) for row in rows for block_id in row.new_block_ids),
            rows=tuple((row.sequence.table_index, row.num_tokens) for row in rows),
            masks=tuple(masks),
            guesses=tuple((place, row.guesses) for place, row in enumerate(rows) if row.guesses),
        )
        reporting = {row.sequence.table_index: row.sequence for row in rows if row.sequence.request.prompt_logprobs}
        self._in_flight.append(_StepInFlight(self._next_step_id, sampled, reporting, plan.rows, rows))
        self._next_step_id += 1
        self._release.clear()
        return plan

    # ------------------------------------------------------------------------------------------------ answers

    def end_faulty(self, result: StepResult) -> list[tuple[Sequence, str]]:
        """End the sequences whose tokens in the answer to the oldest step in flight mean nothing; before `complete`.

        Whatever they have in the cache may be broken, too, and is not found again.

        Returns: those that had not ended meanwhile, with the reason.
        """
        ended: list[tuple[Sequence, str]] = []
        for table_index, message in result.faults.items():
            step = self._in_flight[0]
            place = [index for index, _ in step.table_rows].index(table_index)
            sequence = step.rows[place].sequence
            if sequence.state is not State.FINISHED:
                self.pool.forget(sequence.block_hashes)
                self.abort(sequence)
                self._logits_faults += 1
                ended.append((sequence, message))
        return ended

    def complete(self, result: StepResult) -> list[tuple[Sequence, TokenEvent]]:
        """Take in the answer to the oldest step in flight.

        Returns: the new tokens, in row order, without those of sequences that were aborted or ended meanwhile.
        """
        step = self._in_flight.popleft()
        assert step.step_id == result.step_id, f"answer to step {result.step_id}, expected {step.step_id}"
        counts = result.row_num_sampled or (1,) * len(step.sampled)
        assert len(step.sampled) == len(counts), "one answer per sampled row"
        assert sum(counts) == len(result.token_ids), "as many tokens as the rows have"
        for table_index, (first_position, values) in result.prompt_logprobs.items():
            known = step.sequence_at[table_index].prompt_logprobs
            # After a preemption the first chunks are computed, and answered, once more.
            del known[first_position - 1 :]
            known.extend(values)
        events: list[tuple[Sequence, TokenEvent]] = []
        first = 0
        for sequence, count in zip(step.sampled, counts, strict=True):
            if sequence.state is not State.FINISHED:
                self._take_in(sequence, count)
                events.extend(
                    (sequence, event) for event in self._events(sequence, result, range(first, first + count))
                )
            first += count
        return events

    def _take_in(self, sequence: Sequence, num_sampled: int) -> None:
        """Count what a step with guesses has computed beyond one token. Nothing of it is left after a preemption."""
        sequence.num_pending_tokens -= 1
        num_guesses, sequence.num_guesses_in_flight = sequence.num_guesses_in_flight, 0
        if num_guesses and sequence.lookup is not None:
            num_right = num_sampled - 1
            sequence.lookup.learn(len(sequence.token_ids) + num_sampled, num_guesses, num_right)
            self._guessed_tokens += num_guesses
            self._guessed_right_tokens += num_right
            if sequence.state is State.RUNNING:
                sequence.num_computed_tokens += num_right

    def _events(self, sequence: Sequence, result: StepResult, places: range) -> Iterator[TokenEvent]:
        """Append a row's tokens to its sequence, until it ends with one of them."""
        for place in places:
            token_id = result.token_ids[place]
            sequence.token_ids.append(token_id)
            is_first = len(sequence.token_ids) == sequence.num_prompt_tokens + 1
            finish_reason = self._finish_reason(sequence, token_id)
            if finish_reason is not None:
                self.abort(sequence)
            yield TokenEvent(
                token_id=token_id,
                numbers=result.numbers[place],
                top_tokens=result.top_tokens[place] if result.top_tokens else (),
                finish_reason=finish_reason,
                prompt_logprobs=tuple(sequence.prompt_logprobs)
                if is_first and sequence.request.prompt_logprobs
                else None,
                started_s=sequence.started_s,
            )
            if finish_reason is not None:
                return
        self._remember_full_blocks(sequence)

    @staticmethod
    def _finish_reason(sequence: Sequence, token_id: int) -> FinishReason | None:
        # Length first: a sequence whose last allowed token is the end token has ended by length (TGI's rule).
        if len(sequence.token_ids) - sequence.num_prompt_tokens >= sequence.request.max_new_tokens:
            return FinishReason.LENGTH
        if token_id in sequence.request.eos_token_ids:
            return FinishReason.EOS_TOKEN
        return None

    # ------------------------------------------------------------------------------------------------ blocks

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.block_size)

    def _remember_full_blocks(self, sequence: Sequence) -> None:
        """Make blocks findable that are full of tokens known here and computed by a step already planned."""
        if not self.config.prefix_caching:
            return
        block_size = self.pool.block_size
        num_full = min(sequence.num_computed_tokens, len(sequence.token_ids)) // block_size
        if num_full > sequence.num_remembered_blocks and sequence.state is State.RUNNING:
            hashes = sequence.hash_full_blocks(block_size)
            for index in range(sequence.num_remembered_blocks, num_full):
                self.pool.remember(sequence.block_ids[index], hashes[index])
            sequence.num_remembered_blocks = num_full

    def _give_back(self, sequence: Sequence) -> None:
        """Return a running sequence's blocks and table row."""
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_remembered_blocks = 0
        # Free at once: the plan that hands it out again also carries its release, and shards release first.
        self._release.append(sequence.table_index)
        self._free_table_indices.append(sequence.table_index)
        sequence.table_index = -1
