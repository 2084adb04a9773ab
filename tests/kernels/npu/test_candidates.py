"""Which candidates there are on which family and release, in which order, and how one takes another's place."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.npu.fake_module import described_ops
from tests.kernels.npu.releases import RELEASES
from text_generation_kernels.npu.attention_rows import HeadShape
from text_generation_kernels.npu.candidates import NoCandidate
from text_generation_kernels.npu.kv_cache import Layout
from text_generation_kernels.npu.norms import NormShape
from text_generation_kernels.npu.ops import NpuOps
from text_generation_kernels.npu.rotary import RotaryShape

FAMILIES = ("A1", "310P", "A2", "A3", "A5")
V1, V2 = "npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"
FUSED = (f"{V1} TND", f"{V1} BSND", f"{V2} TND", f"{V2} BSND")

ORDER: dict[tuple[str, str], tuple[str, ...]] = {
    ("A1", "attention_prefill"): ("composed",),
    ("A1", "attention_chunk"): ("composed",),
    ("A1", "attention_decode"): ("composed",),
    ("A1", "store_kv"): ("npu_scatter_nd_update_", "composed"),
    ("A1", "rms_norm"): ("npu_rms_norm", "composed"),
    ("A1", "add_rms_norm"): ("add and rms_norm",),
    ("A1", "rotary"): ("npu_rotary_mul", "composed"),
    ("A1", "silu_and_mul"): ("npu_silu", "composed"),
    ("310P", "attention_prefill"): (
        "_npu_flash_attention_v3",
        "_npu_flash_attention",
        "npu_prompt_flash_attention",
        "_npu_paged_attention by tokens",
        "composed",
    ),
    ("310P", "attention_chunk"): ("npu_prompt_flash_attention", "_npu_paged_attention by tokens", "composed"),
    ("310P", "attention_decode"): ("_npu_paged_attention", "npu_incre_flash_attention", "composed"),
    ("310P", "store_kv"): ("_npu_reshape_and_cache", "npu_scatter_nd_update_", "composed"),
    ("310P", "add_rms_norm"): ("add and rms_norm",),
    ("310P", "rotary"): ("npu_apply_rotary_pos_emb", "npu_rotary_mul", "composed"),
    ("310P", "silu_and_mul"): ("npu_swiglu", "composed"),
    ("A2", "attention_prefill"): (*FUSED, "_npu_flash_attention", "npu_fusion_attention", "composed"),
    ("A2", "attention_chunk"): (*FUSED, "npu_fusion_attention", "composed"),
    ("A2", "attention_decode"): (*FUSED, "_npu_paged_attention", "composed"),
    ("A2", "store_kv"): ("_npu_reshape_and_cache", "npu_scatter_nd_update_", "composed"),
    ("A2", "add_rms_norm"): ("npu_add_rms_norm", "add and rms_norm"),
    ("A2", "rotary"): ("npu_apply_rotary_pos_emb", "npu_rotary_mul", "composed"),
    ("A2", "silu_and_mul"): ("npu_swiglu", "composed"),
    ("A5", "attention_prefill"): (*FUSED, "npu_fusion_attention", "composed"),
    ("A5", "attention_decode"): (*FUSED, "composed"),
    ("A5", "store_kv"): ("npu_scatter_pa_kv_cache", "npu_scatter_nd_update_", "composed"),
}


def names(ops: NpuOps, op: str, *, usable: bool = False) -> tuple[str, ...]:
    return tuple(c.name for c in ops.candidates(op) if not (usable and c.refused))


@pytest.mark.parametrize(("family", "op"), ORDER, ids=str)
def test_the_order_of_candidates(family: str, op: str) -> None:
    assert names(described_ops(family), op) == ORDER[family, op]
    assert names(described_ops(family), op, usable=True) == ORDER[family, op]


def test_an_a3_has_what_an_a2_has() -> None:
    a2, a3 = described_ops("A2"), described_ops("A3")
    assert {op: names(a2, op) for op in a2.choices} == {op: names(a3, op) for op in a3.choices}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("release", RELEASES)
def test_every_op_of_every_family_can_be_computed_with_every_release(family: str, release: str) -> None:
    ops = described_ops(family, release)
    for op in ops.choices:
        left = [candidate for candidate in ops.candidates(op) if candidate.refused is None]
        assert left, f"{op}: {ops.candidates(op)}"
        assert all(c.refused for c in ops.candidates(op) if c not in left)


@pytest.mark.parametrize(
    ("family", "release", "op", "expected"),
    [
        # ATB comes with 2.5, v2 of fused infer attention with 2.8, v3 of ATB's flash attention after 2.10.
        ("A2", "2.1.0.post8", "attention_decode", (f"{V1} TND", f"{V1} BSND", "composed")),
        ("A2", "2.5.1", "attention_decode", (f"{V1} TND", f"{V1} BSND", "_npu_paged_attention", "composed")),
        ("A2", "2.8.0", "attention_decode", (*FUSED, "_npu_paged_attention", "composed")),
        ("310P", "2.1.0.post8", "attention_prefill", ("npu_prompt_flash_attention", "composed")),
        ("310P", "2.1.0.post8", "attention_decode", ("npu_incre_flash_attention", "composed")),
        ("310P", "2.1.0.post8", "store_kv", ("npu_scatter_nd_update_", "composed")),
        ("A5", "2.8.0", "store_kv", ("npu_scatter_nd_update_", "composed")),
    ],
)
def test_older_releases_have_fewer_candidates(family: str, release: str, op: str, expected: tuple[str, ...]) -> None:
    ops = described_ops(family, release)
    assert names(ops, op, usable=True) == expected
    assert all("the installed torch_npu" in c.refused for c in ops.candidates(op) if c.refused)


def heads(num_heads: int, num_kv_heads: int, head_dim: int, layout: Layout = "nd", longest: int = 0) -> HeadShape:
    return HeadShape(num_heads, num_kv_heads, head_dim, 128, layout, torch.float16, longest)


@pytest.mark.parametrize(
    ("family", "op", "shape", "expected"),
    [
        ("A2", "attention_decode", heads(32, 8, 128), f"{V1} TND"),
        ("A2", "attention_decode", heads(9, 9, 64), f"{V1} TND"),
        # The demo model: 9 heads of 64 over 3.
        ("A2", "attention_decode", heads(9, 3, 64), f"{V1} BSND"),
        ("A2", "attention_prefill", heads(9, 3, 64, longest=2048), f"{V1} BSND"),
        ("A2", "attention_decode", heads(4, 4, 80), f"{V1} BSND"),
        ("A2", "attention_decode", heads(4, 4, 20), "composed"),
        ("A2", "attention_decode", heads(256, 2, 128), "_npu_paged_attention"),  # 128 heads for each key head
        ("310P", "attention_prefill", heads(32, 8, 128, "nz", 4096), "_npu_flash_attention_v3"),
        ("310P", "attention_chunk", heads(32, 8, 128, "nz"), "_npu_paged_attention by tokens"),
        ("310P", "attention_chunk", heads(32, 8, 128, "nd"), "npu_prompt_flash_attention"),
        ("A1", "attention_decode", heads(32, 8, 128), "composed"),
    ],
)
def test_the_first_candidate_that_takes_the_heads_is_used(
    family: str, op: str, shape: HeadShape, expected: str
) -> None:
    assert described_ops(family).choices[op].select(shape).name == expected


def test_a_prompt_too_long_for_a_full_mask_is_left_to_others() -> None:
    # Row 23 of the known-broken combinations: a mask of 16384 squared takes half a gigabyte, and more for the cast.
    choice = described_ops("310P", "2.8.0").choices["attention_prefill"]
    assert choice.select(heads(32, 8, 128, "nz", 4096)).name == "_npu_flash_attention"
    assert choice.select(heads(32, 8, 128, "nz", 8192)).name == "_npu_paged_attention by tokens"


@pytest.mark.parametrize(
    ("family", "shape", "expected"),
    [
        ("A1", RotaryShape(128, 128, 32, torch.float16), "npu_rotary_mul"),
        ("A1", RotaryShape(64, 64, 9, torch.float16), "composed"),
        ("A2", RotaryShape(64, 64, 9, torch.float16), "npu_apply_rotary_pos_emb"),
        ("A2", RotaryShape(80, 80, 9, torch.float16), "npu_rotary_mul"),
        ("A2", RotaryShape(128, 64, 9, torch.float16), "composed"),  # half of each head is rotated
        ("310P", RotaryShape(80, 80, 9, torch.float16), "composed"),
    ],
)
def test_rotary_by_head_size(family: str, shape: RotaryShape, expected: str) -> None:
    assert described_ops(family).choices["rotary"].select(shape).name == expected


def test_a_rejected_candidate_is_replaced_by_the_next() -> None:
    ops = described_ops("A2")
    choice, shape = ops.choices["rms_norm"], NormShape(64, torch.float16)
    assert choice.select(shape).name == "npu_rms_norm"
    ops.reject("rms_norm", "npu_rms_norm", "gave noise")
    assert choice.select(shape).name == "composed"
    assert [(c.name, c.refused) for c in ops.candidates("rms_norm")] == [
        ("npu_rms_norm", "gave noise"),
        ("composed", None),
    ]
    with pytest.raises(NoCandidate, match="npu_rms_norm cannot be used: gave noise"):
        ops.use("rms_norm", "npu_rms_norm")


def test_when_nothing_is_left_the_reasons_of_all_are_named() -> None:
    ops = described_ops("A2")
    ops.reject("rms_norm", "npu_rms_norm", "gave noise")
    ops.reject("rms_norm", "composed", "gave zeros")
    with pytest.raises(NoCandidate) as left:
        ops.choices["rms_norm"].select(NormShape(64, torch.float16))
    assert str(left.value) == (
        "rms_norm of 64 float16 cannot be computed: npu_rms_norm: gave noise; composed: gave zeros"
    )


def test_a_candidate_can_be_asked_for() -> None:
    ops = described_ops("A2")
    ops.use("attention_decode", "_npu_paged_attention")
    assert ops.choices["attention_decode"].select(heads(32, 8, 128)).name == "_npu_paged_attention"
    with pytest.raises(ValueError, match="attention_decode has no candidate nonsense; it has "):
        ops.use("attention_decode", "nonsense")


@pytest.mark.parametrize("family", FAMILIES)
def test_composed_ops_can_be_asked_for_as_a_whole(family: str) -> None:
    ops = described_ops(family)
    ops.use_composed()
    for op in ops.choices:
        assert ops.candidates(op)[0].name == ("add and rms_norm" if op == "add_rms_norm" else "composed")


@pytest.mark.parametrize("family", ["A2", "310P"])
def test_the_op_that_keeps_the_tables_of_its_first_call_is_no_candidate(family: str) -> None:
    # Row 12 of the known-broken combinations.
    assert not any("_npu_rotary_embedding" in c.name for c in described_ops(family).candidates("rotary"))


def test_no_op_of_atb_is_a_candidate_on_a1() -> None:
    # Row 1 of the known-broken combinations: garbage without an error.
    ops = described_ops("A1")
    assert not any(c.name.startswith("_npu_") for op in ops.choices for c in ops.candidates(op))
