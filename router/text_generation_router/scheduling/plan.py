"""What a step asks of the shards and what they answer, as plain data. The shard client turns it into bytes and back."""

from __future__ import annotations

from dataclasses import dataclass, field

from text_generation_router.scheduling.request import SamplingParameters, TokenNumbers


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that enters the shards' tables; also one that comes back after a preemption."""

    table_index: int
    token_ids: tuple[int, ...]  # prompt, then output so far
    num_prompt_tokens: int
    num_computed_tokens: int  # found in the prefix cache
    block_ids: tuple[int, ...]
    sampling: SamplingParameters
    top_n_tokens: int
    prompt_logprobs: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: the shards apply release, admit, append, then run the rows in this order."""

    step_id: int
    release: tuple[int, ...]  # table indices
    admit: tuple[Admission, ...]
    append: tuple[tuple[int, int], ...]  # (table_index, block_id), one a block, in order
    rows: tuple[tuple[int, int], ...]  # (table_index, num_tokens)
    masks: tuple[tuple[int, bytes], ...] = ()  # (place in rows, tokens allowed as in Constraint.mask)
    # (place in rows, the guesses that the row's tokens end with)
    guesses: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(num_tokens for _, num_tokens in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to one step: columns with one entry a sampled token, in row order."""

    step_id: int
    token_ids: tuple[int, ...]
    numbers: tuple[TokenNumbers, ...]
    top_tokens: tuple[tuple[tuple[int, float], ...], ...]  # () when no row of the step asked
    prompt_logprobs: dict[int, tuple[int, tuple[float, ...]]]  # table_index -> (first position, values)
    forward_ns: int = 0
    sample_ns: int = 0
    row_num_sampled: tuple[int, ...] = ()  # tokens of each sampled row; (): one each
    # table_index -> why the tokens of its sequence mean nothing, though they are in the columns
    faults: dict[int, str] = field(default_factory=dict)
