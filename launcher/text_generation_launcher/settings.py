"""What the launcher itself can be told; every other option comes from the router's and the server's own classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from text_generation_cli.options import Values, option, parse
from text_generation_router.settings import STEPS_ARE_SHARED, RouterSettings
from text_generation_server.settings import DownloadSettings, ServeSettings

PROGRAM = "text-generation-launcher"


@dataclass(frozen=True)
class LauncherSettings:
    """Options of `text-generation-launcher` of its own, or with a default unlike its children's."""

    model_id: str | None = option(
        default=None, help="hub id, local folder or .gguf file of the model; unset: a small demo model"
    )
    sharded: bool | None = option(default=None, help="true or false: force or forbid several shards")
    num_shard: int | None = option(
        default=None, minimum=0, help="number of shards; unset: one for each visible NPU, on the CPU one"
    )
    max_input_tokens: int | None = option(
        default=None, minimum=0, help="longest prompt; unset: one less than --max-total-tokens"
    )
    max_input_length: int | None = option(default=None, minimum=0, help="older name of --max-input-tokens")
    waiting_served_ratio: float = option(
        default=0.3,
        minimum=0,
        help="how large the waiting group must be, relative to the running batch, to interrupt it",
        no_effect=STEPS_ARE_SHARED,
    )
    shard_uds_path: str = option(
        default="/tmp/text-generation-server", help="prefix of the sockets: shard r listens on PREFIX-r"
    )
    graceful_termination_timeout: int = option(
        default=90, minimum=0, short="g", help="seconds that router and shards get to finish after a signal"
    )
    env: bool = option(default=False, short="e", reads_environment=False, help="log versions and the machine at start")
    text_generation_server_module: str = option(
        default="text_generation_server", hidden=True, help="Python module to run as server, for tests"
    )
    text_generation_router_module: str = option(
        default="text_generation_router", hidden=True, help="Python module to run as router, for tests"
    )

    @property
    def given_max_input_tokens(self) -> int | None:
        """The limit by whichever of its two names it was given."""
        return self.max_input_tokens if self.max_input_tokens is not None else self.max_input_length


def parse_command_line(argv: Sequence[str], environ: Mapping[str, str]) -> Values:
    """Read every option of launcher, router, shards and download step; a bad one ends the process with status 2."""
    return parse(
        PROGRAM,
        (LauncherSettings, RouterSettings, ServeSettings, DownloadSettings),
        argv,
        environ,
        description="Serve a model over TGI's HTTP API: starts and watches the shards and the router.",
    )
