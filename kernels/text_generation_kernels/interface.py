"""The seam between models and devices: one flat set of ops, and a few services of a device.

A backend implements `Ops` and `Device` once; layers call them and hold no other knowledge of where they run. Layouts
of packed weights and of the KV cache belong to the backend: nothing outside it may look into `PackedWeight.data` or
`KVCache`. Which sequence a token belongs to is an argument (`StepMetadata`), never a module variable.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A linear layer's weight in the layout that its backend multiplies with."""

    data: Any  # the backend's own
    out_features: int
    in_features: int
    layout: str  # what `data` is, for reports: "nd", "nz", "panels_f32" ...
    nbytes: int


@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's keys and values, in blocks. Shapes and layout are the backend's; `block_size` is in tokens."""

    k: Tensor
    v: Tensor
    block_size: int


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Where each token of a step stands. Rows lie one after the other in the flat batch, without padding.

    A row may be empty only if the whole step is. Lengths stay on the host, where the router's plan made them known.
    Behind the last row a step may have tokens of no row, where the ops want its size to be a multiple of something:
    they are written nowhere and attend to nothing.
    """

    positions: Tensor  # [num_tokens] int64 on the device: each token's position in its sequence
    slot_mapping: Tensor  # [num_tokens] int32 on the device: block_id * block_size + offset; -1 writes nothing
    block_tables: Tensor  # [num_rows, max_blocks] int32 on the device; entries past a row's last block are 0
    cu_seqlens_q: tuple[int, ...]  # [num_rows + 1] on the host: where each row's tokens begin; starts with 0
    kv_lens: tuple[int, ...]  # [num_rows] on the host: tokens visible to the row's last token, cached and new

    @property
    def num_rows(self) -> int:
        return len(self.kv_lens)

    @property
    def num_tokens(self) -> int:
        return self.cu_seqlens_q[-1]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All that differs from one step of a model to the next."""

    token_ids: Tensor  # [num_tokens] int64 on the device
    step: StepMetadata
    sampled: (
        Tensor  # [num_sampled] int64 on the device: the tokens, by place in the flat batch, whose logits are wanted
    )


class Filters(Protocol):
    """How a row's distribution is changed before a token is drawn from it. `Ops.draw` says what each does."""

    @property
    def temperature(self) -> float: ...  # above 0
    @property
    def top_k(self) -> int: ...  # 0: off
    @property
    def top_p(self) -> float: ...  # above 0; 1: off
    @property
    def typical_p(self) -> float: ...  # above 0; 1: off


class MostLikely(NamedTuple):
    """Each row's most likely token, and what makes log-probabilities of all its logits.

    The log-probability of a token is (its logit - value) - log_sum: no digits are lost to the size of the logits.
    """

    ids: Tensor  # [num_rows] int64; the first of equal ones
    values: Tensor  # [num_rows] float32: their logits
    log_sums: Tensor  # [num_rows] float32: log(sum(exp(logits - value))), at least 0


class MostLikelyOnHost(NamedTuple):
    """`MostLikely` of a device that lies on the host and does not saturate, and what is mostly wanted of it as Python's
    numbers: after a model's kernels, which leave nothing else in the caches, reading tensors takes some 0.07 ms."""

    tensors: MostLikely
    vocab_size: int
    ids: list[int]
    log_sums: list[float]


# A model step as ops: from its inputs to logits [num_sampled, vocab_size].
StepFunction = Callable[[StepInputs], Tensor]


class CaptureRefused(Exception):
    """A step cannot be captured. The message names the op, or the device, that stands in the way."""


class CapturedStep(ABC):
    """A step function that was recorded once and is replayed as a whole, over memory of its own."""

    max_tokens: int
    max_sampled: int

    def fits(self, inputs: StepInputs) -> bool:
        """Whether the step is small enough to be replayed."""
        return inputs.step.num_tokens <= self.max_tokens and len(inputs.sampled) <= self.max_sampled

    @abstractmethod
    def __call__(self, inputs: StepInputs) -> Tensor:
        """What the function returns, to the last bit; the caller's until the next call."""

    def with_most_likely(self, inputs: StepInputs) -> tuple[Tensor, MostLikelyOnHost | None]:
        """What a call returns, and `Ops.most_likely` of it, to the last bit; tensors are the caller's until the next
        call.

        None in its place is the answer of a device that gains nothing by finding both in one go.
        """
        return self(inputs), None


