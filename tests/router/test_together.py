"""Several pieces of work end as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from text_generation_router.together import all_or_none, interleaved

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 10))


class Streams:
    """Streams of numbers that know how many of them were closed."""

    def __init__(self) -> None:
        self.num_closed = 0

    async def count(self, stop: int, fail: bool = False) -> AsyncGenerator[int, None]:
        try:
            for number in range(stop):
                await asyncio.sleep(0)
                yield number
            if fail:
                raise ValueError("failed")
        finally:
            self.num_closed += 1


def test_results_are_in_order() -> None:
    async def later(value: int) -> int:
        await asyncio.sleep(0.01 * (3 - value))
        return value

    assert run(all_or_none([later(value) for value in range(3)])) == [0, 1, 2]


def test_the_first_failure_ends_the_others() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # cleaning up takes its time, and is waited for
            ended.append("forever")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        run(all_or_none([forever(), failing()]))
    assert ended == ["forever"]


@pytest.mark.parametrize("lengths", [[3], [3, 0, 5], []])
def test_items_of_all_streams_come_in_their_own_order(lengths: list[int]) -> None:
    streams = Streams()

    async def collect() -> list[tuple[int, int]]:
        return [item async for item in interleaved([streams.count(length) for length in lengths])]

    items = run(collect())
    for index, length in enumerate(lengths):
        assert [number for place, number in items if place == index] == list(range(length))
    assert len(items) == sum(lengths)
    assert streams.num_closed == len(lengths)


def test_streams_take_turns() -> None:
    streams = Streams()

    async def collect() -> list[int]:
        return [index async for index, _ in interleaved([streams.count(5), streams.count(5)])]

    assert run(collect())[:4] in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_that_fails_closes_the_others(count: int) -> None:
    streams = Streams()

    async def collect() -> None:
        others = [streams.count(10**9) for _ in range(count - 1)]
        async with aclosing(interleaved([streams.count(2, fail=True), *others])) as items:
            async for _ in items:
                pass

    with pytest.raises(ValueError, match="failed"):
        run(collect())
    assert streams.num_closed == count


@pytest.mark.parametrize("count", [1, 3])
def test_closing_closes_all(count: int) -> None:
    streams = Streams()

    async def test() -> None:
        async with aclosing(interleaved([streams.count(10**9) for _ in range(count)])) as items:
            async for _ in items:
                await asyncio.sleep(0.01)
                break
        assert streams.num_closed == count

    run(test())
