"""One shard from its settings to its end: device, group, model, service."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

import grpc
import torch

from text_generation_cli.ready import report_ready
from text_generation_kernels.devices import DeviceUnavailable, select_device
from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.interface import Device
from text_generation_kernels.npu.device import NpuOptions
from text_generation_server.download.places import DownloadPlaces
from text_generation_server.engine import Engine
from text_generation_server.memory_budget import MemoryBudget
from text_generation_server.model_config import ModelConfig
from text_generation_server.models.loading import check_shards, load_model
from text_generation_server.parallel import GroupError, TensorParallelGroup, join_group
from text_generation_server.sampling import Sampler, Watermark
from text_generation_server.selfcheck.check import SelfCheck, SelfCheckFailed
from text_generation_server.selfcheck.kept import KeptVerdicts, Subject
from text_generation_server.selfcheck.sizes import sizes_of
from text_generation_server.selfcheck.verdict import Verdict
from text_generation_server.service import ShardFacts, ShardService, answers_health, serve
from text_generation_server.settings import ServeSettings
from text_generation_server.sharding import ShardingError
from text_generation_server.weights.folder import CheckpointError

logger = logging.getLogger(__name__)

_GROUP_TIMEOUT_S = 600.0  # a rank may load its part much later than another


class SettingsError(ValueError):
    """An option that this device or model cannot follow. The message is one line."""


def run_shard(settings: ServeSettings) -> int:
    """Serve until told to stop.

    Returns: the process's exit status: 0 when told to stop, 1 on a failure, which has been logged.
    """
    try:
        _check_served(settings)
        config = _model_config(settings)
        device = select_device(
            settings.device,
            settings.rank,
            os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
            kv_dtype=None if settings.kv_cache_dtype is None else getattr(torch, settings.kv_cache_dtype),
            quantize=settings.quantize,
            native=False if settings.disable_custom_kernels else None,
            npu=_npu_options(settings, config),
        )
        block_size = settings.block_size or device.default_block_size
        device.ops.check_block_size(block_size)
        check_shards(config, settings.world_size)
        group = join_group(
            device,
            settings.rank,
            settings.world_size,
            master_addr=settings.master_addr,
            master_port=settings.master_port,
            timeout_s=settings.pg_init_timeout or _GROUP_TIMEOUT_S,
        )
        check = _self_check(settings, config, device, group, block_size)
        if check is not None:
            check.check_ops()
        engine = _load(settings, config, device, group, block_size)
        verdict = None if check is None else check.check_model(engine.model, Path(settings.folder))
    except (
        DeviceUnavailable,
        CheckpointError,
        ShardingError,
        GroupError,
        SelfCheckFailed,
        SettingsError,
        ValueError,
        OSError,
    ) as error:
        logger.debug("rank %d could not start", settings.rank, exc_info=error)
        logger.error("%s", error)
        return 1
    try:
        return asyncio.run(_serve(settings, engine, verdict))
    finally:
        group.close()
        Path(settings.socket_path).unlink(missing_ok=True)


def _check_served(settings: ServeSettings) -> None:
    """Raise SettingsError for formats that TGI has and this version has not."""
    if settings.quantize not in (None, "w8a16"):
        raise SettingsError(f"--quantize {settings.quantize} is not served yet; use w8a16, or leave it out")
    if settings.kv_cache_dtype not in (None, "float32", "bfloat16"):
        raise SettingsError(
            f"--kv-cache-dtype {settings.kv_cache_dtype} is not served yet; use float32 or bfloat16, or leave it out"
        )


def _npu_options(settings: ServeSettings, config: ModelConfig) -> NpuOptions:
    layout = settings.weight_layout
    if layout == "auto" and settings.npu_need_nz is not None:
        layout = "nz" if settings.npu_need_nz else "nd"
    return NpuOptions(
        dtype=getattr(torch, settings.dtype) if settings.dtype else None,
        model_dtype=config.dtype,
        weight_layout=layout,
        graph_sizes=settings.cuda_graphs,
        family=os.environ.get("NPU_FAMILY"),
        is_plain=settings.disable_custom_kernels,
    )


def _self_check(
    settings: ServeSettings, config: ModelConfig, device: Device, group: TensorParallelGroup, block_size: int
) -> SelfCheck | None:
    """None where nothing is to be checked. The CPU's kernels are checked when they are built and tested."""
    if device.kind == "cpu":
        return None
    if settings.skip_selfcheck:
        logger.warning("the ops of %s are not compared with the reference, as --skip-selfcheck says", device.name)
        return None
    subject = Subject(
        device=device,
        sizes=sizes_of(config, group.rank, group.world_size, block_size),
        folder=Path(settings.folder),
        rank=group.rank,
        world_size=group.world_size,
        weight_layout=settings.weight_layout,
    )
    kept = KeptVerdicts(DownloadPlaces.from_environment().cache)
    return SelfCheck(subject, group, kept, strict=settings.kernels == "strict")


