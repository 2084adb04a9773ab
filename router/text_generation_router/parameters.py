"""The parameters of a generation as TGI's native API spells them: names, types, defaults. No limits: see validation.

None means "not given", and null is taken for not given everywhere, since clients send it for every field.
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


Float32 = Annotated[float, AfterValidator(_to_float32)]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
UInt32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
UInt64 = Annotated[int, Field(ge=0, le=2**64 - 1)]


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
    best_of: UInt64 | None = Field(
        default=None, description="Generate so many sequences and return the one with the highest mean token logprob."
    )
    temperature: Float32 | None = Field(
        default=None,
        description="Divides the logits; sampling is on if it is not 1. Leave it out for greedy.",
        examples=[0.5],
    )
    repetition_penalty: Float32 | None = Field(
        default=None, description="Penalty of tokens that the prompt or the output holds; 1 is none.", examples=[1.03]
    )
    frequency_penalty: Float32 | None = Field(
        default=None,
        description="Penalty of a token by its share of prompt and output, -2 to 2; 0 is none.",
        examples=[0.1],
    )
    top_k: Int32 | None = Field(default=None, description="Sample from the k most likely tokens.", examples=[10])
    top_p: Float32 | None = Field(
        default=None,
        description="Sample from the most likely tokens that together have this probability.",
        examples=[0.95],
    )
    typical_p: Float32 | None = Field(
        default=None,
        description="Sample from the most typical tokens that together have this probability.",
        examples=[0.95],
    )
    do_sample: bool | None = Field(
        default=None, description="Sample instead of taking the most likely token. Default: false."
    )
    max_new_tokens: UInt32 | None = Field(
        default=None, description="Most tokens to generate. Default: as many as fit.", examples=[20]
    )
    return_full_text: bool | None = Field(
        default=None, description="Put the prompt before the generated text. Default: false."
    )
    stop: list[str] | None = Field(
        default=None,
        description="Stop as soon as the text holds one of these; it stays in the text.",
        examples=[["photographer"]],
    )
    truncate: UInt64 | None = Field(default=None, description="Keep only so many tokens of the prompt, the last ones.")
    watermark: bool | None = Field(default=None, description="Watermark the text. Default: false.")
    details: bool | None = Field(default=None, description="Return details of the generation. Default: false.")
    decoder_input_details: bool | None = Field(
        default=None, description="Return the prompt's tokens with their logprobs, not when streaming. Default: false."
    )
    seed: UInt64 | None = Field(
        default=None, description="Seed of the sampling. Default: a random one, which details report."
    )
    top_n_tokens: UInt32 | None = Field(
        default=None, description="Report so many of the most likely tokens at each position.", examples=[5]
    )
    grammar: Grammar | None = Field(default=None, description="What the answer must look like.")
    adapter_id: str | None = Field(default=None, description="Not supported yet: refused unless null.")

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
