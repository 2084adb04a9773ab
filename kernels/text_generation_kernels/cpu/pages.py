"""Large zeroed memory that the system supplies page by page, when first written to, or earlier in the background.

Writing a cache's gigabytes with zeros would hold up the start for seconds: 0.3 s a GiB where the memory is the
machine's own, 6 to 10 s a GiB in a virtual machine whose host takes back what is unused (Firecracker with a balloon,
2 cores, 2026-12). Knows nothing about what the memory is for.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# Supplied in one call: long enough to be worth it, and short, because who maps or unmaps memory meanwhile waits.
_CHUNK_BYTES = 256 << 10
_MADV_POPULATE_WRITE = 23  # Linux 5.14; keeps what is written there already
# Rests after each call, in its own length. Without rests, and at the lowest priority instead of the scheduler's idle
# class, requests of the first seconds took twice as long: threads that compute together wait for the one held up.
_RESTS = 3


class LazyMemory:
    """Hands out zeroed tensors, and can have their pages supplied before they are needed."""

    def __init__(self) -> None:
        self._areas: list[weakref.ref[mmap.mmap]] = []

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros, page aligned; it owns its memory, which goes back to the system with it."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes == 0:
            return torch.zeros(tuple(shape), dtype=dtype)
        area = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._areas = [known for known in self._areas if known() is not None]
        self._areas.append(weakref.ref(area))
        return torch.frombuffer(area, dtype=dtype).view(tuple(shape))

    def supply_pages(self) -> threading.Thread:
        """Begin to have the pages of all tensors that exist now supplied, by a thread that yields to everything else.

        Returns: the thread; it ends by itself, also when the tensors are gone, and nobody has to wait for it.
        """
        thread = threading.Thread(target=_supply, args=(list(self._areas),), name="page-supply", daemon=True)
        thread.start()
        return thread


def _supply(areas: list[weakref.ref[mmap.mmap]]) -> None:
    """The beginning of every area first: caches of several layers are filled side by side."""
    if sys.platform != "linux":
        return
    try:
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:  # a sandbox forbids it, and then pages come when they are written to
        logger.debug("pages are not supplied ahead: %s", error.strerror)
        return
    advise = ctypes.CDLL(None, use_errno=True).madvise  # mmap's own would keep the interpreter's lock
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    offset = 0
    while areas:
        areas = [area for area in areas if _supply_chunk(advise, area(), offset)]
        offset += _CHUNK_BYTES


def _supply_chunk(advise: Callable[[int, int, int], int], area: mmap.mmap | None, offset: int) -> bool:
    """Returns: whether there may be more to supply."""
    if area is None or offset >= len(area):
        return False
    size = min(_CHUNK_BYTES, len(area) - offset)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area)) + offset
    started_s = time.monotonic()
    if advise(start, size, _MADV_POPULATE_WRITE) != 0:
        # Nothing is lost: pages then come when they are written to.
        logger.debug("pages are not supplied ahead: %s", os.strerror(ctypes.get_errno()))
        return False
    time.sleep(_RESTS * (time.monotonic() - started_s))
    return True
