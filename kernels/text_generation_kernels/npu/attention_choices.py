"""Which way of computing attention comes first on which family: one row for each, composed torch always last."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from text_generation_kernels.npu import atb_attention, attention_310p, fused_attention
from text_generation_kernels.npu.attention_rows import AttentionChoice, Kind, nd_refusal
from text_generation_kernels.npu.candidates import Choice
from text_generation_kernels.npu.composed_attention import ComposedAttention
from text_generation_kernels.npu.fused_attention import FusedInferAttention
from text_generation_kernels.npu.graph_tasks import GraphTasks
from text_generation_kernels.npu.masks import Masks
from text_generation_kernels.npu.schemas import InstalledOps
from text_generation_kernels.npu.soc import Family

_KINDS: tuple[Kind, ...] = ("prefill", "chunk", "decode")
_PROMPTS: tuple[Kind, ...] = ("prefill", "chunk")
FUSED_INFER = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")


def attention_choices(
    torch_npu: Any, device: torch.device, installed: InstalledOps, family: Family, tasks: GraphTasks
) -> dict[Kind, AttentionChoice]:
    """The candidates for whole prompts, for chunks behind a cached prefix, and for decode rows."""
    choices: dict[Kind, AttentionChoice] = {kind: Choice(f"attention_{kind}") for kind in _KINDS}
    masks = Masks(torch_npu, device)
    if family.name in ("A2", "A3", "A5"):
        _add_fused(choices, installed, masks, tasks)
    if family.name in ("A2", "A3"):
        _add_atb_910b(choices, installed, masks)
    if family.name in ("A2", "A3", "A5"):
        for kind in _PROMPTS:
            choices[kind].add(
                "npu_fusion_attention",
                lambda: fused_attention.training_attention(installed, masks),
                fused_attention.training_refusal,
            )
    if family.name == "310P":
        _add_310p(choices, installed, masks)
    composed = ComposedAttention(device)
    for kind in _PROMPTS:
        choices[kind].add("composed", lambda: composed.prompts, nd_refusal)
    choices["decode"].add("composed", lambda: composed.decode, nd_refusal)
    return choices


def _add_fused(choices: dict[Kind, AttentionChoice], installed: InstalledOps, masks: Masks, tasks: GraphTasks) -> None:
    """Layout TND first, which takes all rows in one call, then BSND for the head sizes that TND does not take."""
    for name in FUSED_INFER:
        _add_layout(choices, installed, name, masks, tasks)


def _add_layout(
    choices: dict[Kind, AttentionChoice], installed: InstalledOps, name: str, masks: Masks, tasks: GraphTasks
) -> None:
    @cache
    def fused() -> FusedInferAttention:
        return FusedInferAttention(installed, name, masks, tasks)

    for kind in _KINDS:
        choices[kind].add(f"{name} TND", lambda: fused().tokens, fused_attention.tnd_refusal)
    for kind in _PROMPTS:
        choices[kind].add(f"{name} BSND", lambda: fused().prompt_rows, fused_attention.bsnd_refusal)
    choices["decode"].add(f"{name} BSND", lambda: fused().decode_rows, fused_attention.bsnd_refusal)


def _add_atb_910b(choices: dict[Kind, AttentionChoice], installed: InstalledOps, masks: Masks) -> None:
    choices["prefill"].add(
        "_npu_flash_attention", lambda: atb_attention.flash_910b(installed, masks), atb_attention.flash_refusal
    )
    choices["decode"].add(
        "_npu_paged_attention",
        lambda: atb_attention.PagedDecode(installed, lens_on_host=True).rows,
        atb_attention.paged_refusal("nd"),
    )


def _add_310p(choices: dict[Kind, AttentionChoice], installed: InstalledOps, masks: Masks) -> None:
    choices["prefill"].add(
        "_npu_flash_attention_v3",
        lambda: atb_attention.flash_310p(installed, masks, "_npu_flash_attention_v3"),
        atb_attention.flash_v3_refusal,
    )
    choices["prefill"].add(
        "_npu_flash_attention",
        lambda: atb_attention.flash_310p(installed, masks, "_npu_flash_attention"),
        atb_attention.flash_refusal,
    )
    for kind in _PROMPTS:
        choices[kind].add(
            "npu_prompt_flash_attention",
            lambda: attention_310p.prompt_flash(installed),
            attention_310p.prompt_refusal,
        )
        choices[kind].add(
            "_npu_paged_attention by tokens",
            lambda: atb_attention.PagedDecode(installed, lens_on_host=False).tokens,
            atb_attention.paged_refusal("nz"),
        )
    choices["decode"].add(
        "_npu_paged_attention",
        lambda: atb_attention.PagedDecode(installed, lens_on_host=False).rows,
        atb_attention.paged_refusal("nz"),
    )
    choices["decode"].add(
        "npu_incre_flash_attention",
        lambda: attention_310p.incremental_flash(installed),
        attention_310p.incremental_refusal,
    )
