"""`transformers` on a model folder, prompts of equal length as one static batch; arguments: folder, dtype.

Answers each JSON order on stdin with one `Run`.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria

from benchmarks.rates import Run


class TokenClock(StoppingCriteria):  # type: ignore[misc]  # transformers is not type checked here
    """Stops nothing; called once after each step, it writes down the time."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        self.times_s.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[2]))
    model.generation_config.eos_token_id = None
    print("> ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        prompts = torch.tensor(order["prompt_ids"])
        clock = TokenClock()
        sent_s = time.perf_counter()
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=order["max_new_tokens"],
            do_sample=False,
            stopping_criteria=[clock],
        )
        num_streams = len(prompts)
        new_ids = output[:, prompts.shape[1] :].tolist()
        run = Run([sent_s] * num_streams, [clock.times_s] * num_streams, token_ids=new_ids)
        print(f"> {run.to_json()}", flush=True)


if __name__ == "__main__":
    main()
