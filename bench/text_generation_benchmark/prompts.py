"""Requests for the runs: prompts of exactly the wanted length, and parameters checked by the router's own rules.

Token ids are what counts, not what the text says; it is text all the same, since a model with experts or a guesser of
next tokens would not treat random ids as it treats its users' words.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from huggingface_hub import hf_hub_download

from text_generation_benchmark.errors import BenchmarkError
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_proto import generate_pb2 as pb
from text_generation_router.errors import InvalidRequest
from text_generation_router.parameters import GenerateParameters
from text_generation_router.scheduling.request import Request
from text_generation_router.tokenizer import Tokenizer, TokenizerError
from text_generation_router.validation import Limits, Validator

_TEXT = (
    "The ferry leaves the village at seven, when the fog is still lying on the water and the gulls have not yet "
    "made up their minds about the day. On its lower deck stand crates of apples, two bicycles, a piano on its "
    "way to a school, and a dog that belongs to nobody in particular. The captain knows every passenger by name; "
    "she asks after the new roof, the old knee, the price of wool. Half an hour later the island comes out of the "
    "grey, first as a smell of smoke and wet stone, then as a line of lamps along the pier. Nobody hurries. The "
    "piano goes ashore last, on planks laid by eight men who argue in three languages about which way a piano is "
    "up. "
)


def load_tokenizer(settings: BenchmarkSettings, model_id: str) -> Tokenizer:
    """From a folder, or from the hub's cache or the hub. Raises: BenchmarkError."""
    name = settings.tokenizer_name or model_id
    folder = Path(name)
    try:
        if not folder.is_dir():
            folder = Path(hf_hub_download(name, "tokenizer.json", revision=settings.revision)).parent
        return Tokenizer.from_folder(folder, num_workers=1)
    except TokenizerError as error:
        raise BenchmarkError(f"{error}; name a folder that has one by --tokenizer-name") from None
    except Exception as error:  # huggingface_hub's have no common class: a wrong name, no such file, no network
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BenchmarkError(
            f"{name} is no folder here, and its tokenizer could not be had from the hub: {reason} "
            "Name a local folder with a tokenizer.json by --tokenizer-name"
        ) from None


async def make_requests(
    settings: BenchmarkSettings, tokenizer: Tokenizer, info: pb.InfoResponse, count: int
) -> list[Request]:
    """Prompts that begin at different places of the text, so that a batch is not one sequence many times.

    No token ends a sequence: every one has its full length. Raises: BenchmarkError.
    """
    length = settings.sequence_length
    token_ids = await tokenizer.encode(_TEXT, add_special_tokens=False)
    if max(token_ids) >= info.vocab_size:
        raise BenchmarkError(
            f"the tokenizer has token ids that the model of {info.vocab_size} has not; name the model's own by "
            "--tokenizer-name"
        )
    circle = token_ids * (length // len(token_ids) + 2)
    limits = Limits(
        max_best_of=1,
        max_stop_sequences=0,
        max_top_n_tokens=info.vocab_size,
        max_input_tokens=length,
        max_total_tokens=length + settings.decode_length,
        vocab_size=info.vocab_size,
        max_counted_new_tokens=settings.decode_length,
    )
    validator = Validator(tokenizer, limits)
    requests: list[Request] = []
    try:
        for number in range(count):
            start = number * 7 % len(token_ids)
            parameters = GenerateParameters(
                max_new_tokens=settings.decode_length,
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                typical_p=settings.typical_p,
                repetition_penalty=settings.repetition_penalty,
                frequency_penalty=settings.frequency_penalty,
                watermark=settings.watermark,
                do_sample=settings.do_sample,
                top_n_tokens=settings.top_n_tokens,
                seed=number,
            )
            valid = await validator.validate(circle[start : start + length], parameters)
            requests.append(replace(valid.request, eos_token_ids=frozenset()))
    except (InvalidRequest, ValueError) as error:
        reason = " ".join(str(error).split()).removeprefix("Input validation error: ")
        raise BenchmarkError(f"the options make no valid request: {reason}") from None
    return requests
