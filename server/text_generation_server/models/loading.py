"""From a model folder to one rank's `CausalLM`: layer by layer, so that no second copy of the model ever exists."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from text_generation_kernels.interface import Device
from text_generation_server.layers.decoder import DecoderLayer
from text_generation_server.layers.vocabulary import load_vocabulary
from text_generation_server.model_config import ModelConfig
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.parallel import TensorParallelGroup
from text_generation_server.rope import RopeTable
from text_generation_server.sharding import ShardingError, split_heads
from text_generation_server.weights.checkpoint import Checkpoint
from text_generation_server.weights.folder import CheckpointError
from text_generation_server.weights.shard_reader import ShardReader

logger = logging.getLogger(__name__)

# Old Llama checkpoints ship the rotary frequencies, which are computed here.
_NEVER_READ = "rotary_emb.inv_freq"


def check_shards(config: ModelConfig, world_size: int) -> None:
    """Raise ShardingError, with the numbers that would do, when the model cannot be split over `world_size` shards."""
    split_heads(config.num_heads, config.num_kv_heads, 0, world_size)
    for name in ("intermediate_size", "vocab_size"):
        size = getattr(config, name)
        if size < world_size:
            raise ShardingError(
                f"{name}={size} is smaller than num_shard={world_size}; use --num-shard {size} or fewer"
            )


def load_model(
    folder: Path,
    device: Device,
    group: TensorParallelGroup,
    *,
    config: ModelConfig | None = None,
    dtype: torch.dtype | None = None,
    max_positions: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CausalLM:
    """Read one rank's part of a model onto its device.

    Args:
        config: when it was read, or changed, before; None reads `folder`'s.
        dtype: what the weights are rounded to; None leaves them as they are stored. Activations have the ops' own
            dtype, which on the CPU is float32 whatever this is.
        max_positions: the longest sequence that will be served, prompt and output; None means all that the model can.
            Rope scaling "dynamic" chooses its base by it.
        on_progress: called with (layers done, layers in all); None draws a bar if standard error is a terminal.
    Raises:
        CheckpointError: the folder cannot be served; names the file or the tensor.
        ShardingError: the model cannot be split over the group.
    """
    config = config or ModelConfig.from_hf(folder)
    check_shards(config, group.world_size)
    max_positions = max_positions or config.max_position_embeddings
    _check_length(config, max_positions)
    with Checkpoint(folder) as checkpoint:
        reader = ShardReader(checkpoint, device, dtype)
        embedding, head = load_vocabulary(reader, config, group)
        layers: list[DecoderLayer] = []
        hide_bar = on_progress is not None or group.rank != 0 or not sys.stderr.isatty()
        for index in tqdm(range(config.num_layers), desc="Loading layers", disable=hide_bar):
            layers.append(DecoderLayer.load(reader, config, group, index))
            if on_progress is not None:
                on_progress(index + 1, config.num_layers)
        norm = reader.vector("model.norm.weight", config.hidden_size)
        _report_unread(checkpoint)
        if reader.clamped:
            logger.warning(
                f"{folder}: {sum(reader.clamped.values())} values in {', '.join(list(reader.clamped)[:3])} are beyond "
                f"float16 and set to +-65504, since {device.name} has no bfloat16: text may be poor"
            )
    return CausalLM(
        config=config,
        device=device,
        dtype=dtype or embedding.dtype,
        max_positions=max_positions,
        rope=RopeTable(config.rope, config.head_dim, max_positions, device),
        embedding=embedding,
        layers=tuple(layers),
        norm=norm,
        head=head,
    )


def _check_length(config: ModelConfig, max_positions: int) -> None:
    if config.sliding_window is not None and max_positions > config.sliding_window:
        raise CheckpointError(
            f"{config.model_type} attends to {config.sliding_window} tokens at once (sliding_window), and longer "
            f"sequences are not supported; use --max-total-tokens {config.sliding_window} or less, not {max_positions}"
        )
    if max_positions > config.max_position_embeddings:
        logger.warning(
            f"sequences of {max_positions} tokens are allowed, but the model was made for "
            f"{config.max_position_embeddings}: text past that may be poor"
        )


def _report_unread(checkpoint: Checkpoint) -> None:
    unread = [name for name in checkpoint.unread_names() if _NEVER_READ not in name]
    if unread:
        # A bias that config.json does not announce would be among them, and the text then wrong.
        more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
        logger.warning(f"{checkpoint.folder}: the model has no use for the tensors {', '.join(unread[:3])}{more}")
