"""Linear layers of one rank: split by output features (column parallel) or by input features (row parallel)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from text_generation_kernels.interface import Ops, PackedWeight
from text_generation_server.parallel import TensorParallelGroup
from text_generation_server.sharding import Span
from text_generation_server.weights.shard_reader import Rows, ShardReader


@dataclass(frozen=True, slots=True)
class ColumnParallelLinear:
    """One matrix product for the rank's output features of one or several projections (fused), side by side."""

    ops: Ops
    weight: PackedWeight
    bias: Tensor | None  # [out_features of this rank]

    @classmethod
    def load(cls, reader: ShardReader, parts: Sequence[Rows], in_features: int, *, bias: bool) -> ColumnParallelLinear:
        weight = reader.packed_rows(parts, in_features)
        return cls(reader.device.ops, weight, reader.bias_rows(parts) if bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features of this rank]."""
        return self.ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RowParallelLinear:
    """The rank's input features of one projection; the ranks' results add up to the whole."""

    ops: Ops
    group: TensorParallelGroup
    weight: PackedWeight
    bias: Tensor | None  # [out_features], on rank 0 only, since it is to be added once

    @classmethod
    def load(
        cls,
        reader: ShardReader,
        group: TensorParallelGroup,
        name: str,
        span: Span,
        *,
        shape: tuple[int, int],
        bias: bool,
    ) -> RowParallelLinear:
        """
        Args:
            span: this rank's input features.
            shape: (out_features, in_features) of the whole weight.
        """
        weight = reader.packed_columns(name, span, shape)
        # Read on every rank, so that the checkpoint knows it was wanted.
        whole_bias = reader.vector(f"{name}.bias", shape[0]) if bias else None
        return cls(reader.device.ops, group, weight, whole_bias if group.rank == 0 else None)

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, in_features of this rank] -> [num_tokens, out_features], the same on every rank."""
        return self.group.all_reduce(self.ops.linear(x, self.weight, self.bias))
