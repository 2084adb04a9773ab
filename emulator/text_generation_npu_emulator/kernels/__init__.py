"""The emulated kernels. Importing this package declares them all.

Each is the vendor's constraints as checks, plain torch in float32, and a result in the op's dtype. What an op does on
the chip without an error, though it is wrong, is refused as well (`require_loud`) unless the machine is `silent`.
"""

from __future__ import annotations

from text_generation_npu_emulator.kernels import (
    activation as activation,
)
from text_generation_npu_emulator.kernels import (
    atb_attention as atb_attention,
)
from text_generation_npu_emulator.kernels import (
    cache_write as cache_write,
)
from text_generation_npu_emulator.kernels import (
    casts as casts,
)
from text_generation_npu_emulator.kernels import (
    flash_attention as flash_attention,
)
from text_generation_npu_emulator.kernels import (
    fused_infer_attention as fused_infer_attention,
)
from text_generation_npu_emulator.kernels import (
    matmul as matmul,
)
from text_generation_npu_emulator.kernels import (
    norm as norm,
)
from text_generation_npu_emulator.kernels import (
    quantization as quantization,
)
from text_generation_npu_emulator.kernels import (
    rotary as rotary,
)
from text_generation_npu_emulator.kernels import (
    sampling as sampling,
)
