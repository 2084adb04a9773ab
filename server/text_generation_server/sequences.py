"""The shard's persistent tables: one row per sequence, at the table index that the router hands out.

Token ids lie on the device, because the next step's inputs are the last step's samples, which the host has not seen.
Lengths and block tables lie on the host, where every step's plan makes them known. Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from text_generation_kernels.interface import StepMetadata
from text_generation_proto import generate_pb2 as pb
from text_generation_server.sampling import SamplingParameters

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's rows as tensors, with their lengths on the host."""

    step: StepMetadata
    token_ids: Tensor  # [num_tokens, and padding] int64 on the device
    sampled_table_index: list[int]  # [num_sampled_rows]: the rows that sample, in row order
    # Guesses of each row that samples, [num_sampled_rows] of tuples; None: no row has any, and num_sampled is as many.
    guesses: tuple[tuple[int, ...], ...] | None
    # [num_sampled] int64 on the device: the tokens of the flat batch to sample behind, each row's last known token and
    # its guesses.
    sampled_token_index: Tensor
    scored: tuple[ScoredSpan, ...]  # prompt tokens whose log-probabilities are wanted
    masks: dict[int, bytes]  # by table index: the tokens that a row may sample, where not all


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """A run of prompt tokens to be scored by the hidden states before them."""

    table_index: int
    first_position: int  # in the prompt, of the first token scored
    count: int
    first_hidden: int  # in the flat batch, the hidden state that scores the first


