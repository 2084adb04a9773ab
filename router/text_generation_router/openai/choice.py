"""One choice on its way from tokens to parts of an answer: text that may be shown, and tool calls found in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from text_generation_router.generation import Answer, Ending
from text_generation_router.openai.calls import Content, ForcedCall, FoundCalls, Part
from text_generation_router.openai.tools import ToolUse
from text_generation_router.openai.visible import VisibleText
from text_generation_router.scheduling.request import FinishReason
from text_generation_router.transcript import Token


class Choice:
    """Takes the tokens of one sequence; gives parts of an answer, in the order of the text."""

    __slots__ = ("_calls", "_visible")

    def __init__(self, stops: Sequence[str], tools: ToolUse | None = None) -> None:
        self._visible = VisibleText(stops)
        self._calls: ForcedCall | FoundCalls | None = None
        if tools is not None:
            self._calls = ForcedCall() if tools.is_forced else FoundCalls(tools.names)

    def text(self, token: Token, *, last: bool) -> str:
        """What a token adds to the text that is shown."""
        if not token.special:
            return self._visible.push(token.text, special=False, last=last)
        shown = self._visible.push(token.shown, special=False, last=False)
        if self._visible.found_stop:
            return shown
        return shown + self._visible.push(token.text[len(token.shown) :], special=True, last=last)

    def parts(self, token: Token, *, last: bool) -> list[Part]:
        """What a token adds to the answer."""
        text = self.text(token, last=last)
        if self._calls is None:
            return [Content(text)] if text else []
        parts = list(self._calls.push(text))
        return [*parts, *self._calls.finish()] if last else parts

    def finish_reason(self, ending: Ending) -> str:
        """OpenAI's word for why the sequence ended."""
        if self._calls is not None and self._calls.num_calls:
            return "tool_calls"
        if self._visible.found_stop or ending.finish_reason is not FinishReason.LENGTH:
            return "stop"
        return "length"

    @property
    def missing_call(self) -> bool:
        """The answer had to be a call and is none, as it was cut off."""
        return isinstance(self._calls, ForcedCall) and not self._calls.is_complete


def shown_text(answer: Answer, stops: Sequence[str]) -> tuple[str, str]:
    """The text of a whole answer, and OpenAI's word for why it ended."""
    choice = Choice(stops)
    text = "".join(choice.text(token, last=last) for token, last in with_last(answer.tokens))
    return text, choice.finish_reason(answer.ending)


def with_last(tokens: Sequence[Token]) -> Iterable[tuple[Token, bool]]:
    return ((token, position == len(tokens)) for position, token in enumerate(tokens, 1))
