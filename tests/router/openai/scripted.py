"""Known answers to known conversations and prompts, for routers whose shard is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from tests.router.api.scripted import PACKAGE, VOCAB_SIZE, ids
from tests.support.router_server import answering
from tests.support.scripted_shard import ScriptedShard
from text_generation_proto import generate_pb2 as pb
from text_generation_router.openai.templates import ChatTemplates

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}[{{ message.role }}]"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}"
    "{% endfor %}{{ message.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
BOS = "<|end of turn|>"  # the tokenizer's second special token serves as one

CHATS = {
    "capital": " the city of Paris, in the north.</s>",
    "emoji": "a😀é\u2028\u0085b한</s>",
    "unfinished": "x😀",
    "long": "ab" * 400,
    "special": "one<|end of turn|>two</s>",
    "nothing": "</s>",
}
PROMPTS = {
    "capital": " the city of Paris.</s>",
    "other": "xyz</s>",
    "longer": "ab" * 400,
}


def rendered(question: str) -> str:
    return f"{BOS}[user]{question}[assistant]"


def shown(answer: str) -> str:
    """What of an answer may be seen."""
    return answer.removesuffix("</s>").replace(BOS, "")


def new_templates(source: str = TEMPLATE) -> ChatTemplates:
    return ChatTemplates({"default": source}, {"bos_token": BOS})


class RecordingShard(ScriptedShard):
    """Keeps what was asked for each sequence, as it came over the wire."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.admissions: list[pb.Admission] = []

    async def Steps(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        async def recorded() -> AsyncIterator[pb.StepRequest]:
            async for request in request_iterator:
                self.admissions.extend(request.admit)
                yield request

        async for response in super().Steps(recorded(), context):
            yield response


def new_shard(folder: Path, more: Mapping[str, str] | None = None, *, step_s: float = 0.0) -> RecordingShard:
    """`more`: whole prompts, as rendered, with their answers."""
    answers = {rendered(question): answer for question, answer in CHATS.items()} | PROMPTS | dict(more or {})
    rule = answering({ids(prompt): ids(answer) for prompt, answer in answers.items()}, VOCAB_SIZE)
    return RecordingShard(str(folder / "s-0"), next_token=rule, vocab_size=PACKAGE.get_vocab_size(), step_s=step_s)
