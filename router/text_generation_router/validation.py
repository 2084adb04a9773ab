"""What a request must satisfy before a shard sees it: rules in TGI's order, with TGI's messages.

The first broken rule is reported. Turns parameters and text into a `Request` of ids and numbers; tokenizing is the
tokenizer's. Knows nothing about HTTP.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from text_generation_router.errors import InvalidRequest
from text_generation_router.grammar.compiler import CompiledGrammar, Grammars
from text_generation_router.grammar.spec import (
    NOT_SUPPORTED,
    GrammarError,
    GrammarSpec,
    WriteSpec,
    json_spec,
    regex_spec,
)
from text_generation_router.parameters import GenerateParameters, Grammar, JsonSchemaGrammar, RegexGrammar
from text_generation_router.scheduling.request import Request, SamplingParameters
from text_generation_router.tokenizer import Tokenizer, TokenizerError

# Below it the distribution is a single token in float32 anyway, and logits divided by it would overflow.
_MIN_TEMPERATURE = 1e-6


@dataclass(frozen=True, slots=True)
class Limits:
    """All inclusive."""

    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int
    max_input_tokens: int
    max_total_tokens: int
    vocab_size: int  # of the model; a tokenizer may know more ids
    # What counts of a longer answer when it is looked whether prompt and answer fit; the rest is cut off at the limit.
    max_counted_new_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """What generation needs to make the answer's text, and the part of it that the replica gets."""

    request: Request
    stop: tuple[str, ...]
    grammar: CompiledGrammar | None = None

    @property
    def seed(self) -> int | None:
        """None if no seed has any effect."""
        return self.request.sampling.seed if self.request.sampling.do_sample else None

    @property
    def input_length(self) -> int:
        return len(self.request.token_ids)


def _best_of(parameters: GenerateParameters) -> int:
    return parameters.best_of or 1


def _num_stop(parameters: GenerateParameters) -> int:
    return len(parameters.stop or ())


def _asks_for_sampling(parameters: GenerateParameters) -> bool:
    given = (parameters.temperature, parameters.top_k, parameters.top_p, parameters.typical_p)
    return bool(parameters.do_sample) or any(value is not None for value in given)


def _not_positive(value: float | None) -> bool:
    return value is not None and value <= 0


def _not_a_share(value: float | None) -> bool:
    return value is not None and not 0 < value < 1


# Each rule: when it is broken, and what is said then. `p` is the parameters; {names} are filled in by `check_rules`.
Rule = tuple[Callable[[GenerateParameters, Limits, str | Sequence[int]], bool], str]

# The first two are checked before the request is counted as running, hence before everything else.
STREAM_RULES: tuple[Rule, ...] = (
    (
        lambda p, limits, text: p.best_of not in {None, 1},
        "`best_of` != 1 is not supported when streaming tokens",
    ),
    (
        lambda p, limits, text: bool(p.decoder_input_details),
        "`decoder_input_details` == true is not supported when streaming tokens",
    ),
)
BEST_OF_RULES: tuple[Rule, ...] = (
    (
        lambda p, limits, text: _best_of(p) > 1 and limits.max_best_of == 1,
        "`best_of` != 1 is not allowed for this endpoint",
    ),
    (
        lambda p, limits, text: _best_of(p) > limits.max_best_of,
        "`best_of` must be > 0 and <= {limits.max_best_of}. Given: {p.best_of}",
    ),
)
RULES: tuple[Rule, ...] = (
    (
        lambda p, limits, text: _best_of(p) > 1 and not _asks_for_sampling(p),
        "you must use sampling when `best_of` is > 1",
    ),
    (
        lambda p, limits, text: _not_positive(p.temperature),
        "`temperature` must be strictly positive",
    ),
    (
        lambda p, limits, text: _not_positive(p.repetition_penalty),
        "`repetition_penalty` must be strictly positive",
    ),
    (
        lambda p, limits, text: not -2 <= (p.frequency_penalty or 0) <= 2,
        "`frequency_penalty` must be >= -2.0 and <= 2.0",
    ),
    (
        lambda p, limits, text: _not_a_share(p.top_p),
        "`top_p` must be > 0.0 and < 1.0",
    ),
    (
        lambda p, limits, text: _not_a_share(p.typical_p),
        "`typical_p` must be > 0.0 and < 1.0",
    ),
    (
        lambda p, limits, text: _not_positive(p.top_k),
        "`top_k` must be strictly positive",
    ),
    (
        lambda p, limits, text: p.max_new_tokens == 0,
        "`max_new_tokens` must be strictly positive",
    ),
    (
        lambda p, limits, text: _num_stop(p) > limits.max_stop_sequences,
        "`stop` supports up to {limits.max_stop_sequences} stop sequences. Given: {num_stop}",
    ),
    (
        lambda p, limits, text: p.seed is not None and _best_of(p) > 1,
        "`seed` must not be set when `best_of` > 1",
    ),
    (
        lambda p, limits, text: (p.top_n_tokens or 0) > limits.max_top_n_tokens,
        "`top_n_tokens` must be >= 0 and <= {limits.max_top_n_tokens}. Given: {p.top_n_tokens}",
    ),
    (
        lambda p, limits, text: not text,
        "`inputs` cannot be empty",
    ),
    (
        lambda p, limits, text: p.truncate is not None and not 1 <= p.truncate <= limits.max_input_tokens,
        "`truncate` must be strictly positive and less than {limits.max_input_tokens}. Given: {p.truncate}",
    ),
)

