"""A router as clients meet it: real HTTP on a free port, a real replica, and a scripted shard behind true gRPC.

Runs in a thread of its own with its own event loop, so that tests may use blocking clients.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import uvicorn
import uvloop
from starlette.types import ASGIApp

from tests.support.scripted_shard import ScriptedShard
from tests.support.shard_model import NextToken, hashed_token
from text_generation_router.app import App, build_app
from text_generation_router.connections import server_config
from text_generation_router.openai.templates import ChatTemplates
from text_generation_router.replica import Replica
from text_generation_router.settings import RouterSettings
from text_generation_router.shard_client import ShardGroup, WarmupLimits
from text_generation_router.tokenizer import Tokenizer

T = TypeVar("T")


class RouterServer:
    """What a test needs of a running router."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: App, replica: Replica, shard: ScriptedShard, port: int):
        self._loop = loop
        self.app = app
        self.replica = replica
        self.shard = shard
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(30)

    def client(self, **options: Any) -> httpx.Client:
        # trust_env: a proxy of the machine is not for 127.0.0.1.
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, **options)


@contextmanager
def router_server(
    shard: ScriptedShard,
    tokenizer: Tokenizer,
    templates: ChatTemplates | None = None,
    *,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    **settings: Any,
) -> Iterator[RouterServer]:
    """
    Args:
        shard: started and stopped here.
        templates: none of the model's unless given.
        wrap: put around the application.
        settings: of RouterSettings.
    """
    ready: Future[RouterServer] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        await shard.start()
        wanted = WarmupLimits(
            max_batch_prefill_tokens=64, max_sequences=128, max_total_tokens=0, max_batch_total_tokens=0
        )
        replica = await Replica.start(await ShardGroup.connect(shard.socket_path), wanted)
        wanted_settings = RouterSettings(**{"model_id": "tiny", **settings})
        app = build_app(wanted_settings, replica, tokenizer, templates or ChatTemplates({}, {}))
        server = uvicorn.Server(server_config(wrap(app), host="127.0.0.1", port=0))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
            if serving.done():
                serving.result()
        port = server.servers[0].sockets[0].getsockname()[1]
        ready.set_result(RouterServer(asyncio.get_running_loop(), app, replica, shard, port))
        await stop.wait()
        server.should_exit = True
        await serving
        await replica.close()
        app.stop_workers()
        await shard.stop()

    def run() -> None:
        loop = uvloop.new_event_loop()
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="router")
    thread.start()
    try:
        server = ready.result(30)
        try:
            yield server
        finally:
            server._loop.call_soon_threadsafe(stop.set)
    finally:
        thread.join(30)
        tokenizer.close()


def answering(answers: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int) -> NextToken:
    """A next-token rule for ScriptedShard: the output given for a prompt; after it and for others, any tokens."""
    other = hashed_token(vocab_size)

    def next_token(prefix: tuple[int, ...]) -> int:
        for prompt, output in answers.items():
            position = len(prefix) - len(prompt)
            if prefix[: len(prompt)] == prompt and 0 <= position < len(output):
                return output[position]
        return other(prefix)

    return next_token
