"""The two ends of a model, split by vocabulary: the embedding and the output head, with one matrix or two."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.interface import Ops, PackedWeight
from text_generation_server.model_config import ModelConfig
from text_generation_server.parallel import TensorParallelGroup
from text_generation_server.sharding import Span, split
from text_generation_server.weights.checkpoint import Checkpoint
from text_generation_server.weights.shard_reader import ShardReader

logger = logging.getLogger(__name__)

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of the token table that this rank holds."""

    ops: Ops
    group: TensorParallelGroup
    table: Tensor | PackedWeight  # [rows of this rank, hidden_size]; packed: the head's too
    dtype: torch.dtype  # of its numbers
    span: Span  # their token ids

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size], the same on every rank."""
        if self.group.world_size == 1:
            return self.ops.embedding(token_ids, self.table)
        return self.group.all_reduce(self.ops.outside(self._own_rows, token_ids))

    def _own_rows(self, token_ids: Tensor) -> Tensor:
        """Zeros for tokens of other ranks."""
        elsewhere = (token_ids < self.span.start) | (token_ids >= self.span.stop)
        x = self.ops.embedding((token_ids - self.span.start).masked_fill(elsewhere, 0), self.table)
        return x.masked_fill_(elsewhere[:, None], 0)


@dataclass(frozen=True, slots=True)
class Head:
    """The output projection onto this rank's part of the vocabulary."""

    ops: Ops
    group: TensorParallelGroup
    weight: PackedWeight
    vocab_size: int

    def __call__(self, hidden: Tensor) -> Tensor:
        """[n, hidden_size] -> [n, columns of this rank]."""
        return self.ops.linear(hidden, self.weight)

    def gather(self, logits: Tensor) -> Tensor | None:
        """Every rank's columns -> [n, vocab_size] float32 on rank 0, None on the others."""
        whole = self.group.gather_logits(logits, self.vocab_size)
        return whole if whole is None or whole.dtype is torch.float32 else whole.float()


def embedding_name(checkpoint: Checkpoint, config: ModelConfig) -> str:
    """The tensor that token embeddings come from."""
    only_head = _is_tied(checkpoint, config) and checkpoint.has(_HEAD) and not checkpoint.has(_EMBEDDING)
    return _HEAD if only_head else _EMBEDDING


def head_name(checkpoint: Checkpoint, config: ModelConfig) -> str:
    """The tensor that logits are made with. A head that was shipped is used, whatever config.json says."""
    return _HEAD if checkpoint.has(_HEAD) or not _is_tied(checkpoint, config) else _EMBEDDING


def _is_tied(checkpoint: Checkpoint, config: ModelConfig) -> bool:
    tied = config.tie_word_embeddings
    return not checkpoint.has(_HEAD) if tied is None else tied


def load_vocabulary(reader: ShardReader, config: ModelConfig, group: TensorParallelGroup) -> tuple[Embedding, Head]:
    """Read embedding and head; a tied pair is read once, and kept once where the ops find rows in a packed weight.

    Tied is what config.json says, or, where it is silent, what lacks `lm_head.weight`. A tied checkpoint that ships
    both matrices is tied if they are equal; else the shipped head is used, as transformers does, and a warning says so.
    """
    checkpoint, ops = reader.checkpoint, reader.device.ops
    vocab_size, hidden_size = config.vocab_size, config.hidden_size
    span = split(vocab_size, group.rank, group.world_size)

    def rows(name: str) -> Tensor:
        return reader.table_rows(name, span, vocab_size, hidden_size)

    name = embedding_name(checkpoint, config)
    table = rows(name)
    head = table
    if not _is_tied(checkpoint, config):
        head = rows(_HEAD)
    elif checkpoint.has(_HEAD) and name != _HEAD:
        shipped = rows(_HEAD)
        if not torch.equal(shipped, table):
            logger.warning(
                f"{checkpoint.folder}: config.json ties {_HEAD} to {_EMBEDDING}, but their values differ; "
                f"the head is used as it was shipped"
            )
            head = shipped
    packed = ops.pack_table(head) if head is table else ops.pack_weight(head)
    shared = packed if head is table and ops.can_embed(packed) else table
    return Embedding(ops, group, shared, table.dtype, span), Head(ops, group, packed, vocab_size)
