"""PeakMeter: what a step's working memory is measured with."""

from pathlib import Path

import numpy as np
import pytest

from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.cpu.peak import PeakMeter

MIB = 2**20


def test_memory_that_was_given_back_still_counts() -> None:
    device = CpuDevice()
    device.reset_peak_memory()
    np.ones(200 * MIB, dtype=np.uint8)
    assert 195 * MIB < device.peak_memory_bytes() < 260 * MIB


def test_reset_forgets_what_was_held_before() -> None:
    device = CpuDevice()
    np.ones(200 * MIB, dtype=np.uint8)
    device.reset_peak_memory()
    assert device.peak_memory_bytes() < 50 * MIB


def test_read_only_proc_holds_back_more_rather_than_less(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t 104857600 kB\n")
    (tmp_path / "clear_refs").mkdir()
    meter = PeakMeter(tmp_path)
    with caplog.at_level("INFO"):
        meter.reset()
    assert "cannot be reset" in caplog.text
    assert meter.bytes_above_reset() > 90 * 2**30
