"""Writing a transformers model and its tokenizer as a GGUF, by the `gguf` package, as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[rest]}.{suffix}"


def write_gguf(
    model: Any,
    path: Path,
    kind: GGMLQuantizationType,
    *,
    pre: str = "gpt-2",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    """Write `model` with matrices stored as `kind`; the tokenizer is the one in `model.name_or_path`.

    Args:
        metadata: more of it: a str, int, float or bool by key.
        tensors: more of them: float32 arrays by GGUF name.
    """
    config = model.config
    architecture = config.model_type if config.model_type != "mistral" else "llama"
    writer = GGUFWriter(str(path), architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    _add_tokenizer(writer, Path(model.name_or_path), pre)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(values.shape)
        _add_tensor(writer, gguf_name(name), np.ascontiguousarray(values), kind)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def round_weights(model: Any, kind: GGMLQuantizationType) -> None:
    """Give the model the values that its weights have after being stored as `kind` and converted."""
    kept = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16}
    with torch.no_grad():
        for tensor in model.parameters():  # a tied one once
            if tensor.dim() > 1:
                stored = np.ascontiguousarray(dequantize(quantize(tensor.detach().numpy(), kind), kind))
                tensor.copy_(torch.from_numpy(stored).to(kept.get(kind, torch.bfloat16)))
            else:
                tensor.copy_(tensor.to(kept.get(kind, torch.bfloat16)))


def _add_tensor(writer: GGUFWriter, name: str, values: Any, kind: GGMLQuantizationType) -> None:
    if values.ndim == 1:  # llama.cpp keeps vectors in float32
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def _add_tokenizer(writer: GGUFWriter, folder: Path, pre: str) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    special = {token["id"] for token in content["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token_id in special else 1 for token_id in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in content["model"]["merges"]])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    writer.add_chat_template(settings["chat_template"])
