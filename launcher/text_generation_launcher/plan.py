"""What will be started, decided before anything is: a frozen record made from the options and the machine."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from text_generation_cli import logs
from text_generation_cli.options import Source, Values, all_variables, to_arguments, to_environment
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_launcher.cpus import usable_cores
from text_generation_launcher.devices import Devices, count_shards, find_devices
from text_generation_launcher.hccl_ports import VARIABLE as HCCL_PORT_VARIABLE
from text_generation_launcher.settings import LauncherSettings
from text_generation_launcher.validation import check_model_path, check_options, check_shards
from text_generation_router.settings import RouterSettings
from text_generation_server.settings import DEMO_MODEL_ID, DownloadSettings, ServeSettings


@dataclass(frozen=True)
class Program:
    """A child's command line and environment."""

    arguments: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class LaunchPlan:
    """Settings of every child, as far as they are known before the download step has found the model's folder."""

    launcher: LauncherSettings
    download: DownloadSettings
    serve: ServeSettings  # of every shard, but for its rank
    router: RouterSettings
    devices: Devices
    environ: Mapping[str, str]  # the launcher's own
    cores: tuple[tuple[int, ...], ...] = ()  # of each shard, by rank; (): any

    @property
    def num_shards(self) -> int:
        return self.serve.world_size

    @property
    def model_id(self) -> str:
        return self.download.model_id

    def download_program(self) -> Program:
        """The step that finds the model's folder, fetching and converting what is missing."""
        module = self.launcher.text_generation_server_module
        return self._program(module, ["download-weights"], self.download, _hub_environment(self.environ))

    def shard_program(self, rank: int) -> Program:
        """One shard; the model's folder must be known (`with_model`)."""
        settings = replace(self.serve, rank=rank, cpu_cores=self.cores[rank] if self.cores else ())
        defaults = {
            "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
            "SAFETENSORS_FAST_GPU": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            # A wheel of torch_npu makes a bare `import torch` fail where CANN is missing; the shard imports it itself.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            **_hub_environment(self.environ),
        }
        if self.devices.kind == "cpu":
            # Shards that each take every core stall one another: a thread that waits spins on a core another needs.
            threads = str(max(1, usable_cores() // self.num_shards))
            defaults["OMP_NUM_THREADS"] = self.environ.get("OMP_NUM_THREADS", threads)
        program = self._program(self.launcher.text_generation_server_module, ["serve"], settings, defaults)
        program.environment.pop("LOG_LEVEL", None)
        return program

    def router_program(self) -> Program:
        """The web server; the model's folder must be known (`with_model`)."""
        module = self.launcher.text_generation_router_module
        return self._program(module, [], self.router, _hub_environment(self.environ))

    def _program(self, module: str, command: list[str], settings: object, extra: Mapping[str, str]) -> Program:
        """Options that the launcher has read are forwarded by value, so the child must not find their variables."""
        read = all_variables(type(settings))
        environment = {name: value for name, value in self.environ.items() if name not in read}
        # `-m` would put the working directory first on the path, where any numpy.py would be taken for numpy.
        environment |= {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **to_environment(settings), **extra}
        return Program([sys.executable, "-m", module, *command, *to_arguments(settings)], environment)


def make_plan(values: Values, environ: Mapping[str, str]) -> LaunchPlan:
    """Check everything that can be known from the options and the machine.

    Raises:
        LauncherError: naming what cannot work.
    """
    launcher = values.build(LauncherSettings)
    router = values.build(RouterSettings, max_input_tokens=launcher.given_max_input_tokens)
    level = _level_word(logs.parse_level(environ.get("LOG_LEVEL", "info"), "text_generation_server"))
    model_id = launcher.model_id if launcher.model_id is not None else DEMO_MODEL_ID
    serve = values.build(
        ServeSettings,
        model_id=model_id,
        max_input_tokens=launcher.given_max_input_tokens,
        json_output=True,
        logger_level=level,
    )
    check_options(launcher, router, serve)
    if launcher.model_id is not None:
        check_model_path(launcher.model_id)
    # An emulated NPU brings its torch_npu along when the shard starts.
    is_emulated = bool(environ.get(EMULATOR_VARIABLE))
    has_torch_npu = is_emulated or importlib.util.find_spec("torch_npu") is not None
    devices = find_devices(serve.device, environ, has_torch_npu=has_torch_npu)
    num_shards = count_shards(launcher.sharded, launcher.num_shard, devices)
    check_shards(num_shards, serve)
    return LaunchPlan(
        launcher=launcher,
        download=values.build(DownloadSettings, model_id=model_id, json_output=True, logger_level=level),
        serve=replace(serve, device=devices.kind, world_size=num_shards, sharded=num_shards > 1),
        router=router,
        devices=devices,
        environ=environ,
    )


def with_sockets(plan: LaunchPlan, prefix: str, master_port: int) -> LaunchPlan:
    """The plan with the socket paths and the rendezvous port that were claimed for it."""
    return replace(
        plan,
        serve=replace(plan.serve, uds_path=prefix, master_port=master_port),
        router=replace(plan.router, master_shard_uds_path=f"{prefix}-0"),
    )


def with_hccl_ports(plan: LaunchPlan, base: int) -> LaunchPlan:
    """The plan with the ports that were claimed for what its shards say to each other."""
    return replace(plan, environ={**plan.environ, HCCL_PORT_VARIABLE: str(base)})


def with_cores(plan: LaunchPlan, cores: tuple[tuple[int, ...], ...]) -> LaunchPlan:
    """The plan with the CPU cores that each shard is bound to."""
    return replace(plan, cores=cores)


def with_model(plan: LaunchPlan, folder: str, model_id: str) -> LaunchPlan:
    """The plan with the folder that the download step has found, and the name to show for the model."""
    return replace(
        plan,
        serve=replace(plan.serve, model_id=model_id, model_folder=folder),
        router=replace(plan.router, tokenizer_name=model_id, model_folder=folder, model_id=model_id),
    )


def is_given(values: Values, name: str) -> bool:
    """Whether the user chose the option's value."""
    return values.source(name) is not Source.DEFAULT


def _hub_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Hub variables that are set for children or corrected."""
    found: dict[str, str] = {}
    if "HF_API_TOKEN" in environ:
        found["HF_TOKEN"] = environ["HF_API_TOKEN"]
    # With the variable set and the package missing, every download fails.
    has_hf_transfer = importlib.util.find_spec("hf_transfer") is not None
    found["HF_HUB_ENABLE_HF_TRANSFER"] = environ.get("HF_HUB_ENABLE_HF_TRANSFER", "1") if has_hf_transfer else "0"
    return found


def _level_word(level: int) -> str:
    return logging.getLevelName(level) if level <= logging.ERROR else "CRITICAL"
