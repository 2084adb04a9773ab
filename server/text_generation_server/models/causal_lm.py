"""A decoder-only language model, whatever its family: token ids of a step in, hidden states and logits out.

Knows no sequences, no sampling and no files; one rank of a group holds one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.interface import Device, KVCache, StepInputs, StepMetadata
from text_generation_server.layers.decoder import DecoderLayer
from text_generation_server.layers.vocabulary import Embedding, Head
from text_generation_server.model_config import ModelConfig
from text_generation_server.rope import RopeTable

# (layer, the last sublayer's output, the residual stream without it): each [num_tokens, hidden_size]
Trace = Callable[[int, Tensor, Tensor | None], None]


@dataclass(frozen=True, slots=True)
class CausalLM:
    """One rank's part of a model, on its device."""

    config: ModelConfig
    device: Device
    dtype: torch.dtype  # that the weights were rounded to; activations have the ops' own
    max_positions: int  # positions [0, max_positions) can be computed
    rope: RopeTable
    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    norm: Tensor  # [hidden_size]
    head: Head

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_kv_heads_local(self) -> int:
        """Key/value heads that this rank caches."""
        return self.layers[0].attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.config.head_dim

    def forward(
        self, token_ids: Tensor, step: StepMetadata, kv_caches: Sequence[KVCache], trace: Trace | None = None
    ) -> Tensor:
        """Compute a step's tokens; writes their keys and values into the caches.

        Args:
            token_ids: [num_tokens] int64 on the device, each within the vocabulary.
            kv_caches: one a layer, with `num_kv_heads_local` heads.
            trace: is shown the state in front of every layer and behind the last, for checks.
        Returns: [num_tokens, hidden_size], the final norm applied.
        """
        rope = self.rope.at(step.positions)
        x = self.embedding(token_ids)
        residual: Tensor | None = None
        for index, (layer, cache) in enumerate(zip(self.layers, kv_caches, strict=True)):
            if trace is not None:
                trace(index, x, residual)
            x, residual = layer(x, residual, rope, cache, step)
        if trace is not None:
            trace(self.num_layers, x, residual)
        assert residual is not None
        normed, _ = self.device.ops.add_rms_norm(x, residual, self.norm, self.config.rms_norm_eps)
        return normed

    def sampled_logits(self, inputs: StepInputs, kv_caches: Sequence[KVCache]) -> Tensor:
        """A whole step: `forward`, then this rank's columns of the logits of the sampled tokens, for `head.gather`.

        Only ops and views, and what goes through `Ops.outside`, so it can be captured.
        """
        hidden = self.forward(inputs.token_ids, inputs.step, kv_caches)
        return self.head(self.device.ops.embedding(inputs.sampled, hidden))

    def logits(self, hidden: Tensor) -> Tensor | None:
        """Scores of the next token, for the rows given and no others.

        Args:
            hidden: [n, hidden_size], rows of `forward`'s result.
        Returns: [n, vocab_size] float32 on rank 0, None on the other ranks, which must call it too.
        """
        return self.head.gather(self.head(hidden))
