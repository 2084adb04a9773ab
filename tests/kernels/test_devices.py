"""Which device is chosen: the decision as a table, and the probe on a torch_npu package made for the test."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from text_generation_kernels.devices import DeviceUnavailable, choose_kind, select_device
from text_generation_kernels.npu_probe import NpuProbe, probe_npu

ABSENT = NpuProbe(installed=False)
BROKEN = NpuProbe(installed=True, error="ImportError: libhccl.so: cannot open shared object file")
NO_CARD = NpuProbe(installed=True, num_cards=0)
TWO_CARDS = NpuProbe(installed=True, num_cards=2)


@pytest.mark.parametrize(
    ("requested", "npu", "expected"),
    [
        ("cpu", ABSENT, "cpu"),
        ("cpu", BROKEN, "cpu"),
        ("cpu", TWO_CARDS, "cpu"),
        ("auto", ABSENT, "cpu"),
        ("auto", TWO_CARDS, "npu"),
        ("npu", TWO_CARDS, "npu"),
    ],
)
def test_the_kind_of_device_follows_from_what_was_asked_and_found(requested: str, npu: NpuProbe, expected: str) -> None:
    assert choose_kind(requested, npu) == expected


@pytest.mark.parametrize(
    ("requested", "npu", "refusal"),
    [
        ("auto", BROKEN, "does not load (ImportError: libhccl.so: cannot open shared object file; torch_npu"),
        ("auto", BROKEN, "source CANN's set_env.sh"),
        ("npu", BROKEN, "source CANN's set_env.sh"),
        ("auto", NO_CARD, "torch_npu is installed but sees no card"),
        ("npu", NO_CARD, "torch_npu is installed but sees no card"),
        ("npu", ABSENT, "device npu was asked for, but torch_npu is not installed; install it or use --device cpu"),
        ("cuda", ABSENT, "unknown device 'cuda'; use auto, cpu or npu"),
    ],
)
def test_a_device_that_cannot_be_had_is_refused_with_one_line(requested: str, npu: NpuProbe, refusal: str) -> None:
    with pytest.raises(DeviceUnavailable) as refused:
        choose_kind(requested, npu)
    message = str(refused.value)
    assert refusal in message
    assert "\n" not in message


@pytest.fixture
def torch_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package named torch_npu with the given source."""

    def install(source: str) -> None:
        package = tmp_path / "torch_npu"
        package.mkdir()
        (package / "__init__.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("torch_npu", None)


CARDS = "class npu:\n    @staticmethod\n    def device_count():\n        return 8\n"


def test_probe_without_torch_npu() -> None:
    assert probe_npu() == ABSENT


def test_probe_counts_the_cards(torch_npu: Callable[[str], None]) -> None:
    torch_npu(CARDS)
    assert probe_npu() == NpuProbe(installed=True, num_cards=8)


def test_probe_reports_the_first_line_of_why_it_does_not_load(torch_npu: Callable[[str], None]) -> None:
    torch_npu("raise ImportError('libascend_hal.so: cannot open shared object file\\nPlease source set_env.sh')")
    assert probe_npu() == NpuProbe(
        installed=True, error="ImportError: libascend_hal.so: cannot open shared object file"
    )


def choice_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said about the choice; a machine without the native library has more to say."""
    return [record.getMessage() for record in caplog.records if record.name == "text_generation_kernels.devices"]


def test_auto_on_a_host_without_torch_npu_is_the_cpu_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert select_device("auto", rank=0).kind == "cpu"
    assert choice_lines(caplog) == ["torch_npu is not installed: running on the CPU"]


def test_visible_cards_without_torch_npu_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert select_device("auto", rank=0, visible_cards="0,1").kind == "cpu"
    assert choice_lines(caplog) == ["ASCEND_RT_VISIBLE_DEVICES=0,1 has no effect without torch_npu"]


def test_only_rank_0_speaks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert select_device("auto", rank=1, visible_cards="0").kind == "cpu"
    assert choice_lines(caplog) == []


def test_cpu_does_not_touch_torch_npu(torch_npu: Callable[[str], None]) -> None:
    torch_npu("raise RuntimeError('must not be imported')")
    assert select_device("cpu", rank=0).kind == "cpu"


def test_a_shard_without_a_card_of_its_own_is_refused(torch_npu: Callable[[str], None]) -> None:
    torch_npu(CARDS)
    with pytest.raises(ValueError, match=r"shard 8 wants an NPU of its own, and 8 are visible; use fewer shards"):
        select_device("auto", rank=8)


def test_int8_weights_are_refused_on_the_npu(torch_npu: Callable[[str], None]) -> None:
    torch_npu(CARDS)
    with pytest.raises(ValueError, match="--quantize w8a16 is not served on the NPU yet"):
        select_device("npu", rank=0, quantize="w8a16")


def test_auto_with_a_broken_torch_npu_is_refused_with_the_cause(torch_npu: Callable[[str], None]) -> None:
    torch_npu("raise OSError('libhccl.so is missing')")
    with pytest.raises(DeviceUnavailable, match=r"OSError: libhccl\.so is missing"):
        select_device("auto", rank=0)