# Fields that are read but have no effect yet, with what is said when one is given.
UNSUPPORTED: dict[str, str] = {
    "adapter_id": "`adapter_id` is not supported",
}
SUPPORTED_PARAMETERS: tuple[str, ...] = tuple(
    name for name in GenerateParameters.model_fields if name not in UNSUPPORTED
)


def check_rules(
    rules: tuple[Rule, ...], parameters: GenerateParameters, limits: Limits, text: str | Sequence[int] = ""
) -> None:
    """Raise InvalidRequest for the first broken rule."""
    for is_broken, message in rules:
        if is_broken(parameters, limits, text):
            raise InvalidRequest(message.format(p=parameters, limits=limits, num_stop=_num_stop(parameters)))


class Validator:
    def __init__(self, tokenizer: Tokenizer, limits: Limits, grammars: Grammars | None = None) -> None:
        """`grammars` None: requests with a grammar are refused."""
        self._tokenizer = tokenizer
        self._grammars = grammars
        self.limits = limits

    def check_before_admission(self, parameters: GenerateParameters, *, stream: bool) -> None:
        """The rules that need no place among the running requests."""
        check_rules(STREAM_RULES if stream else BEST_OF_RULES, parameters, self.limits)

    async def validate(
        self,
        inputs: str | Sequence[int],
        parameters: GenerateParameters,
        *,
        add_special_tokens: bool = True,
        grammar: WriteSpec | None = None,
    ) -> ValidRequest:
        """Check everything else and tokenize. Raises InvalidRequest.

        Args:
            inputs: a text, or token ids to be taken as they are.
            grammar: one that is not written as in `parameters`.
        """
        check_rules(RULES, parameters, self.limits, inputs)
        token_ids = await self._encode(inputs, add_special_tokens) if isinstance(inputs, str) else list(inputs)
        if parameters.truncate is not None:
            token_ids = token_ids[-parameters.truncate :]
        max_new_tokens = self._check_lengths(len(token_ids), parameters.max_new_tokens)
        compiled = await self._compile(grammar, parameters.grammar)
        for name, message in UNSUPPORTED.items():
            if getattr(parameters, name) is not None:
                raise InvalidRequest(message)
        if not token_ids:  # a normalizer may leave nothing of a text
            raise InvalidRequest("`inputs` cannot be empty")
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self.limits.vocab_size:
                raise InvalidRequest(
                    f"tokenizer error token id {token_id} is not one of the model's {self.limits.vocab_size}"
                )
        return ValidRequest(
            request=Request(
                token_ids=tuple(token_ids),
                max_new_tokens=max_new_tokens,
                eos_token_ids=self._tokenizer.eos_token_ids,
                sampling=_sampling(parameters),
                top_n_tokens=parameters.top_n_tokens or 0,
                prompt_logprobs=bool(parameters.decoder_input_details),
            ),
            stop=tuple(parameters.stop or ()),
            grammar=compiled,
        )

    async def _compile(self, write_spec: WriteSpec | None, grammar: Grammar | None) -> CompiledGrammar | None:
        if write_spec is None and grammar is not None:
            write_spec = partial(_grammar_spec, grammar)
        if write_spec is None:
            return None
        if self._grammars is None:
            raise InvalidRequest(NOT_SUPPORTED)
        try:
            return await self._grammars.compile(write_spec())
        except GrammarError as error:
            raise InvalidRequest(str(error)) from error

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return await self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except TokenizerError as error:
            raise InvalidRequest(f"tokenizer error {error}") from error

    def _check_lengths(self, input_length: int, max_new_tokens: int | None) -> int:
        """Returns: how many tokens may be generated."""
        max_total = self.limits.max_total_tokens
        room = max(max_total - input_length, 0)
        counted = min(room if max_new_tokens is None else max_new_tokens, self.limits.max_counted_new_tokens)
        if input_length + counted > max_total:
            raise InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be <= {max_total}. "
                f"Given: {input_length} `inputs` tokens and {counted} `max_new_tokens`"
            )
        if input_length > self.limits.max_input_tokens:
            raise InvalidRequest(
                f"`inputs` must have less than {self.limits.max_input_tokens} tokens. Given: {input_length}"
            )
        return room if max_new_tokens is None else min(max_new_tokens, room)


def _grammar_spec(grammar: Grammar) -> GrammarSpec:
    """Raises: GrammarError."""
    if isinstance(grammar, RegexGrammar):
        return regex_spec(grammar.value)
    schema = grammar.value.json_schema if isinstance(grammar, JsonSchemaGrammar) else grammar.value
    return json_spec(schema, needs_properties=True)


def _sampling(parameters: GenerateParameters) -> SamplingParameters:
    repetition_penalty = 1.0 if parameters.repetition_penalty is None else parameters.repetition_penalty
    frequency_penalty = parameters.frequency_penalty or 0.0
    watermark = bool(parameters.watermark)
    if not parameters.is_sampling:
        return SamplingParameters(
            repetition_penalty=repetition_penalty, frequency_penalty=frequency_penalty, watermark=watermark
        )
    return SamplingParameters(
        do_sample=True,
        temperature=1.0 if parameters.temperature is None else max(parameters.temperature, _MIN_TEMPERATURE),
        top_k=parameters.top_k or 0,
        top_p=1.0 if parameters.top_p is None else parameters.top_p,
        typical_p=1.0 if parameters.typical_p is None else parameters.typical_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        watermark=watermark,
        seed=random_seed() if parameters.seed is None else parameters.seed,
    )


def random_seed() -> int:
    return random.getrandbits(64)
