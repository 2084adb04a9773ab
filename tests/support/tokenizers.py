"""Small tokenizers of the kinds that models have, made in memory."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE: 256 bytes, a few merges, two special tokens and an added one that is not special."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: token_id for token_id, character in enumerate(characters)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ã", "©"), ("ð", "Ł")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>", "<|end of turn|>"])
    tokenizer.add_tokens(["added word"])
    return tokenizer


def byte_fallback_tokenizer() -> tokenizers.Tokenizer:
    """As Llama 2 has it: words with a leading block mark, and bytes for every character that has no token.

    Ids: 0 <unk>, 1 <s>, 2 </s>, 3 ... 258 the bytes, then pieces.
    """
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "▁b", "th", "▁th", "é", "▁▁"]:
        vocab[piece] = len(vocab)
    merges = [("▁", "a"), ("▁", "b"), ("t", "h"), ("▁", "th"), ("▁", "▁")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def word_tokenizer() -> tokenizers.Tokenizer:
    """Words and `##` endings, whose decoder puts a space between two tokens depending on both."""
    vocab = {"[UNK]": 0, "un": 1, "##able": 2, "word": 3, "##s": 4, "the": 5, "##ly": 6}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer
