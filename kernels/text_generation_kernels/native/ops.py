"""The ops as calls into the native library: every argument is checked here, before C sees a pointer.

Each op fills in one instruction and runs it. While a step is being recorded (`capture`), the recorder sees the same
instructions with the tensors behind their pointers. Activations are float32. A row's result is the same to the last
bit whatever rows stand beside it and however many threads there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from text_generation_kernels.cpu.pages import LazyMemory
from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.interface import (
    CaptureRefused,
    Filters,
    KVCache,
    MostLikely,
    Ops,
    PackedWeight,
    StepMetadata,
)
from text_generation_kernels.native import library as c
from text_generation_kernels.native.library import Format, Ids, KernelError, Library, Op, Rows, Team
from text_generation_kernels.native.weights import FORMATS, Panels, WeightMemory, pack

LANES = 16
# With fewer rows to choose tokens from, the caller is done before another thread, which sleeps by then, has woken up.
_ROWS_FOR_A_TEAM = {Op.MOST_LIKELY: 8, Op.TOP_K: 8, Op.DRAW: 4}
_KV_FORMATS = {torch.float32: Format.F32, torch.bfloat16: Format.BF16}
# Bfloat16 numbers that tile products take for an activation: three are all of it. Two do where keys and values lose 16
# of their 24 bits: what two leave out changes log-probabilities 300 times less (docs/cpu-kernels.md).
_X_PARTS = {torch.float32: 3, torch.bfloat16: 2}


class Recorder(Protocol):
    """Sees each instruction, and each call of something else, after it has been run.

    Tensors that it reads and writes are by the name of the field that points into them. `constants` are what else it
    points into, weights and caches: they must live as long as the recording.
    """

    def add(
        self,
        instruction: c.Instruction,
        reads: Mapping[str, Tensor],
        writes: Mapping[str, Tensor],
        *,
        ids: Tensor | None,
        constants: tuple[object, ...],
    ) -> None: ...

    def add_call(self, function: Callable[[Tensor], Tensor], x: Tensor, result: Tensor) -> None: ...


class NativeCpuOps(Ops):
    """Weights in panels, caches in panels of sixteen tokens. One caller at a time.

    Args:
        num_threads: that compute an op together.
        instruction_set: one of the library's.
        kv_dtype: what keys and values are kept in: float32 or bfloat16. With bfloat16, AMX reads 17 bits of an
            activation.
        int8_group_size: quantizes every linear weight at load, this many input features to a scale; None: no weight.
    """

    name = "native"
    activation_dtype = torch.float32

    def __init__(
        self,
        library: Library,
        num_threads: int,
        instruction_set: str,
        kv_dtype: torch.dtype = torch.float32,
        int8_group_size: int | None = None,
    ) -> None:
        if kv_dtype not in _KV_FORMATS:
            raise ValueError(
                f"keys and values cannot be kept in {dtype_name(kv_dtype)} on the CPU; use float32 or bfloat16"
            )
        self.team = Team(library, num_threads, instruction_set)
        self._caller = Team(library, 1, instruction_set)  # the calling thread by itself
        self.kv_dtype = kv_dtype
        self.recorder: Recorder | None = None
        self._library = library
        self._int8_group_size = int8_group_size
        self._memory = WeightMemory()
        self.caches = LazyMemory()
        self._instruction = c.Instruction()
        self._metadata: StepMetadata | None = None  # of the last attention, and what C was told of it
        self._step = StepArguments()

    @property
    def description(self) -> str:
        threads = "1 thread" if self.team.num_threads == 1 else f"{self.team.num_threads} threads"
        return f"native {self.team.instruction_set} kernels, {threads}, keys and values in {dtype_name(self.kv_dtype)}"

    def can_embed(self, weight: PackedWeight) -> bool:
        panels: Panels = weight.data
        return panels.format is not Format.I8

    def pack_weight(self, weight: Tensor) -> PackedWeight:
        return pack(self._library, self._memory, weight, self._int8_group_size)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        _check_rows("linear", "x", x, weight.in_features)
        if bias is not None:
            _check_vector("linear", "bias", bias, weight.out_features)
        panels: Panels = weight.data
        out = torch.empty(x.shape[0], weight.out_features)
        arguments = c.Linear(
            x.data_ptr(), x.stride(0), out.data_ptr(), weight.out_features, panels.panels.data_ptr(),
            None if panels.scales is None else panels.scales.data_ptr(), None if bias is None else bias.data_ptr(),
            weight.out_features, weight.in_features, panels.group_size, panels.format, _X_PARTS[self.kv_dtype],
        )  # fmt: skip
        self._run(Op.LINEAR, arguments, c.Step(num_tokens=len(x)), {"x": x}, {"out": out}, constants=(weight, bias))
        return out

    def embedding(self, token_ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
        _check("embedding", "token_ids", token_ids, torch.int64, (None,))
        form: Format
        if isinstance(weight, PackedWeight):
            panels: Panels = weight.data
            table, form, stride = panels.panels, panels.format, 0
            if form is Format.I8:
                raise KernelError("embedding: an int8 weight is no table")
            num_rows, width = weight.out_features, weight.in_features
        else:
            if weight.dtype not in FORMATS:
                raise KernelError(f"embedding: weight is {dtype_name(weight.dtype)}; use float32, bfloat16 or float16")
            _check("embedding", "weight", weight, weight.dtype, (None, None))
            table, form, stride = weight, FORMATS[weight.dtype], weight.stride(0)
            num_rows, width = weight.shape
        out = torch.empty(len(token_ids), width)
        arguments = c.Embedding(
            table.data_ptr(), stride, num_rows, width, out.data_ptr(), width, form, Ids.TOKEN_IDS,
            isinstance(weight, PackedWeight),
        )  # fmt: skip
        step = c.Step(num_tokens=len(token_ids), token_ids=token_ids.data_ptr())
        self._run(Op.EMBEDDING, arguments, step, {"table": table}, {"out": out}, ids=token_ids, constants=(table,))
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dim() == 2:
            groups, group_stride = 1, 0
        elif x.dim() == 3:
            groups, group_stride = x.shape[1], x.stride(1)
        else:
            raise KernelError(f"rms_norm: x has {x.dim()} dimensions; use 2 or 3")
        size = x.shape[-1]
        _check("rms_norm", "x", x, torch.float32, x.shape)
        _check_vector("rms_norm", "weight", weight, size)
        out = torch.empty(x.shape)
        arguments = c.Norm(
            x.data_ptr(), x.stride(0), group_stride, None, 0, weight.data_ptr(), out.data_ptr(), groups * size, groups,
            size, eps,
        )  # fmt: skip
        self._run(Op.RMS_NORM, arguments, c.Step(num_tokens=len(x)), {"x": x}, {"out": out}, constants=(weight,))
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        _check("add_rms_norm", "weight", weight, torch.float32, (None,))
        size = len(weight)
        _check_rows("add_rms_norm", "x", x, size)
        _check("add_rms_norm", "residual", residual, torch.float32, x.shape)
        out = torch.empty(x.shape)
        arguments = c.Norm(
            x.data_ptr(), x.stride(0), 0, residual.data_ptr(), residual.stride(0), weight.data_ptr(), out.data_ptr(),
            size, 1, size, eps,
        )  # fmt: skip
        reads = {"x": x, "residual": residual}
        step = c.Step(num_tokens=len(x))
        self._run(Op.ADD_RMS_NORM, arguments, step, reads, {"out": out}, constants=(weight,))
        return out, residual

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        num_tokens, num_heads, head_dim = _check_heads("rotary", "q", q)
        _, num_kv_heads, _ = _check_heads("rotary", "k", k, (num_tokens, None, head_dim))
        _check("rotary", "cos", cos, torch.float32, (num_tokens, None))
        half = cos.shape[1]
        _check("rotary", "sin", sin, torch.float32, (num_tokens, half))
        if 2 * half > head_dim:
            raise KernelError(f"rotary: cos has {half} columns, more than half of head_dim {head_dim}")
        arguments = c.Rotary(
            q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), cos.data_ptr(), cos.stride(0), sin.data_ptr(),
            sin.stride(0), num_heads, num_kv_heads, head_dim, half,
        )  # fmt: skip
        reads = {"q": q, "k": k, "cos": cos, "sin": sin}
        self._run(Op.ROTARY, arguments, c.Step(num_tokens=num_tokens), reads, {})
        return q, k

    def silu_and_mul(self, x: Tensor) -> Tensor:
        _check("silu_and_mul", "x", x, torch.float32, (None, None))
        if x.shape[1] % 2:
            raise KernelError(f"silu_and_mul: x has {x.shape[1]} columns; they are a gate and as many more")
        width = x.shape[1] // 2
        out = torch.empty(len(x), width)
        arguments = c.Silu(x.data_ptr(), x.stride(0), out.data_ptr(), width, width)
        self._run(Op.SILU_AND_MUL, arguments, c.Step(num_tokens=len(x)), {"x": x}, {"out": out})
        return out

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KVCache:
        self.check_block_size(block_size)
        shape = (num_blocks, num_kv_heads, block_size, _padded(head_dim))
        k, v = self.caches.zeros(shape, self.kv_dtype), self.caches.zeros(shape, self.kv_dtype)
        return KVCache(k, v, block_size)

    def kv_block_bytes(self, block_size: int, num_kv_heads: int, head_dim: int) -> int:
        return 2 * block_size * num_kv_heads * _padded(head_dim) * self.kv_dtype.itemsize

    def check_block_size(self, block_size: int) -> None:
        if block_size < LANES or block_size % LANES:
            raise ValueError(f"block size {block_size} is not supported on the CPU; use a multiple of {LANES}")

    def store_kv(self, k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
        num_tokens, num_kv_heads, head_dim = _check_heads("store_kv", "k", k)
        _check_heads("store_kv", "v", v, (num_tokens, num_kv_heads, head_dim))
        _check("store_kv", "slot_mapping", slot_mapping, torch.int32, (num_tokens,))
        arguments = c.StoreKV(
            k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), self._cache("store_kv", cache, num_kv_heads, head_dim)
        )
        step = c.Step(num_tokens=num_tokens, slot_mapping=slot_mapping.data_ptr())
        self._run(Op.STORE_KV, arguments, step, {"k": k, "v": v}, {}, ids=slot_mapping, constants=(cache,))

    def attention(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        _, num_heads, head_dim = _check_heads("attention", "q", q, (step.num_tokens, None, None))
        num_kv_heads = cache.k.shape[1]
        if num_heads % num_kv_heads:
            raise KernelError(f"attention: {num_heads} query heads do not divide over {num_kv_heads} key/value heads")
        out = torch.empty(q.shape)
        arguments = c.Attention(
            q.data_ptr(), q.stride(0), out.data_ptr(), num_heads * head_dim,
            self._cache("attention", cache, num_kv_heads, head_dim), num_heads, scale,
        )  # fmt: skip
        if self._metadata is not step:  # the same for every layer of a step
            self._step.set_rows(step)
            self._metadata = step
        reads, ids = {"q": q}, step.block_tables
        self._run(Op.ATTENTION, arguments, self._step.struct, reads, {"out": out}, ids=ids, constants=(cache,))
        return out

    def outside(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        recorder, self.recorder = self.recorder, None  # what the function calls is its own
        try:
            result = function(x)
        finally:
            self.recorder = recorder
        if recorder is not None:
            recorder.add_call(function, x, result)
        return result

    def most_likely(self, logits: Tensor) -> MostLikely:
        _check("most_likely", "logits", logits, torch.float32, (None, None))
        num_rows = len(logits)
        best = MostLikely(torch.empty(num_rows, dtype=torch.int64), *torch.empty(2, num_rows).unbind())
        self._choose(Op.MOST_LIKELY, most_likely_arguments(logits, best), c.Step(num_tokens=num_rows))
        return best

    def top_k(self, logits: Tensor, rows: Sequence[int], k: int) -> tuple[Tensor, Tensor]:
        _check("top_k", "logits", logits, torch.float32, (None, None))
        num_logits, vocab_size = logits.shape
        size = (len(rows), max(k, 0))
        values, ids = torch.empty(size), torch.empty(size, dtype=torch.int64)
        arguments = c.TopK(
            logits.data_ptr(), logits.stride(0), num_logits, vocab_size, k, values.data_ptr(), ids.data_ptr()
        )
        picked = (ctypes.c_int64 * len(rows))(*rows)
        self._choose(Op.TOP_K, arguments, c.Step(num_tokens=len(rows), token_ids=ctypes.addressof(picked)))
        return values, ids

    def draw(
        self, logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]
    ) -> Tensor:
        _check("draw", "logits", logits, torch.float32, (None, None))
        if not len(rows) == len(filters) == len(uniforms):
            raise KernelError(f"draw: {len(filters)} filters and {len(uniforms)} uniforms for {len(rows)} rows")
        num_logits, vocab_size = logits.shape
        ids = torch.empty(len(rows), dtype=torch.int64)
        settings = (c.Filters * len(rows))()
        for place, wanted, uniform in zip(settings, filters, uniforms, strict=True):
            place.top_p, place.typical_p, place.uniform = wanted.top_p, wanted.typical_p, uniform
            place.top_k, place.temperature = wanted.top_k, wanted.temperature
        arguments = c.Draw(logits.data_ptr(), logits.stride(0), num_logits, vocab_size, settings, ids.data_ptr())
        picked = (ctypes.c_int64 * len(rows))(*rows)
        self._choose(Op.DRAW, arguments, c.Step(num_tokens=len(rows), token_ids=ctypes.addressof(picked)))
        return ids

    def _choose(self, op: Op, arguments: ctypes.Structure, step: c.Step) -> None:
        if self.recorder is not None:
            raise CaptureRefused(f"{op.name.lower()}: tokens are chosen between steps, not in one")
        self._run_by(self._caller if step.num_tokens < _ROWS_FOR_A_TEAM[op] else self.team, op, arguments, step)

    def _cache(self, op: str, cache: KVCache, num_kv_heads: int, head_dim: int) -> c.Cache:
        num_blocks = len(cache.k)
        expected = (num_blocks, num_kv_heads, cache.block_size, _padded(head_dim))
        for name, tensor in (("cache.k", cache.k), ("cache.v", cache.v)):
            _check(op, name, tensor, self.kv_dtype, expected)
            if not tensor.is_contiguous():
                raise KernelError(f"{op}: {name} is not contiguous")
        return c.Cache(
            cache.k.data_ptr(), cache.v.data_ptr(), num_blocks, cache.block_size, num_kv_heads, head_dim,
            _KV_FORMATS[self.kv_dtype],
        )  # fmt: skip

    def _run(
        self,
        op: Op,
        arguments: ctypes.Structure,
        step: c.Step,
        reads: Mapping[str, Tensor],
        writes: Mapping[str, Tensor],
        *,
        ids: Tensor | None = None,
        constants: tuple[object, ...] = (),
    ) -> None:
        self._run_by(self.team, op, arguments, step)
        if self.recorder is not None:
            self.recorder.add(self._instruction, reads, writes, ids=ids, constants=constants)

    def _run_by(self, team: Team, op: Op, arguments: ctypes.Structure, step: c.Step) -> None:
        instruction = self._instruction
        instruction.op, instruction.rows = op, Rows.TOKENS
        setattr(instruction.arguments, c.MEMBERS[op], arguments)
        team.run(instruction, 1, step)


class StepArguments:
    """`Step` as C reads it, and the memory of its lists. Tensors given to it must outlive its use.

    A tensor that is the one of the step before, with the same shape wanted, is not looked at again.
    """

    def __init__(self) -> None:
        self.struct = c.Step()
        self._pointed: dict[str, tuple[Tensor, tuple[int | None, ...]]] = {}  # by field
        self._lengths: tuple[int, ...] = ()  # what cu_seqlens_q was filled from
        self._cu_seqlens_q = (ctypes.c_int64 * 1)()
        self._kv_lens = (ctypes.c_int64 * 0)()

    def set_rows(self, step: StepMetadata) -> int:
        """Rows, lengths, block tables and slots of a step. Returns: its number of tokens."""
        num_rows, num_tokens = step.num_rows, step.num_tokens
        struct = self.struct
        self._point("slot_mapping", step.slot_mapping, torch.int32, (num_tokens,))
        if self._point("block_tables", step.block_tables, torch.int32, (num_rows, None)):
            if not step.block_tables.is_contiguous():
                raise KernelError("step: block_tables is not contiguous")
            struct.max_blocks = step.block_tables.shape[1]
        self._point("positions", step.positions, torch.int64, (num_tokens,))
        if len(step.cu_seqlens_q) != num_rows + 1:
            raise KernelError(f"step: {len(step.cu_seqlens_q)} cu_seqlens_q for {num_rows} rows")
        struct.num_tokens, struct.num_rows = num_tokens, num_rows
        if step.cu_seqlens_q is not self._lengths:
            self._lengths = step.cu_seqlens_q
            self._cu_seqlens_q = (ctypes.c_int64 * (num_rows + 1))(*step.cu_seqlens_q)
            struct.cu_seqlens_q = ctypes.addressof(self._cu_seqlens_q)
        if len(self._kv_lens) != num_rows:
            self._kv_lens = (ctypes.c_int64 * num_rows)()
            struct.kv_lens = ctypes.addressof(self._kv_lens)
        self._kv_lens[:] = list(step.kv_lens)
        return num_tokens

    def set_tokens(self, token_ids: Tensor, sampled: Tensor) -> int:
        """The step's token ids, and which of its tokens are sampled. Returns: how many those are."""
        struct = self.struct
        self._point("token_ids", token_ids, torch.int64, (struct.num_tokens,))
        if self._point("sampled", sampled, torch.int64, (None,)):
            struct.num_sampled = sampled.shape[0]
        return int(struct.num_sampled)

    def _point(self, field: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> bool:
        """Returns: whether it was looked at."""
        pointed, checked = self._pointed.get(field, (None, ()))
        if tensor is pointed and shape == checked:
            return False
        self._pointed.pop(field, None)  # until it has turned out to be sound
        _check("step", field, tensor, dtype, shape)
        setattr(self.struct, field, tensor.data_ptr())
        self._pointed[field] = tensor, shape
        return True


def most_likely_arguments(logits: Tensor, best: MostLikely) -> c.MostLikely:
    """Of logits that have been checked. best: where the results go, with as many rows."""
    return c.MostLikely(
        logits.data_ptr(),
        logits.stride(0),
        logits.shape[1],
        best.ids.data_ptr(),
        best.values.data_ptr(),
        best.log_sums.data_ptr(),
    )


def _check(op: str, name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Raise KernelError unless x is a host tensor of this dtype and shape (None: any), dense in its last dimension."""
    if x.dtype is not dtype or x.device.type != "cpu":
        raise KernelError(
            f"{op}: {name} is {dtype_name(x.dtype)} on {x.device.type}; it must be {dtype_name(dtype)} on the CPU"
        )
    if len(x.shape) != len(shape) or any(
        wanted is not None and size != wanted for size, wanted in zip(x.shape, shape, strict=True)
    ):
        wanted_shape = ", ".join("any" if size is None else str(size) for size in shape)
        raise KernelError(f"{op}: {name} has shape {list(x.shape)}; it must be [{wanted_shape}]")
    if x.shape and x.shape[-1] > 1 and x.stride(-1) != 1:
        raise KernelError(f"{op}: {name} is not contiguous in its last dimension (strides {list(x.stride())})")


def _check_rows(op: str, name: str, x: Tensor, width: int) -> None:
    _check(op, name, x, torch.float32, (None, width))


def _check_vector(op: str, name: str, x: Tensor, size: int) -> None:
    _check(op, name, x, torch.float32, (size,))


def _check_heads(
    op: str, name: str, x: Tensor, shape: tuple[int | None, ...] = (None, None, None)
) -> tuple[int, int, int]:
    """Raise KernelError unless x is float32 [num_tokens, num_heads, head_dim] with a token's heads side by side."""
    _check(op, name, x, torch.float32, shape)
    num_tokens, num_heads, head_dim = x.shape
    if num_heads > 1 and x.stride(1) != head_dim:
        raise KernelError(f"{op}: the heads of {name} do not lie side by side (strides {list(x.stride())})")
    return num_tokens, num_heads, head_dim


def _padded(head_dim: int) -> int:
    return -(-head_dim // LANES) * LANES
