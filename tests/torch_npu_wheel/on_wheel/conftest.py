from __future__ import annotations

import os

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE

# Run in processes of their own, which test_kernels.py starts.
collect_ignore_glob = [] if os.environ.get(f"{EMULATOR_VARIABLE}_HOST") == "wheel" else ["*"]
