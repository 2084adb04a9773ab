"""A verdict is found again for the very same thing, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from text_generation_kernels.checks.findings import OpFinding, Rejection
from text_generation_kernels.checks.shapes import ModelSizes
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_server.selfcheck.kept import KeptVerdicts, Subject
from text_generation_server.selfcheck.verdict import ModelFinding, Verdict

SIZES = ModelSizes(16, 2, 1, 8, 16, 50, 16)
VERDICT = Verdict(
    chip="cpu",
    versions={"torch": "2"},
    ops=(OpFinding("linear", ("npu_linear",), 12, 2e-4, (Rejection("matmul", "off by 0.7"),)),),
    model=(ModelFinding("layer 0", 0.3, 12.5, 0.0),),
    preferred=(("rotary", "composed"),),
    seconds=1.5,
    checked_at="2026-12-01T00:00:00+00:00",
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def subject(weights: Path) -> Subject:
    return Subject(CpuDevice(native=False), SIZES, weights, rank=0, world_size=1, weight_layout="auto")


def test_a_verdict_is_what_it_was(subject: Subject, tmp_path: Path) -> None:
    kept = KeptVerdicts(tmp_path, {})
    assert kept.find(subject) is None
    kept.keep(subject, VERDICT)
    assert kept.find(subject) == VERDICT
    assert [path.suffix for path in (tmp_path / "selfcheck").iterdir()] == [".json"]  # no unfinished file is left


def test_another_subject_has_none(subject: Subject, tmp_path: Path) -> None:
    kept = KeptVerdicts(tmp_path, {})
    kept.keep(subject, VERDICT)
    others = {
        "sizes": replace(subject, sizes=replace(SIZES, num_heads=4)),
        "rank": replace(subject, rank=1),
        "world": replace(subject, world_size=2),
        "layout": replace(subject, weight_layout="nz"),
        "no_model": replace(subject, folder=None),
    }
    assert {name: kept.find(other) for name, other in others.items()} == dict.fromkeys(others)


def test_changed_weights_are_another_model(subject: Subject, weights: Path, tmp_path: Path) -> None:
    kept = KeptVerdicts(tmp_path, {})
    kept.keep(subject, VERDICT)
    (weights / "model.safetensors").write_bytes(b"changed")
    assert kept.find(subject) is None


@pytest.mark.parametrize(
    "variable", ["INF_NAN_MODE_ENABLE", "TEXT_GENERATION_NPU_EMULATOR_FAULTS", "ASCEND_HOME_PATH", "NPU_FAMILY"]
)
def test_what_changes_how_a_chip_computes_makes_it_checked_again(
    variable: str, subject: Subject, tmp_path: Path
) -> None:
    KeptVerdicts(tmp_path, {}).keep(subject, VERDICT)
    assert KeptVerdicts(tmp_path, {"PATH": "/elsewhere"}).find(subject) == VERDICT
    assert KeptVerdicts(tmp_path, {variable: str(tmp_path)}).find(subject) is None


@pytest.mark.parametrize("damage", ["", "{", "{}", '{"format": 0}', '{"format": 1, "chip": 3}'])
def test_a_file_that_cannot_be_read_is_no_verdict(damage: str, subject: Subject, tmp_path: Path) -> None:
    kept = KeptVerdicts(tmp_path, {})
    kept.keep(subject, VERDICT)
    (path,) = (tmp_path / "selfcheck").iterdir()
    path.write_text(damage)
    assert kept.find(subject) is None


def test_a_folder_that_cannot_be_written_only_costs_the_next_start_time(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "selfcheck").write_text("a file in its place")
    kept = KeptVerdicts(tmp_path, {})
    kept.keep(subject, VERDICT)
    assert kept.find(subject) is None
