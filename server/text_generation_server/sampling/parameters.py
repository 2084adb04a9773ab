"""What is asked of the sampler, row by row.

Values arrive validated; the only judgement made here is which processing steps a row needs, so that a row pays for
nothing it did not ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from text_generation_proto import generate_pb2

# At or below this temperature a row is greedy. Dividing by it turns logit differences of 1e-4, which is what float32
# rounding inside a model amounts to, into factors of e: such a row would only sample the rounding.
GREEDY_TEMPERATURE = 1e-4


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How one sequence's tokens are chosen. The wire's message of the same name, with the same neutral values."""

    do_sample: bool = False  # False: the most likely token; temperature, the filters and the seed are then unused
    temperature: float = 1.0  # above 0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    typical_p: float = 1.0  # 1: off
    repetition_penalty: float = 1.0  # above 0; 1: off
    frequency_penalty: float = 0.0  # 0: off
    watermark: bool = False
    seed: int = 0  # 0 ... 2**64 - 1
    presence_penalty: float = 0.0  # 0: off; OpenAI's, over the output
    count_penalty: float = 0.0  # 0: off; OpenAI's frequency penalty, over the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)

    @classmethod
    def from_proto(cls, message: generate_pb2.SamplingParameters) -> SamplingParameters:
        """Read the wire's message. A field that was never set reads as 0 there, which for four of them means off."""
        return cls(
            do_sample=message.do_sample,
            temperature=message.temperature or 1.0,
            top_k=message.top_k,
            top_p=message.top_p or 1.0,
            typical_p=message.typical_p or 1.0,
            repetition_penalty=message.repetition_penalty or 1.0,
            frequency_penalty=message.frequency_penalty,
            watermark=message.watermark,
            seed=message.seed,
            presence_penalty=message.presence_penalty,
            count_penalty=message.count_penalty,
            logit_bias=tuple(zip(message.bias_token_ids, message.bias_values, strict=True)),
        )

    @property
    def is_greedy(self) -> bool:
        return not self.do_sample or self.temperature <= GREEDY_TEMPERATURE

    @property
    def needs_history(self) -> bool:
        """Whether the row's logits are changed by the tokens before them."""
        return (
            self.watermark
            or self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.count_penalty != 0.0
        )

    @property
    def is_plain(self) -> bool:
        """Whether the row's token is the most likely one of the logits as they are."""
        return self.is_greedy and not self.needs_history and not self.logit_bias


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row of logits to sample from."""

    parameters: SamplingParameters
    position: int  # index in the sequence of the token being sampled; with the seed it fixes the noise
    # [position] int64 on the logits' device: prompt and output so far. May be None unless parameters.needs_history.
    history: Tensor | None = None
    top_n_tokens: int = 0  # how many of the most likely tokens to report
    num_prompt_tokens: int = 0  # of the history
    mask: bytes | None = None  # tokens allowed, as little-endian 32-bit words; None: all

    @property
    def is_adjusted(self) -> bool:
        """Whether anything changes the row's logits before the choice, but temperature and filters."""
        return self.mask is not None or self.parameters.needs_history or bool(self.parameters.logit_bias)

    @property
    def is_plain(self) -> bool:
        """Whether all that is asked for is the most likely token of the logits as they are."""
        return self.parameters.is_plain and self.mask is None and self.top_n_tokens == 0
