"""Whole servers on emulated NPUs, one chip of each family: what they serve is what the model says.

Between them they cover one and two shards, graphs and steps op by op, weights in ND and NZ, heads that the fused ops
take and heads that they do not, prompts cut into chunks, and prefixes found in the cache. The witness is transformers
in float32 on the CPU; float16 may part from it where two tokens are nearly as likely.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tests.support.asking import ask, client_of
from tests.support.checkpoints import make_checkpoint
from tests.support.servers import serving
from tests.support.witness import Witness
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_server.download import demo_model_folder

ROOT = Path(__file__).parents[2]
# In logits: nearer ones may change places by rounding to float16.
NEAR_TIE = 0.02
NUM_LAYERS = 4
NUM_NEW_TOKENS = 16
SENTENCE = "The quick brown fox jumps over the lazy dog, and then a server reads a request. "
# Repeated until it is longer than a block of 128 tokens and than two steps of 96; the tiny tokenizer makes more of it.
NUM_SENTENCES = {"demo": 12, "wide": 5}


@dataclass(frozen=True)
class Case:
    """One server, and lines that its log must and must not have."""

    chip: str
    model: str  # "demo" or "wide"
    options: tuple[str, ...]
    said: tuple[str, ...]
    unsaid: tuple[str, ...] = ()


CASES = (
    Case(
        "Ascend910PremiumA",
        "demo",
        ("--weight-layout", "nz"),
        # The head is the embedding, too, and that is looked up.
        (
            "family A1, linear weights: NZ 16/17 (1 ND: its rows are looked up",
            "graphs are not used on family A1",
            "self-check of Ascend910PremiumA: 12 ops in",
        ),
    ),
    Case(
        "Ascend310P3",
        "wide",
        ("--num-shard", "2"),
        ("on Ascend310P3 (torch_npu, family 310P", "blocks of 128 in nz: using _npu_paged_attention by tokens"),
    ),
    Case(
        "Ascend910B4",
        "demo",
        ("--cuda-graphs", "1,2,4"),
        ("family A2, linear weights: ND 17/17", "using npu_fused_infer_attention_score BSND"),
        ("steps run op by op",),
    ),
    Case(
        "Ascend910_9391",
        "wide",
        ("--num-shard", "2", "--weight-layout", "nz"),
        ("family A3, linear weights: NZ 17/17",),
        ("steps run op by op", "BSND"),
    ),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "demo": cut_demo_model(folder / "demo"),
        # Heads of 128, which TND, ATB and the fused rotation take; random weights.
        "wide": make_checkpoint(
            folder / "wide",
            hidden_size=256,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=128,
            intermediate_size=512,
            num_hidden_layers=NUM_LAYERS,
            dtype="bfloat16",
        ),
    }


def cut_demo_model(folder: Path) -> Path:
    """The demo model's first layers: a model of its own, with real weights."""
    source = demo_model_folder()
    folder.mkdir()
    kept = {}
    for path in source.glob("*.safetensors"):
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                parts = name.split(".")
                if "layers" not in parts or int(parts[parts.index("layers") + 1]) < NUM_LAYERS:
                    kept[name] = weights.get_tensor(name)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    for path in source.glob("*.json"):
        if "index" not in path.name:
            (folder / path.name).write_text(path.read_text())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": NUM_LAYERS}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.chip)
def test_greedy_text_is_the_models_up_to_near_ties(case: Case, models: dict[str, Path]) -> None:
    folder = models[case.model]
    environ = {EMULATOR_VARIABLE: case.chip, "PYTHONPATH": str(ROOT / "emulator")}
    limits = (
        *("--dtype", "float16", "--max-total-tokens", "384", "--max-batch-prefill-tokens", "96"),
        *("--max-concurrent-requests", "4"),
    )
    long_prompt = SENTENCE * NUM_SENTENCES[case.model]
    prompts = ["What is the capital of France?", long_prompt, "One two three"]
    with serving("--model-id", str(folder), "--device", "npu", *limits, *case.options, environ=environ) as server:
        with client_of(server) as client, ThreadPoolExecutor(len(prompts)) as pool:
            asked = [pool.submit(ask, client, prompt, max_new_tokens=NUM_NEW_TOKENS) for prompt in prompts]
            answers = [future.result() for future in asked]
            again = ask(client, long_prompt, max_new_tokens=NUM_NEW_TOKENS)  # its first block is in the cache now
        log = server.log
    tokenizer, witness = Tokenizer.from_file(str(folder / "tokenizer.json")), Witness(folder)
    for prompt, answer in zip([*prompts, long_prompt], [*answers, again], strict=True):
        prompt_ids = tokenizer.encode(prompt).ids
        assert prompt != long_prompt or len(prompt_ids) > 192
        witness.assert_greedy(prompt_ids, answer.ids, NEAR_TIE)
    assert "Traceback" not in log
    for line in case.said:
        assert line in log
    for line in case.unsaid:
        assert line not in log
