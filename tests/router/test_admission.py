"""Places among the running requests."""

from __future__ import annotations

import asyncio

import pytest

from text_generation_router.admission import Gate
from text_generation_router.errors import Overloaded, ShuttingDown


def test_one_more_than_the_limit_is_refused_and_a_free_place_is_taken_again() -> None:
    gate = Gate(2)
    with gate.enter(), gate.enter(), pytest.raises(Overloaded), gate.enter():
        pass
    with pytest.raises(Overloaded), gate.enter(3):
        pass
    with gate.enter(2):
        pass


def test_a_place_is_given_back_after_an_error() -> None:
    gate = Gate(1)
    with pytest.raises(KeyError), gate.enter():
        raise KeyError
    with gate.enter():
        pass


def test_a_closed_gate_lets_running_requests_end_and_nobody_in() -> None:
    async def test() -> None:
        gate = Gate(2)
        with gate.enter():
            gate.close()
            with pytest.raises(ShuttingDown), gate.enter():
                pass
            waiting = asyncio.create_task(gate.wait_idle())
            await asyncio.sleep(0)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 1)

    asyncio.run(test())
