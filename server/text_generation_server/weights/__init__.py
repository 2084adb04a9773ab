"""Reading checkpoints: which files a model folder holds, and the parts of their tensors that one rank needs."""

from text_generation_server.weights.checkpoint import Checkpoint
from text_generation_server.weights.folder import CheckpointError
from text_generation_server.weights.shard_reader import ShardReader

__all__ = ["Checkpoint", "CheckpointError", "ShardReader"]
