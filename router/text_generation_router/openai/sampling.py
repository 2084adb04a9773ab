"""OpenAI's sampling fields in the terms of the native API, whose rules then hold for them too.

Where OpenAI means something else by a field, the native rules check it first and the meaning is put right afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from text_generation_router.errors import InvalidRequest
from text_generation_router.openai.schema import ChatRequest, SamplingFields
from text_generation_router.parameters import GenerateParameters
from text_generation_router.validation import ValidRequest

_UNSUPPORTED = {
    "functions": "`functions` is not supported: use `tools`",
    "function_call": "`function_call` is not supported: use `tool_choice`",
    "audio": "`audio` is not supported",
    "web_search_options": "`web_search_options` is not supported",
}


def check_supported(body: ChatRequest) -> None:
    """Fields that OpenAI knows and that would change the answer are not ignored in silence. Raises InvalidRequest."""
    for name, message in _UNSUPPORTED.items():
        if getattr(body, name) is not None:
            raise InvalidRequest(message)


def native_parameters(
    body: SamplingFields,
    *,
    max_new_tokens: int | None,
    top_n_tokens: int | None,
    prompt_logprobs: bool = False,
    lenient: bool = True,
) -> GenerateParameters:
    """
    Args:
        lenient: take what OpenAI's API takes; if not, what TGI 3 took, in its meaning. Raises InvalidRequest then.
    """
    greedy = body.temperature == 0
    if not lenient:
        _check_tgi_3(body)
    repetition_penalty = body.repetition_penalty
    if not lenient and body.presence_penalty is not None:
        repetition_penalty = body.presence_penalty + 2
    return GenerateParameters(
        do_sample=not greedy,
        temperature=None if greedy else body.temperature,
        top_p=None if lenient and body.top_p == 1 else body.top_p,
        top_k=body.top_k,
        repetition_penalty=repetition_penalty,
        frequency_penalty=body.frequency_penalty,
        max_new_tokens=max_new_tokens,
        stop=body.stops,
        seed=body.seed,
        top_n_tokens=top_n_tokens,
        decoder_input_details=prompt_logprobs,
    )


def choices(
    valid: ValidRequest, body: SamplingFields, num_choices: int, vocab_size: int, *, lenient: bool = True
) -> Sequence[ValidRequest]:
    """One request for each choice, with OpenAI's penalties, bias, and seeds. Raises InvalidRequest."""
    sampling = replace(valid.request.sampling, do_sample=body.temperature != 0)
    if lenient:
        sampling = replace(
            sampling,
            frequency_penalty=0.0,
            count_penalty=body.frequency_penalty or 0.0,
            presence_penalty=body.presence_penalty or 0.0,
            logit_bias=tuple(_bias(body.logit_bias or {}, vocab_size)),
        )
    return [
        replace(
            valid, request=replace(valid.request, sampling=replace(sampling, seed=(sampling.seed + index) % (1 << 64)))
        )
        for index in range(num_choices)
    ]


def _check_tgi_3(body: SamplingFields) -> None:
    if isinstance(body.stop, str):
        raise InvalidRequest("`stop` must be a list of texts with --compat v3")
    if body.logit_bias is not None:
        raise InvalidRequest("`logit_bias` is not supported with --compat v3")


def _bias(logit_bias: dict[str, float], vocab_size: int) -> list[tuple[int, float]]:
    pairs: list[tuple[int, float]] = []
    for key, value in logit_bias.items():
        # The length: int() of a very long text takes long.
        token_id = int(key) if key.isdecimal() and len(key) < 16 else -1
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"`logit_bias` keys must be token ids from 0 to {vocab_size - 1}. Given: {key[:80]}")
        pairs.append((token_id, value))
    return pairs
