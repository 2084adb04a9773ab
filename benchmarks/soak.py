"""Thousands of mixed requests on one server, and whether it is afterwards what it was before: `make soak`.

Streams, whole answers, chats, grammars, several answers at once, shared beginnings, long prompts, requests that are
wrong and clients that hang up, with a KV cache that is too small for all of them. Fails unless

- every request ended as it should have,
- no block of the KV cache is owned by anybody when nothing runs,
- router and shard hold no more memory than after the warm-up's requests (2 % and 20 MB allowed),
- the slowest hundredth of waits between tokens has not grown (10 % allowed) from the first third to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.machine import load_average
from benchmarks.programs import Program, launch, run_benchmark, stopping
from benchmarks.prompts import PromptSource
from benchmarks.report import check_page, heading, publish
from text_generation_server.download import demo_model_folder

_NAME = "benchmarks/soak.py"
_PROGRAMS = {"router": "text_generation_router", "shard": "text_generation_server"}
_MAX_GROWTH, _MAX_GROWTH_BYTES = 0.02, 20e6
_MAX_SLOWDOWN = 0.10
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Wrong(Exception):
    """An answer that is not what it should be."""


@dataclass
class Soak:
    """The requests, and what was seen of them."""

    client: httpx.AsyncClient
    prompts: PromptSource
    random: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    gaps_s: list[tuple[int, float]] = field(default_factory=list)  # with the number of the request
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._beginning = self.prompts.take(1, 96)[0].text
        self._kinds: dict[Callable[[int], Awaitable[None]], int] = {
            self.streamed: 40,
            self.whole: 20,
            self.chat: 15,
            self.grammar: 5,
            self.several: 3,
            self.long_prompt: 2,
            self.hangs_up: 8,
            self.wrong: 7,
        }

    async def run(self, numbers: range, num_streams: int) -> None:
        """These requests, `num_streams` at a time."""
        waiting = iter(numbers)

        async def stream() -> None:
            for number in waiting:
                (kind,) = self.random.choices(list(self._kinds), list(self._kinds.values()))
                try:
                    await kind(number)
                    self.counts[kind.__name__] += 1
                except (Wrong, httpx.HTTPError, KeyError, ValueError) as error:
                    self.errors.append(f"request {number}, {kind.__name__}: {type(error).__name__}: {error}")

        await asyncio.gather(*(stream() for _ in range(num_streams)))

    async def streamed(self, number: int) -> None:
        tokens = await self._stream(number, self._parameters())
        if not 1 <= tokens <= 32:
            raise Wrong(f"{tokens} tokens")

    async def whole(self, number: int) -> None:
        body = {"inputs": self._prompt(), "parameters": {**self._parameters(), "details": True, "top_n_tokens": 3}}
        answer = await self._post("/generate", body)
        text = "".join(token["text"] for token in answer["details"]["tokens"] if not token["special"])
        if not text.startswith(answer["generated_text"]):  # a stop sequence may end within a token
            raise Wrong(f"{answer['generated_text']!r} is not what its tokens say: {text!r}")

    async def chat(self, number: int) -> None:
        messages = [
            {"role": "system", "content": "You answer briefly."},
            {"role": "user", "content": self._prompt()},
        ]
        body = {"messages": messages, "max_tokens": 16, "seed": number, "logprobs": True, "top_logprobs": 2}
        answer = await self._post("/v1/chat/completions", body)
        if answer["usage"]["completion_tokens"] > 16:
            raise Wrong(str(answer["usage"]))

    async def grammar(self, number: int) -> None:
        parameters = {"max_new_tokens": 60, "grammar": {"type": "json", "value": _SCHEMA}}
        answer = await self._post("/generate", {"inputs": self._prompt(), "parameters": parameters})
        with suppress(json.JSONDecodeError):  # it may have been cut short
            value = json.loads(answer["generated_text"])
            if not 0 <= value["age"] <= 99:
                raise Wrong(answer["generated_text"])

    async def several(self, number: int) -> None:
        body = {"prompt": self._prompt(), "n": 3, "max_tokens": 12, "seed": number}
        answer = await self._post("/v1/completions", body)
        if len(answer["choices"]) != 3:
            raise Wrong(f"{len(answer['choices'])} choices")

    async def long_prompt(self, number: int) -> None:
        body = {"inputs": self.prompts.take(1, 700)[0].text, "parameters": {"max_new_tokens": 8}}
        await self._post("/generate", body)

    async def hangs_up(self, number: int) -> None:
        await self._stream(number, {"max_new_tokens": 400}, until=self.random.randrange(1, 12))

    async def wrong(self, number: int) -> None:
        parameters = self.random.choice([{"temperature": -1}, {"max_new_tokens": 10**6}, {"top_p": 2}, {"seed": "x"}])
        answer = await self.client.post("/generate", json={"inputs": self._prompt(), "parameters": parameters})
        if answer.status_code != 422:
            raise Wrong(f"{answer.status_code} for {parameters}")

    async def _stream(self, number: int, parameters: dict[str, Any], until: int | None = None) -> int:
        """Tokens that came; the connection is closed after `until` of them."""
        body = {"inputs": self._prompt(), "parameters": parameters}
        tokens, last_s = 0, 0.0
        async with self.client.stream("POST", "/generate_stream", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                event = json.loads(line.removeprefix("data:"))
                if "error" in event:
                    raise Wrong(event["error"])
                now_s = time.perf_counter()
                if tokens:
                    self.gaps_s.append((number, now_s - last_s))
                tokens, last_s = tokens + 1, now_s
                if tokens == until:
                    break
        return tokens

    def _prompt(self) -> str:
        own = self.prompts.take(1, self.random.randrange(4, 60))[0].text
        return self._beginning + own if self.random.random() < 0.3 else own

    def _parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = {"max_new_tokens": self.random.randrange(1, 33)}
        if self.random.random() < 0.5:
            parameters |= {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "top_k": 50}
        if self.random.random() < 0.2:
            parameters |= {"repetition_penalty": 1.1, "stop": ["the"]}
        return parameters

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.client.post(path, json=body)
        if answer.status_code != 200:
            raise Wrong(f"{answer.status_code}: {answer.text[:200]}")
        return dict(answer.json())


@dataclass(frozen=True)
class AtRest:
    """A server with nothing to do."""

    memory_bytes: dict[str, int]
    blocks: dict[str, int]

    @classmethod
    async def of(cls, program: Program, client: httpx.AsyncClient) -> AtRest:
        """Raises Wrong if it does not come to rest."""
        for _ in range(100):
            metrics = (await client.get("/metrics")).text.splitlines()
            samples = dict(line.rsplit(" ", 1) for line in metrics if not line.startswith("#"))
            if samples["tgi_batch_current_size"] == "0" and samples["tgi_queue_size"] == "0":
                break
            await asyncio.sleep(0.1)
        else:
            raise Wrong("requests still run 10 s after the last answer")
        kinds = ("tgi_kv_blocks", "tgi_kv_blocks_used", "tgi_kv_blocks_free", "tgi_kv_blocks_cached")
        blocks = {kind: int(samples[kind]) for kind in (*kinds, "tgi_batch_preemptions")}
        return cls(_memory_bytes(program), blocks)


def _memory_bytes(program: Program) -> dict[str, int]:
    resident: dict[str, int] = {}
    for process in psutil.Process(program.process.pid).children(recursive=True):
        for name, module in _PROGRAMS.items():
            if module in " ".join(process.cmdline()):
                resident[name] = resident.get(name, 0) + process.memory_info().rss
    return resident


def verdicts(soak: Soak, before: AtRest, after: AtRest, num_requests: int) -> tuple[list[str], list[str]]:
    """What was found, a table row each, and what is wrong with it."""
    rows, wrong = [], list(soak.errors[:10])
    if len(soak.errors) > 10:
        wrong.append(f"and {len(soak.errors) - 10} requests more that failed")
    rows.append(f"| requests | {num_requests}, {len(soak.errors)} of them not answered as they should be |")
    rows.append(f"| of which | {', '.join(f'{count} {name}' for name, count in soak.counts.most_common())} |")
    for name, first in before.memory_bytes.items():
        last = after.memory_bytes[name]
        rows.append(f"| {name}, resident | {first / 1e6:.1f} MB, then {last / 1e6:.1f} MB |")
        if last > first * (1 + _MAX_GROWTH) + _MAX_GROWTH_BYTES:
            wrong.append(f"the {name} grew from {first / 1e6:.1f} to {last / 1e6:.1f} MB")
    blocks = after.blocks
    rows.append(
        f"| blocks of the cache | {blocks['tgi_kv_blocks']}: {blocks['tgi_kv_blocks_free']} free, "
        f"{blocks['tgi_kv_blocks_cached']} cached, {blocks['tgi_kv_blocks_used']} owned; "
        f"{blocks['tgi_batch_preemptions']} preemptions |"
    )
    free = blocks["tgi_kv_blocks_free"] + blocks["tgi_kv_blocks_cached"]
    if blocks["tgi_kv_blocks_used"] or free != blocks["tgi_kv_blocks"]:
        wrong.append(f"blocks are lost: {blocks}")
    thirds = [[gap_s for number, gap_s in soak.gaps_s if number * 3 // num_requests == third] for third in range(3)]
    slowest = [float(np.percentile(gaps_s, 99)) for gaps_s in thirds]
    rows.append(f"| between tokens, p99 | {', '.join(f'{slow * 1e3:.1f}' for slow in slowest)} ms, by thirds |")
    if slowest[2] > slowest[0] * (1 + _MAX_SLOWDOWN):
        wrong.append(f"p99 between tokens rose from {slowest[0] * 1e3:.1f} to {slowest[2] * 1e3:.1f} ms")
    return rows, wrong


async def run(arguments: argparse.Namespace, program: Program, url: str) -> tuple[list[str], list[str]]:
    model: Path = arguments.model
    limits = httpx.Limits(max_connections=arguments.streams * 2)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        soak = Soak(client, PromptSource(model / "tokenizer.json", arguments.seed), random.Random(arguments.seed))
        await soak.run(range(arguments.first), arguments.streams)
        before = await AtRest.of(program, client)
        await soak.run(range(arguments.first, arguments.requests), arguments.streams)
        after = await AtRest.of(program, client)
    return verdicts(soak, before, after, arguments.requests)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="model folder; default: the demo model")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--first", type=int, default=500, help="requests after which memory is first looked at")
    parser.add_argument("--streams", type=int, default=16, help="requests at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result between the markers of this file")
    arguments = parser.parse_args(argv)
    arguments.model = arguments.model or demo_model_folder()
    check_page(arguments.write, _NAME)
    loads = [load_average()]
    # Hardly more tokens than one request may have: the others have to yield to it.
    options = ["--max-batch-total-tokens", "1088", "--max-total-tokens", "1024", "--max-input-tokens", "1000"]
    with tempfile.TemporaryDirectory() as folder:
        server = launch("soak", arguments.model, options, {}, Path(folder))
        with stopping(server.program):
            server.wait_ready()
            started_s = time.monotonic()
            rows, wrong = asyncio.run(run(arguments, server.program, server.target.url))
            duration_s = time.monotonic() - started_s
    loads.append(load_average())
    table = ["| seen | |", "|---|---|", *rows, f"| duration | {duration_s:.0f} s |"]
    publish(arguments.write, _NAME, heading(None, (loads[0], loads[1])) + "\n\n" + "\n".join(table))
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    run_benchmark(main, Wrong)
