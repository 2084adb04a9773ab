"""What holds for every test: repeatable random examples, and one thread for each OpenMP program."""

from __future__ import annotations

import os

import hypothesis

# Before torch is imported. Two OpenMP programs on two cores stall each other, and tests start several processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# "ci" runs the same examples every time, so that a red run is about the change; at a desk, every run looks elsewhere.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("desk", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")
