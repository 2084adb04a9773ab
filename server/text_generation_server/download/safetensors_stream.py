"""Writing a safetensors file tensor by tensor.

The `safetensors` package wants all tensors in memory at once; a converted model may be larger than that. The format is
a length, a JSON header and the tensors' bytes in the header's order, so the header can go first when shapes are known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def write_safetensors(
    path: Path, dtype: str, shapes: Mapping[str, tuple[int, ...]], chunks: Iterable[memoryview]
) -> None:
    """Write tensors of one dtype.

    Args:
        dtype: one of `ELEMENT_BYTES`.
        shapes: by tensor name, in the order in which the bytes come.
        chunks: little-endian bytes of all tensors, row-major, one tensor after the other, cut anywhere.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * ELEMENT_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data begins at a multiple of 8
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        written = sum(file.write(chunk) for chunk in chunks)
    assert written == end, f"{written} bytes written, {end} announced"
