"""Bodies of requests and answers, as the OpenAPI document shows them.

Requests are parsed into these. Answers are written without them (see answers and events), because a model per token
costs more than the token; a test holds the written answers against them.
"""

from __future__ import annotations

from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema

from text_generation_router.parameters import GenerateParameters, Text, optional
from text_generation_router.scheduling.request import TokenNumbers


class GenerateRequest(BaseModel):
    inputs: Text = Field(examples=["My name is Olivier and I"])
    parameters: GenerateParameters | None = Field(
        default=None, description="Without it the text is sampled; with {} it is not."
    )


class CompatGenerateRequest(GenerateRequest):
    stream: bool | None = optional(False, description="Answer with events. Default: false.")


FinishReason = Literal["length", "eos_token", "stop_sequence"]


class PrefillToken(BaseModel):
    id: int
    text: str
    logprob: float | None


_NUMBERS: dict[str, Any] = {name: (kind | None, ...) for name, kind in get_type_hints(TokenNumbers).items()}
_Token = create_model("Token", id=(int, ...), text=(str, ...), **_NUMBERS, special=(bool, ...))


class Token:
    """A generated token with all its numbers, and null for one that is not known or not finite."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(_Token)


class BestOfSequence(BaseModel):
    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


class Details(BaseModel):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | None = None
    top_tokens: list[list[Token]] | None = None


class GenerateResponse(BaseModel):
    generated_text: str
    details: Details | None = None


class StreamDetails(BaseModel):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(BaseModel):
    index: int
    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None
    details: StreamDetails | None


class ErrorResponse(BaseModel):
    error: str
    error_type: str


class TextToken(BaseModel):
    id: int
    text: str
    start: int = Field(description="In bytes of the UTF-8 text.")
    stop: int


class Fallback(BaseModel):
    op: str
    candidate: str = Field(description="The way to compute the op that is not used.")
    reason: str
    used: str = Field(description="What computes it instead.")


class SelfCheck(BaseModel):
    """The comparison of the device's ops with a float32 reference, and of the model with the CPU, at start."""

    num_ops: int
    num_samples: int
    num_model_parts: int
    worst_error: float = Field(description="Of an op that is used, as a share of the size of its values.")
    seconds: float
    checked_at: str = Field(description="An earlier start's, if nothing has changed since.")
    fallbacks: list[Fallback]


class Info(BaseModel):
    model_id: str
    model_sha: str | None
    model_dtype: str
    model_device_type: str
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int
    max_input_tokens: int
    max_input_length: int
    max_total_tokens: int
    waiting_served_ratio: float
    max_batch_total_tokens: int
    max_waiting_tokens: int
    max_batch_size: int | None
    validation_workers: int
    max_client_batch_size: int
    supported_parameters: list[str] = Field(description="Fields of `parameters` that have an effect.")
    router: str
    version: str = Field(description="The version of TGI's API that is served.")
    server_version: str
    sha: str | None
    docker_label: str | None
    self_check: SelfCheck | None = Field(description="null: the device was not checked, as on the CPU.")