def _model_config(settings: ServeSettings) -> ModelConfig:
    config = ModelConfig.from_hf(Path(settings.folder))
    return config.with_rope_scaling(settings.rope_scaling, settings.rope_factor)


def _load(
    settings: ServeSettings, config: ModelConfig, device: Device, group: TensorParallelGroup, block_size: int
) -> Engine:
    started_s = time.monotonic()
    dtype: torch.dtype | None = getattr(torch, settings.dtype) if settings.dtype else None
    if device.kind == "npu":
        dtype = device.ops.activation_dtype  # on the host, where every type is there to be converted from
    model = load_model(Path(settings.folder), device, group, config=config, dtype=dtype)
    if device.ops.name == "native":
        # The kernels have threads of their own. What is left to torch, penalties for one, is too little to share out,
        # and a second set of spinning threads on busy cores made it 10 to 100 times slower.
        torch.set_num_threads(1)
    logger.info(
        "Loaded %s (%s, %d layers) on %s (%s) as %s in %.1f s",
        settings.model_id,
        config.model_type,
        model.num_layers,
        device.name,
        device.ops.description,
        dtype_name(device.ops.activation_dtype),
        time.monotonic() - started_s,
    )
    watermark = Watermark(
        **{
            name: value
            for name, value in (("gamma", settings.watermark_gamma), ("delta", settings.watermark_delta))
            if value is not None
        }
    )
    capture_steps = any(size > 0 for size in settings.cuda_graphs)
    return Engine(model, device, group, Sampler(device.ops, watermark), block_size, capture_steps=capture_steps)


async def _serve(settings: ServeSettings, engine: Engine, verdict: Verdict | None) -> int:
    facts = ShardFacts(
        model_id=settings.model_id,
        model_sha=settings.revision or "",
        dtype=dtype_name(engine.device.ops.activation_dtype),
        sockets=tuple(f"{settings.uds_path}-{rank}" for rank in range(settings.world_size)),
        speculate=settings.speculate or 0,
        verdict=verdict,
    )
    budget = MemoryBudget.from_gib(settings.cuda_memory_fraction, settings.max_memory_gb, settings.reserved_memory_gb)
    service = ShardService(engine, facts, budget)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        server = await serve(service, settings.socket_path)
    except RuntimeError as error:  # grpc's, when the socket cannot be bound
        logger.error("%s cannot be bound: %s; choose another prefix with --shard-uds-path", settings.socket_path, error)
        return 1
    try:
        await answers_health(settings.socket_path)
        logger.info("Server started at unix://%s", settings.socket_path)
        report_ready(rank=settings.rank)
        done, _ = await asyncio.wait(
            (asyncio.ensure_future(stopped.wait()), service.failed), return_when=asyncio.FIRST_COMPLETED
        )
    except grpc.aio.AioRpcError as error:
        logger.error("%s does not answer: %s", settings.socket_path, error.details())
        return 1
    finally:
        # Long enough for the answer that names the failure, short enough for a launcher that waits.
        await server.stop(0.5)
    return 1 if service.failed in done else 0
