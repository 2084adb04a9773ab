"""The router's life: connect when the shards are ready, warm up, listen, drain, stop.

The port is bound only when a request would be served: who polls it sees a refused connection until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from text_generation_cli.ready import report_ready, take_go_ahead
from text_generation_router.app import App, build_app, load_ahead, load_grammars
from text_generation_router.connections import server_config
from text_generation_router.openai.templates import ChatTemplateFileError, ChatTemplates
from text_generation_router.replica import Replica
from text_generation_router.settings import RouterSettings
from text_generation_router.shard_client import ShardError, ShardGroup, WarmupLimits
from text_generation_router.tokenizer import Tokenizer, TokenizerError

logger = logging.getLogger(__name__)

_BACKLOG = 2048


class StartError(Exception):
    """The router cannot serve. The message is one line for whoever started it."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: a signal must first let running requests finish while new ones get 503."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: RouterSettings) -> int:
    """Serve until SIGINT or SIGTERM, then finish what is running.

    Returns: 0 when told to stop.
    Raises: StartError.
    """
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop.set)
    starting = asyncio.create_task(_start(settings))
    stopping = asyncio.create_task(told_to_stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    started = starting.result()
    _settle_memory()
    replica, app, tracing = started.replica, started.app, started.tracing
    server = _Server(server_config(app if tracing is None else tracing.trace(app), backlog=_BACKLOG))
    serving = asyncio.create_task(server.serve(sockets=[started.listener]))
    host, port = started.listener.getsockname()[:2]
    logger.info("Connected")
    report_ready(os.environ, port=port, **_facts(replica))
    logger.info("Serving %s on http://%s:%d", settings.shown_model_id or replica.info.model_id, host, port)

    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    app.close()
    await app.wait_idle()
    server.should_exit = True
    await serving
    await replica.close()
    app.stop_workers()
    started.tokenizer.close()
    if tracing is not None:
        await asyncio.to_thread(tracing.close)
    return 0


class Tracing(Protocol):
    """See `otlp`, which is imported only where traces are wanted."""

    def trace(self, app: ASGIApp) -> ASGIApp: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Started:
    replica: Replica
    tokenizer: Tokenizer
    app: App
    listener: socket.socket
    tracing: Tracing | None


async def _start(settings: RouterSettings) -> _Started:
    if settings.folder is None:
        raise StartError("no model: name its folder with --tokenizer-name")
    tokenizer, templates = _load_tokenizer(settings), _load_templates(settings)
    load_ahead()
    await _shards_are_ready(take_go_ahead(os.environ))
    max_sequences = settings.max_batch_size or settings.max_concurrent_requests
    try:
        shards = await ShardGroup.connect(settings.master_shard_uds_path)
        grammars = load_grammars(settings, tokenizer, shards.info.vocab_size)  # while the shards warm up
        replica = await Replica.start(
            shards,
            WarmupLimits(
                max_batch_prefill_tokens=settings.max_batch_prefill_tokens or 0,
                max_sequences=max_sequences,
                max_total_tokens=settings.max_total_tokens or 0,
                max_batch_total_tokens=settings.max_batch_total_tokens or 0,
            ),
            pipeline_depth=settings.pipeline_depth,
            prefix_caching=settings.prefix_caching,
        )
    except ShardError as error:
        raise StartError(str(error)) from None
    _check_limits(settings, replica)
    if settings.log_prompts:
        logger.warning("--log-prompts is on: prompts and answers are written to this log")
    limits = replica.limits
    logger.info("Maximum total tokens: %d, a prompt and its answer", limits.max_total_tokens)
    logger.info("Maximum tokens of a step: %d", limits.max_batch_prefill_tokens)
    logger.info("Setting max batch total tokens to %d", limits.max_batch_total_tokens)
    app = build_app(settings, replica, tokenizer, templates, grammars)
    return _Started(replica, tokenizer, app, _listen(settings), _start_tracing(settings))


async def _shards_are_ready(go_ahead: int | None) -> None:
    """Wait for the launcher's word, if it has started this process before the shards were ready."""
    if go_ahead is None:
        return
    loop, said = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(go_ahead, said.set)
    try:
        await said.wait()
    finally:
        loop.remove_reader(go_ahead)
        os.close(go_ahead)


def _start_tracing(settings: RouterSettings) -> Tracing | None:
    if settings.otlp_endpoint is None:
        return None
    otlp = import_module("text_generation_router.otlp")
    try:
        tracing: Tracing = otlp.Tracing(settings.otlp_endpoint, settings.otlp_service_name)
    except ValueError as error:
        raise StartError(
            f"--otlp-endpoint {settings.otlp_endpoint} is no address: {error}; give one like http://localhost:4317"
        ) from None
    return tracing


def _settle_memory() -> None:
    """Spare the garbage collector what stays for good, and most of its passes over what is gone soon by itself.

    With Python's own threshold of 700 the tokens of a long text, a million small records, took 2.9 s to make, of which
    2.3 were the collector's; with this one 0.6 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def _load_tokenizer(settings: RouterSettings) -> Tokenizer:
    try:
        return Tokenizer.from_folder(Path(settings.folder or ""), num_workers=settings.validation_workers)
    except TokenizerError as error:
        raise StartError(str(error)) from None


def _load_templates(settings: RouterSettings) -> ChatTemplates:
    config_path = settings.tokenizer_config_path
    try:
        return ChatTemplates.from_folder(
            Path(settings.folder or ""), None if config_path is None else Path(config_path)
        )
    except ChatTemplateFileError as error:
        raise StartError(str(error)) from None


def _check_limits(settings: RouterSettings, replica: Replica) -> None:
    """What only warm-up could tell."""
    max_input, max_total = settings.max_input_tokens, replica.max_total_tokens
    if max_input is not None and max_input >= max_total:
        raise StartError(
            f"Argument validation error: `max_input_tokens` must be < `max_total_tokens`. Given: {max_input} and "
            f"{max_total}; lower --max-input-tokens or raise --max-total-tokens"
        )


def _listen(settings: RouterSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.hostname else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.hostname, settings.port))
    except OSError as error:
        listener.close()
        raise StartError(
            f"port {settings.port} on {settings.hostname} cannot be used: {error.strerror}; stop the program that "
            "holds it or choose another with --port"
        ) from None
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _facts(replica: Replica) -> dict[str, int]:
    return {
        "max_total_tokens": replica.limits.max_total_tokens,
        "max_batch_total_tokens": replica.limits.max_batch_total_tokens,
        "max_batch_prefill_tokens": replica.limits.max_batch_prefill_tokens,
    }
