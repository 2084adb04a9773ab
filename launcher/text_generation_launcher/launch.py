"""One launch from start to end: download, shards, router, watching, and stopping in order.

The main thread does everything in turn. It looks at signals every 100 ms, and at children also when a thread wakes it,
since one of them is ready or has ended. The router is started beside the shards, so that it imports and reads its files
while they load the model, and waits for them before it connects.
"""

from __future__ import annotations

import logging
import time

from text_generation_cli import logs
from text_generation_launcher.child import Child, stop_all
from text_generation_launcher.child_output import DownloadOutput, RouterOutput, ServerOutput
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.plan import LaunchPlan, Program, with_model
from text_generation_launcher.stop import POLL_S, Stopped, StopRequest

_WAIT_LINE_INTERVAL_S = 10.0
_DOWNLOAD_GRACE_S = 10.0
# After a failure nothing is worth a long wait: the router only has to tell its clients.
_FAILURE_GRACE_S = 5.0

logger = logging.getLogger("text_generation_launcher")


class Launch:
    """The children of one launcher. `run` returns when none of them is left."""

    def __init__(self, plan: LaunchPlan, stop: StopRequest, console: logs.Console) -> None:
        self._plan = plan
        self._stop = stop
        self._shards: list[Child] = []
        self._shard_outputs: list[ServerOutput] = []
        self._said: dict[str, ServerOutput] = {}
        self._router: Child | None = None
        self._router_serves = False  # or is about to
        self._router_output = RouterOutput(console, json_output=plan.router.json_output)

    def run(self) -> None:
        """Serve until a signal says to stop.

        Raises:
            LauncherError: something failed; it has been logged.
        """
        grace_s = _FAILURE_GRACE_S
        try:
            self._download()
            self._start_shards()
            self._start_router()
            self._wait_for_shards()
            self._wait_for_router()
            self._watch()
        except Stopped:
            grace_s = float(self._plan.launcher.graceful_termination_timeout)
        finally:
            self._shut_down(min(grace_s, float(self._plan.launcher.graceful_termination_timeout)))

    def _download(self) -> None:
        extra = logs.in_span("download")
        logger.info("Starting check and download process for %s", self._plan.model_id, extra=extra)
        output = DownloadOutput()
        program = self._plan.download_program()
        child = self._start(program, output, "DownloadError")
        try:
            while (status := child.poll()) is None:
                self._stop.sleep()
        finally:
            self._stop_all([child], _DOWNLOAD_GRACE_S)
        folder = output.result.get("model_folder")
        if status == 0 and isinstance(folder, str):
            logger.info("Successfully downloaded weights for %s", self._plan.model_id, extra=extra)
            self._plan = with_model(self._plan, folder, str(output.result.get("model_id", self._plan.model_id)))
            return
        if not output.has_explained:
            reason = output.unexplained() or _describe_end(status)
            logger.error("Download encountered an error: %s", reason, extra=extra)
        raise LauncherError("DownloadError")

    def _start_shards(self) -> None:
        for rank in range(self._plan.num_shards):
            extra = logs.in_span("shard-manager", rank=rank)
            logger.info("Starting shard", extra=extra)
            output = ServerOutput("shard-manager", self._said, rank=rank)
            program = self._plan.shard_program(rank)
            self._shards.append(self._start(program, output, "ShardCannotStart", private_files=True))
            self._shard_outputs.append(output)

    def _start_router(self) -> None:
        program = self._plan.router_program()
        self._router = self._start(program, self._router_output, "WebserverCannotStart", ahead=True)

    def _wait_for_shards(self) -> None:
        waiting = set(range(self._plan.num_shards))
        next_line_s = time.monotonic() + _WAIT_LINE_INTERVAL_S
        while waiting:
            self._stop.sleep()
            for rank in sorted(waiting):
                if self._shards[rank].is_ready:
                    waiting.remove(rank)
                    elapsed_s = time.monotonic() - self._shards[rank].started_s
                    logger.info("Shard ready in %.1fs", elapsed_s, extra=logs.in_span("shard-manager", rank=rank))
            self._check_shards("ShardCannotStart", "Shard %d failed to start")
            self._check_router("WebserverCannotStart")
            if time.monotonic() >= next_line_s:
                next_line_s += _WAIT_LINE_INTERVAL_S
                for rank in sorted(waiting):
                    logger.info("Waiting for shard to be ready...", extra=logs.in_span("shard-manager", rank=rank))

    def _wait_for_router(self) -> None:
        assert self._router is not None
        logger.info("Starting Webserver")
        self._router.go_ahead()
        self._router_serves = True
        while not self._router.is_ready:
            self._stop.sleep()
            self._check_shards("ShardFailed", "Shard %d crashed")
            self._check_router("WebserverCannotStart")
        plan, facts = self._plan, dict(self._router.facts or {})
        host = f"[{plan.router.hostname}]" if ":" in plan.router.hostname else plan.router.hostname
        url = f"http://{host}:{facts.pop('port', plan.router.port)}"
        model = facts.pop("model_id", plan.router.model_id)
        details = {"shards": plan.num_shards, "device": plan.devices.kind, **facts}
        logger.info("Ready: %s serves %s", url, model, extra=details)

    def _watch(self) -> None:
        while True:
            self._stop.sleep()
            self._check_shards("ShardFailed", "Shard %d crashed")
            self._check_router("WebserverFailed")

    def _check_shards(self, kind: str, message: str) -> None:
        """Raise LauncherError if a shard has ended, after saying why, once."""
        ended = [rank for rank, shard in enumerate(self._shards) if shard.poll() is not None]
        if not ended:
            return
        for rank, output in enumerate(self._shard_outputs):
            if rank not in ended:
                output.expect_errors()
        for rank in ended:
            extra = logs.in_span("shard-manager", rank=rank)
            if text := self._shard_outputs[rank].unexplained():
                logger.error("%s", _on_stderr("Shard", text), extra=extra)
            status = self._shards[rank].poll() or 0
            if status < 0:
                logger.error("Shard process was signaled to shutdown with signal %d", -status, extra=extra)
            logger.error(message + " (%s)", rank, _describe_end(status))
        raise LauncherError(kind)

    def _check_router(self, kind: str) -> None:
        assert self._router is not None
        status = self._router.poll()
        if status is not None:
            if text := self._router_output.unexplained():
                logger.error("%s", _on_stderr("Webserver", text), extra=logs.in_span("webserver"))
            logger.error("Webserver Crashed (%s)", _describe_end(status))
            raise LauncherError(kind)

    def _shut_down(self, grace_s: float) -> None:
        """The router first, while it still has shards to finish its requests with; then the shards."""
        if self._router is not None and not self._router_serves:
            self._stop_all([self._router], 0.0)  # it has nothing to finish
        elif self._router is not None and self._router.poll() is None:
            logger.info("Terminating webserver")
            logger.info("Waiting for webserver to gracefully shutdown")
            self._stop_all([self._router], grace_s)
            logger.info("webserver terminated")
        for output in self._shard_outputs:
            output.expect_errors()
        running = [rank for rank, shard in enumerate(self._shards) if shard.poll() is None]
        if running:
            logger.info("Shutting down shards")
            for rank in running:
                logger.info("Terminating shard", extra=logs.in_span("shard-manager", rank=rank))
            self._stop_all(self._shards, grace_s)
            for rank in running:
                logger.info("shard terminated", extra=logs.in_span("shard-manager", rank=rank))

    def _start(
        self,
        program: Program,
        output: ServerOutput | RouterOutput,
        kind: str,
        *,
        private_files: bool = False,
        ahead: bool = False,
    ) -> Child:
        arguments, environment = program.arguments, program.environment
        try:
            return Child(arguments, environment, output.take, self._stop.wake, private_files=private_files, ahead=ahead)
        except OSError as error:
            logger.error("%s cannot be started: %s", arguments[0], error.strerror)
            raise LauncherError(kind) from None

    def _stop_all(self, children: list[Child], grace_s: float) -> None:
        stop_all(children, grace_s, is_urgent=lambda: self._stop.is_urgent, poll_s=POLL_S)


def _on_stderr(who: str, text: str) -> str:
    separator = "\n\n" if "\n" in text else " "
    return f"{who} complete standard error output:{separator}{text}"


def _describe_end(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
