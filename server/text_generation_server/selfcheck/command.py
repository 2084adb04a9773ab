"""The `selfcheck` command: check this device now, whatever was found before, and print a table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from text_generation_kernels.checks.findings import OpFinding
from text_generation_kernels.checks.shapes import COMMON_SIZES
from text_generation_kernels.devices import DeviceUnavailable, select_device
from text_generation_kernels.interface import Device
from text_generation_kernels.npu.device import NpuOptions
from text_generation_server.download.errors import DownloadError
from text_generation_server.download.places import DownloadPlaces
from text_generation_server.download.resolve import download_weights
from text_generation_server.model_config import ModelConfig
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank
from text_generation_server.selfcheck.check import SelfCheck, SelfCheckFailed
from text_generation_server.selfcheck.kept import KeptVerdicts, Subject
from text_generation_server.selfcheck.settings import SelfCheckSettings
from text_generation_server.selfcheck.sizes import sizes_of
from text_generation_server.selfcheck.verdict import ModelFinding, Verdict
from text_generation_server.weights.folder import CheckpointError


class CannotCheck(RuntimeError):
    """There is nothing that could be checked. The message is one line."""


def run_selfcheck(settings: SelfCheckSettings) -> int:
    """Print what was found. Returns: 0.

    Raises: SelfCheckFailed, after the table; CannotCheck.
    """
    try:
        folder = None if settings.model_id is None else download_weights(settings.model_id)
        config = None if folder is None else ModelConfig.from_hf(folder)
        dtype: torch.dtype | None = getattr(torch, settings.dtype) if settings.dtype else None
        model_dtype = None if config is None else config.dtype
        options = NpuOptions(dtype=dtype, model_dtype=model_dtype, weight_layout=settings.weight_layout)
        device = select_device(settings.device, settings.rank, os.environ.get("ASCEND_RT_VISIBLE_DEVICES"), npu=options)
        block_size = settings.block_size or device.default_block_size
        device.ops.check_block_size(block_size)
        check = SelfCheck(_subject(device, settings, folder, config, block_size), LoneRank(), kept=None)
    except (DownloadError, CheckpointError, DeviceUnavailable, ValueError, OSError) as error:
        raise CannotCheck(str(error)) from None
    failure: str | None = None
    verdict = None
    try:
        check.check_ops()
        if folder is not None and config is not None:
            weights_dtype = device.ops.activation_dtype if device.kind == "npu" else dtype
            model = load_model(folder, device, LoneRank(), config=config, dtype=weights_dtype)
            verdict = check.check_model(model, folder)
            KeptVerdicts(DownloadPlaces.from_environment().cache).keep(check.subject, verdict)
    except SelfCheckFailed as error:
        failure = str(error)
    verdict = verdict or check.verdict()
    if settings.json:
        print(verdict.to_json())
    else:
        for line in table(verdict, device):
            print(line)
    if failure is not None:
        raise SelfCheckFailed(failure)
    return 0


def _subject(
    device: Device, settings: SelfCheckSettings, folder: Path | None, config: ModelConfig | None, block_size: int
) -> Subject:
    sizes = COMMON_SIZES if config is None else sizes_of(config, 0, 1, block_size)
    return Subject(device, sizes, folder, rank=0, world_size=1, weight_layout=settings.weight_layout)


def table(verdict: Verdict, device: Device) -> Iterator[str]:
    """A line for each op, with those that are out below it, and one for each part of the model."""
    versions = ", ".join(f"{name} {version}" for name, version in verdict.versions.items())
    yield f"{verdict.chip} ({device.ops.description}); {versions}"
    yield ""
    yield f"{'op':<18} {'samples':>7} {'error':>9}  computed by"
    for finding in verdict.ops:
        yield from _op_lines(finding)
    if verdict.model:
        yield ""
        yield f"{'part of the model':<26} {'of the allowed error':>20} {'largest value':>14}"
        for part in verdict.model:
            yield from _model_lines(part)
    yield ""
    yield f"{len(verdict.ops)} ops, {verdict.num_samples} samples, {verdict.seconds:.1f} s"


def _op_lines(finding: OpFinding) -> Iterator[str]:
    used = ", ".join(finding.candidates) or "NOTHING: every way is wrong"
    yield f"{finding.op:<18} {finding.num_samples:>7} {finding.worst_error:>9.2g}  {used}"
    for rejection in finding.rejections:
        yield f"{'':<18} {'':>7} {'':>9}  not {rejection.candidate}: {rejection.reason}"


def _model_lines(part: ModelFinding) -> Iterator[str]:
    largest = f"{part.largest:.4g}" if part.largest else ""
    yield f"{part.part:<26} {part.error:>20.1%} {largest:>14}"
    if part.wrong:
        yield f"{'':<26} {part.wrong}"
