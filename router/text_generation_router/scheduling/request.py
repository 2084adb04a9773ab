"""What is asked of a replica and what comes back: plain frozen records of ids and numbers, without text.

They cross the boundary between generation and replica, and could cross a process boundary as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


class FinishReason(str, Enum):
    """Why a sequence ended. Values are TGI's words."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"
    STOP_SEQUENCE = "stop_sequence"  # found in the text, so by generation; a replica never reports it


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How the next token is chosen. Neutral values switch a step off; the wire's fields have the same names."""

    do_sample: bool = False  # False: the most likely token; the next four and the seed are then unused
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    typical_p: float = 1.0  # 1: off
    repetition_penalty: float = 1.0  # 1: off
    frequency_penalty: float = 0.0  # 0: off
    watermark: bool = False
    seed: int = 0  # 0 ... 2**64 - 1
    presence_penalty: float = 0.0  # 0: off; OpenAI's, over the output
    count_penalty: float = 0.0  # 0: off; OpenAI's frequency penalty, over the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to be continued. Validated: it fits the replica's limits."""

    token_ids: tuple[int, ...]  # the prompt; at least one token
    max_new_tokens: int  # at least 1; len(token_ids) + max_new_tokens <= the replica's max_total_tokens
    eos_token_ids: frozenset[int] = frozenset()
    sampling: SamplingParameters = SamplingParameters()
    top_n_tokens: int = 0
    prompt_logprobs: bool = False  # also keeps the request from reusing cached prefixes
    # Moments of time.monotonic() by which it must have been put into a step, and have ended; None: whenever.
    start_by_s: float | None = None
    finish_by_s: float | None = None


class TokenNumbers(NamedTuple):
    """What the shards report of a generated token.

    Wire, native answers and OpenAPI document are made from these fields: each is the column of a StepResponse that has
    its name with an s, and a key of every token. One after the first needs a default, for tokens of which it is not
    known (`top_tokens`).
    """

    logprob: float  # log-softmax of the model's own logits


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token."""

    token_id: int
    numbers: TokenNumbers
    top_tokens: tuple[tuple[int, float], ...]  # (id, logprob), best first, ties with the last included; () if not asked
    finish_reason: FinishReason | None  # set on a sequence's last event
    # On the first event only: one value per prompt token after the first, if the request asked; else None.
    prompt_logprobs: tuple[float, ...] | None
    started_s: float  # time.monotonic() when the sequence was first put into a step

    @property
    def logprob(self) -> float:
        return self.numbers.logprob


class Constraint(Protocol):
    """Which tokens may come next, after those accepted so far: a grammar at work on one sequence.

    Calls come one at a time, from worker threads: they may take a while. They raise ConstraintFailed.
    """

    def mask(self) -> bytes:
        """Little-endian 32-bit words: bit i % 32 of word i // 32 allows token i. At least one token is allowed."""

    def accept(self, token_id: int) -> None:
        """Move on by one token, allowed by the last mask."""


class GenerationFailed(Exception):
    """The shards failed while this sequence was queued or running. The message is for the client."""


class LogitsFault(GenerationFailed):
    """The model gave numbers by which no token of this sequence can be chosen; others went on."""


class ConstraintFailed(Exception):
    """A constraint cannot go on from where its sequence is. The message is for the client."""


class NotStartedInTime(Exception):
    """A sequence was still queued at its `start_by_s`."""


class NotFinishedInTime(Exception):
    """A sequence had not ended at its `finish_by_s`."""
