"""A key/value cache of about two sequences: requests wait or yield, none fails, nothing is lost, limits are exact."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from tests.integration.conftest import LIMITS
from tests.support.asking import Question, ask, ask_at_once, client_of, prompt_of, stream
from tests.support.servers import Server, start_launcher
from tests.support.witness import Witness

_MIB = 1 << 20


def wait_until_idle(server: Server, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while server.metric("tgi_batch_current_size") or server.metric("tgi_queue_size"):
        assert time.monotonic() < deadline_s, "sequences are still running or waiting"
        time.sleep(0.05)


def assert_nothing_is_held(server: Server) -> None:
    """No sequence, and every block is free or kept for a prompt that begins alike."""
    wait_until_idle(server)
    total = server.metric("tgi_kv_blocks")
    assert total > 0
    assert server.metric("tgi_kv_blocks_free") + server.metric("tgi_kv_blocks_cached") == total


def test_eight_streams_over_a_cache_for_two_all_finish_as_alone(
    small_cache: Server, witness: Witness, tokenizer: Tokenizer
) -> None:
    """G35: the ids of transformers, each event once, and the cache was really too small for them."""
    assert small_cache.metric("tgi_batch_max_total_tokens") <= LIMITS.cache
    before = small_cache.metric("tgi_batch_preemptions")
    questions = [Question(prompt_of(60 + index, seed=35), {"max_new_tokens": 180}) for index in range(8)]
    for question, answer in zip(questions, ask_at_once(small_cache, questions, streamed=True), strict=True):
        assert len(answer.ids) == 180
        witness.assert_greedy(tokenizer.encode(question.inputs).ids, answer.ids)
    assert small_cache.metric("tgi_batch_preemptions") > before
    assert_nothing_is_held(small_cache)


def test_asking_for_a_lot_takes_nothing_from_others(small_cache: Server) -> None:
    """G31: four streams, twice the cache if their tokens were reserved, then twenty short answers, which end first."""
    num_long = LIMITS.max_total - 8
    assert 4 * LIMITS.max_total >= 2 * LIMITS.cache
    ended_s: dict[str, list[float]] = {"long": [], "short": []}

    with client_of(small_cache) as client, ThreadPoolExecutor(24) as pool:
        running = threading.Barrier(5)

        def ask_long(seed: int) -> None:
            events = stream(client, prompt_of(8, seed), max_new_tokens=num_long)
            next(events)
            running.wait(30)
            assert sum(1 for _ in events) == num_long - 1
            ended_s["long"].append(time.monotonic())

        def ask_short(seed: int) -> None:
            assert len(ask(client, prompt_of(8, seed), max_new_tokens=5).ids) == 5
            ended_s["short"].append(time.monotonic())

        tasks = [pool.submit(ask_long, seed) for seed in range(4)]
        running.wait(30)
        tasks += [pool.submit(ask_short, 10 + seed) for seed in range(20)]
        for task in tasks:
            task.result()
    # The last of twenty threads may be late to look at the clock.
    assert sorted(ended_s["short"])[-3] < min(ended_s["long"])
    assert_nothing_is_held(small_cache)


def test_accepted_limits_hold(small_cache: Server) -> None:
    """G37: exactly the longest prompt, exactly the longest sum, several of each at once; one more is 422."""
    longest = LIMITS.max_total - LIMITS.max_input
    exact = [
        Question(prompt_of(LIMITS.max_input, seed=37), {"max_new_tokens": longest}),
        Question(prompt_of(LIMITS.max_input, seed=38), {"max_new_tokens": 1}),
        Question(prompt_of(1), {"max_new_tokens": LIMITS.max_total - 1}),
    ] * 2
    for question, answer in zip(exact, ask_at_once(small_cache, exact), strict=True):
        assert answer.finish_reason == "length"
        assert len(answer.ids) == question.parameters["max_new_tokens"]
    with client_of(small_cache) as client:
        for num_prompt, num_new, message in (
            (LIMITS.max_input + 1, 1, f"`inputs` must have less than {LIMITS.max_input} tokens. Given: 201"),
            (
                LIMITS.max_input, longest + 1,
                f"`inputs` tokens + `max_new_tokens` must be <= {LIMITS.max_total}. "
                f"Given: 200 `inputs` tokens and 57 `max_new_tokens`",
            ),
        ):  # fmt: skip
            body = {"inputs": prompt_of(num_prompt), "parameters": {"max_new_tokens": num_new}}
            for path in ("/generate", "/generate_stream"):
                response = client.post(path, json=body)
                assert response.status_code == 422
                expected = {"error": f"Input validation error: {message}", "error_type": "validation"}
                assert response.json() == expected
    assert_nothing_is_held(small_cache)


def test_limits_are_worked_out_and_printed_when_none_is_given(one_shard: Server) -> None:
    """G37: the model's 2048 positions, and what is printed is what /info says and what /metrics shows."""
    info = httpx.get(f"{one_shard.url}/info", timeout=10, trust_env=False).json()
    assert (info["max_total_tokens"], info["max_input_tokens"]) == (2048, 2047)
    assert info["max_batch_total_tokens"] == one_shard.metric("tgi_batch_max_total_tokens") >= 2048
    for name in ("max_total_tokens", "max_batch_total_tokens"):
        assert f"{name}={info[name]}" in one_shard.log


