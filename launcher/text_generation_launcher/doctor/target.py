"""What the launcher would do on this machine, by the launcher's own rules, and what stops it."""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_cli.options import Values
from text_generation_launcher.devices import Devices, count_shards, find_devices
from text_generation_launcher.doctor.facts import Facts
from text_generation_launcher.doctor.host import Host
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.plan import is_given
from text_generation_launcher.settings import LauncherSettings
from text_generation_launcher.validation import check_model_path, check_options, check_shards
from text_generation_router.settings import RouterSettings
from text_generation_server.settings import ServeSettings


@dataclass(frozen=True)
class Asked:
    """What the options and variables say."""

    launcher: LauncherSettings
    router: RouterSettings
    serve: ServeSettings
    gave_master_port: bool = False

    @classmethod
    def from_values(cls, values: Values) -> Asked:
        launcher = values.build(LauncherSettings)
        limit = launcher.given_max_input_tokens
        return cls(
            launcher=launcher,
            router=values.build(RouterSettings, max_input_tokens=limit),
            serve=values.build(ServeSettings, model_id=launcher.model_id or "", max_input_tokens=limit),
            gave_master_port=is_given(values, "master_port"),
        )


@dataclass(frozen=True)
class Target:
    """The device and the number of shards that these options lead to."""

    kind: str  # "cpu" or "npu"
    devices: Devices | None  # None: they cannot be chosen
    num_shards: int
    problems: tuple[str, ...]  # one line for each rule that is broken

    @property
    def is_npu(self) -> bool:
        return self.kind == "npu"

    def num_cards(self, facts: Facts) -> int:
        """Cards that the shards may use, as far as it is known: by torch_npu, npu-smi or the device files."""
        if facts.imports.num_devices is not None:
            return facts.imports.num_devices
        if self.devices is not None and self.devices.visible:
            return len(self.devices.visible)
        return len(facts.smi.chips) or len(facts.nodes.cards)


def choose_target(asked: Asked, host: Host, *, has_torch_npu: bool) -> Target:
    """Apply every rule of the launcher, and go on after one that is broken."""
    problems: list[str] = []
    devices: Devices | None = None
    kind = "npu" if asked.serve.device != "cpu" and (has_torch_npu or asked.serve.device == "npu") else "cpu"
    num_shards = asked.launcher.num_shard or 1
    try:
        devices = find_devices(
            asked.serve.device, host.environ, has_torch_npu=has_torch_npu, device_folder=host.path("/dev")
        )
        kind = devices.kind
        num_shards = count_shards(asked.launcher.sharded, asked.launcher.num_shard, devices)
    except LauncherError as error:
        problems.append(error.message)
    try:
        check_options(asked.launcher, asked.router, asked.serve)
        if asked.launcher.model_id is not None:
            check_model_path(asked.launcher.model_id)
        check_shards(num_shards, asked.serve)
    except LauncherError as error:
        problems.append(error.message)
    return Target(kind, devices, max(1, num_shards), tuple(problems))
