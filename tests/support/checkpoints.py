"""Tiny random checkpoints and a byte-level tokenizer, written to a folder as Hugging Face writes them.

The models are built by `transformers`, so that what is served is compared with a library we did not write. Weights are
wide enough that greedy text varies instead of repeating one token. Knows nothing about our own reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "mistral", "qwen2", "qwen3")

Layout = Literal["safetensors", "sharded", "unindexed", "bin", "sharded_bin"]

UNK_ID, BOS_ID, EOS_ID, PAD_ID = 0, 1, 2, 3
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<pad>")
DEFAULT_VOCAB_SIZE = 320

_TRAINING_TEXT = (
    "The quick brown fox jumps over the lazy dog. "
    "What is the capital of France? The capital of France is Paris. "
    "A server reads a request, plans a step, and writes an answer to the client. "
    "One two three four five six seven eight nine ten; there and back again. "
)

_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def make_checkpoint(
    folder: Path,
    family: Family = "llama",
    seed: int = 0,
    *,
    layout: Layout = "safetensors",
    tokenizer: bool = True,
    scale: float = 1.0,
    dtype: str = "float32",
    **config: Any,
) -> Path:
    """Write a random model (2 layers, hidden 64, 4 heads, 2 key/value heads, 320 tokens, float32) and a tokenizer.

    Args:
        folder: made if missing; files of the same names are overwritten.
        family: one of FAMILIES.
        seed: the same seed, family and config give the same weights.
        layout: "safetensors" is one file, "sharded" several with an index, "unindexed" several without one; "bin" and
            "sharded_bin" are the older pickled files.
        tokenizer: also write `make_tokenizer`'s files, with at most `vocab_size` tokens (needs vocab_size >= 259).
        scale: multiplies the logits of an untied model; below 1 the distribution is flatter, above 1 sharper. At 1 the
            likeliest of 320 tokens has a probability of about 0.2.
        dtype: of the stored weights, a torch name such as "bfloat16".
        config: anything that the family's transformers config takes, e.g. num_hidden_layers=1, vocab_size=259,
            tie_word_embeddings=True, rope_parameters={...}, eos_token_id=[1, 4].
    Returns: `folder`.
    """
    # Here, not above: tests that only want a tokenizer need not wait seconds for torch and transformers.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": DEFAULT_VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "tie_word_embeddings": False,
        **({"sliding_window": None} if family == "mistral" else {}),
        **config,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith(".bias"):
                parameter.copy_(0.3 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(noise * (0.3 * scale if "lm_head" in name else 0.3))
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[1] ** 0.5)
    model.to(getattr(torch, dtype))

    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="40KB" if layout in {"sharded", "unindexed"} else "1GB")
    if layout == "unindexed":
        (folder / "model.safetensors.index.json").unlink()
    if layout in {"bin", "sharded_bin"}:
        (folder / "model.safetensors").unlink()
        _save_bin(model.state_dict(), folder, parts=3 if layout == "sharded_bin" else 1)
    if tokenizer:
        make_tokenizer(folder, vocab_size=min(settings["vocab_size"], DEFAULT_VOCAB_SIZE))
    return folder


def _save_bin(state: dict[str, Any], folder: Path, parts: int) -> None:
    import torch

    if parts == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return
    weight_map: dict[str, str] = {}
    for part in range(parts):
        file_name = f"pytorch_model-{part + 1:05d}-of-{parts:05d}.bin"
        # `clone`: a view would drag its whole storage into the file.
        tensors = {name: state[name].clone() for name in list(state)[part::parts]}
        torch.save(tensors, folder / file_name)
        weight_map.update(dict.fromkeys(tensors, file_name))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def make_tokenizer(
    folder: Path,
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    add_bos: bool = False,
    training_text: str = _TRAINING_TEXT,
) -> Path:
    """Write a byte-level BPE tokenizer that can encode any text, with its chat template and generation_config.json.

    Ids: 0 <unk>, 1 <s>, 2 </s>, 3 <pad>, then the 256 bytes, then merges.

    Args:
        folder: made if missing. An existing generation_config.json is kept.
        vocab_size: 259 has no <pad> and no merges, 260 no merges; at most about 400, where the training text is
            used up.
        add_bos: encoding with special tokens then begins with <s>.
        training_text: what the merges are learned from.
    Returns: `folder`.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    if vocab_size < 259:
        raise ValueError(f"vocab_size={vocab_size}: 256 bytes and <unk>, <s>, </s> need 259")
    specials = SPECIAL_TOKENS[: min(4, vocab_size - 256)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(text, special=True) for text in specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([training_text], trainer)
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS_ID)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        **({"pad_token": "<pad>"} if len(specials) == 4 else {}),
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
    generation_config = folder / "generation_config.json"
    if not generation_config.exists():
        generation_config.write_text(json.dumps({"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}, indent=2))
    return folder
