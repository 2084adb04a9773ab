"""The load generator: opens streams on a server, all at once or at given moments, and writes down when tokens arrive.

As a process it reads one JSON order from stdin and prints one `Run`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.rates import Run
from benchmarks.streams import Answer, LoadError, Target, open_stream


async def closed_loop(
    target: Target,
    prompts: Sequence[str],
    max_new_tokens: int,
    num_streams: int | None = None,
    prompt_ids: Sequence[Sequence[int]] | None = None,
) -> Run:
    """Every prompt once, `num_streams` at a time: the next is sent when one has ended. None: all at once."""
    waiting = iter(range(len(prompts)))
    outcomes: list[Answer | str] = []

    async def stream() -> None:
        for index in waiting:
            ids = None if prompt_ids is None else prompt_ids[index]
            outcomes.append(await _outcome(target, prompts[index], max_new_tokens, ids))

    await asyncio.gather(*(stream() for _ in range(min(num_streams or len(prompts), len(prompts)))))
    return _run(outcomes)


async def open_loop(
    target: Target, prompts: Sequence[str], max_new_tokens: int, schedule_s: Sequence[float], grace_s: float
) -> Run:
    """Send each prompt at its moment, whatever became of those before it.

    Times count from the moment that was due: a generator that is late makes the server look worse, never better.

    Args:
        schedule_s: seconds from now, one for each prompt, rising.
        grace_s: after the last moment, what has not ended counts as an error.
    """
    start_s = time.perf_counter()

    async def send(prompt: str, at_s: float) -> Answer | str:
        await asyncio.sleep(start_s + at_s - time.perf_counter())
        outcome = await _outcome(target, prompt, max_new_tokens)
        return outcome if isinstance(outcome, str) else replace(outcome, sent_s=start_s + at_s)

    tasks = [asyncio.create_task(send(prompt, at_s)) for prompt, at_s in zip(prompts, schedule_s, strict=True)]
    finished, unfinished = await asyncio.wait(tasks, timeout=schedule_s[-1] + grace_s)
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
    return _run([*(task.result() for task in finished), *["not finished in time"] * len(unfinished)])


async def _outcome(
    target: Target, prompt: str, max_new_tokens: int, prompt_ids: Sequence[int] | None = None
) -> Answer | str:
    """The answer, or why there is none."""
    try:
        return await open_stream(target, prompt, max_new_tokens, prompt_ids)
    except (LoadError, OSError, asyncio.IncompleteReadError) as error:
        return str(error) or type(error).__name__


def _run(outcomes: Sequence[Answer | str]) -> Run:
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    return Run(
        [answer.sent_s for answer in answers],
        [answer.arrivals_s for answer in answers],
        [answer.text for answer in answers],
        errors=[outcome for outcome in outcomes if isinstance(outcome, str)],
    )


def main() -> None:
    order: dict[str, Any] = json.load(sys.stdin)
    target = Target(**order["target"])
    print(
        asyncio.run(
            closed_loop(target, order["prompts"], order["max_new_tokens"], prompt_ids=order["prompt_ids"])
        ).to_json()
    )


if __name__ == "__main__":
    main()
