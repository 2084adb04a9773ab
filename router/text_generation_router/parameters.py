"""The parameters of a generation as TGI's native API spells them: names, types, defaults. No limits: see validation.

None means "not given", and null is taken for not given everywhere, since clients send it for every field. Limits and
what stands for "not given" are shown here for the OpenAPI document only.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from text_generation_router.first_error import FirstErrorModel

_MAX_FLOAT32 = 3.4028234663852886e38


def _to_float32(value: float) -> float:
    """As the shards will see it: a limit must hold there too (0.99999999 is 1.0)."""
    if not abs(value) <= _MAX_FLOAT32:
        raise ValueError("must be a finite 32-bit float")
    return float(struct.unpack("f", struct.pack("f", value))[0])


Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
UInt32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
UInt64 = Annotated[int, Field(ge=0, le=2**64 - 1)]


def shown(**keywords: Any) -> Any:
    """JSON schema's keywords for what the document shows and others check, with messages of their own.

    A bound that is a text is the name of a limit that the server is started with; the served document has its value.
    """
    return Field(json_schema_extra=dict(keywords))


def optional(default: Any = None, **options: Any) -> Any:
    """A field that may be left out. `default` is what the document shows; the model has None."""
    return Field(default=None, json_schema_extra={"default": default}, **options)


# Refused whatever it is: the rules say so.
Unsupported = Annotated[Any, shown(type="null")]
Text = Annotated[str, shown(minLength=1)]
Float32 = Annotated[float, AfterValidator(_to_float32), shown(format="float")]
PositiveFloat = Annotated[Float32, shown(exclusiveMinimum=0)]
FrequencyPenalty = Annotated[Float32, shown(minimum=-2, maximum=2)]
PositiveInt = Annotated[Int32, shown(minimum=1)]
Share = Annotated[Float32, shown(exclusiveMinimum=0, exclusiveMaximum=1)]
NumNewTokens = Annotated[UInt32, shown(minimum=1)]
NumTopTokens = Annotated[UInt32, shown(maximum="max_top_n_tokens")]
Stops = Annotated[list[str], shown(maxItems="max_stop_sequences")]


class JsonGrammar(BaseModel):
    type: Literal["json", "json_object"]
    value: Any = Field(description="A JSON schema with `properties`, as an object or as its text.")


class NamedSchema(BaseModel):
    name: str | None = None
    # `schema` itself is taken by pydantic.
    json_schema: Any = Field(alias="schema", description="A JSON schema with `properties`.")
    strict: bool | None = Field(default=None, description="Without effect: answers always fit.")


class JsonSchemaGrammar(BaseModel):
    type: Literal["json_schema"]
    value: NamedSchema


class RegexGrammar(BaseModel):
    type: Literal["regex"]
    value: str = Field(description="The whole answer matches it.", examples=["[0-9]{3}"])


Grammar = Annotated[JsonGrammar | JsonSchemaGrammar | RegexGrammar, Field(discriminator="type")]


class GenerateParameters(FirstErrorModel):
    best_of: Annotated[UInt64, shown(minimum=1, maximum="max_best_of")] | None = optional(
        1, description="Generate so many sequences and return the one with the highest mean token logprob."
    )
    temperature: PositiveFloat | None = optional(
        1.0,
        description="Divides the logits; sampling is on if it is not 1. Leave it out for greedy.",
        examples=[0.5],
    )
    repetition_penalty: PositiveFloat | None = optional(
        1.0, description="Penalty of tokens that the prompt or the output holds; 1 is none.", examples=[1.03]
    )
    frequency_penalty: FrequencyPenalty | None = optional(
        0.0,
        description="Penalty of a token by its share of prompt and output, -2 to 2; 0 is none.",
        examples=[0.1],
    )
    top_k: PositiveInt | None = optional(description="Sample from the k most likely tokens.", examples=[10])
    top_p: Share | None = optional(
        description="Sample from the most likely tokens that together have this probability.",
        examples=[0.95],
    )
    typical_p: Share | None = optional(
        description="Sample from the most typical tokens that together have this probability.",
        examples=[0.95],
    )
    do_sample: bool | None = optional(
        False, description="Sample instead of taking the most likely token. Default: false."
    )
    max_new_tokens: NumNewTokens | None = optional(
        description="Most tokens to generate. Default: as many as fit.", examples=[20]
    )
    return_full_text: bool | None = optional(description="Put the prompt before the generated text. Default: false.")
    stop: Stops | None = optional(
        [],
        description="Stop as soon as the text holds one of these; it stays in the text.",
        examples=[["photographer"]],
    )
    truncate: Annotated[UInt64, shown(minimum=1)] | None = optional(
        description="Keep only so many tokens of the prompt, the last ones; at most `max_input_tokens` of /info."
    )
    watermark: bool | None = optional(False, description="Watermark the text. Default: false.")
    details: bool | None = optional(False, description="Return details of the generation. Default: false.")
    decoder_input_details: bool | None = optional(
        False, description="Return the prompt's tokens with their logprobs, not when streaming. Default: false."
    )
    seed: UInt64 | None = optional(description="Seed of the sampling. Default: a random one, which details report.")
    top_n_tokens: NumTopTokens | None = optional(
        0, description="Report so many of the most likely tokens at each position.", examples=[5]
    )
    grammar: Grammar | None = optional(description="What the answer must look like.")
    adapter_id: str | None = optional(description="Not supported yet: refused unless null.")

    @property
    def is_sampling(self) -> bool:
        """Whether the next token is drawn at random. Meant for parameters that passed validation."""
        return (
            bool(self.do_sample)
            or (self.temperature is not None and self.temperature != 1.0)
            or self.top_k is not None
            or self.top_p is not None
            or self.typical_p is not None
        )
