"""Linear weights in panels of sixteen columns, and the memory they lie in. Formats are described in `src/formats.h`.

A bfloat16 or float16 checkpoint keeps its own format, which loses nothing; anything else becomes float32. Int8 is made
from any of them at load: whole numbers from -127 to 127 with a float32 scale for each output feature and group of
input features.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.interface import PackedWeight
from text_generation_kernels.native.library import Format, KernelError, Library

PANEL_COLUMNS = 16
FORMATS = {torch.float32: Format.F32, torch.bfloat16: Format.BF16, torch.float16: Format.F16}
_NAMES = {Format.F32: "f32", Format.BF16: "bf16", Format.F16: "f16", Format.I8: "i8"}

# Memory is taken from the system in pieces of this size, in whole huge pages where the system has them: with pages of
# 4 kB the same weights are read a tenth slower.
_PIECE_BYTES = 32 << 20
_HUGE_PAGE_BYTES = 2 << 20
_ALIGNMENT = 64
# Weight rows quantized at once, which bounds the float32 copies that it needs.
_QUANTIZED_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Panels:
    """`PackedWeight.data` of this backend."""

    panels: Tensor  # uint8, flat
    scales: Tensor | None  # [panels, groups, 16] float32 where the format is I8
    format: Format
    group_size: int  # input features that share a scale; all of them where there are no scales


class WeightMemory:
    """Hands out memory for weights, one after the other in large pieces. Nothing is ever given back to it."""

    def __init__(self) -> None:
        self._piece = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, 64-byte aligned. It keeps its piece alive."""
        if self._used + num_bytes > len(self._piece):
            self._piece = _huge_pages(max(_PIECE_BYTES, num_bytes))
            self._used = 0
        taken = self._piece[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return taken


def _huge_pages(num_bytes: int) -> Tensor:
    size = -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    memory = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _HUGE_PAGE_BYTES :][:size]


def pack(library: Library, memory: WeightMemory, weight: Tensor, int8_group_size: int | None) -> PackedWeight:
    """Lay out one weight.

    Args:
        weight: [out_features, in_features], any float dtype.
        int8_group_size: input features that share a scale; None keeps a float format.
    """
    if weight.dim() != 2 or not weight.is_floating_point():
        raise KernelError(f"pack_weight: {_describe(weight)} is not a matrix of floats")
    if int8_group_size is not None:
        panels = _pack_int8(library, memory, weight, int8_group_size)
    else:
        panels = _pack_float(library, memory, weight)
    out_features, in_features = weight.shape
    nbytes = panels.panels.nbytes + (panels.scales.nbytes if panels.scales is not None else 0)
    return PackedWeight(panels, out_features, in_features, f"panels_{_NAMES[panels.format]}", nbytes)


def _pack_float(library: Library, memory: WeightMemory, weight: Tensor) -> Panels:
    source = weight if weight.dtype in FORMATS else weight.to(torch.float32)
    source = source.contiguous()
    out_features, in_features = source.shape
    form = FORMATS[source.dtype]
    panels = memory.take(library.functions.tgk_packed_bytes(out_features, in_features, form))
    status = library.functions.tgk_pack(source.data_ptr(), form, out_features, in_features, panels.data_ptr(), form)
    if status:
        raise KernelError(library.error())
    return Panels(panels, None, form, max(in_features, 1))


def _pack_int8(library: Library, memory: WeightMemory, weight: Tensor, group_size: int) -> Panels:
    out_features, in_features = weight.shape
    num_groups = -(-in_features // group_size)
    num_panels = -(-out_features // PANEL_COLUMNS)
    panels = memory.take(library.functions.tgk_packed_bytes(out_features, in_features, Format.I8))
    scales = memory.take(num_panels * num_groups * PANEL_COLUMNS * 4).view(torch.float32)
    scales = scales.view(num_panels, num_groups, PANEL_COLUMNS).zero_()
    for first in range(0, out_features, _QUANTIZED_AT_ONCE):
        part = weight[first : first + _QUANTIZED_AT_ONCE].to(torch.float32)
        quantized, own_scales = quantize(part, group_size)
        place = panels[first * in_features :]  # a panel's sixteen columns take sixteen rows' bytes
        library.functions.tgk_pack_i8(quantized.data_ptr(), len(part), in_features, place.data_ptr())
        padded = torch.zeros(-(-len(part) // PANEL_COLUMNS) * PANEL_COLUMNS, num_groups)
        padded[: len(part)] = own_scales
        panel = first // PANEL_COLUMNS
        scales[panel : panel + len(padded) // PANEL_COLUMNS] = padded.view(-1, PANEL_COLUMNS, num_groups).mT
    return Panels(panels, scales, Format.I8, group_size)


def quantize(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Nearest whole numbers, the largest of each group at 127.

    Args:
        weight: [rows, in_features] float32.
    Returns: ([rows, in_features] int8, contiguous; [rows, groups] float32 scales).
    """
    rows, in_features = weight.shape
    num_groups = -(-in_features // group_size)
    padded = torch.nn.functional.pad(weight, (0, num_groups * group_size - in_features))
    groups = padded.view(rows, num_groups, group_size)
    scales = groups.abs().amax(dim=-1) / 127
    quantized = torch.round(groups / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)).clamp_(-127, 127)
    return quantized.view(rows, -1)[:, :in_features].to(torch.int8).contiguous(), scales


def _describe(x: Tensor) -> str:
    return f"a {dtype_name(x.dtype)} tensor of shape {list(x.shape)}"