class Ops(ABC):
    """The ops. Every implementation has the same signatures and the same side effects.

    `dtype` below is the backend's activation dtype (float32 on the CPU). All tensors are on the backend's device, and
    contiguous in their last dimension. Results are new tensors owned by the caller unless "in place" is said.
    """

    name: str
    activation_dtype: torch.dtype
    token_multiple: int = 1  # sizes of steps are to be rounded up to this
    spare_kv_blocks: int = 0  # blocks that `new_kv_cache` allocates beside those that were asked for
    # Where the chip saturates, what an overflow becomes, with either sign; a NaN becomes 0 there. Else both show.
    saturates_at: float = math.inf

    @property
    def description(self) -> str:
        """What computes, in a few words, for a log line."""
        return self.name

    @abstractmethod
    def can_embed(self, weight: PackedWeight) -> bool:
        """Whether `embedding` can read this weight, so that a tied pair is held once."""

    @abstractmethod
    def pack_weight(self, weight: Tensor) -> PackedWeight:
        """Lay out a linear weight once, at load.

        Args:
            weight: [out_features, in_features], any float dtype, on the host or the device. May be freed afterwards:
                the result never shares memory with a tensor that something else still uses, unless it is `weight`
                itself in the right layout already.
        """

    def pack_table(self, table: Tensor) -> PackedWeight:
        """`pack_weight` of a weight whose rows are looked up, too: in a layout that `embedding` reads, where one serves
        both."""
        return self.pack_weight(table)

    @abstractmethod
    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        """x @ weight.T + bias.

        Args:
            x: [num_tokens, in_features] dtype.
            bias: [out_features] dtype.
        Returns: [num_tokens, out_features] dtype.
        """

    @abstractmethod
    def embedding(self, token_ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
        """Rows of a table: of token embeddings, of rotary angles by position, of hidden states by place.

        Args:
            token_ids: [num_tokens] int64, each within the table.
            weight: [num_embeddings, hidden_size], any float dtype; packed too where `can_embed`.
        Returns: [num_tokens, hidden_size] dtype.
        """

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the mean in float32 (arXiv:1910.07467).

        Args:
            x: [..., size] dtype; weight: [size] dtype.
        """

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Add a sublayer's output to the residual stream and normalize the sum.

        Args:
            x, residual: [num_tokens, hidden_size] dtype.
        Returns: (rms_norm(x + residual), x + residual). `residual` may be overwritten.
        """

    @abstractmethod
    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate the first 2 * rotary_half dimensions of each head; pairs are (i, i + rotary_half).

        That is arXiv:2104.09864 in the half-split form that Hugging Face checkpoints are stored for.

        Args:
            q: [num_tokens, num_heads, head_dim] dtype; k: [num_tokens, num_kv_heads, head_dim] dtype. May be strided
                views into one fused projection, and may be overwritten.
            cos, sin: [num_tokens, rotary_half] float32, already at each token's position.
        Returns: rotated (q, k).
        """

    @abstractmethod
    def silu_and_mul(self, x: Tensor) -> Tensor:
        """silu(gate) * up, for x = [gate | up].

        Args:
            x: [num_tokens, 2 * intermediate_size] dtype.
        Returns: [num_tokens, intermediate_size] dtype.
        """

    @abstractmethod
    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KVCache:
        """Allocate one layer's cache, zeroed."""

    @abstractmethod
    def kv_block_bytes(self, block_size: int, num_kv_heads: int, head_dim: int) -> int:
        """Bytes that one block of one layer takes, keys and values together."""

    @abstractmethod
    def check_block_size(self, block_size: int) -> None:
        """Raise ValueError, naming the allowed sizes, when `attention` cannot take blocks of this size."""

    @abstractmethod
    def store_kv(self, k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
        """Write a step's keys and values into one layer's cache, in place.

        Args:
            k, v: [num_tokens, num_kv_heads, head_dim] dtype.
            slot_mapping: [num_tokens] int32; -1 leaves the cache as it is.
        """

    def cache_contents(self, cache: KVCache) -> tuple[Tensor, Tensor] | None:
        """What one layer's cache holds, for checks: (keys, values), each [num_blocks, block_size, num_kv_heads,
        head_dim] float32 on the host. None where only `attention` can read the layout."""
        return None

    @abstractmethod
    def attention(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        """Causal attention of each token over its own sequence, keys and values read from the paged cache.

        The step's own keys and values have been stored before. Whole prompts, chunks, cached prefixes and decode rows
        are one case: token i of a row with n tokens sees the first kv_len - n + i + 1 positions. Query head h reads
        key/value head h // (num_heads // num_kv_heads).

        Args:
            q: [num_tokens, num_heads, head_dim] dtype.
        Returns: [num_tokens, num_heads, head_dim] dtype.
        """

    def outside(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Do what is no op in the middle of a step: what ranks say to each other, and what torch must compute.

        A captured step calls the function again, in its place, over memory of its own.

        Args:
            function: from x, which it may change and return, to a float32 tensor with as many rows; without ops that
                are to be captured.
            x: an op's result as it is, or the step's token_ids.
        """
        return function(x)

    # The rest choose tokens, between steps. A row of NaN, which only a broken model gives, still gets ids within the
    # vocabulary, and a log_sum of NaN.

    @abstractmethod
    def most_likely(self, logits: Tensor) -> MostLikely:
        """The best token of each row, and its sum of exponentials.

        Args:
            logits: [num_rows, vocab_size] float32.
        """

    @abstractmethod
    def top_k(self, logits: Tensor, rows: Sequence[int], k: int) -> tuple[Tensor, Tensor]:
        """The k largest logits of some rows, best first. Which of those that tie with the k-th are left out, and the
        order of equal ones, is the backend's choice.

        Args:
            logits: [num_logits, vocab_size] float32.
            rows: which of them, in any order.
            k: 1 ... vocab_size.
        Returns: ([len(rows), k] float32 logits, [len(rows), k] int64 ids).
        """

    @abstractmethod
    def draw(
        self, logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]
    ) -> Tensor:
        """Draw one token for each of some rows: scores are logits divided by the temperature, and then these act in
        this order, each on what the one before has left, renormalized:

          top_k      keeps the k best tokens, and those whose score ties with the k-th
          top_p      keeps the best tokens until their mass reaches p; of equal ones lower ids come first
          typical_p  keeps the tokens whose surprise is nearest to the entropy until their mass reaches p, and those
                     that tie with the last (arXiv:2202.00666)

        The token is the first, in the order of ids, at which the cumulative distribution of those that are left exceeds
        the uniform number; never one of probability 0.

        Args:
            logits: [num_logits, vocab_size] float32; -inf is never drawn.
            rows: which of them, in any order.
            filters, uniforms: one for each of `rows`; uniforms in [0, 1).
        Returns: [len(rows)] int64 ids.
        """


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of a device, in bytes."""

    total_bytes: int
    free_bytes: int  # what this process may still allocate, a container's limit counted
    outside_bytes: int = 0  # used, and no tensor of this process: other processes, communicators, the runtime's own


class Device(ABC):
    """One device of one process."""

    kind: str  # "cpu" or "npu"
    name: str  # "cpu", "Ascend910B4"
    torch_device: torch.device
    ops: Ops
    default_block_size: int
    process_group_backend: str  # torch.distributed's name: "gloo" or "hccl"
    has_bfloat16: bool = True
    broadcasts: bool = True  # whether that backend has broadcast

    def enter_thread(self) -> None:
        """To be called by every thread that uses the device, before it does: each thread has a current card."""
        return None

    @abstractmethod
    def memory(self) -> MemoryInfo:
        """What is there and what is free now."""

    @abstractmethod
    def used_memory_bytes(self) -> int:
        """What this process holds on the device now."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Begin a measurement of `peak_memory_bytes`."""

    @abstractmethod
    def peak_memory_bytes(self) -> int:
        """The most that this process has held since `reset_peak_memory`, above what it held then."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything launched has finished; errors of the device surface here."""

    def settle(self) -> None:
        """The caches have the size that they keep. What this sets going may continue while steps run."""
        return None

    @abstractmethod
    def capture(self, function: StepFunction, max_tokens: int, max_sampled: int, max_blocks: int) -> CapturedStep:
        """Record a step function, so that steps up to a size can be replayed without the host's work between ops.

        The function is run a few times on made-up tokens, which write nothing into the caches. Whatever it does between
        ops must be views, or go through `Ops.outside`.

        Args:
            max_blocks: of a row, in `block_tables`.
        Raises: CaptureRefused.
        """
