"""The measuring process: drives the shard and says on standard output what it does, one event a line.

It is a process of its own so that drawing never delays a step, and after each run it waits for a line on standard
input: whoever draws has then finished, and the processor is the shard's again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import uvloop

from text_generation_benchmark.errors import BenchmarkError
from text_generation_benchmark.events import Done, Event, Facts, Failed, Progress, Stage, to_line
from text_generation_benchmark.prompts import load_tokenizer, make_requests
from text_generation_benchmark.session import Session
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_cli.options import parse

# Between two signs of life of one run. Each costs the drawing of a bar.
_PROGRESS_S = 0.5


async def measure(
    settings: BenchmarkSettings, say: Callable[[Event], None], until_shown: Callable[[], Awaitable[None]]
) -> None:
    """All runs of all batch sizes.

    Args:
        say: called with each event, in order.
        until_shown: awaited after each measured run.
    Raises: BenchmarkError. In any case, and when cancelled, the shards forget what was running.
    """
    say(Stage("Connecting to the shard"))
    session = await Session.connect(settings)
    try:
        info = session.info
        say(Facts(info.model_id, info.server_version, info.device_name, info.dtype, info.world_size))
        say(Stage("Reading the tokenizer"))
        tokenizer = load_tokenizer(settings, info.model_id)
        try:
            requests = await make_requests(settings, tokenizer, info, max(settings.batch_sizes))
        finally:
            tokenizer.close()
        say(Stage("The shard runs its largest step and makes room in its cache"))
        await session.warm_up()
        for batch_size in settings.batch_sizes:
            batch = requests[:batch_size]
            for number in range(1, settings.warmups + 1):
                await session.run(batch, _reporter(settings, say, Progress(batch_size, number, True, 0.0)))
            for number in range(1, settings.runs + 1):
                run = await session.run(batch, _reporter(settings, say, Progress(batch_size, number, False, 0.0)))
                say(run)
                await until_shown()
    finally:
        await session.close()
    say(Done())


def _reporter(settings: BenchmarkSettings, say: Callable[[Event], None], begun: Progress) -> Callable[[], None]:
    """Says that a run begins; the result, called after each step, says now and then how far it is."""
    say(begun)
    num_steps, said_s = 0, time.monotonic()

    def on_step() -> None:
        nonlocal num_steps, said_s
        num_steps += 1
        if time.monotonic() - said_s > _PROGRESS_S:
            said_s = time.monotonic()
            fraction = num_steps / settings.decode_length
            say(Progress(begun.batch_size, begun.run, begun.is_warmup, fraction))

    return on_step


def _say(event: Event) -> None:
    print(to_line(event), flush=True)


async def _main(settings: BenchmarkSettings) -> None:
    """Until all is measured, a signal comes, or nobody is left to read what is measured."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    shown = asyncio.Semaphore(0)

    async def listen() -> None:
        while await reader.readline():
            shown.release()
        task.cancel()

    async def until_shown() -> None:
        await shown.acquire()

    listening = asyncio.create_task(listen())
    try:
        await measure(settings, _say, until_shown)
    except BenchmarkError as error:
        _say(Failed(str(error)))
    finally:
        listening.cancel()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    settings = parse("text-generation-benchmark", BenchmarkSettings, arguments, {}).build(BenchmarkSettings)
    try:
        uvloop.run(_main(settings))
    except (asyncio.CancelledError, BrokenPipeError):
        return 1  # told to stop, or nobody listens: there is nobody to tell
    return 0


if __name__ == "__main__":
    sys.exit(main())
