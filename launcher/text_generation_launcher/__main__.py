"""`text-generation-launcher`: one command that serves a model."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from text_generation_cli import logs
from text_generation_cli.options import Values
from text_generation_launcher.cpu_binding import bind_cores
from text_generation_launcher.doctor.at_start import check_before_launch
from text_generation_launcher.doctor.command import COMMAND as DOCTOR
from text_generation_launcher.doctor.command import run_doctor
from text_generation_launcher.doctor.host import Host
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.hccl_ports import NUM_PORTS, claim_hccl_ports
from text_generation_launcher.launch import Launch
from text_generation_launcher.machine import describe_machine
from text_generation_launcher.plan import LaunchPlan, is_given, make_plan, with_cores, with_hccl_ports, with_sockets
from text_generation_launcher.ports import check_http_port, choose_master_port
from text_generation_launcher.settings import parse_command_line
from text_generation_launcher.socket_prefix import SocketPrefix
from text_generation_launcher.stop import Stopped, StopRequest

_PACKAGE = "text_generation_launcher"

logger = logging.getLogger(_PACKAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Returns 0 if a signal said so, 1 after a failure; a bad command line exits with 2."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == [DOCTOR]:
        return run_doctor(arguments[1:], dict(os.environ))
    stop = StopRequest()
    stop.install()
    values = parse_command_line(arguments, os.environ)
    console = logs.set_up(
        _PACKAGE,
        logs.parse_level(os.environ.get("LOG_LEVEL", "info"), _PACKAGE),
        json_output=bool(values.get("json_output")),
        environ=os.environ,
    )
    try:
        _introduce(values)
        _launch(make_plan(values, dict(os.environ)), values, stop, console)
    except LauncherError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except Stopped:
        return 0
    return 0


def _introduce(values: Values) -> None:
    given = ", ".join(f"{name}={value}" for name, value in values.given().items())
    logger.info("Options: %s", given or "all defaults")
    for line in values.warnings:
        logger.warning("%s", line)
    if values.get("env"):
        for line in describe_machine(os.environ):
            logger.info("%s", line)


def _launch(plan: LaunchPlan, values: Values, stop: StopRequest, console: logs.Console) -> None:
    launcher, serve = plan.launcher, plan.serve
    logger.log(logging.WARNING if plan.devices.is_surprising else logging.INFO, "%s", plan.devices.message)
    for line in values.without_effect(plan.devices.kind):
        logger.info("%s", line)
    if launcher.model_id is None:
        logger.info("No --model-id was given: the demo model is served")
    if serve.trust_remote_code:
        logger.warning("`trust_remote_code` is set: code that comes with %s will be run", plan.model_id)
    if plan.num_shards > 1:
        logger.info("Sharding model on %d processes", plan.num_shards)

    check_before_launch(plan, values, stop)
    check_http_port(plan.router.hostname, plan.router.port)
    prefix_is_given = is_given(values, "shard_uds_path")
    first = launcher.shard_uds_path
    # With the port in its name a second server finds its own stale sockets again, if it ever leaves any.
    alternatives = () if prefix_is_given else (f"{first}-port{plan.router.port}", f"{first}-pid{os.getpid()}")
    with ExitStack() as claims:
        prefix = claims.enter_context(SocketPrefix(first, plan.num_shards, alternatives))
        if not prefix.is_first_choice:
            logger.info("%s-* is in use by another server: the sockets are %s-*", first, prefix.path)
        master_port = serve.master_port
        if plan.num_shards > 1:
            may_use_default = prefix.is_first_choice and not prefix_is_given
            master_port = choose_master_port(
                master_port, is_given=is_given(values, "master_port"), may_use_default=may_use_default
            )
        plan = with_sockets(plan, prefix.path, master_port)
        if plan.devices.kind == "npu":
            if plan.num_shards > 1:
                base = claims.enter_context(claim_hccl_ports(plan.environ))
                logger.info("The shards talk over HCCL on ports %d to %d", base, base + NUM_PORTS - 1)
                plan = with_hccl_ports(plan, base)
            if serve.bind_cpu:
                plan = with_cores(plan, bind_cores(plan, Host(plan.environ)))
        Launch(plan, stop, console).run()


if __name__ == "__main__":
    sys.exit(main())
