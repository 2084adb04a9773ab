"""What breaks each rule of a native request, and what is said then, to the byte. In the order of the rules.

One token a letter, so that lengths are easily made; the limits that the numbers are about stand here too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MAX_INPUT_TOKENS, MAX_TOTAL_TOKENS = 1500, 2000


class Broken(NamedTuple):
    rule: float  # its place in the order
    given: dict[str, Any]  # parameters, and `text`, the prompt, unless it is "x"
    message: str  # after "Input validation error: "

    def __str__(self) -> str:
        return f"{self.rule:g} {', '.join(self.given)}"


# Looked at before a place among the running requests is taken.
BEFORE_A_PLACE = Broken(0, {"best_of": 3}, "`best_of` must be > 0 and <= 2. Given: 3")
BEFORE_A_STREAM = [
    Broken(0, {"best_of": 2}, "`best_of` != 1 is not supported when streaming tokens"),
    Broken(0, {"best_of": 0}, "`best_of` != 1 is not supported when streaming tokens"),
    Broken(
        0.5, {"decoder_input_details": True}, "`decoder_input_details` == true is not supported when streaming tokens"
    ),
]
BROKEN = [
    Broken(1, {"best_of": 2}, "you must use sampling when `best_of` is > 1"),
    Broken(2, {"temperature": 0}, "`temperature` must be strictly positive"),
    Broken(2, {"temperature": -1}, "`temperature` must be strictly positive"),
    Broken(2, {"temperature": 1e-50}, "`temperature` must be strictly positive"),
    Broken(3, {"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
    Broken(3, {"repetition_penalty": -1.5}, "`repetition_penalty` must be strictly positive"),
    Broken(4, {"frequency_penalty": 3}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    Broken(4, {"frequency_penalty": -2.5}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    Broken(5, {"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
    Broken(5, {"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
    Broken(5, {"top_p": 1.5}, "`top_p` must be > 0.0 and < 1.0"),
    Broken(6, {"typical_p": 0}, "`typical_p` must be > 0.0 and < 1.0"),
    Broken(6, {"typical_p": 1.5}, "`typical_p` must be > 0.0 and < 1.0"),
    Broken(7, {"top_k": 0}, "`top_k` must be strictly positive"),
    Broken(7, {"top_k": -3}, "`top_k` must be strictly positive"),
    Broken(8, {"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    Broken(9, {"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5"),
    Broken(10, {"seed": 1, "best_of": 2, "do_sample": True}, "`seed` must not be set when `best_of` > 1"),
    Broken(11, {"top_n_tokens": 99}, "`top_n_tokens` must be >= 0 and <= 5. Given: 99"),
    Broken(12, {"text": ""}, "`inputs` cannot be empty"),
    Broken(13, {"truncate": 0}, "`truncate` must be strictly positive and less than 1500. Given: 0"),
    Broken(13, {"truncate": 1501}, "`truncate` must be strictly positive and less than 1500. Given: 1501"),
    Broken(
        14,
        {"text": "x" * 1499, "max_new_tokens": 502},
        "`inputs` tokens + `max_new_tokens` must be <= 2000. Given: 1499 `inputs` tokens and 502 `max_new_tokens`",
    ),
    # This one breaks the next rule too.
    Broken(
        14,
        {"text": "x" * 1501, "max_new_tokens": 500},
        "`inputs` tokens + `max_new_tokens` must be <= 2000. Given: 1501 `inputs` tokens and 500 `max_new_tokens`",
    ),
    Broken(15, {"text": "x" * 1501, "max_new_tokens": 5}, "`inputs` must have less than 1500 tokens. Given: 1501"),
    Broken(16, {"grammar": {"type": "json", "value": 5}}, "grammar is not supported"),
    Broken(17, {"adapter_id": "lora"}, "`adapter_id` is not supported"),
]
# What else is said of grammars, where there are any.
BROKEN_GRAMMARS = [
    Broken(16, {"grammar": grammar}, message)
    for grammar, message in (
        ({"type": "json", "value": "{"}, "grammar is not valid: unexpected end of data at line 1 column 2"),
        (
            {"type": "json", "value": {"type": "object"}},
            "grammar is not valid: Grammar must have a 'properties' field",
        ),
        (
            {"type": "json", "value": {"properties": {"a": {"minLength": -1}}}},
            "grammar is not valid: `properties.a.minLength` must be a non-negative integer",
        ),
        (
            {"type": "json", "value": {"properties": {"a": {"$ref": "#/$defs/b"}}}},
            "cannot compile regex from schema: Pointer '/$defs/b' does not exist",
        ),
        ({"type": "regex", "value": "a\\"}, "grammar is not valid: it ends in the middle of an escape sequence"),
    )
]


def can_be_sent_together(first: Broken, second: Broken) -> bool:
    """Whether both rules are still broken when both are given; `first` goes before."""
    if first.given.keys() & second.given.keys():
        return False
    # Any of these asks for sampling, which the first rule wants.
    asks_for_sampling = second.given.keys() & {"temperature", "top_p", "typical_p", "top_k", "do_sample"}
    return not (first.rule == 1 and asks_for_sampling)
