"""The tensors of a GGUF under the names, order of rows and dtype that a Hugging Face checkpoint has.

Knows tensor names and layouts; nothing about the configuration or the tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, dequantize, quantize

from text_generation_server.download.errors import DownloadError
from text_generation_server.download.gguf_file import GGUFFile, GGUFTensor
from text_generation_server.download.progress import byte_progress
from text_generation_server.download.safetensors_stream import write_safetensors

# Long-context models store their rope's correction factors as a tensor; it belongs to the configuration.
ROPE_FACTORS = "rope_freqs.weight"

# Elements dequantized at once: with numpy's temporaries about 200 MB, however large the model.
CHUNK_ELEMENTS = 1 << 22

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_DTYPES = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
}


def checkpoint_name(path: Path, gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    stem, _, suffix = gguf_name.rpartition(".")
    if suffix in ("weight", "bias"):
        if stem in _TOP_NAMES:
            return f"{_TOP_NAMES[stem]}.{suffix}"
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if match and match[2] in _LAYER_NAMES:
            return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{suffix}"
    raise DownloadError(
        f"{path} holds a tensor {gguf_name}, which no model served here has: only dense models are read"
    )


def checkpoint_dtype(gguf: GGUFFile) -> str:
    """The dtype most matrices are stored in; bfloat16 for quantized ones, whose error is larger than its rounding."""
    kinds = Counter(tensor.kind.name for tensor in gguf.tensors.values() if len(tensor.shape) > 1)
    most = kinds.most_common(1)[0][0] if kinds else "F32"
    return most if most in ("F32", "F16") else "BF16"


def write_checkpoint(gguf: GGUFFile, folder: Path, interleaved_heads: dict[str, int]) -> None:
    """Write `folder/model.safetensors`, holding a few rows in memory at a time.

    Args:
        interleaved_heads: number of heads by projection name (`attn_q`, `attn_k`), for architectures whose rows GGUF
            keeps in the order of an interleaved rope; empty for others.
    """
    tensors = {
        checkpoint_name(gguf.path, name): tensor for name, tensor in gguf.tensors.items() if name != ROPE_FACTORS
    }
    dtype = checkpoint_dtype(gguf)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    with byte_progress(f"Converting {gguf.path.name}", sum(tensor.num_bytes for tensor in tensors.values())) as bar:

        def chunks() -> Iterator[memoryview]:
            for tensor in tensors.values():
                parts = tensor.name.split(".")
                num_heads = interleaved_heads.get(parts[-2])
                yield from _convert(gguf, tensor, num_heads, dtype)
                bar.update(tensor.num_bytes)

        write_safetensors(folder / "model.safetensors", dtype, shapes, chunks())


def _convert(gguf: GGUFFile, tensor: GGUFTensor, num_heads: int | None, dtype: str) -> Iterator[memoryview]:
    raw = gguf.raw(tensor)
    if num_heads is not None:
        # A bias is one row to the container; its elements are what the matrix's rows are.
        rows = raw if len(tensor.shape) > 1 else raw.reshape(tensor.shape[0], -1)
        raw = rows[half_rotation_order(len(rows), num_heads)].reshape(raw.shape)
    rows_at_once = max(1, CHUNK_ELEMENTS // tensor.shape[-1])
    for start in range(0, len(raw), rows_at_once):
        try:
            values = dequantize(raw[start : start + rows_at_once], tensor.kind)
        except NotImplementedError as error:
            raise DownloadError(
                f"{gguf.path} stores {tensor.name} as {tensor.kind.name}, which cannot be read: "
                "use a file of another quantization (Q4_0 to Q8_0, K-quants, F16, BF16)"
            ) from error
        yield np.ascontiguousarray(quantize(np.ascontiguousarray(values, np.float32), _GGUF_DTYPES[dtype])).data.cast(
            "B"
        )


def half_rotation_order(num_rows: int, num_heads: int) -> npt.NDArray[np.int64]:
    """Where each row of a Q or K projection lies in a GGUF of the llama architecture.

    GGUF keeps the two rows that the rope turns together side by side (2i, 2i + 1 of a head); checkpoints keep them
    half a head apart (i, i + head_dim / 2).
    """
    order: npt.NDArray[np.int64] = np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(num_rows)
    return order
