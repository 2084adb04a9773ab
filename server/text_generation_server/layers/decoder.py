"""One decoder layer: attention and a gated MLP, each behind an RMS norm, on a shared residual stream."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from text_generation_kernels.interface import KVCache, Ops, StepMetadata
from text_generation_server.layers.attention import Attention
from text_generation_server.layers.linear import ColumnParallelLinear, RowParallelLinear
from text_generation_server.model_config import ModelConfig
from text_generation_server.parallel import TensorParallelGroup
from text_generation_server.sharding import split
from text_generation_server.weights.shard_reader import Rows, ShardReader


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(silu(gate(x)) * up(x)), this rank's part of the intermediate features."""

    ops: Ops
    gate_up: ColumnParallelLinear
    down: RowParallelLinear

    @classmethod
    def load(cls, reader: ShardReader, config: ModelConfig, group: TensorParallelGroup, prefix: str) -> GatedMLP:
        hidden, intermediate, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        down_shape = (hidden, intermediate)
        span = split(intermediate, group.rank, group.world_size)
        parts = [Rows(f"{prefix}.gate_proj", span, intermediate), Rows(f"{prefix}.up_proj", span, intermediate)]
        return cls(
            ops=reader.device.ops,
            gate_up=ColumnParallelLinear.load(reader, parts, hidden, bias=bias),
            down=RowParallelLinear.load(reader, group, f"{prefix}.down_proj", span, shape=down_shape, bias=bias),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        return self.down(self.ops.silu_and_mul(self.gate_up(x)))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    ops: Ops
    attention_norm: Tensor  # [hidden_size]
    attention: Attention
    mlp_norm: Tensor  # [hidden_size]
    mlp: GatedMLP
    norm_eps: float

    @classmethod
    def load(cls, reader: ShardReader, config: ModelConfig, group: TensorParallelGroup, index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}"
        return cls(
            ops=reader.device.ops,
            attention_norm=reader.vector(f"{prefix}.input_layernorm.weight", config.hidden_size),
            attention=Attention.load(reader, config, group, f"{prefix}.self_attn"),
            mlp_norm=reader.vector(f"{prefix}.post_attention_layernorm.weight", config.hidden_size),
            mlp=GatedMLP.load(reader, config, group, f"{prefix}.mlp"),
            norm_eps=config.rms_norm_eps,
        )

    def __call__(
        self, x: Tensor, residual: Tensor | None, rope: tuple[Tensor, Tensor], cache: KVCache, step: StepMetadata
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            x: [num_tokens, hidden_size], the last sublayer's output, not yet on the residual stream.
            residual: [num_tokens, hidden_size]; None in the first layer, where x is the embedding. May be overwritten.
            rope: cosines and sines at the tokens' positions, from `RopeTable.at`.
        Returns: (the MLP's output, the residual stream without it).
        """
        if residual is None:
            x, residual = self.ops.rms_norm(x, self.attention_norm, self.norm_eps), x
        else:
            x, residual = self.ops.add_rms_norm(x, residual, self.attention_norm, self.norm_eps)
        x = self.attention(x, rope, cache, step)
        x, residual = self.ops.add_rms_norm(x, residual, self.mlp_norm, self.norm_eps)
        return self.mlp(x), residual
