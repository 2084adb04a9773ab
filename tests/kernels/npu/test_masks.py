"""The masks of the fused ops: size and polarity, which no op complains about."""

from __future__ import annotations

import torch

from text_generation_kernels.npu.masks import Masks

MASKS = Masks(None, torch.device("cpu"))


def test_the_compressed_mask_hides_what_comes_later() -> None:
    mask = MASKS.compressed()
    assert mask.shape == (2048, 2048)
    assert mask.dtype == torch.int8
    query, key = torch.arange(2048)[:, None], torch.arange(2048)[None, :]
    assert torch.equal(mask.bool(), key > query)


def test_the_additive_mask_hides_by_infinity_in_float16_and_by_one_in_bfloat16() -> None:
    for dtype, hidden in ((torch.float16, -torch.inf), (torch.bfloat16, 1.0)):
        mask = MASKS.additive(100, dtype)
        assert mask.shape == (128, 128)
        assert mask[3, 4] == hidden
        assert mask[4, 4] == mask[5, 4] == 0


def test_a_mask_is_made_once_and_again_when_it_must_grow() -> None:
    assert MASKS.additive(100, torch.float16) is MASKS.additive(128, torch.float16)
    assert MASKS.additive(129, torch.float16).shape == (256, 256)
