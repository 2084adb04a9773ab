"""The results as Markdown: every contender's numbers, and ours as ratios to the best peer of no coarser weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.measuring import Results
from benchmarks.rates import Run

STREAMS = (1, 8, 32)
PREFILL = "prefill"


@dataclass(frozen=True)
class Column:
    title: str
    work: str
    value: Callable[[Run], float | None]
    form: str = "{:.1f}"
    smaller_is_better: bool = False
    any_precision: bool = False  # ours are compared with every peer; else with those of no coarser weights


def work_name(streams: int) -> str:
    return f"c={streams}"


def columns(streams: Sequence[int], prompt_tokens: int, prefill_tokens: int) -> list[Column]:
    """What is compared. The first token is that of one stream on an idle server."""
    return [
        *(Column(f"decode, c={n}", work_name(n), Run.decode_rate) for n in streams),
        *(Column(f"with prompts, c={n}", work_name(n), Run.total_rate) for n in streams),
        Column(
            f"first token of {prompt_tokens}, ms",
            work_name(min(streams)),
            lambda run: 1000 * run.first_token_s(),
            "{:.0f}",
            smaller_is_better=True,
            any_precision=True,
        ),
        Column(
            f"prefill of {prefill_tokens}",
            PREFILL,
            lambda run: prefill_tokens / run.first_token_s(),
            "{:.0f}",
            any_precision=True,
        ),
    ]


def full_table(names: Sequence[str], shown: Sequence[Column], results: Results, texts: Mapping[str, str]) -> str:
    """One row for each contender; rates in tokens per second."""
    lines = [
        "| | weights | via | " + " | ".join(column.title for column in shown) + " | greedy text |",
        "|---|---|---|" + "---:|" * len(shown) + "---|",
    ]
    for name in names:
        contender = CONTENDERS[name]
        cells = [_cell(value(results, name, column), column.form) for column in shown]
        title = f"**{contender.name}**" if contender.is_ours else contender.name
        lines.append(
            f"| {title} | {contender.weights} | {contender.via} | {' | '.join(cells)} | {texts.get(name, '-')} |"
        )
    return "\n".join(lines)


def ratio_table(names: Sequence[str], shown: Sequence[Column], results: Results) -> str:
    """How many times the best peer each of ours is, peers with coarser weights left out. Empty without both."""
    ours = [name for name in names if CONTENDERS[name].is_ours]
    if not ours or len(ours) == len(names):
        return ""
    lines = [
        "| times the best peer | " + " | ".join(CONTENDERS[name].label for name in ours) + " |",
        "|---|" + "---|" * len(ours),
    ]
    for column in shown:
        cells = []
        for name in ours:
            found = best_peer(name, names, column, results)
            mine = value(results, name, column)
            if mine is None or found is None:
                cells.append("-")
                continue
            peer, theirs = found
            ratio = theirs / mine if column.smaller_is_better else mine / theirs
            cells.append(f"{ratio:.2f} ({CONTENDERS[peer].label} {column.form.format(theirs)})")
        lines.append(f"| {column.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def best_peer(name: str, names: Sequence[str], column: Column, results: Results) -> tuple[str, float] | None:
    """The best of the peers that `name` is compared with, and its number.

    Those are the ones whose weights are no coarser; 8 bits also meet 4, which read less: the handicap is ours there.
    """
    bits = CONTENDERS[name].bits
    least = 4 if bits == 8 or column.any_precision else bits
    found = [
        (peer, number)
        for peer in names
        if not CONTENDERS[peer].is_ours and CONTENDERS[peer].bits >= least
        if (number := value(results, peer, column)) is not None
    ]
    if not found:
        return None
    choose = min if column.smaller_is_better else max
    return choose(found, key=lambda pair: pair[1])


def value(results: Results, name: str, column: Column) -> float | None:
    return results.median_of(name, column.work, column.value)


def common_prefix(text: str, reference: str) -> int:
    """Characters until two texts differ."""
    count = 0
    for one, other in zip(text, reference, strict=False):
        if one != other:
            break
        count += 1
    return count


def _cell(number: float | None, form: str) -> str:
    return "-" if number is None else form.format(number)
