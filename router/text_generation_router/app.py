"""Puts the router's parts together into one ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from text_generation_cli import __version__
from text_generation_proto import generate_pb2 as pb
from text_generation_router.admission import Gate
from text_generation_router.api.cors import Cors
from text_generation_router.api.docs_page import add_docs_route
from text_generation_router.api.front_door import FrontDoor, add_error_handlers
from text_generation_router.api.generate import GenerationService, add_generate_routes
from text_generation_router.api.openapi import NATIVE_MODELS, document
from text_generation_router.api.operations import add_operation_routes, add_tokenize_route
from text_generation_router.api.schema import Fallback, GenerateRequest, Info, SelfCheck
from text_generation_router.auth import ApiKeyGuard
from text_generation_router.compat import compat_for
from text_generation_router.generation import Generator, TimeLimits
from text_generation_router.grammar.compiler import Grammars
from text_generation_router.metrics import Metrics
from text_generation_router.openai.routes import OPENAI_MODELS, add_openai_routes
from text_generation_router.openai.service import OpenAiService
from text_generation_router.openai.templates import ChatTemplates
from text_generation_router.replica import Replica
from text_generation_router.settings import RouterSettings
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.ui.page import add_ui_route
from text_generation_router.validation import SUPPORTED_PARAMETERS, Limits, Validator

# The version of TGI whose API this is: clients compare it to find out what a server can do.
TGI_VERSION = "3.3.6"


def load_ahead() -> None:
    """Have FastAPI load what it loads with the first route that has a body: 0.2 s, for when there is time."""
    FastAPI(openapi_url=None).add_api_route("/", GenerateRequest)


class App:
    """The ASGI application. `close`, `wait_idle` and `stop_workers` are for an orderly end."""

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        metrics: Metrics,
        openapi: Callable[[], dict[str, Any]],
        grammars: Grammars | None,
    ) -> None:
        """`openapi`: makes the OpenAPI document."""
        self._app = app
        self._gate = gate
        self._grammars = grammars
        self.metrics = metrics
        self.openapi = openapi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def close(self) -> None:
        """Answer new requests with 503; running ones go on."""
        self._gate.close()

    async def wait_idle(self) -> None:
        """Return when no request is running."""
        await self._gate.wait_idle()

    def stop_workers(self) -> None:
        """When nothing is served any more: end the threads that compile grammars."""
        if self._grammars is not None:
            self._grammars.close()


def load_grammars(settings: RouterSettings, tokenizer: Tokenizer, vocab_size: int) -> Grammars | None:
    """A thread begins to read the vocabulary, for 0.2 s. Returns: None if they are turned off."""
    return None if settings.disable_grammar_support else Grammars(tokenizer, vocab_size)


def build_app(
    settings: RouterSettings,
    replica: Replica,
    tokenizer: Tokenizer,
    templates: ChatTemplates,
    grammars: Grammars | None = None,
) -> App:
    """Serve a replica that has warmed up. Watches it from then on.

    Args:
        grammars: those that were loaded ahead; None loads them, unless they are turned off.
    """
    compat = compat_for(
        settings.compat,
        prefill_logprobs=settings.enable_prefill_logprobs,
        from_hub=bool(replica.info.model_sha),
    )
    limits = Limits(
        max_best_of=settings.max_best_of,
        max_stop_sequences=settings.max_stop_sequences,
        max_top_n_tokens=settings.max_top_n_tokens,
        max_input_tokens=settings.max_input_tokens or replica.max_total_tokens - 1,
        max_total_tokens=replica.max_total_tokens,
        vocab_size=replica.info.vocab_size,
        max_counted_new_tokens=compat.max_counted_new_tokens,
    )
    metrics = Metrics(max_input_tokens=limits.max_input_tokens, max_total_tokens=limits.max_total_tokens)
    replica.observer = metrics
    gate = Gate(settings.max_concurrent_requests)
    grammars = grammars or load_grammars(settings, tokenizer, limits.vocab_size)
    service = GenerationService(
        gate=gate,
        validator=Validator(tokenizer, limits, grammars),
        generator=Generator(
            replica,
            tokenizer,
            metrics,
            TimeLimits(queue_s=settings.queue_timeout_s, request_s=settings.request_timeout_s),
            log_text=settings.log_prompts,
        ),
        metrics=metrics,
        payload_limit=settings.payload_limit,
        compute_type=settings.compute_type or _compute_type(replica),
        compat=compat,
    )

    def metrics_page() -> bytes:
        return metrics.render(replica.stats(), max_batch_total_tokens=replica.limits.max_batch_total_tokens)

    app = FastAPI(
        title="Text generation server",
        description="TGI's HTTP API.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api-doc/openapi.json",
        redirect_slashes=False,
        default_response_class=Response,  # routes make their answers; the document shows no type that they do not name
    )
    shown_limits = {**asdict(limits), "max_client_batch_size": settings.max_client_batch_size}
    app.openapi = document(app, (*NATIVE_MODELS, *OPENAI_MODELS), shown_limits)  # type: ignore[method-assign]
    add_error_handlers(app)
    answer_generate = add_generate_routes(app, service)
    info = _info(settings, replica, limits)
    add_operation_routes(app, gate, info, replica.check_health, metrics_page)
    openai_service = OpenAiService(
        generation=service,
        templates=templates,
        tokenizer=tokenizer,
        served_model=info.model_id,
        fingerprint=f"{TGI_VERSION}-native",
        max_client_batch_size=settings.max_client_batch_size,
    )
    add_openai_routes(app, openai_service, answer_generate)
    add_tokenize_route(app, gate, tokenizer, settings.payload_limit)
    add_ui_route(app)
    add_docs_route(app)
    door: ASGIApp = FrontDoor(app)
    if settings.api_key is not None:
        door = ApiKeyGuard(door, settings.api_key)
    return App(Cors(door, settings.cors_allow_origin), gate, metrics, app.openapi, grammars)


def _compute_type(replica: Replica) -> str:
    info = replica.info
    return "cpu" if info.device_type == "cpu" else f"{info.world_size}-{info.device_name.lower()}"


def _info(settings: RouterSettings, replica: Replica, limits: Limits) -> Info:
    return Info(
        model_id=settings.shown_model_id or replica.info.model_id,
        model_sha=replica.info.model_sha or None,
        model_dtype=f"torch.{replica.info.dtype}",
        model_device_type=replica.info.device_type,
        model_pipeline_tag="text-generation",
        max_concurrent_requests=settings.max_concurrent_requests,
        max_best_of=limits.max_best_of,
        max_stop_sequences=limits.max_stop_sequences,
        max_top_n_tokens=limits.max_top_n_tokens,
        max_input_tokens=limits.max_input_tokens,
        max_input_length=limits.max_input_tokens,
        max_total_tokens=limits.max_total_tokens,
        waiting_served_ratio=settings.waiting_served_ratio,
        max_batch_total_tokens=replica.limits.max_batch_total_tokens,
        max_waiting_tokens=settings.max_waiting_tokens,
        max_batch_size=settings.max_batch_size,
        validation_workers=settings.validation_workers,
        max_client_batch_size=settings.max_client_batch_size,
        supported_parameters=[
            name for name in SUPPORTED_PARAMETERS if name != "grammar" or not settings.disable_grammar_support
        ],
        router="text-generation-router",
        version=TGI_VERSION,
        server_version=__version__,
        sha=None,
        docker_label=None,
        self_check=_self_check(replica.info),
    )


def _self_check(info: pb.InfoResponse) -> SelfCheck | None:
    if not info.HasField("self_check"):
        return None
    found = info.self_check
    return SelfCheck(
        num_ops=found.num_ops,
        num_samples=found.num_samples,
        num_model_parts=found.num_model_parts,
        worst_error=found.worst_error,
        seconds=round(found.seconds, 2),
        checked_at=found.checked_at,
        fallbacks=[
            Fallback(op=each.op, candidate=each.candidate, reason=each.reason, used=each.used)
            for each in found.fallbacks
        ],
    )
