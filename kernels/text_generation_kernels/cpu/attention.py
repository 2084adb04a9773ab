"""Paged attention on plain torch: gather a row's blocks, then torch's fused attention over what it may see.

A row with several tokens (a prompt, a chunk) is computed by itself, in tiles of queries. Rows with one token (decode)
of similar length are computed together, since 32 of them one by one take twice the time (two threads, context 200).
Their padding is hidden by a mask *and* overwritten with zeros: whatever else the cache holds, a NaN of another
sequence included, cannot reach a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels.interface import KVCache, StepMetadata

# Queries computed at once. Bounds the mask to 256 x kv_len, and skips keys that none of the tile's queries sees.
QUERY_TILE = 256
# Room for the gathered keys, and again for the values, of one group of decode rows: twice 8 MB.
WORKSPACE_FLOATS = 2 << 20
# A row joins a group if the padding it needs is at most this many tokens, or a quarter of the group's longest row.
GROUP_PADDING_TOKENS = 128


class PagedAttention:
    """`Ops.attention` for float32 caches of shape [num_blocks, block_size, num_kv_heads, head_dim].

    Owns the workspace that blocks are gathered into: taken from the system anew for each layer, its page faults cost
    more than the copy. Holds nothing from one call to the next; not for two threads at once.
    """

    def __init__(self, workspace_floats: int = WORKSPACE_FLOATS) -> None:
        self._workspace = torch.empty(2, workspace_floats)

    def __call__(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        out = torch.empty(q.shape)
        decode_rows = []
        for row in range(step.num_rows):
            first, end = step.cu_seqlens_q[row], step.cu_seqlens_q[row + 1]
            if end - first == 1:
                decode_rows.append(row)
            elif end > first:
                k, v = self._gather(cache, step.block_tables[row : row + 1], step.kv_lens[row])
                out[first:end] = _attend_chunk(q[first:end], k, v, scale)
        num_blocks = [-(-kv_len // cache.block_size) for kv_len in step.kv_lens]
        max_blocks = self._workspace.shape[1] // cache.k[0].numel()
        max_padding = GROUP_PADDING_TOKENS // cache.block_size
        for rows in decode_groups(decode_rows, num_blocks, max_blocks, max_padding):
            tokens = torch.tensor([step.cu_seqlens_q[row] for row in rows])
            kv_lens = [step.kv_lens[row] for row in rows]
            block_tables = step.block_tables.index_select(0, torch.tensor(rows))
            k, v = self._gather(cache, block_tables, max(kv_lens))
            out.index_copy_(0, tokens, _attend_decode(q.index_select(0, tokens), k, v, kv_lens, scale))
        return out

    def _gather(self, cache: KVCache, block_tables: Tensor, kv_len: int) -> tuple[Tensor, Tensor]:
        """Copies of the first `kv_len` keys and values of some rows, valid until the next call.

        Args:
            block_tables: [num_rows, max_blocks] int32.
        Returns: (k, v), each [num_rows, kv_len, num_kv_heads, head_dim].
        """
        block_ids = block_tables[:, : -(-kv_len // cache.block_size)].reshape(-1)
        shape = (len(block_ids), *cache.k.shape[1:])
        size = len(block_ids) * cache.k[0].numel()
        # One row may be longer than the workspace.
        k, v = self._workspace[:, :size] if size <= self._workspace.shape[1] else torch.empty(2, size)
        torch.index_select(cache.k, 0, block_ids, out=k.view(shape))
        torch.index_select(cache.v, 0, block_ids, out=v.view(shape))
        rows_shape = (len(block_tables), -1, *cache.k.shape[2:])
        return k.view(rows_shape)[:, :kv_len], v.view(rows_shape)[:, :kv_len]


def _attend_chunk(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of one row's last tokens over all of the row.

    Args:
        q: [num_tokens, num_heads, head_dim]; k, v: [1, kv_len, num_kv_heads, head_dim].
    Returns: [num_tokens, num_heads, head_dim].
    """
    num_tokens, num_heads, head_dim = q.shape
    _, kv_len, num_kv_heads, _ = k.shape
    # The query heads that share a key head lie along a dimension of their own, in which the keys have stride 0.
    grouped = (num_kv_heads, num_heads // num_kv_heads)
    k = k.permute(2, 0, 1, 3).expand(*grouped, -1, -1)
    v = v.permute(2, 0, 1, 3).expand(*grouped, -1, -1)
    out = torch.empty(q.shape)
    for first in range(0, num_tokens, QUERY_TILE):
        end = min(first + QUERY_TILE, num_tokens)
        size = end - first
        num_visible = kv_len - num_tokens + end  # by the tile's last query; each one before it sees one key less
        mask = torch.full((size, num_visible), float("-inf")).triu_(num_visible - size + 1)
        queries = q[first:end].view(size, *grouped, head_dim).permute(1, 2, 0, 3)
        attended = F.scaled_dot_product_attention(
            queries, k[:, :, :num_visible], v[:, :, :num_visible], attn_mask=mask, scale=scale
        )
        out[first:end].view(size, *grouped, head_dim).copy_(attended.permute(2, 0, 1, 3))
    return out


def _attend_decode(q: Tensor, k: Tensor, v: Tensor, kv_lens: list[int], scale: float) -> Tensor:
    """Attention of rows that have one token each. Overwrites the padding of k and v.

    Args:
        q: [num_rows, num_heads, head_dim]; k, v: [num_rows, max(kv_lens), num_kv_heads, head_dim].
    Returns: [num_rows, num_heads, head_dim].
    """
    num_rows, num_heads, head_dim = q.shape
    _, max_kv_len, num_kv_heads, _ = k.shape
    mask = None
    if min(kv_lens) < max_kv_len:
        hidden = torch.arange(max_kv_len) >= torch.tensor(kv_lens).unsqueeze(1)  # [num_rows, max_kv_len]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")).view(num_rows, 1, 1, max_kv_len)
        padding = hidden.nonzero(as_tuple=True)
        k[padding] = 0
        v[padding] = 0
    # The query heads that share a key head stand where a chunk's queries would: each key is read once for all of them.
    queries = q.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = F.scaled_dot_product_attention(
        queries, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale
    )
    return attended.reshape(num_rows, num_heads, head_dim)


def decode_groups(rows: list[int], num_blocks: list[int], max_blocks: int, max_padding: int) -> Iterator[list[int]]:
    """Split decode rows, longest first, into groups of similar length.

    Args:
        num_blocks: of every row of the step.
        max_blocks: that a group may gather, padding included; a row with more is a group of its own.
        max_padding: blocks of padding that any row may have; long rows may have a quarter of their group's longest.
    """
    group: list[int] = []
    for row in sorted(rows, key=lambda row: -num_blocks[row]):
        if group:
            longest = num_blocks[group[0]]
            is_similar = longest - num_blocks[row] <= max(longest // 4, max_padding)
            if not is_similar or (len(group) + 1) * longest > max_blocks:
                yield group
                group = []
        group.append(row)
    if group:
        yield group
