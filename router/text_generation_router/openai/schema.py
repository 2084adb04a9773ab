"""Bodies of the OpenAI routes, as the OpenAPI document shows them.

None means "not given", and null is taken for not given everywhere. Fields that clients send and that change nothing
(`user`, `metadata`, `parallel_tool_calls` ...) are not listed: unknown fields are ignored. Answers are written without
these models (see answers and chunks); tests hold what is written against them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)

from text_generation_router.api.schema import TextToken
from text_generation_router.first_error import FirstErrorModel
from text_generation_router.parameters import (
    Float32,
    FrequencyPenalty,
    NumNewTokens,
    NumTopTokens,
    PositiveFloat,
    PositiveInt,
    Stops,
    Text,
    UInt64,
    Unsupported,
    optional,
    shown,
)

# OpenAI's own bound; a request is also bounded by --max-concurrent-requests, as every choice is a sequence.
MAX_CHOICES = 128

NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class AsGiven(FirstErrorModel):
    """A model that remembers its JSON object: chat templates see keys that we do not know, in the order given."""

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _remember(cls, value: Any, handler: ModelWrapValidatorHandler[AsGiven]) -> AsGiven:
        model = handler(value)
        if isinstance(value, dict):
            model._given = value
        return model

    @property
    def given(self) -> dict[str, Any]:
        return self._given


class ContentPart(BaseModel):
    type: str = Field(description="`text`; others are refused.")
    text: str | None = None


class CalledFunction(BaseModel):
    name: str
    arguments: Any = Field(
        validation_alias=AliasChoices("arguments", "parameters"),
        description="An object, or the JSON text of one.",
    )


class MessageToolCall(AsGiven):
    id: str | None = None
    type: str = "function"
    function: CalledFunction


class Message(AsGiven):
    """What else a message holds reaches the chat template."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
                {"required": ["tool_calls"], "properties": {"tool_calls": {"type": "array", "minItems": 1}}},
            ]
        }
    )

    role: str = Field(examples=["user"])
    content: str | list[ContentPart] | None = Field(
        default=None, description="May be left out by a message with `tool_calls`.", examples=["What is deep learning?"]
    )
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionDefinition(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None,
        validation_alias=AliasChoices("parameters", "arguments"),
        description="JSON schema of the arguments. Default: an object of any kind.",
    )


class Tool(AsGiven):
    type: str = "function"
    function: FunctionDefinition


class ChosenFunction(BaseModel):
    name: str


class ToolChoice(BaseModel):
    type: Literal["function"] = "function"
    function: ChosenFunction


class StreamOptions(BaseModel):
    include_usage: bool | None = optional(False, description="Send a last event with the usage. Default: false.")


class SamplingFields(FirstErrorModel):
    """What chat and text completions have in common."""

    model: str | None = Field(default=None, description="Any name is served by the one model.", examples=["tgi"])
    max_tokens: NumNewTokens | None = Field(
        default=None, description="Most tokens to generate. Default: as many as fit.", examples=[32]
    )
    temperature: Annotated[Float32, shown(minimum=0)] | None = Field(
        default=None, description="Divides the logits. 0 is greedy. Default: 1, sampled.", examples=[1.0]
    )
    top_p: Annotated[Float32, shown(exclusiveMinimum=0, maximum=1)] | None = Field(
        default=None,
        description="Sample from the most likely tokens that together have this probability. 1 is off.",
        examples=[0.95],
    )
    top_k: PositiveInt | None = Field(
        default=None, description="Sample from the k most likely tokens. Not in OpenAI's API."
    )
    frequency_penalty: FrequencyPenalty | None = Field(
        default=None, description="Subtracted for each time that the answer holds a token, -2 to 2. Default: 0."
    )
    presence_penalty: Penalty | None = Field(
        default=None, description="Subtracted once from tokens that the answer holds, -2 to 2. Default: 0."
    )
    repetition_penalty: PositiveFloat | None = Field(
        default=None, description="As in /generate. Not in OpenAI's chat API. Default: 1."
    )
    logit_bias: dict[str, Bias] | None = Field(
        default=None, description="Added to a token's logit, by token id, -100 to 100.", examples=[{"100": -100}]
    )
    n: NumChoices | None = Field(default=None, description="Number of choices. Default: 1.", examples=[2])
    seed: UInt64 | None = Field(
        default=None, description="Seed of the sampling; choice i of several has seed + i. Default: a random one."
    )
    stop: str | Stops | None = Field(
        default=None, description="Stop before one of these; it is not part of the text.", examples=[["\n"]]
    )
    stream: bool | None = optional(False, description="Answer with events. Default: false.")
    stream_options: StreamOptions | None = optional({}, description="What a stream has besides the text.")

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