class SequenceTable:
    """Owns what a shard remembers of its sequences between steps."""

    def __init__(
        self,
        max_sequences: int,
        max_total_tokens: int,
        block_size: int,
        device: torch.device,
        *,
        token_multiple: int = 1,
    ) -> None:
        """
        Args:
            token_multiple: sizes of steps are rounded up to this, with tokens of no row.
        """
        self.max_sequences = max_sequences
        self.max_total_tokens = max_total_tokens
        self.block_size = block_size
        self._device = device
        self._token_multiple = token_multiple
        max_blocks = -(-max_total_tokens // block_size)
        self.token_ids = torch.zeros(max_sequences, max_total_tokens, dtype=torch.int64, device=device)
        # On the host the table is numpy's, too, whose calls on a few numbers take a tenth of torch's time.
        self._host_token_ids: IntArray | None = self.token_ids.numpy() if device.type == "cpu" else None
        self._block_tables = np.zeros((max_sequences, max_blocks), dtype=np.int32)
        self._num_blocks = np.zeros(max_sequences, dtype=np.int64)
        self._num_known: IntArray = np.zeros(max_sequences, dtype=np.int64)
        self._num_computed: IntArray = np.zeros(max_sequences, dtype=np.int64)
        self._num_prompt: IntArray = np.zeros(max_sequences, dtype=np.int64)
        self._scores_prompt = np.zeros(max_sequences, dtype=np.bool_)
        self.sampling: list[SamplingParameters] = [SamplingParameters()] * max_sequences
        self.top_n_tokens: list[int] = [0] * max_sequences
        self.is_plain: list[bool] = [True] * max_sequences  # wants its most likely token, and nothing else
        self._decode_views: _DecodeViews | None = None
        if self._host_token_ids is not None and token_multiple == 1:
            self._decode_views = _DecodeViews(
                token_ids=self._host_token_ids.data,
                block_tables=self._block_tables.data,
                num_known=self._num_known.data,
                num_computed=self._num_computed.data,
            )
        self._decode_buffers: dict[int, _DecodeBuffers] = {}  # by number of rows
        self._gathered: tuple[list[int], Tensor] | None = None  # rows of the last decode step, and their block tables

    def num_known(self, table_index: int) -> int:
        return int(self._num_known[table_index])

    def num_prompt(self, table_index: int) -> int:
        return int(self._num_prompt[table_index])

    def history(self, table_index: int, num_guesses: int = 0) -> Tensor:
        """A sequence's tokens so far, prompt and output, and guesses: a view, [num_tokens] int64 on the device."""
        return self.token_ids[table_index, : self._num_known[table_index] + num_guesses]

    def apply(self, request: pb.StepRequest) -> None:
        """Take in a step's differences: releases, then admissions, then appended blocks."""
        for table_index in request.release:
            self._num_known[table_index] = 0
        if request.admit or request.append_table_index:
            self._gathered = None
        for admission in request.admit:
            self._admit(admission)
        for table_index, block_id in zip(request.append_table_index, request.append_block_id, strict=True):
            self._block_tables[table_index, self._num_blocks[table_index]] = block_id
            self._num_blocks[table_index] += 1

    def _admit(self, admission: pb.Admission) -> None:
        index = admission.table_index
        count = len(admission.token_ids)
        assert self._num_known[index] == 0, f"table row {index} was admitted twice"
        assert count <= self.max_total_tokens, f"{count} tokens in a row of {self.max_total_tokens}"
        self.token_ids[index, :count] = torch.tensor(admission.token_ids, dtype=torch.int64)
        self._block_tables[index] = 0
        self._block_tables[index, : len(admission.block_ids)] = admission.block_ids
        self._num_blocks[index] = len(admission.block_ids)
        self._num_known[index] = count
        self._num_computed[index] = admission.num_computed_tokens
        self._num_prompt[index] = admission.num_prompt_tokens
        self._scores_prompt[index] = admission.prompt_logprobs
        self.sampling[index] = SamplingParameters.from_proto(admission.sampling)
        self.top_n_tokens[index] = admission.top_n_tokens
        self.is_plain[index] = self.sampling[index].is_plain and admission.top_n_tokens == 0

    def batch(self, request: pb.StepRequest) -> StepBatch:
        """The step's rows as one flat batch; counts their tokens as computed. Tensors are the caller's until the next
        call."""
        if self._decode_views is not None and not (request.row_num_tokens or request.guess_rows):
            batch = self._decode_batch(request, self._decode_views)
            if batch is not None:
                return batch
        rows: IntArray = np.array(request.row_table_index, dtype=np.int64)
        if request.row_num_tokens:
            counts: IntArray = np.asarray(request.row_num_tokens, dtype=np.int64)
        else:
            counts = np.ones(len(rows), dtype=np.int64)
        starts = self._num_computed[rows]
        kv_lens = starts + counts
        guesses = _guesses(request)
        num_guesses: IntArray = np.zeros(len(rows), dtype=np.int64)
        for place, guessed in guesses.items():
            num_guesses[place] = len(guessed)
            self._write_guesses(int(rows[place]), guessed)
        cu_seqlens = np.concatenate(([0], np.cumsum(counts)))
        token_rows = np.repeat(rows, counts)
        positions = np.arange(cu_seqlens[-1]) + np.repeat(starts - cu_seqlens[:-1], counts)
        block_ids = self._block_tables[token_rows, positions // self.block_size].astype(np.int64)
        slots = block_ids * self.block_size + positions % self.block_size
        max_blocks = -(-int(kv_lens.max(initial=0)) // self.block_size)
        samples = kv_lens == self._num_known[rows] + num_guesses
        sampled_tokens = cu_seqlens[1:][samples] - 1
        if guesses:
            sampled_tokens = np.concatenate(
                [
                    np.arange(last - count, last + 1)
                    for last, count in zip(sampled_tokens, num_guesses[samples], strict=True)
                ]
            )
        scored = tuple(self._scored_spans(rows, starts, counts, cu_seqlens)) if self._scores_prompt[rows].any() else ()
        self._num_computed[rows] = kv_lens - num_guesses  # the right ones are counted by `append_sampled`

        padding = -len(positions) % self._token_multiple
        if padding:
            positions, token_rows = np.pad(positions, (0, padding)), np.pad(token_rows, (0, padding))
            slots = np.pad(slots, (0, padding), constant_values=-1)
        # One copy to the device: positions, rows and sampled tokens are columns of one buffer.
        columns = torch.from_numpy(np.concatenate((positions, token_rows, sampled_tokens))).to(self._device)
        num_tokens = len(positions)
        device_positions = columns[:num_tokens]
        step = StepMetadata(
            positions=device_positions,
            slot_mapping=torch.from_numpy(slots.astype(np.int32)).to(self._device),
            block_tables=torch.from_numpy(self._block_tables[rows, :max_blocks]).to(self._device),
            cu_seqlens_q=tuple(cu_seqlens.tolist()),
            kv_lens=tuple(kv_lens.tolist()),
        )
        return StepBatch(
            step=step,
            token_ids=(
                self.token_ids[columns[num_tokens : 2 * num_tokens], device_positions]
                if self._host_token_ids is None
                else torch.from_numpy(self._host_token_ids[token_rows, positions])
            ),
            sampled_table_index=rows[samples].tolist(),
            guesses=tuple(guesses.get(int(place), ()) for place in np.flatnonzero(samples)) if guesses else None,
            sampled_token_index=columns[2 * num_tokens :],
            scored=scored,
            masks=_masks(request),
        )

    def _decode_batch(self, request: pb.StepRequest, views: _DecodeViews) -> StepBatch | None:
        """What `batch` gives where every row computes its last known token. None: some row does not.

        It is the usual step, and runs between two steps' kernels, which leave nothing else in the caches. There a loop
        over Python's numbers takes 30 us for one row and 70 for 32, numpy's calls 80 and 110.
        """
        rows = list(request.row_table_index)
        positions = [views.num_computed[index] for index in rows]
        for index, position in zip(rows, positions, strict=True):
            if position + 1 != views.num_known[index]:
                return None
        buffers = self._decode_buffers.get(len(rows))
        if buffers is None:
            buffers = self._decode_buffers[len(rows)] = _DecodeBuffers(len(rows))
        block_size = self.block_size
        for place, (index, position) in enumerate(zip(rows, positions, strict=True)):
            block_id = views.block_tables[index, position // block_size]
            buffers.positions[place] = position
            buffers.slots[place] = block_id * block_size + position % block_size
            buffers.token_ids[place] = views.token_ids[index, position]
            views.num_computed[index] = position + 1
        return StepBatch(
            step=StepMetadata(
                positions=buffers.position_tensor,
                slot_mapping=buffers.slot_tensor,
                block_tables=self._gather_block_tables(rows, max(positions, default=-1) // block_size + 1),
                cu_seqlens_q=buffers.cu_seqlens,
                kv_lens=tuple([position + 1 for position in positions]),
            ),
            token_ids=buffers.token_id_tensor,
            sampled_table_index=rows,
            guesses=None,
            sampled_token_index=buffers.sampled_tensor,
            scored=(),
            masks=_masks(request),
        )

    def _gather_block_tables(self, rows: list[int], max_blocks: int) -> Tensor:
        """The last ones, where neither rows nor blocks have changed."""
        if self._gathered is None or self._gathered[0] != rows or self._gathered[1].shape[1] != max_blocks:
            self._gathered = rows, torch.from_numpy(self._block_tables[rows, :max_blocks])
        return self._gathered[1]

    def _scored_spans(
        self, rows: IntArray, starts: IntArray, counts: IntArray, cu_seqlens: IntArray
    ) -> list[ScoredSpan]:
        spans: list[ScoredSpan] = []
        for row, table_index in enumerate(rows.tolist()):
            if self._scores_prompt[table_index]:
                # The hidden state at position p scores the token at p + 1.
                first = int(starts[row]) + 1
                last = min(int(starts[row] + counts[row]), int(self._num_prompt[table_index]) - 1)
                if first <= last:
                    spans.append(ScoredSpan(table_index, first, last - first + 1, int(cu_seqlens[row])))
        return spans

    def append_sampled(self, table_indices: Sequence[int], token_ids: Tensor | list[int]) -> None:
        """Write a step's samples behind their sequences, one each.

        Args:
            token_ids: [num_sampled] int64 on the device, or a list of as many.
        """
        # A sequence that the router has ended already may run one wasted row more, at the very end of its table row.
        last = self.max_total_tokens - 1
        if self._decode_views is not None:
            views = self._decode_views
            known = token_ids if isinstance(token_ids, list) else token_ids.tolist()
            for index, token_id in zip(table_indices, known, strict=True):
                num_known = views.num_known[index]
                views.token_ids[index, min(num_known, last)] = token_id
                views.num_known[index] = num_known + 1
            return
        indices: IntArray = np.array(table_indices, dtype=np.int64)
        columns = torch.from_numpy(np.minimum(self._num_known[indices], last)).to(self._device)
        if isinstance(token_ids, list):
            token_ids = torch.tensor(token_ids, dtype=torch.int64, device=self._device)
        self.token_ids[torch.from_numpy(indices).to(self._device), columns] = token_ids
        self._num_known[indices] += 1

    def append_guessed(self, table_indices: Sequence[int], token_ids: Sequence[Sequence[int]]) -> None:
        """Write the samples of a step with guesses behind their sequences, any number each.

        All of a row's but the last were guessed right: their keys and values are in the cache already.
        """
        for index, sampled in zip(table_indices, token_ids, strict=True):
            first = int(self._num_known[index])
            kept = sampled[: self.max_total_tokens - first]
            self.token_ids[index, first : first + len(kept)] = torch.tensor(kept, dtype=torch.int64)
            self._num_known[index] += len(sampled)
            self._num_computed[index] += len(sampled) - 1

    def _write_guesses(self, index: int, guessed: Sequence[int]) -> None:
        """Behind the last known token; the next samples write over them."""
        first = int(self._num_known[index])
        assert first + len(guessed) <= self.max_total_tokens, f"guesses beyond the end of table row {index}"
        self.token_ids[index, first : first + len(guessed)] = torch.tensor(guessed, dtype=torch.int64)

    def reset(self) -> None:
        """Forget every sequence."""
        self._num_known[:] = 0


@dataclass(frozen=True, slots=True)
class _DecodeViews:
    """Tables on the host as memory whose items are read and written one by one."""

    token_ids: memoryview[int]
    block_tables: memoryview[int]
    num_known: memoryview[int]
    num_computed: memoryview[int]


class _DecodeBuffers:
    """Tensors on the host for steps of so many rows with one token each, the memory behind those that change."""

    def __init__(self, num_rows: int) -> None:
        self.position_tensor = torch.zeros(num_rows, dtype=torch.int64)
        self.token_id_tensor = torch.zeros(num_rows, dtype=torch.int64)
        self.slot_tensor = torch.zeros(num_rows, dtype=torch.int32)
        self.positions: memoryview[int] = self.position_tensor.numpy().data
        self.token_ids: memoryview[int] = self.token_id_tensor.numpy().data
        self.slots: memoryview[int] = self.slot_tensor.numpy().data
        self.sampled_tensor = torch.arange(num_rows)
        self.cu_seqlens = tuple(range(num_rows + 1))


def _masks(request: pb.StepRequest) -> dict[int, bytes]:
    if not request.masked_rows:
        return {}
    size = len(request.masks) // len(request.masked_rows)
    return {
        request.row_table_index[place]: request.masks[index * size : (index + 1) * size]
        for index, place in enumerate(request.masked_rows)
    }


def _guesses(request: pb.StepRequest) -> dict[int, tuple[int, ...]]:
    """By place in the batch."""
    token_ids = iter(request.guess_token_ids)
    return {
        place: tuple(islice(token_ids, count))
        for place, count in zip(request.guess_rows, request.guess_counts, strict=True)
    }
