"""Whether a linear weight is kept in FRACTAL_NZ, decided weight by weight while loading, by trying it.

NZ is what the cube unit reads. On A1 and 310P an ND weight is rearranged on every call; newer chips do it on the fly.
But a cast can be ignored, can be wrong, or can pay nothing: so what came back is compared with what went in, in format,
size, content, products and time, and on any doubt the weight stays in ND, with the reason. A tensor in NZ must never be
sliced, viewed, joined or indexed: it is cast last, and nothing but a product ever sees it.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.errors import first_line
from text_generation_kernels.interface import PackedWeight
from text_generation_kernels.npu.kv_cache import FRACTAL_NZ, ND_FORMAT
from text_generation_kernels.npu.soc import Family

logger = logging.getLogger(__name__)

WANTED_LAYOUTS = ("auto", "nd", "nz")

FLOAT16_MAX = torch.finfo(torch.float16).max
# Rows of the products that are compared and timed: decode, a few rows, a prompt; none a multiple of the other's tile.
PRODUCT_ROWS = (1, 17, 256)
TIMED_RUNS = 20
# Both products add in float32 and round once, so they differ in the last digits at most.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# What timing alone cannot tell apart.
_SLOWER = 1.05

Stopwatch = Callable[[Callable[[], object]], float]


def storage_elements(rows: int, columns: int, itemsize: int) -> int:
    """Elements that a matrix takes in NZ: blocks of 16 rows by 32 bytes, at least two bytes an element."""
    block_columns = 32 // min(itemsize, 2)
    return -(-rows // 16) * 16 * -(-columns // block_columns) * block_columns


def ineligible(shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
    """Why a weight of this shape is not to be cast; None: it may be tried."""
    if dtype not in (torch.float16, torch.bfloat16, torch.int8):
        return f"{dtype_name(dtype)} is never in NZ"
    if len(shape) != 2:
        return f"{len(shape)} dimensions are not two"
    rows, columns = shape
    multiple = 32 if dtype == torch.int8 else 16
    if rows % 16:
        return f"{rows} % 16 != 0"
    if columns % multiple:
        return f"{columns} % {multiple} != 0"
    return None


class WeightPacker:
    """Puts weights on the device, in the layout that suits them, and knows what came of it.

    Args:
        torch_npu: the module.
        dtype: of activations, which weights are rounded to.
        wanted: "auto" follows the family and keeps NZ only where it is not slower; "nz" tries it on every family and
            does not time it; "nd" never tries.
        stopwatch: seconds that a call takes; the default measures on the device.
    """

    def __init__(
        self,
        torch_npu: Any,
        device: torch.device,
        dtype: torch.dtype,
        family: Family,
        *,
        wanted: str = "auto",
        stopwatch: Stopwatch | None = None,
    ) -> None:
        if wanted not in WANTED_LAYOUTS:
            raise ValueError(f"unknown weight layout {wanted!r}; use {', '.join(WANTED_LAYOUTS)}")
        self._torch_npu = torch_npu
        self._device = device
        self._dtype = dtype
        self._tries = wanted == "nz" or (wanted == "auto" and family.tries_nz)
        self._times = wanted == "auto"
        self._stopwatch = stopwatch or self._median_seconds
        self._products: dict[tuple[int, ...], str | None] = {}  # by shape: why its products are no good
        self._num_nz = 0
        self._num_weights = 0
        self._num_clamped = 0
        self._reasons: Counter[str] = Counter()
        if self._tries and not family.keeps_formats:
            torch_npu.npu.config.allow_internal_format = True  # else the cast gives back ND, with a mere warning

    @property
    def summary(self) -> str:
        """One line for reports: how many weights are in which layout, and why the others are not."""
        if not self._tries:
            return f"linear weights: ND {self._num_weights}/{self._num_weights}"
        reasons = "; ".join(f"{count} ND: {reason}" for reason, count in self._reasons.items())
        return f"linear weights: NZ {self._num_nz}/{self._num_weights}{f' ({reasons})' if reasons else ''}"

    def count_anew(self) -> None:
        """Forget the weights so far in what reports say. What was found out about shapes stays."""
        self._num_nz = self._num_weights = self._num_clamped = 0
        self._reasons.clear()

    @property
    def num_clamped(self) -> int:
        """Weights that float16 cannot hold, and that were set to +-65504."""
        return self._num_clamped

    def pack(self, weight: Tensor, *, is_indexed: bool = False) -> PackedWeight:
        """
        Args:
            weight: [out_features, in_features], any float dtype, anywhere.
            is_indexed: rows of it are looked up, too.
        """
        out_features, in_features = weight.shape
        nd = self._placed(weight)
        self._num_weights += 1
        if self._tries:
            found = self._in_nz(nd, is_indexed=is_indexed)
            if isinstance(found, Tensor):
                self._num_nz += 1
                nbytes = int(self._torch_npu.get_storage_size(found)) * found.itemsize
                return PackedWeight(found, out_features, in_features, layout="nz", nbytes=nbytes)
            self._keep_nd(nd, found)
        return PackedWeight(nd, out_features, in_features, layout="nd", nbytes=nd.nbytes)

    def _placed(self, weight: Tensor) -> Tensor:
        """On the device, in the activations' dtype; converted on the host, since a chip may lack the weight's own."""
        rounded = weight.to(self._dtype)
        if self._dtype == torch.float16 and weight.dtype != torch.float16:
            # A chip that saturates would do the same in silence, the others would serve infinities.
            beyond = int((weight.abs() > FLOAT16_MAX).sum())
            if beyond:
                self._num_clamped += beyond
                logger.warning("%d of %d weights are beyond float16 and set to +-65504", beyond, weight.numel())
                rounded.clamp_(-FLOAT16_MAX, FLOAT16_MAX)
        return rounded.to(self._device).contiguous()

    def _keep_nd(self, nd: Tensor, reason: str) -> None:
        if reason not in self._reasons:
            logger.info("weight %s stays in ND: %s", list(nd.shape), reason)
        self._reasons[reason] += 1

    def _in_nz(self, nd: Tensor, *, is_indexed: bool) -> Tensor | str:
        """The weight in NZ, or why not."""
        reason = ineligible(tuple(nd.shape), nd.dtype)
        if reason is None and is_indexed:
            reason = "its rows are looked up, as embeddings"
        if reason is not None:
            return reason
        try:
            nz: Tensor = self._torch_npu.npu_format_cast(nd, FRACTAL_NZ)
            return self._wrong_bytes(nd, nz) or self._wrong_products(nd, nz) or nz
        except RuntimeError as error:  # whatever the chip has against it; the weight is there in ND
            return f"the chip refuses it ({first_line(error)})"

    def _wrong_bytes(self, nd: Tensor, nz: Tensor) -> str | None:
        """Each weight's own: is it really NZ, and is nothing lost?"""
        seen = int(self._torch_npu.get_npu_format(nz))
        if seen != FRACTAL_NZ:
            return f"the cast gave format {seen}, not {FRACTAL_NZ}"
        rows, columns = nd.shape
        elements, expected = int(self._torch_npu.get_storage_size(nz)), storage_elements(rows, columns, nd.itemsize)
        if elements != expected:
            return f"its storage has {elements} elements, not {expected}"
        back = self._torch_npu.npu_format_cast(nz, ND_FORMAT)
        if not torch.equal(back, nd):
            return "cast there and back it has other values"
        return None

    def _wrong_products(self, nd: Tensor, nz: Tensor) -> str | None:
        """Once a shape, since kernels are chosen by shape: the same products, and not slower?"""
        shape = tuple(nd.shape)
        if shape not in self._products:
            self._products[shape] = self._compare_products(nd, nz)
        return self._products[shape]

    def _compare_products(self, nd: Tensor, nz: Tensor) -> str | None:
        generator = torch.Generator().manual_seed(0)
        seconds_nd = seconds_nz = 0.0
        for num_rows in PRODUCT_ROWS:
            x = torch.randn(num_rows, nd.shape[1], generator=generator).to(self._dtype).to(self._device)
            expected, actual = F.linear(x, nd).float(), F.linear(x, nz).float()
            size = float(expected.abs().max())
            error = float((actual - expected).abs().max())
            if not error <= TOLERANCE[nd.dtype] * size:
                return f"the product of {num_rows} rows is off by {error:.3g} where the largest value is {size:.3g}"
            if self._times:
                seconds_nd += self._stopwatch(partial(F.linear, x, nd))
                seconds_nz += self._stopwatch(partial(F.linear, x, nz))
        if seconds_nz > _SLOWER * seconds_nd:
            return f"products take {1e6 * seconds_nz:.0f} us instead of {1e6 * seconds_nd:.0f}"
        return None

    def _median_seconds(self, call: Callable[[], object]) -> float:
        times = []
        for _ in range(TIMED_RUNS):
            self._torch_npu.npu.synchronize()
            started = time.perf_counter()
            call()
            self._torch_npu.npu.synchronize()
            times.append(time.perf_counter() - started)
        return statistics.median(times)
