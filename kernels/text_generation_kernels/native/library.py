"""The native library as Python sees it: its structs (the same names as in `src/abi.h`), and how it is found and loaded.

Nothing here knows torch: pointers are integers.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, Structure, Union, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from text_generation_kernels.native.build import LIBRARY, SOURCES, source_digest

# Chooses an instruction set instead of the best one; "none" turns the native kernels off. For tests and measurements.
INSTRUCTION_SET_VARIABLE = "TEXT_GENERATION_CPU_ISA"


class Format(IntEnum):
    F32 = 0
    BF16 = 1
    F16 = 2
    I8 = 3


class Op(IntEnum):
    LINEAR = 0
    EMBEDDING = 1
    RMS_NORM = 2
    ADD_RMS_NORM = 3
    ROTARY = 4
    SILU_AND_MUL = 5
    STORE_KV = 6
    ATTENTION = 7
    MOST_LIKELY = 8
    TOP_K = 9
    DRAW = 10


class Rows(IntEnum):
    TOKENS = 0
    SAMPLED = 1


class Ids(IntEnum):
    TOKEN_IDS = 0
    POSITIONS = 1
    SAMPLED_TOKENS = 2


class Linear(Structure):
    _fields_ = (
        ("x", c_void_p), ("x_stride", c_int64), ("out", c_void_p), ("out_stride", c_int64), ("weight", c_void_p),
        ("scales", c_void_p), ("bias", c_void_p), ("out_features", c_int64), ("in_features", c_int64),
        ("group_size", c_int64), ("format", c_int32), ("x_parts", c_int32),
    )  # fmt: skip


class Embedding(Structure):
    _fields_ = (
        ("table", c_void_p), ("table_stride", c_int64), ("table_rows", c_int64), ("width", c_int64), ("out", c_void_p),
        ("out_stride", c_int64), ("format", c_int32), ("ids", c_int32), ("is_packed", c_int32),
    )  # fmt: skip


class Norm(Structure):
    _fields_ = (
        ("x", c_void_p), ("x_stride", c_int64), ("x_group_stride", c_int64), ("residual", c_void_p),
        ("residual_stride", c_int64), ("weight", c_void_p), ("out", c_void_p), ("out_stride", c_int64),
        ("groups", c_int64), ("width", c_int64), ("eps", c_float),
    )  # fmt: skip


class Rotary(Structure):
    _fields_ = (
        ("q", c_void_p), ("q_stride", c_int64), ("k", c_void_p), ("k_stride", c_int64), ("cos", c_void_p),
        ("cos_stride", c_int64), ("sin", c_void_p), ("sin_stride", c_int64), ("num_heads", c_int64),
        ("num_kv_heads", c_int64), ("head_dim", c_int64), ("half", c_int64),
    )  # fmt: skip


class Silu(Structure):
    _fields_ = (
        ("x", c_void_p), ("x_stride", c_int64), ("out", c_void_p), ("out_stride", c_int64), ("width", c_int64),
    )  # fmt: skip


class Cache(Structure):
    _fields_ = (
        ("k", c_void_p), ("v", c_void_p), ("num_blocks", c_int64), ("block_size", c_int64), ("num_kv_heads", c_int64),
        ("head_dim", c_int64), ("format", c_int32),
    )  # fmt: skip


class StoreKV(Structure):
    _fields_ = (
        ("k", c_void_p), ("k_stride", c_int64), ("v", c_void_p), ("v_stride", c_int64), ("cache", Cache),
    )  # fmt: skip


class Attention(Structure):
    _fields_ = (
        ("q", c_void_p), ("q_stride", c_int64), ("out", c_void_p), ("out_stride", c_int64), ("cache", Cache),
        ("num_heads", c_int64), ("scale", c_float),
    )  # fmt: skip


class MostLikely(Structure):
    _fields_ = (
        ("logits", c_void_p), ("stride", c_int64), ("vocab_size", c_int64), ("ids", c_void_p), ("values", c_void_p),
        ("log_sums", c_void_p),
    )  # fmt: skip


class TopK(Structure):
    _fields_ = (
        ("logits", c_void_p), ("stride", c_int64), ("num_logits", c_int64), ("vocab_size", c_int64), ("k", c_int64),
        ("values", c_void_p), ("ids", c_void_p),
    )  # fmt: skip


class Filters(Structure):
    _fields_ = (
        ("top_p", c_double), ("typical_p", c_double), ("uniform", c_double), ("top_k", c_int64),
        ("temperature", c_float),
    )  # fmt: skip


class Draw(Structure):
    _fields_ = (
        ("logits", c_void_p), ("stride", c_int64), ("num_logits", c_int64), ("vocab_size", c_int64),
        ("filters", POINTER(Filters)), ("ids", c_void_p),
    )  # fmt: skip


class Arguments(Union):
    _fields_ = (
        ("linear", Linear), ("embedding", Embedding), ("norm", Norm), ("rotary", Rotary), ("silu", Silu),
        ("store_kv", StoreKV), ("attention", Attention), ("most_likely", MostLikely), ("top_k", TopK), ("draw", Draw),
    )  # fmt: skip


# Which member of `Arguments` an op's arguments are.
MEMBERS = {
    Op.LINEAR: "linear", Op.EMBEDDING: "embedding", Op.RMS_NORM: "norm", Op.ADD_RMS_NORM: "norm", Op.ROTARY: "rotary",
    Op.SILU_AND_MUL: "silu", Op.STORE_KV: "store_kv", Op.ATTENTION: "attention", Op.MOST_LIKELY: "most_likely",
    Op.TOP_K: "top_k", Op.DRAW: "draw",
}  # fmt: skip


class Instruction(Structure):
    _fields_ = (("op", c_int32), ("rows", c_int32), ("arguments", Arguments))


_INSTRUCTION_BYTES = ctypes.sizeof(Instruction)


class Step(Structure):
    _fields_ = (
        ("num_tokens", c_int64), ("num_sampled", c_int64), ("num_rows", c_int64), ("max_blocks", c_int64),
        ("token_ids", c_void_p), ("positions", c_void_p), ("sampled", c_void_p), ("slot_mapping", c_void_p),
        ("block_tables", c_void_p), ("cu_seqlens_q", c_void_p), ("kv_lens", c_void_p),
    )  # fmt: skip


class LibraryUnavailable(RuntimeError):
    """There is no native library to use here. The message is one line, and says what to do where something can be."""


class KernelError(ValueError):
    """The library has refused arguments. The message names the op and what was wrong."""


@dataclass(frozen=True)
class Library:
    """The loaded library."""

    functions: ctypes.CDLL
    instruction_sets: tuple[str, ...]  # that can be run here, best first

    def error(self) -> str:
        return str(self.functions.tgk_error().decode())


class Team:
    """Threads of the library and the instruction set they run. Not for two callers at once."""

    def __init__(self, library: Library, num_threads: int, instruction_set: str) -> None:
        self.num_threads = num_threads
        self.instruction_set = instruction_set
        self._library = library
        self._handle = library.functions.tgk_team_new(num_threads, instruction_set.encode())
        if not self._handle:
            raise LibraryUnavailable(library.error())

    def run(
        self, instructions: ctypes.Array[Instruction] | Instruction, count: int, step: Step, *, first: int = 0
    ) -> None:
        """Run `count` instructions from the `first` on.

        Raises KernelError if the step leads outside the memory that the instructions describe.
        """
        begin = ctypes.byref(instructions, first * _INSTRUCTION_BYTES)
        if self._library.functions.tgk_run(self._handle, begin, count, ctypes.byref(step)):
            raise KernelError(self._library.error())

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.functions.tgk_team_free(self._handle)


@functools.lru_cache(maxsize=4)
def load_library(path: Path = LIBRARY) -> Library:
    """Load the library, once for each path.

    Raises: LibraryUnavailable: it is not there, does not load, was built from other sources, or has no kernels for
        this processor.
    """
    remedy = "build it with: python -m text_generation_kernels.native.build"
    if not path.is_file():
        raise LibraryUnavailable(f"the native CPU kernels are not built (no {path}); {remedy}")
    try:
        functions = ctypes.CDLL(str(path))
        _declare(functions)
    except (OSError, AttributeError) as error:
        raise LibraryUnavailable(f"{path} does not load ({error}); {remedy}") from None
    built_from = functions.tgk_source_digest().decode()
    if SOURCES.is_dir() and built_from != source_digest():
        raise LibraryUnavailable(f"{path} was built from other sources than those beside it; {remedy}")
    sizes = (functions.tgk_instruction_bytes(), functions.tgk_step_bytes())
    if sizes != (ctypes.sizeof(Instruction), ctypes.sizeof(Step)):
        raise LibraryUnavailable(f"{path} belongs to another version; {remedy}")
    names = functions.tgk_instruction_sets().decode().split()
    if not names:
        raise LibraryUnavailable("the native CPU kernels need AVX2, FMA and F16C, which this processor does not have")
    return Library(functions, tuple(names))


def wanted_instruction_set() -> str | None:
    """What the environment asks for: a set, "none", or nothing. The one place where it is read."""
    return os.environ.get(INSTRUCTION_SET_VARIABLE) or None


def choose_instruction_set(library: Library, wanted: str | None) -> str:
    """The set to use: `wanted`, else the best. Raises LibraryUnavailable."""
    wanted = wanted or library.instruction_sets[0]
    if wanted not in library.instruction_sets:
        allowed = ", ".join(library.instruction_sets)
        raise LibraryUnavailable(f"instruction set {wanted} was asked for; this processor and library have: {allowed}")
    return wanted


def _declare(functions: ctypes.CDLL) -> None:
    functions.tgk_source_digest.restype = c_char_p
    functions.tgk_instruction_sets.restype = c_char_p
    functions.tgk_error.restype = c_char_p
    functions.tgk_instruction_bytes.restype = c_int64
    functions.tgk_step_bytes.restype = c_int64
    functions.tgk_team_new.restype = c_void_p
    functions.tgk_team_new.argtypes = (c_int32, c_char_p)
    functions.tgk_team_free.restype = None
    functions.tgk_team_free.argtypes = (c_void_p,)
    functions.tgk_packed_bytes.restype = c_int64
    functions.tgk_packed_bytes.argtypes = (c_int64, c_int64, c_int32)
    functions.tgk_pack.argtypes = (c_void_p, c_int32, c_int64, c_int64, c_void_p, c_int32)
    functions.tgk_pack_i8.argtypes = (c_void_p, c_int64, c_int64, c_void_p)
    functions.tgk_run.argtypes = (c_void_p, c_void_p, c_int64, POINTER(Step))
