"""/v1/models: the one model that is served."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from text_generation_router.api.answers import JsonResponse
from text_generation_router.api.schema import ErrorResponse
from text_generation_router.openai.errors import UnknownModel
from text_generation_router.openai.schema import Model, ModelList

_NAME = {"type": "string", "examples": ["tgi"]}


def add_model_routes(app: FastAPI, served_model: str) -> None:
    model = Model(id=served_model, object="model", created=0, owned_by=served_model).model_dump()

    @app.get("/v1/models", summary="The model that is served, as a list", responses={200: {"model": ModelList}})
    async def models() -> Response:
        return JsonResponse({"object": "list", "data": [model]})

    @app.get(
        "/v1/models/{model_id:path}",
        summary="The model that is served",
        # Declared here, since by a parameter of the function FastAPI would show an error that never happens.
        openapi_extra={"parameters": [{"name": "model_id", "in": "path", "required": True, "schema": _NAME}]},
        responses={200: {"model": Model}, 404: {"model": ErrorResponse, "description": "Another model"}},
    )
    async def one_model(request: Request) -> Response:
        model_id = request.path_params["model_id"]
        # A model's name may be a path, whose slashes at the ends the front door has taken away.
        if model_id.strip("/") not in {served_model.strip("/"), "tgi"}:
            raise UnknownModel(model_id, served_model)
        return JsonResponse(model)