def test_a_start_that_cannot_fit_says_what_is_needed_and_the_flag(llama: Path) -> None:
    """G37: what is taken, what may be used and which option says so, in one line, before anything is loaded."""
    arguments = ["--model-id", str(llama), "--max-total-tokens", "2048"]
    with start_launcher(*arguments, environ={"MAX_MEMORY_GB": "0.01"}) as server:
        assert server.process.wait(60) == 1
        (line,) = (line for line in server.log.splitlines() if " ERROR " in line)
        assert "--max-total-tokens 2048 does not fit: weights in float32 take" in line
        assert "10.2 MiB may be used" in line
        assert "raise MAX_MEMORY_GB" in line
        assert "Traceback" not in server.log
        assert "Starting shard" not in server.log


@pytest.mark.parametrize("name", ["one_shard", "small_cache", "two_shards"])
def test_prefix_reuse_is_invisible(
    request: pytest.FixtureRequest, witness: Witness, tokenizer: Tokenizer, name: str
) -> None:
    """G36: A, A again, A and more, half of A and other text, A with another first token; twice, in another order.

    `two_shards` runs without reuse, and all three give what transformers gives; only the counters differ.
    """
    server: Server = request.getfixturevalue(name)
    a = prompt_of(120, seed=36)
    prompts = [a, a, a + prompt_of(40, seed=1), a[:60] + prompt_of(50, seed=2), ("9" if a[0] != "9" else "8") + a[1:]]
    before = server.metric("tgi_prefix_cache_hit_tokens")
    answers: dict[str, list[int]] = {}
    with client_of(server) as client:
        for prompt in [*prompts, *prompts[::-1]]:
            body = {"inputs": prompt, "parameters": {"max_new_tokens": 20, "details": True}}
            response = client.post("/generate", json=body)
            assert response.headers["x-prompt-tokens"] == str(len(prompt))
            ids = [token["id"] for token in response.json()["details"]["tokens"]]
            assert answers.setdefault(prompt, ids) == ids
    for prompt, ids in answers.items():
        witness.assert_greedy(tokenizer.encode(prompt).ids, ids)
    hits = server.metric("tgi_prefix_cache_hit_tokens") - before
    assert hits == 0 if name == "two_shards" else hits > 5 * 96


class _Churn:
    """200 requests, 16 at a time, that end, are cut off, or hang up at random; sizes are taken after some of them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._chance = random.Random(200)
        self.num_answers = 0

    def run(self, num_requests: int) -> None:
        with client_of(self._server) as client, ThreadPoolExecutor(16) as pool:
            for task in [pool.submit(self._one, client, *self._draw()) for _ in range(num_requests)]:
                self.num_answers += task.result()

    def _draw(self) -> tuple[str, str, int, float]:
        chance = self._chance
        kind = chance.choice(("plain", "stream", "hang up", "hang up in a stream"))
        return kind, prompt_of(chance.randint(1, 190), chance.randint(0, 3)), chance.randint(1, 66), chance.random()

    @staticmethod
    def _one(client: httpx.Client, kind: str, prompt: str, num_new_tokens: int, fraction: float) -> int:
        """Returns: 1 if the answer came whole."""
        parameters = {"max_new_tokens": num_new_tokens, "do_sample": fraction < 0.5}
        if kind == "plain":
            assert ask(client, prompt, **parameters).ids
            return 1
        if kind == "stream":
            assert list(stream(client, prompt, **parameters))[-1]["details"] is not None
            return 1
        if kind == "hang up in a stream":
            events = stream(client, prompt, **parameters)
            for _ in range(1 + int(fraction * num_new_tokens)):
                next(events, None)
            events.close()
            return 0
        try:
            client.post("/generate", json={"inputs": prompt, "parameters": parameters}, timeout=0.01 + 0.3 * fraction)
        except httpx.TimeoutException:
            return 0
        return 1


def test_200_requests_with_cut_offs_and_hang_ups_leave_nothing_behind(small_cache: Server) -> None:
    """All blocks are free or cached, nothing runs, and router and shard are within 20 MiB of their size after 50."""
    processes = {"router": small_cache.router(), "shard": small_cache.shards()[0]}
    churn = _Churn(small_cache)
    churn.run(50)
    sizes = {name: process.memory_info().rss for name, process in processes.items()}
    churn.run(150)
    assert_nothing_is_held(small_cache)
    assert 50 < churn.num_answers < 200
    for name, process in processes.items():
        grown = process.memory_info().rss - sizes[name]
        assert abs(grown) < 20 * _MIB, f"the {name} grew by {grown / _MIB:.1f} MiB"
