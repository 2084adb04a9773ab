"""Attention made of plain torch ops, for chips without a fused one and as everybody's last resort.

A prompt is computed in tiles of queries, so that its scores never fill the card; decode rows of similar length at once.
Shapes are rounded up, so that few differ: queries to 16, a prompt's keys to whole blocks, decode keys to powers of two.

Scores are the place where float16 hurts: they are scaled before they are rounded, and softmax runs in float32. Masks
are finite, since a chip that saturates has no infinity, and correct results must not hang on one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels.npu.attention_rows import Keys, Run, in_parts, joined
from text_generation_kernels.npu.kv_cache import NpuKVCache

QUERY_TILE = 256
QUERY_MULTIPLE = 16
MASKED = -1e30  # exp of it is 0 in float32, and so is exp of anything near
# For the scores of one tile, and again for the keys and values of one group of decode rows.
WORKSPACE_BYTES = 256 << 20
# A score exists as float16, as float32, as a float32 probability and as a float16 one.
_BYTES_PER_SCORE = 12


class ComposedAttention:
    """Attention over ND caches. Holds constants only."""

    def __init__(self, device: torch.device, workspace_bytes: int = WORKSPACE_BYTES) -> None:
        self._device = device
        self._workspace_bytes = workspace_bytes
        self._later: Tensor | None = None

    def prompts(self, q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        """Rows of any number of tokens, one after the other."""
        return in_parts(q, run, 1, lambda tokens, row: self._prompt(tokens, cache, row, scale))

    def decode(self, q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        """Rows of one token each."""
        groups: list[_DecodeGroup] = run.remembered("composed decode", lambda: self._groups(cache, run))
        out = torch.empty_like(q)
        for group in groups:
            attended = _attend_group(q.index_select(0, group.rows), cache, group, scale)
            out.index_copy_(0, group.rows[: group.num_rows], attended[: group.num_rows])
        return out

    def _prompt(self, q: Tensor, cache: NpuKVCache, row: Run, scale: float) -> Tensor:
        """One row's tokens [num_tokens, num_heads, head_dim] over all that its cache holds."""
        num_tokens, num_heads, head_dim = q.shape
        (kv_len,) = row.kv_lens
        num_kv_heads = cache.num_kv_heads
        group_size = num_heads // num_kv_heads
        k, v = gather_row(cache, row)  # each [num_keys, num_kv_heads, head_dim], whole blocks
        k[kv_len:].zero_()  # what others left there, were it NaN, would reach the sums as 0 * NaN
        v[kv_len:].zero_()
        k, v = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
        first_scale, second_scale = _split_scale(scale)
        later = self._later_keys(cache.block_size)
        tiles = []
        step = self._tile(num_heads, k.shape[1])
        for first in range(0, num_tokens, step):
            end = min(first + step, num_tokens)
            size = -(-(end - first) // QUERY_MULTIPLE) * QUERY_MULTIPLE
            tile = F.pad(q[first:end] * first_scale, (0, 0, 0, 0, 0, size - (end - first)))
            # The query heads that share a key head are further rows of it: no key is repeated.
            tile = tile.view(size, num_kv_heads, group_size, head_dim).permute(1, 2, 0, 3)
            tile = tile.reshape(num_kv_heads, group_size * size, head_dim)
            seen = kv_len - num_tokens + first  # keys before the tile's first query, which all of it sees
            num_keys = -(-(kv_len - num_tokens + end) // cache.block_size) * cache.block_size
            scores = torch.bmm(tile, k[:, :num_keys].transpose(1, 2)).float().mul_(second_scale)
            hidden = later[:size, : num_keys - seen]
            scores.view(num_kv_heads, group_size, size, num_keys)[..., seen:].masked_fill_(hidden, MASKED)
            probs = torch.softmax(scores, dim=-1).to(q.dtype)
            attended = torch.bmm(probs, v[:, :num_keys]).view(num_kv_heads, group_size, size, head_dim)
            tiles.append(attended.permute(2, 0, 1, 3).reshape(size, num_heads, head_dim)[: end - first])
        return joined(tiles)

    def _tile(self, num_heads: int, num_keys: int) -> int:
        fitting = self._workspace_bytes // (num_heads * num_keys * _BYTES_PER_SCORE)
        return max(QUERY_MULTIPLE, min(QUERY_TILE, fitting // QUERY_MULTIPLE * QUERY_MULTIPLE))

    def _later_keys(self, block_size: int) -> Tensor:
        """[i, j] is True where key j comes after query i, both counted from the tile's first query."""
        width = QUERY_TILE + block_size
        if self._later is None or self._later.shape[1] < width:
            self._later = torch.ones(QUERY_TILE, width, dtype=torch.bool).triu_(1).to(self._device)
        return self._later

    def _groups(self, cache: NpuKVCache, run: Run) -> list[_DecodeGroup]:
        bytes_per_block = cache.block_size * cache.num_kv_heads * cache.head_dim * cache.k.itemsize * 4
        groups = []
        for num_blocks, rows in group_by_blocks(run.kv_lens, cache.block_size).items():
            most = max(1, self._workspace_bytes // (num_blocks * bytes_per_block))
            for start in range(0, len(rows), most):
                groups.append(_decode_group(rows[start : start + most], num_blocks, cache, run))
        return groups


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decode rows whose keys are gathered into one padded tensor. Rows behind `num_rows` repeat the first."""

    num_rows: int
    rows: Tensor  # [padded rows] int64 on the device: places in the run
    block_ids: Tensor  # [padded rows * num_blocks] int32 on the device
    hidden: Tensor  # [padded rows, num_blocks * block_size] bool on the device: not the row's


def group_by_blocks(kv_lens: tuple[int, ...], block_size: int) -> dict[int, list[int]]:
    """Rows by the blocks that are gathered for them: a power of two, at least what they need."""
    groups: dict[int, list[int]] = {}
    for row, kv_len in enumerate(kv_lens):
        needed = -(-kv_len // block_size)
        groups.setdefault(1 << (needed - 1).bit_length(), []).append(row)
    return groups


def padded_rows(num_rows: int) -> int:
    """Rows of a group, rounded up: to a power of two up to 16, to a multiple of 16 beyond."""
    if num_rows <= 16:
        return 1 << (num_rows - 1).bit_length()
    return -(-num_rows // 16) * 16


def gather_row(cache: NpuKVCache, row: Run) -> tuple[Tensor, Tensor]:
    """Copies of the blocks of a run of one row: (k, v), each [blocks * block_size, num_kv_heads, head_dim]."""
    num_blocks = -(-row.kv_lens[0] // cache.block_size)
    block_ids = row.block_tables[0, :num_blocks]
    return cache.k.index_select(0, block_ids).flatten(0, 1), cache.v.index_select(0, block_ids).flatten(0, 1)


def gather_rows(cache: NpuKVCache, run: Run) -> Keys:
    """Copies of all that a run's rows see, one row after the other: [sum of kv_lens, num_kv_heads, head_dim]."""
    rows = [gather_row(cache, row) for row in run.parts(1)]
    return Keys(
        torch.cat([k[:kv_len] for (k, _), kv_len in zip(rows, run.kv_lens, strict=True)]),
        torch.cat([v[:kv_len] for (_, v), kv_len in zip(rows, run.kv_lens, strict=True)]),
    )


def _decode_group(rows: list[int], num_blocks: int, cache: NpuKVCache, run: Run) -> _DecodeGroup:
    device = run.block_tables.device
    padded = rows + rows[:1] * (padded_rows(len(rows)) - len(rows))
    places = torch.tensor(padded, dtype=torch.int64).to(device)
    tables = run.block_tables.index_select(0, places)[:, :num_blocks]
    missing = num_blocks - tables.shape[1]
    if missing > 0:
        tables = F.pad(tables, (0, missing))
    kv_lens = torch.tensor([run.kv_lens[row] for row in padded], dtype=torch.int32).to(device)
    positions = torch.arange(num_blocks * cache.block_size, dtype=torch.int32, device=device)
    return _DecodeGroup(len(rows), places, tables.reshape(-1), positions >= kv_lens[:, None])


def _attend_group(q: Tensor, cache: NpuKVCache, group: _DecodeGroup, scale: float) -> Tensor:
    """q and result: [padded rows, num_heads, head_dim]."""
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads, num_keys = cache.num_kv_heads, group.hidden.shape[1]
    batch = num_rows * num_kv_heads

    def gathered(pages: Tensor) -> Tensor:  # [batch, num_keys, head_dim]
        rows = pages.index_select(0, group.block_ids).view(num_rows, num_keys, num_kv_heads, head_dim)
        rows.masked_fill_(group.hidden[:, :, None, None], 0)
        return rows.transpose(1, 2).reshape(batch, num_keys, head_dim)

    first_scale, second_scale = _split_scale(scale)
    queries = (q * first_scale).view(batch, num_heads // num_kv_heads, head_dim)
    scores = torch.bmm(queries, gathered(cache.k).transpose(1, 2)).float().mul_(second_scale)
    scores.view(num_rows, num_kv_heads, -1, num_keys).masked_fill_(group.hidden[:, None, None, :], MASKED)
    probs = torch.softmax(scores, dim=-1).to(q.dtype)
    return torch.bmm(probs, gathered(cache.v)).view(num_rows, num_heads, head_dim)


def _split_scale(scale: float) -> tuple[float, float]:
    """The scale as a power of two, which rounds nothing in float16 and keeps q . k from overflowing, and the rest."""
    power = 2.0 ** math.floor(math.log2(scale))
    return power, scale / power
