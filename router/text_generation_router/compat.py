"""Where TGI's generations answer differently, and which answer this server gives: `--compat`.

One frozen record, made at start. The routes read it; nothing behind them knows that there are generations.
"""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_router.parameters import GenerateParameters

# In TGI 3 a longer answer was made in slices of so many tokens, and only the first had to fit.
_SLICE_TOKENS = 1024
_NO_SLICES = 2**63


@dataclass(frozen=True, slots=True)
class Compat:
    """One switch for each behaviour that no single answer can satisfy. Defaults are this server's own choices."""

    event_prefix: str = "data: "
    # Errors found before a stream has begun: a status of their own, or status 200 and an event.
    errors_in_streams: bool = False
    # What / and /invocations take an absent return_full_text for.
    full_text_by_default: bool = False
    # None: as many as fit.
    default_max_new_tokens: int | None = None
    # Of max_new_tokens, how many must fit behind the prompt for the request to be valid; what is over is cut off.
    max_counted_new_tokens: int = _SLICE_TOKENS
    # Whether a request without `parameters` is sampled.
    sample_without_parameters: bool = True
    compute_time_in_ms: bool = False
    # Whether decoder_input_details fills `prefill`.
    prefill: bool = True
    # Whether /v1 takes what OpenAI's API takes (string stop, top_p 1, presence_penalty 0, ...) where TGI 3 does not.
    lenient_openai: bool = True

    def parameters(self, given: GenerateParameters | None) -> GenerateParameters:
        """The parameters of a native request, with this generation's values for those that are absent."""
        parameters = GenerateParameters(do_sample=self.sample_without_parameters) if given is None else given
        if parameters.max_new_tokens is None and self.default_max_new_tokens is not None:
            return parameters.model_copy(update={"max_new_tokens": self.default_max_new_tokens})
        return parameters

    def without_prefill(self, parameters: GenerateParameters) -> GenerateParameters:
        """What is really asked of the model: without the prompt's log-probabilities where `prefill` stays empty."""
        if self.prefill or not parameters.decoder_input_details:
            return parameters
        return parameters.model_copy(update={"decoder_input_details": False, "details": True})


def compat_for(name: str, *, prefill_logprobs: bool = False, from_hub: bool = False) -> Compat:
    """The record for a value of --compat.

    Args:
        prefill_logprobs: --enable-prefill-logprobs, without which TGI 3 leaves `prefill` empty.
        from_hub: the model came from a hub, whose entry calls such models text-generation: that, or not knowing,
            decided in TGI what / returns. TGI 3 returned the prompt too in both cases, 0.9.4 only if it knew.
    """
    if name == "v3":
        return Compat(errors_in_streams=True, full_text_by_default=True, prefill=prefill_logprobs, lenient_openai=False)
    if name == "0.9":
        return Compat(
            event_prefix="data:",
            errors_in_streams=True,
            full_text_by_default=from_hub,
            default_max_new_tokens=20,
            max_counted_new_tokens=_NO_SLICES,
            sample_without_parameters=False,
            compute_time_in_ms=True,
        )
    return Compat()
