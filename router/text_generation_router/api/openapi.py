"""The OpenAPI document. Bodies are read by hand, so that every error has TGI's form; here they are declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from text_generation_router.api.schema import CompatGenerateRequest, ErrorResponse, GenerateRequest

_REFERENCE = "#/components/schemas/{model}"
REQUEST_MODELS: tuple[type[BaseModel], ...] = (GenerateRequest, CompatGenerateRequest)
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
    model: Any, *error_statuses: int, events: bool = False, event_model: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    """For `responses` of a route: what it answers, and its errors.

    Args:
        events: it answers with events that are such models.
        event_model: it answers with `model`, or, if `stream` is true, with events that are this model.
    """
    success: dict[str, Any] = {"model": model, "description": "Generated text"}
    if event_model is not None:
        success["description"] = "Generated text, whole, or as events; what follows `data: ` is then such an object"
        schema = {"$ref": _REFERENCE.format(model=event_model.__name__)}
        success["content"] = {"text/event-stream": {"schema": schema}}
    if events:
        success["description"] = "Generated text, one event a token; what follows `data: ` is such an object"
        success["content"] = {"text/event-stream": {}}
    # Every body must be read, every POST may need a key, and whatever generates may take too long.
    statuses = {400, 401, *error_statuses, *((504,) if 424 in error_statuses else ())}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": _ERRORS[status]} for status in sorted(statuses)
    }
    return {200: success, **errors}


def document(app: FastAPI, request_models: Sequence[type[BaseModel]]) -> Callable[[], dict[str, Any]]:
    """For `app.openapi`: made at the first call.

    Args:
        request_models: those that `request_body` names, and those of `event_model`.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, models = models_json_schema([(model, "validation") for model in request_models], ref_template=_REFERENCE)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(models["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi
