"""One rank's share of a checkpoint, checked against the expected shapes and handed to the device.

Knows dtypes and devices; knows no layer names and no rules of splitting (`sharding` has those).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.interface import Device, PackedWeight
from text_generation_server.sharding import Span
from text_generation_server.weights.checkpoint import Checkpoint
from text_generation_server.weights.folder import CheckpointError


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows `span` of a weight or bias that has `total` of them in the checkpoint."""

    name: str  # without ".weight" or ".bias"
    span: Span
    total: int


class ShardReader:
    """Reads weights in the dtype they shall have, and packs or places them on the device, one at a time."""

    def __init__(self, checkpoint: Checkpoint, device: Device, dtype: torch.dtype | None) -> None:
        """
        Args:
            dtype: what weights are rounded to before anything else; None leaves them as the checkpoint has them.
        """
        self.checkpoint = checkpoint
        self.device = device
        self.dtype = dtype
        self.clamped: dict[str, int] = {}  # values beyond float16, by weight, on a device that has no wider type

    def packed_rows(self, parts: Sequence[Rows], in_features: int) -> PackedWeight:
        """Rows of one or more weights [total, in_features], one below the other, packed."""
        weights = [self._rows(f"{part.name}.weight", part.span, (part.total, in_features)) for part in parts]
        return self._pack(weights[0] if len(weights) == 1 else torch.cat(weights))

    def packed_columns(self, name: str, span: Span, shape: tuple[int, int]) -> PackedWeight:
        """Columns `span` of a weight whose shape is (out_features, in_features), packed."""
        full = f"{name}.weight"
        self._check_shape(full, shape)
        return self._pack(self._round(full, self.checkpoint.get_columns(full, span.start, span.stop)))

    def bias_rows(self, parts: Sequence[Rows]) -> Tensor:
        """Elements of one or more biases [total], joined, on the device in the activation dtype."""
        return self._place(torch.cat([self._rows(f"{part.name}.bias", part.span, (part.total,)) for part in parts]))

    def vector(self, name: str, size: int) -> Tensor:
        """A whole vector [size], on the device in the activation dtype."""
        self._check_shape(name, (size,))
        return self._place(self._round(name, self.checkpoint.get(name)))

    def table_rows(self, name: str, span: Span, total: int, width: int) -> Tensor:
        """Rows of an embedding table [total, width], on the device in the weights' own dtype."""
        return self._rows(name, span, (total, width)).to(self.device.torch_device)

    def _rows(self, name: str, span: Span, expected: tuple[int, ...]) -> Tensor:
        self._check_shape(name, expected)
        return self._round(name, self.checkpoint.get_rows(name, span.start, span.stop))

    def _check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        seen = self.checkpoint.shape(name)
        if seen != expected:
            raise CheckpointError(
                f"{self.checkpoint.folder}: {name} has shape {list(seen)}, but config.json makes it {list(expected)}"
            )

    def _round(self, name: str, weight: Tensor) -> Tensor:
        if self.dtype is None or weight.dtype == self.dtype:
            # A copy, since a view would keep the whole file mapped, let the system drop weights from memory while
            # serving, and change with the file.
            return weight.clone(memory_format=torch.contiguous_format)
        rounded = weight.to(self.dtype)
        if self.dtype == torch.float16 and not bool(torch.isfinite(rounded).all()):
            if self.device.has_bfloat16:
                raise CheckpointError(
                    f"{self.checkpoint.folder}: {name} has values that float16 cannot hold; use --dtype bfloat16"
                )
            largest = torch.finfo(torch.float16).max
            self.clamped[name] = int((weight.abs() > largest).sum())
            rounded = rounded.clamp_(-largest, largest)
        return rounded

    def _pack(self, weight: Tensor) -> PackedWeight:
        return self.device.ops.pack_weight(weight)

    def _place(self, vector: Tensor) -> Tensor:
        return vector.to(device=self.device.torch_device, dtype=self.device.ops.activation_dtype)
