"""What the OpenAI routes share: a conversation or prompts become sequences, and sequences become answers or events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from text_generation_router.api.events import EventStream
from text_generation_router.api.generate import GenerationService
from text_generation_router.errors import IncompleteGeneration, IncompleteStream
from text_generation_router.generation import Answer, Incomplete, Piece
from text_generation_router.grammar.spec import WriteSpec
from text_generation_router.openai.chunks import error_events
from text_generation_router.openai.errors import ToolError
from text_generation_router.openai.messages import template_messages
from text_generation_router.openai.response_format import response_grammar
from text_generation_router.openai.sampling import check_supported, choices, native_parameters
from text_generation_router.openai.schema import ChatRequest
from text_generation_router.openai.templates import ChatTemplates
from text_generation_router.openai.tools import ToolUse, tool_use
from text_generation_router.together import all_or_none, interleaved
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.validation import ValidRequest


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat request as the model sees it."""

    prompt: str
    tools: ToolUse | None
    grammar: WriteSpec | None


@dataclass(frozen=True, slots=True)
class OpenAiService:
    generation: GenerationService
    templates: ChatTemplates
    tokenizer: Tokenizer
    served_model: str
    fingerprint: str
    max_client_batch_size: int

    async def converse(self, body: ChatRequest) -> Conversation:
        """Render the template, in a worker thread. Raises: InvalidRequest, TemplateError, ToolError."""
        check_supported(body)
        tools = tool_use(body)
        grammar = response_grammar(body.response_format)
        if grammar is not None and body.tools is not None and body.tool_choice != "none":
            raise ToolError("Grammar and tools are mutually exclusive")
        if tools is not None and tools.is_forced:
            grammar = tools.grammar()
        prompt = await asyncio.to_thread(self._render, body, tools)
        return Conversation(prompt, tools, grammar)

    async def chat_sequences(self, body: ChatRequest, conversation: Conversation) -> Sequence[ValidRequest]:
        """One for each choice. Raises InvalidRequest."""
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        lenient = self.generation.compat.lenient_openai
        parameters = native_parameters(
            body,
            max_new_tokens=max_tokens,
            top_n_tokens=body.top_logprobs if body.logprobs else None,
            lenient=lenient,
        )
        validator = self.generation.validator
        # The template wrote the special tokens that the model wants.
        valid = await validator.validate(
            conversation.prompt, parameters, add_special_tokens=False, grammar=conversation.grammar
        )
        return choices(valid, body, body.num_choices, validator.limits.vocab_size, lenient=lenient)

    async def answers(self, sequences: Sequence[ValidRequest], arrived_s: float) -> list[Answer]:
        """Raises: RequestError, as soon as one of them fails; the others end with it."""
        generator = self.generation.generator
        try:
            return await all_or_none([generator.generate(valid, arrived_s) for valid in sequences])
        except Incomplete:
            raise IncompleteGeneration from None

    async def pieces(
        self, sequences: Sequence[ValidRequest], arrived_s: float
    ) -> AsyncGenerator[tuple[int, Piece], None]:
        """Of all sequences, as they come, each with its sequence's index. Raises RequestError."""
        generator = self.generation.generator
        streams = interleaved([generator.stream(valid, arrived_s) for valid in sequences])
        try:
            async for index_and_piece in streams:
                yield index_and_piece
        except Incomplete:
            raise IncompleteStream from None
        finally:
            await streams.aclose()

    def _render(self, body: ChatRequest, tools: ToolUse | None) -> str:
        template = self.templates.choose(with_tools=tools is not None)
        messages = template_messages(body.messages, shows_tool_calls=template.shows_tool_calls)
        if tools is None:
            return template.render(messages, None)
        prompt = tools.prompt(body.tool_prompt, template_shows_tools=template.shows_tools)
        messages[-1] = {**messages[-1], "content": messages[-1]["content"] + prompt}
        return template.render(messages, tools.shown())


def event_stream(
    service: OpenAiService, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]
) -> EventStream:
    """The response that sends events, and ends with these routes' own events if it fails."""
    return EventStream(
        events, headers, errors_in_streams=service.generation.compat.errors_in_streams, error_event=error_events
    )
