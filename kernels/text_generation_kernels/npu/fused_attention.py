"""Attention by the fused ops of A2, A3 and A5: fused infer attention (v1 and v2), and the training op as a fallback.

Queries' lengths are cumulative without a leading zero; lengths of cached rows are one per row as soon as there is a
block table. Scale, mask and mode are always passed: their defaults are 1.0 and attention in both directions.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels.interface import CaptureRefused
from text_generation_kernels.npu.attention_rows import Attend, HeadShape, Keys, Run, in_parts, nd_refusal
from text_generation_kernels.npu.composed_attention import gather_rows
from text_generation_kernels.npu.graph_tasks import GraphTasks
from text_generation_kernels.npu.kv_cache import NpuKVCache
from text_generation_kernels.npu.masks import Masks
from text_generation_kernels.npu.schemas import InstalledOps, OpCall, OpUnavailable

_SPARSE_CAUSAL = 3  # bottom right: the last query sees all keys
_SPARSE_OFF = 0
_ACCURATE = 0  # inner_precise
_UNLIMITED = 2147483647
_MAX_SEQUENCES = 4096
_MAX_TRAINING_SEQUENCES = 1024
_MAX_HEADS = 256
_MAX_GROUP = 64
_MAX_WIDTH = 65535  # num_kv_heads * head_dim of a paged cache
_HALF = (torch.float16, torch.bfloat16)

# What v1 and v2 call the same things: (query heads, scale, query lengths, cached lengths).
_ARGUMENTS = {
    "npu_fused_infer_attention_score": ("num_heads", "scale", "actual_seq_lengths", "actual_seq_lengths_kv"),
    "npu_fused_infer_attention_score_v2": (
        "num_query_heads",
        "softmax_scale",
        "actual_seq_qlen",
        "actual_seq_kvlen",
    ),
}


class FusedInferAttention:
    """One of the two fused infer attention ops over a paged ND cache.

    Args:
        name: which of them.
        tasks: where calls go while a graph is captured.
    Raises: OpUnavailable.
    """

    def __init__(self, installed: InstalledOps, name: str, masks: Masks, tasks: GraphTasks) -> None:
        self._name = name
        self._masks = masks
        self._tasks = tasks
        self._heads, self._scale, self._query_lens, self._kv_lens = _ARGUMENTS[name]
        self._arguments = (
            *("query", "key", "value", "atten_mask", "block_table", "input_layout", "num_key_value_heads"),
            *("sparse_mode", "inner_precise", "block_size", *_ARGUMENTS[name]),
        )
        self._op = installed.bind(name, *self._arguments)
        self._captured_ops: tuple[OpCall, OpCall] | None = None
        self._not_captured = ""
        try:
            self._captured_ops = (
                installed.bind(f"{name}.out", *self._arguments, "workspace", "out"),
                installed.bind(_workspace_op(name), *self._arguments),
            )
        except OpUnavailable as error:
            self._not_captured = str(error)

    def tokens(self, q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        """Rows of any lengths in one call: layout TND."""

        def call(rows: Tensor, part: Run) -> Tensor:
            ends = list(part.cu_seqlens_q[1:])
            return self._call(rows, cache, part, scale, layout="TND", query_lens=ends, is_masked=True)

        return in_parts(q, run, _MAX_SEQUENCES, call)

    def decode_rows(self, q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        """Rows of one token each as a batch: layout BSND, for head sizes that TND does not take."""
        rows, lens = q.unsqueeze(1), [1] * run.num_rows  # [num_rows, 1, num_heads, head_dim]
        return self._call(rows, cache, run, scale, layout="BSND", query_lens=lens, is_masked=False).squeeze(1)

    def prompt_rows(self, q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        """Rows of several tokens, one call each: layout BSND knows one query length for all rows of a batch."""

        def call(tokens: Tensor, row: Run) -> Tensor:
            batch, lens = tokens.unsqueeze(0), [row.num_tokens]
            return self._call(batch, cache, row, scale, layout="BSND", query_lens=lens, is_masked=True).squeeze(0)

        return in_parts(q, run, 1, call)

    def _call(
        self,
        q: Tensor,
        cache: NpuKVCache,
        run: Run,
        scale: float,
        *,
        layout: str,
        query_lens: list[int],
        is_masked: bool,
    ) -> Tensor:
        k, v = cache.pages()
        kv_lens = list(run.kv_lens)
        arguments: dict[str, Any] = {
            "query": q,
            "key": k,
            "value": v,
            "atten_mask": self._masks.compressed() if is_masked else None,
            "block_table": run.block_tables,
            "block_size": cache.block_size,
            "input_layout": layout,
            "num_key_value_heads": cache.num_kv_heads,
            "sparse_mode": _SPARSE_CAUSAL if is_masked else _SPARSE_OFF,
            "inner_precise": _ACCURATE,
            self._heads: q.shape[-2],
            self._scale: scale,
            self._query_lens: query_lens,
        }
        if self._tasks.recording is not None:
            return self._capture(arguments, kv_lens)
        out: Tensor = self._op(**arguments, **{self._kv_lens: kv_lens})[0]
        return out

    def _capture(self, arguments: dict[str, Any], kv_lens: list[int]) -> Tensor:
        """The call as a task of the graph: results and workspace get places that replays use again."""
        if self._captured_ops is None:
            raise CaptureRefused(f"attention's lengths could not be refreshed: {self._not_captured}")
        op, workspace_op = self._captured_ops
        q: Tensor = arguments["query"]
        shape = (self._name, arguments["input_layout"], q.shape, arguments["key"].shape)
        workspace = self._tasks.workspace(shape, lambda: workspace_op(**arguments, **{self._kv_lens: kv_lens}))
        out, lse = torch.empty_like(q), torch.empty(1, dtype=q.dtype, device=q.device)
        call = partial(op, **arguments, workspace=workspace, out=[out, lse])
        self._tasks.capture(lambda lens: call(**{self._kv_lens: lens}), kv_lens)
        return out


def _workspace_op(name: str) -> str:
    return f"_{name}_get_max_workspace"


def tnd_refusal(shape: HeadShape) -> str | None:
    """Why layout TND cannot take these heads."""
    reason = _common_refusal(shape)
    if reason is not None:
        return reason
    if shape.head_dim == 64 and shape.num_heads != shape.num_kv_heads:
        return "layout TND takes heads of 64 only where each has its own keys"
    if shape.head_dim not in (64, 128, 192):
        return f"layout TND takes heads of 64, 128 or 192, not {shape.head_dim}"
    return None


def bsnd_refusal(shape: HeadShape) -> str | None:
    """Why layout BSND cannot take these heads."""
    if shape.head_dim % 16 or shape.head_dim > 512:
        return f"heads of {shape.head_dim} are not a multiple of 16 up to 512"
    if shape.block_size not in (128, 256, 384, 512):
        return f"blocks of {shape.block_size} are not 128, 256, 384 or 512"
    return _common_refusal(shape)


def _common_refusal(shape: HeadShape) -> str | None:
    reason = _cache_refusal(shape)
    if reason is not None:
        return reason
    if shape.num_heads > _MAX_HEADS or shape.num_heads > _MAX_GROUP * shape.num_kv_heads:
        return f"it takes up to {_MAX_HEADS} heads, {_MAX_GROUP} for each key head"
    if shape.block_size % 16 or shape.block_size > 1024:
        return f"blocks of {shape.block_size} are not a multiple of 16 up to 1024"
    if shape.num_kv_heads * shape.head_dim > _MAX_WIDTH:
        return f"key heads of one token are more than {_MAX_WIDTH} wide together"
    return None


def _cache_refusal(shape: HeadShape) -> str | None:
    if shape.dtype not in _HALF:
        return f"{shape.dtype} is not a type of 16 bits"
    return nd_refusal(shape)


def training_attention(installed: InstalledOps, masks: Masks) -> Attend:
    """`npu_fusion_attention`, made for training: it reads no pages, so rows are gathered into one flat tensor.

    Raises: OpUnavailable.
    """
    op = installed.bind(
        "npu_fusion_attention",
        *("query", "key", "value", "head_num", "input_layout", "atten_mask", "scale", "keep_prob", "pre_tockens"),
        *("next_tockens", "inner_precise", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode"),
    )

    def attend(q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        def call(tokens: Tensor, part: Run) -> Tensor:
            seen = gather_rows(cache, part)
            out: Tensor = op(
                query=tokens,
                key=seen.k,
                value=seen.v,
                head_num=q.shape[1],
                input_layout="TND",
                atten_mask=masks.compressed(torch.bool),
                scale=scale,
                keep_prob=1.0,
                pre_tockens=_UNLIMITED,
                next_tockens=_UNLIMITED,
                inner_precise=_ACCURATE,
                actual_seq_qlen=list(part.cu_seqlens_q[1:]),
                actual_seq_kvlen=list(accumulate(part.kv_lens)),  # no block table: ends, not lengths
                sparse_mode=_SPARSE_CAUSAL,
            )[0]
            return out

        return in_parts(q, run, _MAX_TRAINING_SEQUENCES, call)

    return attend


def training_refusal(shape: HeadShape) -> str | None:
    reason = _cache_refusal(shape)
    if reason is not None:
        return reason
    return None if shape.head_dim <= 768 else f"heads of {shape.head_dim} are more than 768"
