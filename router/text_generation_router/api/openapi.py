"""The OpenAPI document. Bodies are read by hand, so that every error has TGI's form; here they are declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from text_generation_router.api.schema import CompatGenerateRequest, ErrorResponse, GenerateRequest, StreamResponse

_REFERENCE = "#/components/schemas/{model}"
NATIVE_MODELS: tuple[type[BaseModel], ...] = (GenerateRequest, CompatGenerateRequest, StreamResponse)
_ERRORS = {
    400: "The body is not JSON",
    401: "The key of --api-key is missing or wrong",
    413: "The body is larger than --payload-limit",
    422: "Input validation error",
    424: "Generation error",
    429: "Model is overloaded",
    500: "Incomplete generation",
    503: "Server is shutting down",
    504: "The request took longer than --request-timeout-s",
}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra` of a route that reads this body."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def responses(
    model: Any, *error_statuses: int, event_models: Sequence[type[BaseModel]] = ()
) -> dict[int | str, dict[str, Any]]:
    """For `responses` of a route: what it answers, and its errors.

    Args:
        model: of an answer that is one JSON text; None if there is none.
        event_models: one of which an event of an answer by events is.
    """
    success: dict[str, Any] = {"description": "The answer"}
    if model is not None:
        success["model"] = model
    if event_models:
        success["description"] = "Generated text; what follows `data: ` in an event is an object as shown for them"
        references = [{"$ref": _REFERENCE.format(model=event_model.__name__)} for event_model in event_models]
        schema = references[0] if len(references) == 1 else {"anyOf": references}
        success["content"] = {"text/event-stream": {"schema": schema}}
    # Every body must be read, every POST may need a key, and whatever generates may take too long.
    statuses = {400, 401, *error_statuses, *((504,) if 424 in error_statuses else ())}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": _ERRORS[status]} for status in sorted(statuses)
    }
    return {200: success, **errors}


def document(
    app: FastAPI, request_models: Sequence[type[BaseModel]], limits: Mapping[str, int]
) -> Callable[[], dict[str, Any]]:
    """For `app.openapi`: made at the first call.

    Args:
        request_models: those that `request_body` names, and those of `event_models`.
        limits: by the names that fields have for their bounds, see `parameters.shown`.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, models = models_json_schema([(model, "validation") for model in request_models], ref_template=_REFERENCE)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(_filled(models["$defs"], limits))
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _filled(schema: Any, limits: Mapping[str, int]) -> Any:
    """A copy with values where bounds have names of limits."""
    if isinstance(schema, list):
        return [_filled(part, limits) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: limits[part] if key in {"maximum", "maxItems"} and isinstance(part, str) else _filled(part, limits)
        for key, part in schema.items()
    }
