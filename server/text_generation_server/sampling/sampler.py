"""One step's sampling: logits of mixed rows in, one token and its log-probability a row out.

A row's result depends on its own logits, parameters, position and history only, to the last bit on the host, whatever
rows stand beside it. Rows without penalties that take the most likely token cost one maximum for all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_server.sampling import choice, host_choice
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
from text_generation_server.sampling.watermark import Watermark


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What a step's rows got, in row order."""

    token_ids: Tensor  # [num_rows] int64 on the logits' device
    logprobs: Tensor  # [num_rows] float32 on the logits' device; of the model's own logits
    top: TopTokens | None  # on the host; None when no row asked


class Sampler:
    """Chooses tokens. Stateless: safe to share, and a step computed again gives the same tokens.

    Args:
        watermark: used by rows whose parameters ask for it.
    """

    def __init__(self, watermark: Watermark | None = None) -> None:
        self._watermark = watermark or Watermark()

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> SampleResult:
        """Choose one token for each row.

        Watermark, repetition penalty, frequency penalty, OpenAI's penalties, logit bias, the grammar's mask; then, for
        rows that sample, temperature, top_k, top_p, typical_p and the choice. Neutral values change nothing, to the
        bit.

        Args:
            logits: [num_rows, vocab_size] float32, contiguous, as the model made them; not changed.
            rows: one record a row of logits.
        """
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        adjusted = [index for index, row in enumerate(rows) if row.is_adjusted]
        scores = self._adjusted_scores(logits, rows, adjusted)

        if any(row.parameters.is_greedy and not row.is_adjusted for row in rows):
            token_ids = logits.max(dim=-1).indices  # the first of equal ones; not argmax, which is three times slower
        if any(rows[index].parameters.is_greedy for index in adjusted):
            token_ids[adjusted] = scores.max(dim=-1).indices
        sampled = [index for index, row in enumerate(rows) if not row.parameters.is_greedy]
        if sampled:
            place = {index: place for place, index in enumerate(adjusted)}
            choose = host_choice.choose if logits.device.type == "cpu" else choice.choose
            token_ids[sampled] = choose(
                [scores[place[index]] if index in place else logits[index] for index in sampled],
                [rows[index].parameters for index in sampled],
                [uniform(rows[index].parameters.seed, rows[index].position) for index in sampled],
            )

        wants_top = any(row.top_n_tokens > 0 for row in rows)
        return SampleResult(
            token_ids=token_ids,
            logprobs=token_logprobs(logits, token_ids),
            top=top_tokens(logits, [row.top_n_tokens for row in rows]) if wants_top else None,
        )

    def _adjusted_scores(self, logits: Tensor, rows: Sequence[SampleRow], adjusted: Sequence[int]) -> Tensor:
        """Copies of the rows that something changes, changed: [len(adjusted), vocab_size] float32."""
        if not adjusted:
            return logits[:0]
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
