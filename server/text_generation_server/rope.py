"""Rotary position embeddings: frequencies of every scaling rule, and the table of cosines and sines.

Knows formulas, in float32 as transformers computes them, since that is what checkpoints were trained with. Does not
know how a config.json spells them (`model_config` does).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.interface import Device

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A checkpoint's rotary settings. Fields after `original_max_positions` are read by one type only, as named."""

    theta: float
    original_max_positions: int  # positions trained before scaling
    rope_type: str = "default"  # one of ROPE_TYPES
    factor: float = 1.0  # all but default
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None: from factor and the mscales
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn

    def max_positions(self, stated: int) -> int:
        """The longest sequence the scaling was made for.

        Args:
            stated: max_position_embeddings of config.json, which counts scaling for llama3 and may for yarn.
        """
        if self.rope_type in {"linear", "dynamic"}:
            return int(stated * self.factor)
        if self.rope_type == "yarn":
            return max(stated, int(self.original_max_positions * self.factor))
        return stated


def rope_frequencies(rope: RopeConfig, head_dim: int, max_positions: int) -> Tensor:
    """Radians per position of each dimension pair.

    "dynamic" in transformers chooses its base by the longest sequence of the batch, and keeps keys rotated with older
    bases in the cache. Here a row's numbers may depend neither on its neighbours nor on how its prompt was cut, so the
    base is chosen once, for `max_positions`: where that is within the original length, this is transformers' result;
    where it is beyond, transformers' result for a sequence of `max_positions` tokens.

    Args:
        max_positions: the longest sequence that will be served.
    Returns: [head_dim / 2] float32 on the host.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    if rope.rope_type == "linear":
        return 1.0 / (rope.theta**exponents) / rope.factor
    if rope.rope_type == "dynamic":
        stretch = max(max_positions / rope.original_max_positions, 1.0)
        base: float = rope.theta * (rope.factor * stretch - (rope.factor - 1)) ** (head_dim / (head_dim - 2))
        return 1.0 / (base**exponents)
    if rope.rope_type == "llama3":
        return _llama3_frequencies(rope, 1.0 / (rope.theta**exponents))
    if rope.rope_type == "yarn":
        return _yarn_frequencies(rope, head_dim, rope.theta**exponents)
    return 1.0 / (rope.theta**exponents)


def _llama3_frequencies(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Slow pairs are slowed by `factor`, fast ones kept, those between blended by wavelength (Llama 3.1)."""
    rotations = rope.original_max_positions * frequencies / (2 * math.pi)  # within the original length
    blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = blend.clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn_frequencies(rope: RopeConfig, head_dim: int, wavelengths: Tensor) -> Tensor:
    """Like llama3, but blended by the pair's index between two numbers of rotations (arXiv:2309.00071)."""

    def pair_with_rotations(rotations: float) -> float:
        ratio = rope.original_max_positions / (rotations * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = pair_with_rotations(rope.beta_fast), pair_with_rotations(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return slowed / (rope.factor * wavelengths) + (1 - slowed) / wavelengths


def attention_factor(rope: RopeConfig) -> float:
    """What queries and keys are multiplied by, both: 1 but for yarn.

    transformers multiplies cosines and sines by it. Here it is part of attention's scale, twice, since rotations on an
    NPU take cosines up to 1 only.
    """
    if rope.rope_type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return temperature(rope.mscale) / temperature(rope.mscale_all_dim)
    return temperature(1.0)


class RopeTable:
    """Cosines and sines of every position, looked up once a step."""

    def __init__(self, rope: RopeConfig, head_dim: int, max_positions: int, device: Device) -> None:
        """
        Args:
            max_positions: positions [0, max_positions) can be looked up; also chooses the base of "dynamic".
        """
        self._ops = device.ops
        frequencies = rope_frequencies(rope, head_dim, max_positions)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        self.cos = angles.cos().to(device.torch_device)  # [max_positions, head_dim / 2] float32
        self.sin = angles.sin().to(device.torch_device)  # the same

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [num_tokens, head_dim / 2] float32, of positions [num_tokens] int64."""
        return self._ops.embedding(positions, self.cos), self._ops.embedding(positions, self.sin)
