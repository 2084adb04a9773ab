"""The measuring process as seen from the program that shows its results: started, listened to, stopped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence

from text_generation_benchmark.events import Done, Event, Failed, from_line
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_cli.options import to_arguments

_STOP_S = 10.0  # the shard may be inside a long step, but the process need not wait for its end
# A line holds one time for each decode step: this is room for a million of them.
_LINE_BYTES = 32 << 20


def worker_command(settings: BenchmarkSettings) -> list[str]:
    return [sys.executable, "-m", "text_generation_benchmark.worker", *to_arguments(settings)]


class Measurement:
    """One measuring process. An asynchronous context manager: leaving it ends the process, if it has not ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Measurement:
        # A session of its own: Ctrl-C in the terminal is for us, who then stop it in order.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        process = self._started()
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except asyncio.TimeoutError:
                process.kill()
                await process.wait()

    async def events(self) -> AsyncIterator[Event]:
        """In order; the last is Done or Failed, whatever becomes of the process."""
        process = self._started()
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        try:
            async for line in process.stdout:
                event = from_line(line)
                yield event
                if isinstance(event, Done | Failed):
                    return
            last_words = (await errors).decode(errors="replace").strip().splitlines()
            reason = f": {last_words[-1]}" if last_words else ""
            yield Failed(f"the measuring process ended with status {await process.wait()}{reason}")
        finally:
            errors.cancel()

    def shown(self) -> None:
        """Say that the last run has been shown, so that the next may begin."""
        stdin = self._started().stdin
        assert stdin is not None
        if not stdin.is_closing():
            stdin.write(b"\n")

    def _started(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started"
        return self._process
