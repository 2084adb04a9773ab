from __future__ import annotations

import os

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE

# `on_chip` holds what runs on the emulated chip of the process; test_each_chip.py starts one for each family.
collect_ignore = [] if os.environ.get(EMULATOR_VARIABLE) else ["on_chip"]
