"""Prompts and their answers, for the router that the page talks to."""

from __future__ import annotations

from pathlib import Path

from tests.support.router_server import answering
from tests.support.scripted_shard import ScriptedShard
from tests.support.tokenizers import byte_level_tokenizer
from text_generation_router.openai.templates import ChatTemplates
from text_generation_router.tokenizer import Tokenizer

PACKAGE = byte_level_tokenizer()
EOS_ID = PACKAGE.token_to_id("</s>") or 0
STORY = "In the north, by the sea, the old road went on.\n" * 40
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&amp;</s>"
MIXED = "one\n\n\ttwo 😀👩‍🚀 café שלום עולם مرحبا \u202eabc\u202c<|end of turn|>three</s>"
ANSWERS = {
    "capital": " the city of Paris, in the north.</s>",
    "story": STORY,
    "hostile": HOSTILE,
    "mixed": MIXED,
}
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHATS = {
    "[user]capital[assistant]": " the city of Paris, in the north.</s>",
    "[system]be brief[user]capital[assistant]": "Paris</s>",
    "[user]capital[assistant] the city of Paris, in the north.[user]and then[assistant]": "the sea</s>",
    "[user]emoji[assistant]": "a😀b</s>",
}


def ids(text: str) -> tuple[int, ...]:
    return tuple(PACKAGE.encode(text, add_special_tokens=False).ids)


def new_tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(), frozenset({EOS_ID}))


def new_templates() -> ChatTemplates:
    return ChatTemplates({"default": TEMPLATE}, {})


def new_shard(folder: Path) -> ScriptedShard:
    """Any other prompt is answered with letters until there is no room."""
    rule = answering({ids(prompt): ids(answer) for prompt, answer in {**ANSWERS, **CHATS}.items()}, vocab_size=64)
    return ScriptedShard(
        str(folder / "s-0"), next_token=rule, vocab_size=PACKAGE.get_vocab_size(), max_total_tokens=4000
    )
