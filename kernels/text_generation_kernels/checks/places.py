"""Where a sample is computed: the ops under test on their device, or, from the same numbers, the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.interface import Ops
from text_generation_kernels.reference import ReferenceOps


@dataclass(frozen=True, slots=True)
class Place:
    """Ops, and the way of tensors to them and back."""

    ops: Ops
    device: torch.device
    name: str  # of the chip, for messages
    dtype: torch.dtype  # of the activations under test; the reference gets numbers rounded to it

    def put(self, x: Tensor) -> Tensor:
        """Numbers of activations: a new tensor here, in the dtype that the ops take."""
        rounded = x.to(self.dtype, copy=True)
        return rounded.to(self.device, self.ops.activation_dtype)

    def place(self, x: Tensor) -> Tensor:
        """Ids, slots, angles: as they are."""
        return x.to(self.device)

    def reference(self) -> Place:
        """Where the same sample gives what is expected."""
        return Place(ReferenceOps(), torch.device("cpu"), "reference", self.dtype)


def back(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """On the host; floats as float32. Waits for the device, so that an error of a launch shows here."""
    return tuple(tensor.cpu().float() if tensor.is_floating_point() else tensor.cpu() for tensor in tensors)
