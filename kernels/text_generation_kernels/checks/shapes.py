"""The sizes of a model that decide which kernels a device runs for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """One rank's part of a model."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int  # of the whole model, which rank 0 samples from
    block_size: int
    norm_eps: float = 1e-5
    has_head_norm: bool = False  # queries and keys are normalized, each head by itself
    has_qkv_bias: bool = False

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(out_features, in_features) of a layer's weights, each once."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes = (
            (q + 2 * kv, self.hidden_size),
            (self.hidden_size, q),
            (2 * self.intermediate_size, self.hidden_size),
            (self.hidden_size, self.intermediate_size),
        )
        return tuple(dict.fromkeys(shapes))

    @property
    def heads(self) -> str:
        return f"{self.num_heads} heads over {self.num_kv_heads} of {self.head_dim}"


# A model like Llama 3 8B, for a check without a model.
COMMON_SIZES = ModelSizes(
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    block_size=128,
)
