"""The tables of docs/ascend.md that say what each chip computes with, made from what the code chooses there.

A device is opened on the emulated chip of each family, as a shard opens it, and its ops are asked. The words around the
names of ops are translated here; the names are the code's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from text_generation_kernels.npu.activation import GatedShape
from text_generation_kernels.npu.attention_rows import HeadShape
from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu.kv_cache import NpuKVCache, StoreShape
from text_generation_kernels.npu.linear import LinearShape
from text_generation_kernels.npu.norms import NormShape
from text_generation_kernels.npu.ops import NpuOps
from text_generation_kernels.npu.rotary import RotaryShape
from text_generation_npu_emulator import emulated_npu

# The column's head, and the chip that stands for the family.
CHIPS = {"910A": "Ascend910PremiumA", "310P": "Ascend310P3", "910B": "Ascend910B4", "A3": "Ascend910_9391"}
BLOCK_SIZE = 128
HIDDEN_SIZE = 4096
GATE_AND_UP = 2 * 11008


@dataclass(frozen=True)
class Heads:
    """Heads of a model whose attention is looked up."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


WIDE = Heads(32, 32, 128)  # Llama-2-7B
NARROW = Heads(14, 2, 64)  # Qwen2.5-0.5B

# Row heads: what the code calls it, and what the pages call it.
Words = Mapping[str, str]
ENGLISH: Words = {
    "op": "op",
    "prefill": "attention of a whole prompt",
    "chunk": "attention of a chunk, or behind a cached prefix",
    "decode": "attention of a decode row",
    "of 128": "heads of 128",
    "of 64": "heads of 64 that share key heads",
    "store_kv": "write of keys and values",
    "cache": "layout of the cache",
    "rms_norm": "RMS norm",
    "add_rms_norm": "addition and RMS norm",
    "rotary": "rotary positions, heads of 128",
    "silu_and_mul": "silu(gate) * up",
    "linear": "product with a weight",
    "weights": "layout of linear weights",
    "tries": "NZ, each one tried",
    "graphs": "captured decode steps",
    "sizes": "step sizes rounded up to",
    "bfloat16": "bfloat16",
    "ids": "sampled ids reach other cards by",
    "yes": "yes",
    "no": "no",
    "any": "any size",
    "tokens": "{} tokens",
    "candidates": "op, as the log calls it",
}
CHINESE: Words = {
    "op": "算子",
    "prefill": "整段提示词的注意力",
    "chunk": "分块或命中前缀缓存后的注意力",
    "decode": "解码行的注意力",
    "of 128": "head_dim 128",
    "of 64": "head_dim 64，GQA",
    "store_kv": "写入 K/V",
    "cache": "KV 缓存格式",
    "rms_norm": "RMSNorm",
    "add_rms_norm": "残差相加 + RMSNorm",
    "rotary": "旋转位置编码（head_dim 128）",
    "silu_and_mul": "silu(gate) * up",
    "linear": "与权重的矩阵乘",
    "weights": "线性层权重格式",
    "tries": "NZ（逐个权重验证）",
    "graphs": "捕获解码步（图模式）",
    "sizes": "每步 token 数向上取整到",
    "bfloat16": "bfloat16",
    "ids": "采样结果传给其他卡的方式",
    "yes": "支持",
    "no": "不支持",
    "any": "不取整",
    "tokens": "{} 的倍数",
    "candidates": "算子（日志中的名字）",
}


def chosen_table(words: Words) -> str:
    """What is used first."""
    return _table(words["op"], _by_family(lambda device: _chosen(device, words)))


def candidates_table(words: Words) -> str:
    """All ways that there are, in order of preference."""
    return _table(words["candidates"], _by_family(_candidates))


def _by_family(look: Callable[[NpuDevice], dict[str, str]]) -> dict[str, dict[str, str]]:
    """Columns of rows. Families that have the same share a column."""
    columns: dict[str, dict[str, str]] = {}
    for name, chip in CHIPS.items():
        found = _with_device(chip, look)
        same = next((other for other, seen in columns.items() if seen == found), None)
        if same is not None:
            columns[f"{same}, {name}"] = columns.pop(same)
        else:
            columns[name] = found
    return columns


def _with_device(chip: str, look: Callable[[NpuDevice], dict[str, str]]) -> dict[str, str]:
    with emulated_npu(chip):
        return look(NpuDevice(importlib.import_module("torch_npu"), 0))


def _chosen(device: NpuDevice, words: Words) -> dict[str, str]:
    ops, family, dtype = device.ops, device.family, torch.float16
    rows: dict[str, str] = {}
    for heads, of in ((WIDE, "of 128"), (NARROW, "of 64")):
        for kind in ("prefill", "chunk", "decode"):
            rows[f"{words[kind]}, {words[of]}"] = _code(_attention(ops, heads, kind))
    cache = _cache(ops, WIDE)
    rows[words["store_kv"]] = _code(ops.choices["store_kv"].select(StoreShape(cache.layout, dtype)).name)
    rows[words["cache"]] = cache.layout.upper()
    norm = NormShape(HIDDEN_SIZE, dtype)
    rows[words["rms_norm"]] = _code(ops.choices["rms_norm"].select(norm).name)
    rows[words["add_rms_norm"]] = _code(ops.choices["add_rms_norm"].select(norm).name)
    rotary = RotaryShape(WIDE.head_dim, WIDE.head_dim, WIDE.num_heads, dtype)
    rows[words["rotary"]] = _code(ops.choices["rotary"].select(rotary).name)
    rows[words["silu_and_mul"]] = _code(ops.choices["silu_and_mul"].select(GatedShape(GATE_AND_UP, dtype)).name)
    rows[words["linear"]] = _code(ops.choices["linear"].select(LinearShape("nd", dtype)).name)
    rows[words["weights"]] = words["tries"] if family.tries_nz else "ND"
    rows[words["graphs"]] = words["yes"] if family.captures_graphs else words["no"]
    multiple = ops.token_multiple
    rows[words["sizes"]] = words["any"] if multiple == 1 else words["tokens"].format(multiple)
    rows[words["bfloat16"]] = words["yes"] if family.has_bfloat16 else words["no"]
    rows[words["ids"]] = "HCCL" if family.broadcasts else "gloo"
    return rows


def _attention(ops: NpuOps, heads: Heads, kind: str) -> str:
    shape = HeadShape(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        block_size=BLOCK_SIZE,
        layout=_cache(ops, heads).layout,
        dtype=torch.float16,
    )
    return ops.choices[f"attention_{kind}"].select(shape).name


def _cache(ops: NpuOps, heads: Heads) -> NpuKVCache:
    return ops.new_kv_cache(1, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)


def _candidates(device: NpuDevice) -> dict[str, str]:
    choices = device.ops.choices.items()
    return {_code(op): ", ".join(_code(candidate.name) for candidate in choice.candidates()) for op, choice in choices}


def _code(name: str) -> str:
    return f"`{name}`"


def _table(corner: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    first = next(iter(columns.values()))
    rows = [(corner, *columns), *((row, *(cells[row] for cells in columns.values())) for row in first)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)