RESPONSE_FORMATS = ("text", "json_object", "json_schema", "json", "regex")
ResponseFormat = Annotated[dict[str, Any], shown(required=["type"], properties={"type": {"enum": RESPONSE_FORMATS}})]


class ChatRequest(SamplingFields):
    messages: Annotated[list[Message], shown(minItems=1)] = Field(
        description="The conversation. If the last message is the assistant's, the answer continues it."
    )
    max_completion_tokens: NumNewTokens | None = Field(default=None, description="Goes before `max_tokens`.")
    logprobs: bool | None = Field(default=None, description="Return each token's logprob. Default: false.")
    top_logprobs: NumTopTokens | None = Field(
        default=None, description="With `logprobs`: so many of the likeliest tokens at each position.", examples=[5]
    )
    tools: list[Tool] | None = Field(default=None, description="Functions that the model may call.")
    tool_choice: str | ToolChoice | None = Field(
        default=None, description="`auto`, `none`, `required`, or a function's name. Default: `auto`."
    )
    tool_prompt: str | None = Field(
        default=None, description="Put after the last message, to tell the model how to call a function."
    )
    response_format: ResponseFormat | None = Field(
        default=None,
        description="`text`, `json_object`, `json_schema` (OpenAI's or TGI's form), `json` or `regex`.",
        examples=[{"type": "json_object"}],
    )
    functions: Unsupported = Field(default=None, description="Not supported: refused unless null. Use `tools`.")
    function_call: Unsupported = Field(
        default=None, description="Not supported: refused unless null. Use `tool_choice`."
    )
    audio: Unsupported = Field(default=None, description="Not supported: refused unless null.")
    web_search_options: Unsupported = Field(default=None, description="Not supported: refused unless null.")


_EMPTY_PROMPT = "Empty array detected. Do not use an empty array for the prompt."

Prompt = str | list[int]
Prompts = shown(minItems=1, maxItems="max_client_batch_size")
TokenIds = Annotated[list[Annotated[int, shown(minimum=0)]], shown(minItems=1)]


class CompletionRequest(SamplingFields):
    prompt: Text | Annotated[list[Text], Prompts] | TokenIds | Annotated[list[TokenIds], Prompts] = Field(
        description="A text, token ids, or a list of either.", examples=["What is deep learning?"]
    )
    logprobs: NumTopTokens | None = Field(
        default=None, description="Return each token's logprob, and so many of the likeliest tokens.", examples=[1]
    )
    echo: bool | None = Field(default=None, description="Put the prompt before the text. Default: false.")
    best_of: NumChoices | None = Field(
        default=None, description="Generate so many and return the `n` with the highest mean logprob. Default: `n`."
    )
    suffix: Unsupported = Field(default=None, description="Not supported: refused unless null.")

    @field_validator("prompt")
    @classmethod
    def _holds_something(cls, value: str | list[Any]) -> str | list[Any]:
        if value == []:
            raise ValueError(_EMPTY_PROMPT)
        return value

    @property
    def prompts(self) -> list[Prompt]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [list(self.prompt)] if isinstance(self.prompt[0], int) else list(self.prompt)


class VertexParameters(BaseModel):
    max_new_tokens: NumNewTokens | None = None
    seed: UInt64 | None = None


class VertexGenerate(BaseModel):
    inputs: Text
    parameters: VertexParameters | None = None


class VertexRequest(FirstErrorModel):
    instances: Annotated[list[VertexGenerate | ChatRequest], shown(minItems=1)]


# ------------------------------------------------------------------------------------------------ answers

FinishReason = Literal["stop", "length", "tool_calls"]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TopLogprob(BaseModel):
    token: str
    logprob: float | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]


class FunctionCall(BaseModel):
    name: str
    arguments: str = Field(description="JSON of an object.")


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    object: Literal["chat.completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionCallDelta(BaseModel):
    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(BaseModel):
    object: Literal["chat.completion.chunk"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None = Field(description="null in the events before a choice's last.")


class Completion(BaseModel):
    """Also what an event holds; there `usage` comes with a choice's last event, or with an event of its own."""

    object: Literal["text_completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class ChatTokens(BaseModel):
    tokenize_response: list[TextToken]
    templated_text: str


class Predictions(BaseModel):
    predictions: list[str]
