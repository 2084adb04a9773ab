"""A model on its device compared with the same weights on the CPU, in float32 and undivided.

What goes into a layer on the device goes into the CPU's, too, so an error is the layer's own. With several ranks the
comparison is that of all of them together with one, since the CPU's layer has all heads. Rank 0 compares; the others
compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from text_generation_kernels.checks.comparing import row_error
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import KVCache, StepMetadata
from text_generation_server.layers.decoder import DecoderLayer
from text_generation_server.layers.vocabulary import embedding_name, head_name
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.parallel import LoneRank, TensorParallelGroup
from text_generation_server.rope import RopeTable
from text_generation_server.selfcheck.verdict import ModelFinding
from text_generation_server.weights.checkpoint import Checkpoint
from text_generation_server.weights.shard_reader import ShardReader

# A multiple of what steps are rounded up to.
_NUM_TOKENS = 32
# Where the prompt is cut for the second run: a prompt, a chunk behind it, and one token.
_CUTS = (16, _NUM_TOKENS - 1, _NUM_TOKENS)
# Of what a layer adds to the residual stream.
_ADDED = 0.03
# Roundings of the stream itself, which may be much larger than what is added to it.
_ROUNDINGS = 4
# Of logits: rounding of every layer on the way, twice. Of the head's own, once.
_LOGITS = {torch.float16: 0.03, torch.bfloat16: 0.15, torch.float32: 0.01}
_OWN = 0.02
# Rows of the head and the embedding that are read again: some from all over the vocabulary.
_SPANS, _SPAN_ROWS = 4, 128


@dataclass
class _Trace:
    """What went into some layers, and what came out of the last."""

    wanted: frozenset[int]
    states: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def __call__(self, index: int, x: Tensor, residual: Tensor | None) -> None:
        if index in self.wanted:
            self.states[index] = (_host(x), None if residual is None else _host(residual))

    def stream(self, index: int) -> Tensor:
        """The residual stream in front of a layer: [num_tokens, hidden_size] float32."""
        x, residual = self.states[index]
        return x if residual is None else x + residual


def _host(x: Tensor) -> Tensor:
    return x.cpu().float().clone()


class ModelComparison:
    """
    Args:
        folder: that the model was loaded from.
    """

    def __init__(self, model: CausalLM, folder: Path, group: TensorParallelGroup, block_size: int) -> None:
        self._model = model
        self._folder = folder
        self._group = group
        self._block_size = block_size
        generator = torch.Generator().manual_seed(0)
        self._token_ids = torch.randint(model.config.vocab_size, (_NUM_TOKENS,), generator=generator)
        last = model.num_layers - 1
        self._layers = sorted({0, last // 2, last})

    @torch.inference_mode()
    def findings(self) -> tuple[ModelFinding, ...]:
        """Run the model in two ways, and compare. All ranks call it; those other than 0 get nothing."""
        if self._model.max_positions < _NUM_TOKENS:
            return ()  # a model for shorter texts than that is a toy of a test
        trace = _Trace(frozenset({*self._layers, *(index + 1 for index in self._layers)}))
        hidden = self._run(self._new_caches(), 0, _NUM_TOKENS, trace)
        whole = self._model.logits(hidden[_NUM_TOKENS - 1 : _NUM_TOKENS])
        caches, start = self._new_caches(), 0
        for end in _CUTS:
            hidden = self._run(caches, start, end)
            start, num_new = end, end - start
        pieces = self._model.logits(hidden[num_new - 1 : num_new])
        if self._group.rank != 0:
            return ()
        assert whole is not None
        assert pieces is not None
        found = [self._compare_pieces(whole.cpu(), pieces.cpu())]
        with Checkpoint(self._folder) as checkpoint:
            found += self._compare_ends(checkpoint, trace, whole.cpu())
            found += self._compare_layers(checkpoint, trace)
        return tuple(found)

    def _new_caches(self) -> list[KVCache]:
        model, blocks = self._model, -(-_NUM_TOKENS // self._block_size)
        return [
            model.device.ops.new_kv_cache(blocks, self._block_size, model.num_kv_heads_local, model.head_dim)
            for _ in range(model.num_layers)
        ]

    def _run(self, caches: list[KVCache], start: int, end: int, trace: _Trace | None = None) -> Tensor:
        device = self._model.device.torch_device
        step = _step(start, end, self._block_size, self._model.device.ops.token_multiple, device)
        token_ids = torch.zeros(len(step.positions), dtype=torch.int64)
        token_ids[: end - start] = self._token_ids[start:end]
        return self._model.forward(token_ids.to(device), step, caches, trace)

    def _compare_pieces(self, whole: Tensor, pieces: Tensor) -> ModelFinding:
        """Logits of a prompt at once, and of its beginning, a chunk and one decoded token."""
        limit = _LOGITS[self._model.device.ops.activation_dtype]
        error = row_error(pieces, whole) / limit
        wrong = f"logits of a prompt in pieces are off by {limit * error:.2g} of their size" if error > 1 else None
        return ModelFinding("a prompt in pieces", error, wrong=wrong)

    def _compare_ends(self, checkpoint: Checkpoint, trace: _Trace, logits: Tensor) -> Iterator[ModelFinding]:
        config = self._model.config
        table = embedding_name(checkpoint, config)
        rows = torch.cat([checkpoint.get_rows(table, token, token + 1) for token in self._token_ids.tolist()]).float()
        embedded, _ = trace.states[0]
        error = max(map(row_error, embedded[:_NUM_TOKENS, None], rows[:, None])) / _OWN  # however short a row is
        yield ModelFinding("the embedding", error, wrong=_off("the embedding", error, _OWN))

        stream = trace.stream(config.num_layers)[_NUM_TOKENS - 1].double()
        norm = checkpoint.get("model.norm.weight").double()
        normed = stream / torch.sqrt(stream.square().mean() + config.rms_norm_eps) * norm
        name, size = head_name(checkpoint, config), min(_SPAN_ROWS, config.vocab_size)
        starts = [(config.vocab_size - size) * part // max(_SPANS - 1, 1) for part in range(_SPANS)]
        expected = torch.cat([checkpoint.get_rows(name, at, at + size).double() @ normed for at in starts])
        seen = torch.cat([logits[0, at : at + size] for at in starts])
        error = row_error(seen[None], expected[None]) / _OWN
        yield ModelFinding("the head", error, wrong=_off("logits", error, _OWN))

    def _compare_layers(self, checkpoint: Checkpoint, trace: _Trace) -> Iterator[ModelFinding]:
        config, cpu = self._model.config, CpuDevice(torch.float32)
        reader = ShardReader(checkpoint, cpu, torch.float32)
        step = _step(0, _NUM_TOKENS, self._block_size, 1, cpu.torch_device)
        rope = RopeTable(config.rope, config.head_dim, self._model.max_positions, cpu).at(step.positions)
        blocks = -(-_NUM_TOKENS // self._block_size)
        for index in self._layers:
            layer = DecoderLayer.load(reader, config, LoneRank(), index)
            cache = cpu.ops.new_kv_cache(blocks, self._block_size, config.num_kv_heads, config.head_dim)
            x, residual = (None if part is None else part[:_NUM_TOKENS].clone() for part in trace.states[index])
            assert x is not None
            after, stream = layer(x, residual, rope, cache, step)
            yield self._compare_layer(index, trace, (after + stream).float())

    def _compare_layer(self, index: int, trace: _Trace, expected: Tensor) -> ModelFinding:
        before, after = (trace.stream(place)[:_NUM_TOKENS] for place in (index, index + 1))
        dtype = self._model.device.ops.activation_dtype
        added = (expected - before).norm(dim=1)
        allowed = _ADDED * added + _ROUNDINGS * torch.finfo(dtype).eps * expected.norm(dim=1)
        errors = (after - expected).norm(dim=1) / allowed.clamp(min=1e-30)
        error = float(errors.nan_to_num(float("inf")).max())
        parts = [part for part in trace.states[index + 1] if part is not None]
        largest = max(float(part.abs().max()) for part in parts)
        limit = torch.finfo(dtype).max
        saturated = sum(int((part.abs() >= limit).sum()) for part in parts) / sum(part.numel() for part in parts)
        wrong = None
        if error > 1:
            token = int(errors.nan_to_num(float("inf")).argmax())
            wrong = (
                f"layer {index} is off by {error:.3g} times what is allowed (token {token} of {_NUM_TOKENS}; "
                f"activations up to {largest:.3g}, {saturated:.2%} of them at the limit of {dtype})"
            )
        return ModelFinding(f"layer {index}", error, largest, saturated, wrong)


def _step(start: int, end: int, block_size: int, multiple: int, device: torch.device) -> StepMetadata:
    """One sequence's tokens [start, end), in the first blocks."""
    num_tokens = end - start
    padding = -num_tokens % multiple
    positions = torch.arange(start, end, dtype=torch.int64)
    return StepMetadata(
        positions=torch.cat([positions, torch.zeros(padding, dtype=torch.int64)]).to(device),
        slot_mapping=torch.cat([positions, torch.full((padding,), -1)]).to(device, torch.int32),
        block_tables=torch.arange(-(-_NUM_TOKENS // block_size), dtype=torch.int32)[None].to(device),
        cu_seqlens_q=(0, num_tokens),
        kv_lens=(end,),
    )


def _off(what: str, error: float, limit: float) -> str | None:
    return f"{what} is off by {error * limit:.2g} of its size; {limit:g} is allowed" if error > 1 else None
