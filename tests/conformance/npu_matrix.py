"""The demo model on emulated NPUs, in every combination of chip, shards, captured graphs and weight layout: does each
server answer what the model says? `make conformance-npu` runs this; a table of it stands in docs/ascend.md.

The judge is transformers in float32 on the CPU: every token must be the likeliest after those before it, or, since the
chips compute in float16, less than NEAR_TIE behind it. Nine attention heads can be split over one or three shards.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.machine import machine_line
from benchmarks.report import NoPlace, check_page, publish
from tests.support.asking import ask, client_of
from tests.support.servers import start_launcher, wait_healthy
from tests.support.witness import Witness
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_server.download import demo_model_folder

NAME = "conformance-npu"
ROOT = Path(__file__).parents[2]
NEAR_TIE = 0.02  # in logits
NUM_NEW_TOKENS = 16
STEP_TOKENS = 96
START_TIMEOUT_S = 600.0
CHIPS = ("Ascend910PremiumA", "Ascend310P3", "Ascend910B4", "Ascend910_9391")
WITH_GRAPHS = CHIPS[2:]
_STORY = "The quick brown fox jumps over the lazy dog, and then a server reads a request. "
# Several blocks of 128 tokens and several steps of STEP_TOKENS; then others that begin in the same way.
_LONG = _STORY * 14
PROMPTS = (
    _LONG,
    "What is the capital of France?",
    "One two three",
    "def fibonacci(n):\n",
    "Once upon a time there was",
    "北京是",
    "The three laws of motion are: 1.",
    "Q: What is 7 times 8?\nA:",
)
# Asked when the first ones have been answered, so that their beginning is in the cache.
PROMPTS_WITH_PREFIX = (_LONG, _LONG[: len(_LONG) * 3 // 4] + "Then it answered:")


@dataclass(frozen=True)
class Server:
    """One combination."""

    chip: str
    num_shards: int
    is_captured: bool
    layout: str  # "nd" or "nz"

    def __str__(self) -> str:
        return f"{self.chip} {self.num_shards} {'captured' if self.is_captured else 'eager'} {self.layout}"

    @property
    def options(self) -> tuple[str, ...]:
        return (
            *(
                "--device",
                "npu",
                "--dtype",
                "float16",
                "--num-shard",
                str(self.num_shards),
                "--weight-layout",
                self.layout,
            ),
            *("--cuda-graphs", "1,2,4,8" if self.is_captured else "0"),
            *("--max-total-tokens", "512", "--max-batch-prefill-tokens", str(STEP_TOKENS)),
            *("--max-concurrent-requests", str(len(PROMPTS))),
        )

    @property
    def environ(self) -> dict[str, str]:
        return {EMULATOR_VARIABLE: self.chip, f"{EMULATOR_VARIABLE}_DEVICES": "3", "PYTHONPATH": str(ROOT / "emulator")}


@dataclass(frozen=True)
class Outcome:
    """What one server's answers were worth."""

    num_tokens: int
    num_parted: int  # tokens that are not the likeliest
    largest_gap: float  # between those and the likeliest, in logits
    hit_tokens: int  # prompt tokens that were found in the cache
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.largest_gap < NEAR_TIE and self.hit_tokens > 0


def servers() -> Iterator[Server]:
    for chip, num_shards, is_captured, layout in product(CHIPS, (1, 3), (False, True), ("nd", "nz")):
        if chip in WITH_GRAPHS or not is_captured:
            yield Server(chip, num_shards, is_captured, layout)


def run(server: Server, witness: Witness, tokenizer: Tokenizer) -> Outcome:
    """Start it, ask it, and judge its answers. Raises: AssertionError, when it is not what it was asked to be."""
    began_s = time.monotonic()
    folder = demo_model_folder()
    with start_launcher("--model-id", str(folder), *server.options, environ=server.environ) as running:
        wait_healthy(running, START_TIMEOUT_S)
        with client_of(running) as client, ThreadPoolExecutor(len(PROMPTS)) as pool:

            def answers(prompts: Sequence[str]) -> list[list[int]]:
                asked = [pool.submit(ask, client, prompt, max_new_tokens=NUM_NEW_TOKENS) for prompt in prompts]
                return [future.result().ids for future in asked]

            found = answers(PROMPTS)
            hit_before = running.metric("tgi_prefix_cache_hit_tokens")
            found += answers(PROMPTS_WITH_PREFIX)
            hit_tokens = int(running.metric("tgi_prefix_cache_hit_tokens") - hit_before)
        log = running.log
    assert "Traceback" not in log, log
    assert not (server.is_captured and "run op by op" in log), log
    assert ("linear weights: NZ" in log) is (server.layout == "nz"), log
    gaps: list[float] = []
    for prompt, token_ids in zip([*PROMPTS, *PROMPTS_WITH_PREFIX], found, strict=True):
        logprobs = witness.logprobs(tokenizer.encode(prompt).ids, token_ids)
        chosen = logprobs[range(len(token_ids)), token_ids]
        gaps += (logprobs.amax(dim=-1) - chosen).tolist()
    parted = [gap for gap in gaps if gap > 0]
    return Outcome(len(gaps), len(parted), max(parted, default=0.0), hit_tokens, time.monotonic() - began_s)


def table(outcomes: Sequence[tuple[Server, Outcome | None]]) -> str:
    """None: the server could not be judged."""
    lines = [
        f"Emulated chips, {machine_line()}: {len(PROMPTS) + len(PROMPTS_WITH_PREFIX)} prompts of {NUM_NEW_TOKENS} new "
        f"tokens each, float16, steps of up to {STEP_TOKENS} prompt tokens. A token that is not the likeliest of the "
        f"float32 model must be less than {NEAR_TIE:g} behind it.",
        "",
        "| chip | shards | steps | weights | tokens | not the likeliest | largest gap | found in the cache | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for server, outcome in outcomes:
        steps = "captured" if server.is_captured else "eager"
        cells = [server.chip, str(server.num_shards), steps, server.layout.upper()]
        if outcome is None:
            cells += ["", "", "", "", "failed"]
        else:
            cells += [str(outcome.num_tokens), str(outcome.num_parted), f"{outcome.largest_gap:.4f}"]
            cells += [str(outcome.hit_tokens), "as the CPU" if outcome.is_right else "differs"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every server that was run answers as the CPU does."""
    parser = argparse.ArgumentParser(prog="npu_matrix", description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--write", type=Path, action="append", default=[], help="page to put the table into; repeat it")
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=CHIPS, help="only these chips")
    parser.add_argument("--shards", nargs="+", type=int, choices=(1, 3), default=(1, 3), help="only these numbers")
    options = parser.parse_args(argv)
    try:
        for page in options.write:
            check_page(page, NAME)
    except NoPlace as error:
        print(error, file=sys.stderr)
        return 2
    witness = Witness(demo_model_folder())
    tokenizer = Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))
    outcomes: list[tuple[Server, Outcome | None]] = []
    for server in servers():
        if server.chip not in options.chips or server.num_shards not in options.shards:
            continue
        outcome = None
        try:
            outcome = run(server, witness, tokenizer)
        except AssertionError as error:
            print(f"{server}: {error}", file=sys.stderr)
        outcomes.append((server, outcome))
        print(f"{server}: {outcome}", file=sys.stderr, flush=True)
    text = table(outcomes)
    publish(None, NAME, text)
    for page in options.write:
        publish(page, NAME, text)
    return 0 if all(outcome is not None and outcome.is_right for _, outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
