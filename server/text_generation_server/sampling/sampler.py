"""One step's sampling: logits of mixed rows in, one token and its log-probability a row out.

A row's result depends on its own logits, parameters, position and history only, to the last bit on the host, whatever
rows stand beside it. Which steps a row needs is decided here; the ones over the whole vocabulary are ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from text_generation_kernels.interface import MostLikelyOnHost, Ops
from text_generation_server.sampling.logprobs import TopTokens, token_logprobs, top_tokens
from text_generation_server.sampling.noise import uniform
from text_generation_server.sampling.parameters import SampleRow
from text_generation_server.sampling.penalties import (
    apply_frequency_penalties,
    apply_logit_bias,
    apply_mask,
    apply_output_penalties,
    apply_repetition_penalties,
)
from text_generation_server.sampling.watch import likeliest_logprobs, mark_faulty
from text_generation_server.sampling.watermark import Watermark


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What a step's rows got, in row order."""

    token_ids: Tensor | list[int]  # [num_rows] int64 on the logits' device, or a list on the host
    # Of the chosen tokens, by their column of a StepResponse: [num_rows] each on the logits' device, or a list on the
    # host. `logprobs` is float32 and of the model's own logits; `watch.is_faulty` where a row has none to choose by.
    numbers: dict[str, Tensor | list[float]]
    top: TopTokens | None  # on the host; None when no row asked

    def read_token_ids(self) -> list[int]:
        """The tokens on the host; waits for the device where they are not."""
        return self.token_ids if isinstance(self.token_ids, list) else self.token_ids.tolist()

    def read_numbers(self) -> dict[str, list[float]]:
        """The numbers on the host; waits for the device where they are not."""
        return {
            column: values if isinstance(values, list) else values.tolist() for column, values in self.numbers.items()
        }

    def select(self, rows: Sequence[int]) -> SampleResult:
        """The results of some rows, in that order."""
        top = None if self.top is None else self.top.select(rows)
        numbers = {column: _select(values, rows) for column, values in self.numbers.items()}
        return SampleResult(_select(self.token_ids, rows), numbers, top)


T = TypeVar("T")


def _select(values: Tensor | list[T], rows: Sequence[int]) -> Tensor | list[T]:
    if isinstance(values, list):
        return [values[row] for row in rows]
    return values[torch.tensor(rows, dtype=torch.int64, device=values.device)]


