"""The demo model gives over HTTP what transformers gives for the same folder in float32."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import PreTrainedTokenizerBase

from tests.support.asking import Question, ask, ask_at_once, client_of
from tests.support.servers import Server
from tests.support.witness import TIE, Witness

_STORY = (
    "The lighthouse keeper had not spoken to anyone for eleven days when the boat came. It carried two crates of oil, "
    "a letter with a broken seal, and a boy of about twelve who said that he had been told to wait there. The keeper "
    "read the letter twice, first standing in the doorway and then sitting on the lower stair, and each time he "
    "reached the end he looked up at the boy as if he might have changed in between. "
)
_CODE = '''import json
from pathlib import Path


def read_settings(path: Path) -> dict[str, str]:
    """Read a settings file; a missing one is empty."""
    if not path.exists():
        return {}
    with path.open() as file:
        values = json.load(file)
    return {key: str(value) for key, value in values.items()}


def write_settings(path: Path, values: dict[str, str]) -> None:
'''

PLAIN = (
    "The",
    "Once upon a time",
    "The capital of France is",
    "1 + 1 = 2, 2 + 2 = 4, 3 + 3 =",
    "def fibonacci(n: int) -> int:\n",
    _CODE,
    "Le café était fermé à cause de la fête, et l'élève",
    "Die größte Stadt in Österreich heißt",
    "日本の首都は",
    "中国的首都是北京。法国的首都是",
    "안녕하세요, 제 이름은",
    "I love this! 🎉🎉 My favourite emoji are 😀, 🚀 and",
    '{"name": "Alice", "age": 30, "tags": ["a", "b"], "address": {',
    "  \n\n\tindented   text with  3  spaces and 2024 digits 1234567890:",
    _STORY,
    _STORY * 2 + _STORY[:240],
)
CHAT = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Give me three names for a cat, as a list.",
    "Summarize this in one sentence: " + _STORY,
)
NUM_NEW_TOKENS = 64


def as_chat(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    rendered: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return rendered


def test_capital_of_france_is_paris(demo_server: Server, demo_tokenizer: PreTrainedTokenizerBase) -> None:
    with client_of(demo_server) as client:
        answer = ask(client, as_chat(demo_tokenizer, "What is the capital of France?"), max_new_tokens=20)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "eos_token"


def test_greedy_text_of_20_prompts_sent_at_once_is_that_of_transformers(
    demo_server: Server, demo_witness: Witness, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    """1 to about 250 tokens; words, code, accents, CJK, emoji, JSON, white space, plain and through the template.

    Two of the answers are also compared with the library's own token-by-token generation.
    """
    prompts = [*PLAIN, *(as_chat(demo_tokenizer, text) for text in CHAT)]
    prompt_ids = [demo_tokenizer(prompt)["input_ids"] for prompt in prompts]
    lengths = [len(ids) for ids in prompt_ids]
    assert len(prompts) == 20
    assert min(lengths) == 1
    assert max(lengths) >= 200

    questions = [Question(prompt, {"max_new_tokens": NUM_NEW_TOKENS}) for prompt in prompts]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_at_once, demo_server, questions)
        generated = {index: demo_witness.generate(prompt_ids[index], NUM_NEW_TOKENS) for index in (11, 17)}
        answers = asked.result()

    for ids, answer in zip(prompt_ids, answers, strict=True):
        assert (len(answer.ids), answer.finish_reason) == (NUM_NEW_TOKENS, "length") or (
            answer.finish_reason == "eos_token"
        )
        demo_witness.assert_greedy(ids, answer.ids)
        text = demo_tokenizer.decode(answer.ids, skip_special_tokens=True)
        assert answer.text == text
    for index, ids in generated.items():
        assert answers[index].ids == ids


@pytest.mark.parametrize("prompt", [PLAIN[2], PLAIN[11]], ids=["words", "emoji"])
def test_top_tokens_are_the_log_softmax_of_transformers(
    demo_server: Server, demo_witness: Witness, demo_tokenizer: PreTrainedTokenizerBase, prompt: str
) -> None:
    """`top_n_tokens: 5` and the chosen token, at each of 12 positions, to 1e-4."""
    parameters = {"max_new_tokens": 12, "details": True, "top_n_tokens": 5}
    details = demo_server.generate(prompt, **parameters)["details"]
    output_ids = [token["id"] for token in details["tokens"]]
    expected = demo_witness.logprobs(demo_tokenizer(prompt)["input_ids"], output_ids)
    assert len(details["top_tokens"]) == len(output_ids)
    for position, (token, top_tokens) in enumerate(zip(details["tokens"], details["top_tokens"], strict=True)):
        assert token["logprob"] == pytest.approx(float(expected[position, token["id"]]), abs=TIE)
        values = expected[position].topk(5).values.tolist()
        assert [top["logprob"] for top in top_tokens] == pytest.approx(values, abs=TIE)
        for top in top_tokens:
            assert top["logprob"] == pytest.approx(float(expected[position, top["id"]]), abs=TIE)
            assert top["text"] == demo_tokenizer.decode([top["id"]])
        assert len({top["id"] for top in top_tokens}) == 5


def test_prompt_logprobs_are_the_log_softmax_of_transformers(
    demo_server: Server, demo_witness: Witness, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    """`decoder_input_details`: every prompt token after the first, which has none, to 1e-4."""
    prompt = _STORY
    parameters = {"max_new_tokens": 1, "details": True, "decoder_input_details": True}
    prefill = demo_server.generate(prompt, **parameters)["details"]["prefill"]
    prompt_ids = demo_tokenizer(prompt)["input_ids"]
    assert [token["id"] for token in prefill] == prompt_ids
    assert prefill[0]["logprob"] is None
    expected = demo_witness.logprobs(prompt_ids[:1], prompt_ids[1:])
    for position, token in enumerate(prefill[1:]):
        assert token["logprob"] == pytest.approx(float(expected[position, token["id"]]), abs=TIE)
