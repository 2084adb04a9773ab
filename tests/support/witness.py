"""What transformers says of a model folder, in float32: the library that served text is compared with.

Greedy text is checked by one forward over prompt and answer: if at every position the served token is the likeliest
one after the tokens before it, then greedy generation gives exactly these tokens, and it takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

# Two logits that are closer than this are a tie in float32: which one is larger depends on the order of summing up.
TIE = 1e-4


class Witness:
    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logprobs(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> torch.Tensor:
        """Log-softmax [len(output_ids), vocab_size], float32: row i is what output i was chosen from."""
        token_ids = [*prompt_ids, *output_ids]
        with torch.no_grad():
            logits = self._model(torch.tensor([token_ids[:-1]]), logits_to_keep=len(output_ids)).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)

    def generate(self, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """The library's own greedy generation, token by token with its own cache; ends after an end token."""
        prompt = torch.tensor([list(prompt_ids)])
        with torch.no_grad():
            output = self._model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_new_tokens, do_sample=False
            )
        generated: list[int] = output[0, len(prompt_ids) :].tolist()
        return generated

    def assert_greedy(self, prompt_ids: Sequence[int], output_ids: Sequence[int], tie: float = TIE) -> None:
        """Every output is the likeliest token after what is before it, or tied with it: less than `tie` apart."""
        assert output_ids, "an empty answer"
        logprobs = self.logprobs(prompt_ids, output_ids)
        likeliest = logprobs.argmax(dim=-1).tolist()
        for position, (token_id, expected) in enumerate(zip(output_ids, likeliest, strict=True)):
            gap = float(logprobs[position, expected] - logprobs[position, token_id])
            assert gap < tie, (
                f"output {position} of {len(output_ids)} after {len(prompt_ids)} prompt tokens is {token_id}, "
                f"transformers says {expected}, which is likelier by {gap:.6f}"
            )
