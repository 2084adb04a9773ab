"""One sequence's tokens on their way to text: pieces, stop strings, and the generated text at the end.

Plain synchronous code between the replica's token events and whatever form they are answered in.
"""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_router.scheduling.request import FinishReason, TokenEvent, TokenNumbers
from text_generation_router.stopping import StopStrings
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.validation import ValidRequest


@dataclass(frozen=True, slots=True)
class Token:
    token_id: int
    text: str
    numbers: TokenNumbers
    special: bool
    # Of a special token: so much of `text` comes before its own, for characters that it cut short.
    num_cut_short: int = 0

    @property
    def logprob(self) -> float:
        return self.numbers.logprob

    @property
    def shown(self) -> str:
        """What it adds to the generated text."""
        return self.text[: self.num_cut_short] if self.special else self.text


class Transcript:
    """What one sequence has said so far."""

    __slots__ = ("_detokenizer", "_special_texts", "_stops", "_texts", "finish_reason", "num_tokens")

    def __init__(self, tokenizer: Tokenizer, valid: ValidRequest) -> None:
        self._special_texts = tokenizer.special_texts
        self._detokenizer = tokenizer.detokenizer(valid.request.token_ids)
        self._stops = StopStrings(valid.stop)
        self._texts: list[str] = []
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None

    def push(self, event: TokenEvent) -> Token:
        """Take the next token; sets `finish_reason` if it is the last.

        A length or an EOS that the replica reports goes before a stop string. The text of a special token takes part
        in the search, but as it is not shown, a stop string may not end inside it.
        """
        self.num_tokens += 1
        special_text = self._special_texts.get(event.token_id)
        text = self._detokenizer.push(event.token_id) if special_text is None else special_text
        if event.finish_reason is not None:
            return self._finish(event, event.finish_reason, text, special_text is not None, 0)
        num_after = self._stops.find(text, only_at_end=special_text is not None)
        if num_after is not None:
            return self._finish(event, FinishReason.STOP_SEQUENCE, text, special_text is not None, num_after)
        if special_text is None:
            self._texts.append(text)
        return Token(event.token_id, text, event.numbers, special_text is not None)

    def generated_text(self) -> str:
        """The text of the ordinary tokens, which ends right after a stop string that was found."""
        return "".join(self._texts)

    def _finish(self, event: TokenEvent, reason: FinishReason, text: str, special: bool, num_after: int) -> Token:
        """The last token: an unfinished character comes out with it; what follows a stop string stays in it only."""
        self.finish_reason = reason
        held = self._detokenizer.flush()
        if special:
            self._texts.append(held)
            return Token(event.token_id, held + text, event.numbers, True, len(held))
        stopped = reason is FinishReason.STOP_SEQUENCE
        self._texts.append(text[: len(text) - num_after] if stopped else text + held)
        return Token(event.token_id, text + held, event.numbers, False)
