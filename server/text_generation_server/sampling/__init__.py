"""From logits to token ids and log-probabilities.

Knows tensors, parameters and positions. Knows nothing of sequences, requests, text, or where the logits came from.
"""

from text_generation_server.sampling.logprobs import TopTokens, token_logprobs, top_tokens
from text_generation_server.sampling.noise import uniform
from text_generation_server.sampling.parameters import SampleRow, SamplingParameters
from text_generation_server.sampling.sampler import Sampler, SampleResult
from text_generation_server.sampling.watch import describe, is_faulty, mark_faulty
from text_generation_server.sampling.watermark import Watermark

__all__ = [
    "SampleResult",
    "SampleRow",
    "Sampler",
    "SamplingParameters",
    "TopTokens",
    "Watermark",
    "describe",
    "is_faulty",
    "mark_faulty",
    "token_logprobs",
    "top_tokens",
    "uniform",
]
