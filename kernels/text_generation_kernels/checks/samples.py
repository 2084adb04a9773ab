"""What is computed on a device and held against the reference: for each op a few samples, in a model's own sizes.

Numbers of tokens go below, onto and beyond the tiles of every chip, sequences across the edges of blocks and beyond
what fits a compressed mask, norms to values whose squares float16 cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from text_generation_kernels.checks.comparing import TOLERANCE, row_error, wrong_row
from text_generation_kernels.checks.paging import PagedSample, Row, paged_sample
from text_generation_kernels.checks.places import Place, back
from text_generation_kernels.checks.shapes import ModelSizes
from text_generation_kernels.reference import surviving

NUM_TOKENS = (1, 17, 130)
# Beyond the 2048 that compressed masks are made for.
_LONG = 2100
_MANY = 33
_SAMPLED_ROWS = 3
# Uniform numbers nearer than this to the border of a token's interval may fall to its neighbour, by rounding.
_BORDER = 1e-3

Compute = Callable[[Place], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Sample:
    """One computation of one op."""

    op: str  # as candidates are listed under
    name: str  # its shapes, for messages
    compute: Compute
    tolerance: float | None = None  # of a row's size; None: what the dtype allows

    def error_at(self, place: Place) -> tuple[float, str | None]:
        """Compute it and compare.

        Returns: (largest share of a row's size, None or what is wrong in a few words).
        Raises: whatever the device does.
        """
        actual, expected = back(self.compute(place)), self.expected(place)
        worst = 0.0
        if not actual:  # a cache that only attention can read, whose samples show what was written
            return worst, None
        limit = TOLERANCE[place.dtype] if self.tolerance is None else self.tolerance
        for seen, wanted in zip(actual, expected, strict=True):
            if not wanted.is_floating_point():
                if not torch.equal(seen, wanted):
                    return float("inf"), f"{int((seen != wanted).sum())} of {wanted.numel()} values differ"
                continue
            error = row_error(seen, wanted)
            worst = max(worst, error)
            if error > limit:
                return error, _difference(seen, wanted, error, limit)
        return worst, None

    def expected(self, place: Place) -> tuple[Tensor, ...]:
        if place.dtype not in self._expected:
            self._expected[place.dtype] = back(self.compute(place.reference()))
        return self._expected[place.dtype]

    @cached_property
    def _expected(self) -> dict[torch.dtype, tuple[Tensor, ...]]:
        return {}


def _difference(seen: Tensor, wanted: Tensor, error: float, limit: float) -> str:
    if seen.shape != wanted.shape:
        return f"its shape is {list(seen.shape)} and not {list(wanted.shape)}"
    row = f", most in row {wrong_row(seen, wanted)} of {len(wanted)}" if len(wanted) > 1 else ""
    return f"off by {error:.2g} of the values' size{row}; {limit:g} is allowed"


def samples(sizes: ModelSizes) -> Iterator[Sample]:
    """All of them, those that others depend on first."""
    yield from _linears(sizes)
    yield from _norms(sizes)
    yield from _rotations(sizes)
    yield from _activations(sizes)
    yield from _writes(sizes)
    yield from _attentions(sizes)
    yield from _choices(sizes.vocab_size)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _linears(sizes: ModelSizes) -> Iterator[Sample]:
    for out_features, in_features in sizes.linears:
        generator = _generator(out_features)
        weight = torch.randn(out_features, in_features, generator=generator) * in_features**-0.5
        bias = torch.randn(out_features, generator=generator)
        for num_tokens in NUM_TOKENS:
            x = torch.randn(num_tokens, in_features, generator=generator)
            has_bias = sizes.has_qkv_bias and num_tokens == NUM_TOKENS[1]

            name = f"{num_tokens} tokens of {in_features} to {out_features}{' with bias' if has_bias else ''}"
            yield Sample("linear", name, partial(_linear, x, weight, bias if has_bias else None))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, place: Place) -> tuple[Tensor, ...]:
    packed = place.ops.pack_weight(weight.to(place.dtype))
    return (place.ops.linear(place.put(x), packed, None if bias is None else place.put(bias)),)


def _norms(sizes: ModelSizes) -> Iterator[Sample]:
    eps = sizes.norm_eps
    widths = [sizes.hidden_size, *([sizes.head_dim] if sizes.has_head_norm else [])]
    for width in widths:
        generator = _generator(width)
        weight = 1 + 0.1 * torch.randn(width, generator=generator)
        # 600: its square is beyond float16. 0.01: its square is what eps is.
        for num_tokens, scale in zip((*NUM_TOKENS, 3), (1.0, 600.0, 1.0, 0.01), strict=True):
            x = scale * torch.randn(num_tokens, width, generator=generator)
            yield Sample("rms_norm", f"{num_tokens} tokens of {width}, size {scale:g}", partial(_norm, x, weight, eps))
    generator = _generator(1)
    weight = 1 + 0.1 * torch.randn(sizes.hidden_size, generator=generator)
    for num_tokens, scale in zip(NUM_TOKENS, (1.0, 600.0, 1.0), strict=True):
        x, residual = (scale * torch.randn(num_tokens, sizes.hidden_size, generator=generator) for _ in range(2))
        name = f"{num_tokens} tokens of {sizes.hidden_size}, size {scale:g}"
        yield Sample("add_rms_norm", name, partial(_add_norm, x, residual, weight, eps))


def _norm(x: Tensor, weight: Tensor, eps: float, place: Place) -> tuple[Tensor, ...]:
    return (place.ops.rms_norm(place.put(x), place.put(weight), eps),)


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, place: Place) -> tuple[Tensor, ...]:
    return place.ops.add_rms_norm(place.put(x), place.put(residual), place.put(weight), eps)


def _rotations(sizes: ModelSizes) -> Iterator[Sample]:
    counts = [sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads]
    # Each with other angles: a table that is kept from the first call is wrong in the next.
    for num_tokens in NUM_TOKENS:
        generator = _generator(num_tokens)
        fused = torch.randn(num_tokens, sum(counts), sizes.head_dim, generator=generator)
        angles = 10 * torch.randn(num_tokens, sizes.head_dim // 2, generator=generator)

        def compute(place: Place, fused: Tensor = fused, angles: Tensor = angles) -> tuple[Tensor, ...]:
            q, k, _ = torch.split(place.put(fused), counts, dim=1)  # views into one projection, as in a layer
            return place.ops.rotary(q, k, place.place(angles.cos()), place.place(angles.sin()))

        yield Sample("rotary", f"{num_tokens} tokens, {sizes.heads}", compute)


def _activations(sizes: ModelSizes) -> Iterator[Sample]:
    for num_tokens in NUM_TOKENS:
        x = 3 * torch.randn(num_tokens, 2 * sizes.intermediate_size, generator=_generator(num_tokens))
        yield Sample("silu_and_mul", f"{num_tokens} tokens of {sizes.intermediate_size}", partial(_activation, x))


def _activation(x: Tensor, place: Place) -> tuple[Tensor, ...]:
    return (place.ops.silu_and_mul(place.put(x)),)


def _writes(sizes: ModelSizes) -> Iterator[Sample]:
    num_blocks = max(4, -(-2 * max(NUM_TOKENS) // sizes.block_size))
    num_slots = num_blocks * sizes.block_size
    for num_tokens in NUM_TOKENS:
        generator = _generator(num_tokens)
        whole, k, v = (
            torch.randn(count, sizes.num_kv_heads, sizes.head_dim, generator=generator)
            for count in (num_slots, num_tokens, num_tokens)
        )
        slots = torch.randperm(num_slots, generator=generator)[:num_tokens].to(torch.int32)
        if num_tokens > 1:
            slots[::5] = -1  # written nowhere

        def compute(
            place: Place, whole: Tensor = whole, k: Tensor = k, v: Tensor = v, slots: Tensor = slots
        ) -> tuple[Tensor, ...]:
            ops = place.ops
            cache = ops.new_kv_cache(num_blocks, sizes.block_size, sizes.num_kv_heads, sizes.head_dim)
            before = place.put(whole)
            ops.store_kv(before, before, cache, place.place(torch.arange(num_slots, dtype=torch.int32)))
            ops.store_kv(place.put(k), place.put(v), cache, place.place(slots))
            return ops.cache_contents(cache) or ()

        name = f"{num_tokens} tokens into blocks of {sizes.block_size}, {sizes.heads}"
        yield Sample("store_kv", name, compute, tolerance=0.0)


def _attentions(sizes: ModelSizes) -> Iterator[Sample]:
    block = sizes.block_size
    kinds: dict[str, dict[str, tuple[Row, ...]]] = {
        "attention_decode": {
            "1 row of 1 token": (Row(0, 1),),
            "5 rows of up to 260 tokens": tuple(Row(cached, 1) for cached in (3, block - 1, block, 40, 2 * block + 3)),
            f"{_MANY} rows of up to 9 tokens": tuple(Row(row % 9, 1) for row in range(_MANY)),
            f"1 row of {_LONG + 1} tokens": (Row(_LONG, 1),),
        },
        "attention_prefill": {
            "1 prompt of 17 tokens": (Row(0, 17),),
            "prompts of 130, 2 and 33 tokens": (Row(0, 130), Row(0, 2), Row(0, 33)),
        },
        "attention_chunk": {
            "a chunk of 17 behind 5 tokens": (Row(5, 17),),
            f"chunks of 40, 2 and 18 behind {block}, {block - 1} and {_LONG} tokens": (
                Row(block, 40),
                Row(block - 1, 2),
                Row(_LONG, 18),
            ),
            "two decodes, a prompt and a chunk": (Row(30, 1), Row(block, 1), Row(0, 19), Row(21, 6)),
        },
    }
    for op, shapes in kinds.items():
        for seed, (name, rows) in enumerate(shapes.items()):
            sample = paged_sample(rows, sizes, _generator(seed))
            # Probabilities are rounded on the way, and keys and values may be to less than the activations.
            tolerance = TOLERANCE[torch.bfloat16]
            yield Sample(op, f"{name}, {sizes.heads}", partial(_attention, sample), tolerance)


def _attention(sample: PagedSample, place: Place) -> tuple[Tensor, ...]:
    return (sample.attention(place),)


class _Filter(NamedTuple):
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0


_FILTERS = (_Filter(0.7), _Filter(top_k=20), _Filter(top_p=0.8))


def _choices(vocab_size: int) -> Iterator[Sample]:
    """Choosing tokens. Of what is drawn, the distance from the token's interval is compared, which should be none."""
    logits = 4 * torch.randn(_SAMPLED_ROWS, vocab_size, generator=_generator(vocab_size))
    rows = list(range(_SAMPLED_ROWS))
    k = min(5, vocab_size)

    def most_likely(place: Place) -> tuple[Tensor, ...]:
        return tuple(place.ops.most_likely(place.place(logits)))

    def top_k(place: Place) -> tuple[Tensor, ...]:
        return place.ops.top_k(place.place(logits), rows, k)

    uniforms = (0.25, 0.5, 0.75)

    def draw(place: Place) -> tuple[Tensor, ...]:
        drawn = place.ops.draw(place.place(logits), rows, _FILTERS, uniforms).tolist()
        far = [
            _outside(token_id, surviving(row, filters), uniform)
            for token_id, row, filters, uniform in zip(drawn, logits.tolist(), _FILTERS, uniforms, strict=True)
        ]
        return (torch.tensor(far),)

    name = f"{_SAMPLED_ROWS} rows of {vocab_size}"
    tolerance = TOLERANCE[torch.float32]
    yield Sample("most_likely", name, most_likely, tolerance)
    yield Sample("top_k", f"{k} of {name}", top_k, tolerance)
    yield Sample("draw", name, draw)


def _outside(token_id: int, probabilities: dict[int, float], uniform: float) -> bool:
    """Whether a token's interval of the cumulative distribution is clearly elsewhere."""
    if token_id not in probabilities:
        return True
    start = sum(share for other, share in probabilities.items() if other < token_id)
    return not start - _BORDER <= uniform <= start + probabilities[token_id] + _BORDER


def by_op(found: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Samples of each op, in the order of their first."""
    grouped: dict[str, list[Sample]] = {}
    for sample in found:
        grouped.setdefault(sample.op, []).append(sample)
    return grouped
