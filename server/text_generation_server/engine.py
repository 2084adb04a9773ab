"""One rank's engine: a step request in, the step's samples out.

Holds the model, the KV cache and the sequence table, and runs on one thread (the device thread). `launch` puts a step's
work on the device without waiting for it; `finish` reads its results back. Knows nothing about gRPC, sockets or text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels.interface import (
    CapturedStep,
    CaptureRefused,
    Device,
    KVCache,
    MostLikelyOnHost,
    StepInputs,
)
from text_generation_proto import generate_pb2 as pb
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.parallel import TensorParallelGroup
from text_generation_server.sampling import (
    Sampler,
    SampleResult,
    SampleRow,
    describe,
    is_faulty,
    mark_faulty,
    token_logprobs,
)
from text_generation_server.selfcheck.replays import wrong_replay
from text_generation_server.sequences import ScoredSpan, SequenceTable, StepBatch

logger = logging.getLogger(__name__)

# Tokens of the largest step that is replayed: 130 MB of memory for a model of 7 billion weights. In a larger one the
# host's work between ops is under a hundredth of the whole.
_CAPTURED_TOKENS = 1024
# Prompt tokens scored at once: their logits are [this, vocab_size] float32, 25 MB for a vocabulary of 49,152.
_SCORED_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The KV cache and tables that warm-up settled on; the same on every rank."""

    num_blocks: int
    block_size: int
    max_sequences: int
    max_total_tokens: int


