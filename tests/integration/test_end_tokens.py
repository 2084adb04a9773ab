"""Models that name more than one end token, in more than one file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from tests.integration.conftest import EXACT, serving_quietly
from tests.support.asking import Question, ask_at_once, prompt_of
from tests.support.witness import Witness

_NUM_TOKENS = 40


def test_a_text_ends_at_any_end_token_of_both_files(
    llama: Path, tokenizer: Tokenizer, witness: Witness, tmp_path: Path
) -> None:
    """G30: a list in generation_config.json and another one in config.json, no pad token, prompts of any length."""
    prompts = [prompt_of(length, seed=30) for length in (1, 9, 40, 90, 3, 25)]
    prompt_ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    outputs = [witness.generate(ids, _NUM_TOKENS) for ids in prompt_ids]
    # What the first three would say as their fifth token or later ends every text from now on.
    ends = [next(token_id for token_id in output[4:] if token_id not in output[:4]) for output in outputs[:3]]
    folder = shutil.copytree(llama, tmp_path / "model")
    for name, eos in (("generation_config.json", ends[:2]), ("config.json", ends[2])):
        settings = json.loads((folder / name).read_text())
        settings.pop("pad_token_id", None)
        (folder / name).write_text(json.dumps({**settings, "eos_token_id": eos}))

    with serving_quietly("--model-id", str(folder), *EXACT) as server:
        answers = ask_at_once(server, [Question(prompt, {"max_new_tokens": _NUM_TOKENS}) for prompt in prompts])
    reasons = []
    for output, answer in zip(outputs, answers, strict=True):
        end = next((place for place, token_id in enumerate(output[:-1], 1) if token_id in ends), None)
        assert answer.ids == output[:end]
        assert answer.finish_reason == ("length" if end is None else "eos_token")
        reasons.append(answer.finish_reason)
    assert reasons.count("eos_token") >= 3