class Sampler:
    """Chooses tokens. Stateless: safe to share, and a step computed again gives the same tokens.

    Args:
        ops: of the device that logits lie on.
        watermark: used by rows whose parameters ask for it.
    """

    def __init__(self, ops: Ops, watermark: Watermark | None = None) -> None:
        self._ops = ops
        self._watermark = watermark or Watermark()

    def likeliest(self, logits: Tensor, found: MostLikelyOnHost | None = None) -> SampleResult:
        """What `sample` gives for rows that are all plain."""
        if found is not None:
            return SampleResult(found.ids, {"logprobs": likeliest_logprobs(found.log_sums, found.vocab_size)}, top=None)
        best = self._ops.most_likely(logits)
        logprobs: Tensor | list[float]
        if logits.device.type == "cpu" and self._ops.saturates_at == math.inf:
            # Four calls of torch on a few numbers take 0.15 ms there.
            logprobs = likeliest_logprobs(best.log_sums.tolist(), logits.shape[-1])
        else:
            own = token_logprobs(logits, best.ids, best)
            logprobs = mark_faulty(own, logits, best, self._ops.saturates_at)
        return SampleResult(best.ids, {"logprobs": logprobs}, top=None)

    def sample(self, logits: Tensor, rows: Sequence[SampleRow], found: MostLikelyOnHost | None = None) -> SampleResult:
        """Choose one token for each row.

        Watermark, repetition penalty, frequency penalty, OpenAI's penalties, logit bias, the grammar's mask; then, for
        rows that sample, temperature, top_k, top_p, typical_p and the choice. Neutral values change nothing, to the
        bit.

        Args:
            logits: [num_rows, vocab_size] float32, contiguous, as the model made them; not changed.
            rows: one record a row of logits.
            found: what the ops find in the logits, where it is known already.
        """
        if all(row.is_plain for row in rows):
            return self.likeliest(logits, found)
        best = self._ops.most_likely(logits) if found is None else found.tensors
        token_ids = best.ids.clone()
        as_they_are = [index for index, row in enumerate(rows) if not row.is_adjusted]
        self._draw(token_ids, logits, rows, as_they_are, as_they_are)
        adjusted = [index for index, row in enumerate(rows) if row.is_adjusted]
        if adjusted:
            scores = self._adjusted_scores(logits, rows, adjusted)
            if any(rows[index].parameters.is_greedy for index in adjusted):
                token_ids[adjusted] = self._ops.most_likely(scores).ids
            self._draw(token_ids, scores, rows, adjusted, range(len(adjusted)))
        wants_top = any(row.top_n_tokens > 0 for row in rows)
        logprobs = token_logprobs(logits, token_ids, best)
        return SampleResult(
            token_ids=token_ids,
            numbers={"logprobs": mark_faulty(logprobs, logits, best, self._ops.saturates_at)},
            top=top_tokens(self._ops, logits, [row.top_n_tokens for row in rows], best) if wants_top else None,
        )

    def _draw(
        self,
        token_ids: Tensor,
        scores: Tensor,
        rows: Sequence[SampleRow],
        indices: Sequence[int],
        places: Sequence[int],
    ) -> None:
        """Put tokens in place for those of the rows at `indices` that are not greedy; their scores are at `places`."""
        drawn = [
            (index, place) for index, place in zip(indices, places, strict=True) if not rows[index].parameters.is_greedy
        ]
        if drawn:
            wanted = [rows[index] for index, _ in drawn]
            token_ids[[index for index, _ in drawn]] = self._ops.draw(
                scores,
                [place for _, place in drawn],
                [row.parameters for row in wanted],
                [uniform(row.parameters.seed, row.position) for row in wanted],
            )

    def _adjusted_scores(self, logits: Tensor, rows: Sequence[SampleRow], adjusted: Sequence[int]) -> Tensor:
        """Copies of the rows that something changes, changed: [len(adjusted), vocab_size] float32."""
        scores = logits[list(adjusted)]
        wanted = [rows[index].parameters for index in adjusted]
        histories = [_history(rows[index]) for index in adjusted]
        outputs = [history[rows[index].num_prompt_tokens :] for index, history in zip(adjusted, histories, strict=True)]
        for row, parameters in enumerate(wanted):
            if parameters.watermark:
                self._watermark.apply(scores[row], int(histories[row][-1]))
        repeating = [row for row, parameters in enumerate(wanted) if parameters.repetition_penalty != 1.0]
        if repeating:
            apply_repetition_penalties(
                scores,
                repeating,
                [histories[row] for row in repeating],
                [wanted[row].repetition_penalty for row in repeating],
            )
        frequent = [row for row, parameters in enumerate(wanted) if parameters.frequency_penalty != 0.0]
        if frequent:
            apply_frequency_penalties(
                scores,
                frequent,
                [histories[row] for row in frequent],
                [wanted[row].frequency_penalty for row in frequent],
            )
        for row, parameters in enumerate(wanted):
            if parameters.presence_penalty != 0.0 or parameters.count_penalty != 0.0:
                apply_output_penalties(scores[row], outputs[row], parameters.presence_penalty, parameters.count_penalty)
            if parameters.logit_bias:
                apply_logit_bias(scores[row], parameters.logit_bias)
            mask = rows[adjusted[row]].mask
            if mask is not None:
                apply_mask(scores[row], mask)
        return scores


_NO_TOKENS = torch.empty(0, dtype=torch.int64)


def _history(row: SampleRow) -> Tensor:
    assert row.history is not None or not row.parameters.needs_history, "a row with penalties comes with its tokens"
    return _NO_TOKENS if row.history is None else row.history
