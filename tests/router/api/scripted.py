"""Known answers to known prompts, for routers whose shard is scripted."""

from __future__ import annotations

from pathlib import Path

from tests.support.router_server import answering
from tests.support.scripted_shard import ScriptedShard
from tests.support.tokenizers import byte_level_tokenizer
from text_generation_router.tokenizer import Tokenizer

PACKAGE = byte_level_tokenizer()
EOS_ID = PACKAGE.token_to_id("</s>") or 0
VOCAB_SIZE = 256  # of the scripted shard's own answers: single bytes
ANSWERS = {
    "capital": " the city of Paris, in the north.</s>",
    "emoji": "a😀é\u2028\u0085b한</s>",
    "unfinished": "x😀",
    "long": "ab" * 400,
}


def ids(text: str) -> tuple[int, ...]:
    return tuple(PACKAGE.encode(text, add_special_tokens=False).ids)


def new_tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(), frozenset({EOS_ID}))


def new_shard(folder: Path, *, step_s: float = 0.0, fail_at_step: int | None = None) -> ScriptedShard:
    rule = answering({ids(prompt): ids(answer) for prompt, answer in ANSWERS.items()}, VOCAB_SIZE)
    return ScriptedShard(
        str(folder / "s-0"),
        next_token=rule,
        vocab_size=PACKAGE.get_vocab_size(),
        step_s=step_s,
        fail_at_step=fail_at_step,
    )