@dataclass(frozen=True, slots=True)
class _Computed:
    """What a step's forward pass gave this rank."""

    logits: Tensor | None = (
        None  # [num_logits, vocab_size] float32; None on ranks other than 0, and when no row samples
    )
    found: MostLikelyOnHost | None = None  # of the logits, where it came with them
    scored: tuple[tuple[ScoredSpan, Tensor], ...] = ()  # as in LaunchedStep


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose work has been handed to the device. Tensors are still there."""

    step_id: int
    samples: SampleResult | None  # None on ranks other than 0, and when no row samples
    row_num_sampled: tuple[int, ...]  # tokens of each sampled row; empty: one each
    sampled_table_index: list[int]  # [num_sampled_rows]
    logits: Tensor | None  # [num_logits, vocab_size] float32, whence the samples come; None like them
    kept: tuple[int, ...]  # rows of the logits, one for each sample; empty: all of them
    scored: tuple[tuple[ScoredSpan, Tensor], ...]  # with [count] float32 each; empty on ranks other than 0
    launched_ns: int
    sampling_ns: int  # when sampling was launched


class Engine:
    """Runs steps. Not thread-safe: one thread makes every call."""

    def __init__(
        self,
        model: CausalLM,
        device: Device,
        group: TensorParallelGroup,
        sampler: Sampler,
        block_size: int,
        *,
        capture_steps: bool = True,
    ) -> None:
        """
        Args:
            capture_steps: replay steps where the device can; False runs every step op by op.
        """
        self.model = model
        self.device = device
        self.group = group
        self.block_size = block_size
        self._sampler = sampler
        self._kv_caches: tuple[KVCache, ...] = ()
        self._table: SequenceTable | None = None
        self._capture_steps = capture_steps
        self._captured: CapturedStep | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of this rank."""
        ops, model = self.device.ops, self.model
        return model.num_layers * ops.kv_block_bytes(self.block_size, model.num_kv_heads_local, model.head_dim)

    def allocate(self, shape: CacheShape) -> None:
        """Make room for sequences, freeing what was there before."""
        self.free()
        model = self.model
        self._table = SequenceTable(
            shape.max_sequences,
            shape.max_total_tokens,
            shape.block_size,
            self.device.torch_device,
            token_multiple=self.device.ops.token_multiple,
        )
        self._kv_caches = tuple(
            self.device.ops.new_kv_cache(shape.num_blocks, shape.block_size, model.num_kv_heads_local, model.head_dim)
            for _ in range(model.num_layers)
        )
        self._captured = self._capture(shape) if self._capture_steps else None

    @torch.inference_mode()
    def check_replays(self) -> None:
        """Run every step op by op, and say so, if captured ones compute something else on this device. Called with
        empty caches, by all ranks."""
        if self._captured is None or self.device.kind == "cpu":
            return
        wrong = wrong_replay(self.model, self._captured, self._kv_caches, self.block_size)
        if wrong is not None:
            logger.warning("self-check: captured steps are wrong on %s (%s)", self.device.name, wrong)
        if not self.group.all_reduce_min(wrong is None):
            logger.warning("steps run op by op, since captured ones are wrong; --cuda-graphs 0 asks for that")
            self._captured = None

    def free(self) -> None:
        self._captured = None
        self._kv_caches = ()
        self._table = None

    def reset(self) -> None:
        """Forget every sequence; the cache's content becomes meaningless."""
        if self._table is not None:
            self._table.reset()

    def step(self, request: pb.StepRequest) -> pb.StepResponse:
        return self.finish(self.launch(request))

    def launch(self, request: pb.StepRequest) -> LaunchedStep:
        """Apply a step's differences and put its forward pass and sampling on the device."""
        if torch.is_inference_mode_enabled():  # for many steps at once: to enter and leave it takes some 35 us
            return self._launch(request)
        with torch.inference_mode():
            return self._launch(request)

    def _launch(self, request: pb.StepRequest) -> LaunchedStep:
        table = self._allocated_table()
        launched_ns = time.perf_counter_ns()
        table.apply(request)
        batch = table.batch(request)
        computed = self._compute(batch)
        sampling_ns = time.perf_counter_ns()
        row_num_sampled: tuple[int, ...] = ()
        kept: tuple[int, ...] = ()
        if batch.guesses is None:
            samples = self._sample(table, batch, computed)
        else:
            samples, row_num_sampled, kept = self._sample_guessed(table, batch, batch.guesses, computed)
        return LaunchedStep(
            step_id=request.step_id,
            samples=samples,
            row_num_sampled=row_num_sampled,
            sampled_table_index=batch.sampled_table_index,
            logits=computed.logits,
            kept=kept,
            scored=computed.scored,
            launched_ns=launched_ns,
            sampling_ns=sampling_ns,
        )

    def finish(self, launched: LaunchedStep) -> pb.StepResponse:
        """Read a launched step's results back, waiting for the device. Times are then those of the whole step.

        To be called before the next launch, which may reuse the memory of the logits.
        """
        response = pb.StepResponse(step_id=launched.step_id, row_num_sampled=launched.row_num_sampled)
        samples = launched.samples
        if samples is not None:
            response.token_ids.extend(samples.read_token_ids())
            for column, values in samples.read_numbers().items():
                getattr(response, column).extend(values)
            if samples.top is not None:
                response.top_counts.extend(samples.top.counts)
                response.top_token_ids.extend(samples.top.token_ids)
                response.top_logprobs.extend(samples.top.logprobs)
        for span, logprobs in launched.scored:
            response.prompt_logprobs.add(
                table_index=span.table_index, first_position=span.first_position, logprobs=logprobs.tolist()
            )
        for table_index, what in self._faults(launched, response).items():
            response.faults.add(
                table_index=table_index,
                message=f"the model gave {what}, by which no token can be chosen (step {launched.step_id}, "
                f"{self.device.name}); run `text-generation-server selfcheck` on this machine, and attach what "
                "`text-generation-server report` writes to a bug report",
            )
        if samples is None:
            self.device.synchronize()
        response.forward_ns = launched.sampling_ns - launched.launched_ns
        response.sample_ns = time.perf_counter_ns() - launched.sampling_ns
        return response

    def _faults(self, launched: LaunchedStep, response: pb.StepResponse) -> dict[int, str]:
        """What is wrong with the logits of a sequence, by table index: nothing, unless something is broken."""
        faults: dict[int, str] = {}
        for scores in response.prompt_logprobs:
            if any(map(is_faulty, scores.logprobs)):
                faults[scores.table_index] = "logits that are no numbers behind its prompt's tokens"
        for place, logprob in enumerate(response.logprobs):
            if is_faulty(logprob):
                assert launched.logits is not None
                owners = np.repeat(launched.sampled_table_index, launched.row_num_sampled or 1)
                row = launched.kept[place] if launched.kept else place
                faults[int(owners[place])] = describe(launched.logits[row], self.device.ops.saturates_at)
        return faults

    def _allocated_table(self) -> SequenceTable:
        assert self._table is not None, "a step before Warmup"
        return self._table

    def _capture(self, shape: CacheShape) -> CapturedStep | None:
        """None, with a line in the log, where steps of this model on this device cannot be captured."""

        def step(inputs: StepInputs) -> Tensor:
            return self.model.sampled_logits(inputs, self._kv_caches)

        try:
            with torch.inference_mode():
                max_blocks = -(-shape.max_total_tokens // shape.block_size)
                return self.device.capture(step, _CAPTURED_TOKENS, shape.max_sequences, max_blocks)
        except CaptureRefused as refused:
            logger.info("steps run op by op: %s", refused)
            return None

    def _compute(self, batch: StepBatch) -> _Computed:
        """Logits of the rows that sample, and scores of prompts."""
        inputs = StepInputs(batch.token_ids, batch.step, batch.sampled_token_index)
        if self._captured is not None and not batch.scored and self._captured.fits(inputs):
            if not batch.sampled_table_index:
                self._captured(inputs)
                return _Computed()
            if self.group.world_size > 1:  # this rank's columns are not all
                return _Computed(self.model.head.gather(self._captured(inputs)))
            own, found = self._captured.with_most_likely(inputs)
            return _Computed(self.model.head.gather(own) if found is None else own, found)
        hidden = self.model.forward(batch.token_ids, batch.step, self._kv_caches)
        scored = self._score_prompts(batch, hidden)
        if not batch.sampled_table_index:
            return _Computed(scored=scored)
        logits = self.model.logits(self.device.ops.embedding(batch.sampled_token_index, hidden))
        return _Computed(logits, scored=scored)

    def _sample(self, table: SequenceTable, batch: StepBatch, computed: _Computed) -> SampleResult | None:
        """Sample on rank 0 and tell the ids to all, so that ranks cannot disagree."""
        indices = batch.sampled_table_index
        if not indices:
            return None
        samples: SampleResult | None = None
        logits = computed.logits
        if logits is not None:
            if not batch.masks and all(table.is_plain[index] for index in indices):
                samples = self._sampler.likeliest(logits, computed.found)
            else:
                rows = self._sample_rows(table, indices, batch.masks)
                samples = self._sampler.sample(logits, rows, computed.found)
        table.append_sampled(indices, self._broadcast(samples, len(indices)))
        return samples

    def _broadcast(self, samples: SampleResult | None, num_ids: int) -> Tensor | list[int]:
        """The token ids of rank 0's samples, which are None on the others."""
        token_ids = None if samples is None else samples.token_ids
        if isinstance(token_ids, list):  # found by the captured step, and so by a rank of its own
            return token_ids
        return self.group.broadcast_ids(token_ids, num_ids)

    def _sample_guessed(
        self,
        table: SequenceTable,
        batch: StepBatch,
        guesses: tuple[tuple[int, ...], ...],
        computed: _Computed,
    ) -> tuple[SampleResult | None, tuple[int, ...], tuple[int, ...]]:
        """Sample behind every row's last known token and behind each guess, and keep what is right.

        A row's tokens are those that steps of one token each would have given: noise and penalties depend on position
        and history alone, and a sample counts only where all guesses before it came true. Waits for the device.

        Returns: the kept samples (None on ranks other than 0), how many each row has, and of which logits they are.
        """
        indices = batch.sampled_table_index
        samples: SampleResult | None = None
        if computed.logits is not None:
            rows = [
                self._sample_row(table, index, batch.masks.get(index), num_guesses)
                for index, guessed in zip(indices, guesses, strict=True)
                for num_guesses in range(len(guessed) + 1)
            ]
            samples = self._sampler.sample(computed.logits, rows, computed.found)
        token_ids = self._broadcast(samples, len(batch.sampled_token_index))
        sampled = token_ids if isinstance(token_ids, list) else token_ids.tolist()
        kept: list[int] = []  # places in `sampled`
        row_token_ids: list[list[int]] = []
        first = 0
        for guessed in guesses:
            of_row = sampled[first : first + len(guessed) + 1]
            num_right = _num_right(guessed, of_row)
            kept.extend(range(first, first + num_right + 1))
            row_token_ids.append(of_row[: num_right + 1])
            first += len(of_row)
        table.append_guessed(indices, row_token_ids)
        return None if samples is None else samples.select(kept), tuple(map(len, row_token_ids)), tuple(kept)

    @classmethod
    def _sample_rows(cls, table: SequenceTable, indices: Sequence[int], masks: Mapping[int, bytes]) -> list[SampleRow]:
        return [cls._sample_row(table, index, masks.get(index)) for index in indices]

    @staticmethod
    def _sample_row(table: SequenceTable, index: int, mask: bytes | None, num_guesses: int = 0) -> SampleRow:
        """`num_guesses`: of those written behind the last known token, how many are taken for true."""
        return SampleRow(
            parameters=table.sampling[index],
            position=table.num_known(index) + num_guesses,
            history=table.history(index, num_guesses) if table.sampling[index].needs_history else None,
            top_n_tokens=table.top_n_tokens[index],
            num_prompt_tokens=table.num_prompt(index),
            mask=mask,
        )

    def _score_prompts(self, batch: StepBatch, hidden: Tensor) -> tuple[tuple[ScoredSpan, Tensor], ...]:
        """Log-probabilities of the prompt tokens that were asked for. Every rank takes part; rank 0 has the result."""
        scored: list[tuple[ScoredSpan, Tensor]] = []
        for span in batch.scored:
            token_ids = self._allocated_table().token_ids[
                span.table_index, span.first_position : span.first_position + span.count
            ]
            parts: list[Tensor] = []
            for start in range(0, span.count, _SCORED_AT_ONCE):
                stop = min(start + _SCORED_AT_ONCE, span.count)
                logits = self.model.logits(hidden[span.first_hidden + start : span.first_hidden + stop])
                if logits is not None:
                    best = self.device.ops.most_likely(logits)
                    scores = token_logprobs(logits, token_ids[start:stop], best)
                    parts.append(mark_faulty(scores, logits, best, self.device.ops.saturates_at))
            if parts:
                scored.append((span, torch.cat(parts)))
        return tuple(scored)


def _num_right(guessed: Sequence[int], sampled: Sequence[int]) -> int:
    """How many guesses came true before the first that did not. `sampled`: one more than there are guesses."""
    for place, guess in enumerate(guessed):
        if guess != sampled[place]:
            return place
    return len(guessed)
