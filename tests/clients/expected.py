"""What clients should see of the checkpoint that is served: its limits, prompts, and what transformers answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.support.witness import Witness

MAX_INPUT_TOKENS = 600  # the description of two functions has 400
MAX_TOTAL_TOKENS = 1000

PROMPT = "What is the capital of France?"  # the answer has emoji, Chinese, Korean, U+2028, and cut-off characters
MULTI_BYTE_PROMPT = "😀 中文 \u2028 한국어"
ENDING_PROMPT = "Question 18"  # the model ends the answer itself, after less than NUM_TOKENS
NUM_TOKENS = 150

CHAT_PROMPTS = (PROMPT, "Question 1", MULTI_BYTE_PROMPT)  # none of the answers ends before NUM_CHAT_TOKENS
NUM_CHAT_TOKENS = 80

Messages = Sequence[Mapping[str, Any]]


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


class Expected:
    """Text and log-probabilities according to transformers."""

    def __init__(self, folder: Path) -> None:
        self.witness = Witness(folder)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._greedy_ids = lru_cache(self._generate)

    def prompt_ids(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer(prompt)["input_ids"]
        return ids

    def greedy_ids(self, prompt: str, max_new_tokens: int = NUM_TOKENS) -> list[int]:
        """With the end token, if the model ends the text itself."""
        return self._greedy_ids(tuple(self.prompt_ids(prompt)), max_new_tokens)

    def greedy_text(self, prompt: str, max_new_tokens: int = NUM_TOKENS) -> str:
        return self.text(self.greedy_ids(prompt, max_new_tokens))

    def chat_ids(self, messages: Messages) -> list[int]:
        """The prompt that a conversation becomes, in ids."""
        ids: list[int] = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return ids

    def chat_text(self, messages: Messages, max_tokens: int = NUM_CHAT_TOKENS) -> str:
        return self.text(self._greedy_ids(tuple(self.chat_ids(messages)), max_tokens))

    def text(self, ids: list[int]) -> str:
        """Without special tokens."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _generate(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> list[int]:
        return self.witness.generate(prompt_ids, max_new_tokens)
