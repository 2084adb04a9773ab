"""/v1/models: the one model that is served."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from text_generation_router.api.answers import JsonResponse
from text_generation_router.api.schema import ErrorResponse
from text_generation_router.openai.errors import UnknownModel
from text_generation_router.openai.schema import Model, ModelList


def add_model_routes(app: FastAPI, served_model: str) -> None:
    model = Model(id=served_model, object="model", created=0, owned_by=served_model).model_dump()

    @app.get("/v1/models", summary="The model that is served, as a list", responses={200: {"model": ModelList}})
    async def models() -> Response:
        return JsonResponse({"object": "list", "data": [model]})

    @app.get(
        "/v1/models/{model_id:path}",
        summary="The model that is served",
        responses={200: {"model": Model}, 404: {"model": ErrorResponse, "description": "Another model"}},
    )
    async def one_model(model_id: str) -> Response:
        # A model's name may be a path, whose slashes at the ends the front door has taken away.
        if model_id.strip("/") not in {served_model.strip("/"), "tgi"}:
            raise UnknownModel(model_id, served_model)
        return JsonResponse(model)
