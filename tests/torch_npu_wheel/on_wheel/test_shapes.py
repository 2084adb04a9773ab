"""Emulated kernels give tensors of the shapes and dtypes that the wheel's own Meta kernels promise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_npu_emulator.operators import DECLARED

load_torch_npu()
if os.environ[EMULATOR_VARIABLE] != "Ascend910B4":
    pytest.skip("one chip that has all ops is enough", allow_module_level=True)

FLOAT16, INT32 = torch.float16, torch.int32


def ones(*shape: int, dtype: torch.dtype = FLOAT16) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def compressed_mask() -> Tensor:
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


@dataclass(frozen=True)
class Call:
    """An op with its arguments, whose tensors are still to be put on a device."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


_PAGED = {"block_table": torch.arange(6, dtype=INT32).view(3, 2), "block_size": 128}
_V1 = {"num_heads": 8, "num_key_value_heads": 2, "scale": 0.1}
_V2 = {"num_query_heads": 8, "num_key_value_heads": 2, "softmax_scale": 0.1}
_TND = {"input_layout": "TND", "actual_seq_lengths": [1, 2, 3], "actual_seq_lengths_kv": [5, 130, 7]}
_TND_V2 = {"input_layout": "TND", "actual_seq_qlen": [1, 2, 3], "actual_seq_kvlen": [5, 130, 7]}
_PROMPT = {"num_heads": 8, "num_key_value_heads": 2, "scale_value": 0.1}

CALLS = (
    Call("_npu_dtype_cast", (ones(2, 3), torch.float32)),
    Call("npu_dtype_cast", (ones(2, 3), 6)),
    Call("npu_rms_norm", (ones(3, 64), ones(64), 1e-5)),
    Call("npu_rms_norm", (ones(2, 3, 64), ones(64), 1e-5)),
    Call("npu_add_rms_norm", (ones(3, 64), ones(3, 64), ones(64), 1e-5)),
    Call("npu_rotary_mul", (ones(1, 3, 4, 128), ones(1, 3, 1, 128), ones(1, 3, 1, 128))),
    Call("npu_apply_rotary_pos_emb", (ones(1, 3, 4, 128), ones(1, 3, 2, 128), ones(1, 3, 1, 128), ones(1, 3, 1, 128))),
    Call("npu_swiglu", (ones(3, 64),)),
    Call("npu_silu", (ones(3, 64),)),
    Call("npu_linear", (ones(3, 64), ones(32, 64), ones(32))),
    Call("npu_bmmV2", (ones(2, 3, 64), ones(2, 64, 32), [])),
    Call("npu_prefetch", (ones(3, 64), None, 64)),
    Call("npu_scaled_masked_softmax", (ones(1, 2, 32, 64), ones(1, 1, 32, 64, dtype=torch.bool), 0.5)),
    Call("npu_top_k_top_p", (ones(2, 2000), ones(2), torch.full((2,), 5, dtype=INT32))),
    Call("npu_scatter_nd_update", (ones(8, 2, 64), torch.tensor([[1], [3]], dtype=INT32), ones(2, 2, 64))),
    Call("npu_scatter_nd_update_", (ones(8, 2, 64), torch.tensor([[1], [3]], dtype=INT32), ones(2, 2, 64))),
    Call(
        "npu_scatter_pa_kv_cache",
        (ones(2, 2, 64), ones(2, 2, 64), ones(4, 128, 2, 64), ones(4, 128, 2, 64), torch.tensor([1, 3], dtype=INT32)),
        {"cache_mode": "Norm"},
    ),
    Call("npu_dynamic_quant", (ones(3, 64),)),
    Call("npu_quant_matmul", (ones(3, 64, dtype=torch.int8), ones(64, 32, dtype=torch.int8), ones(32).float())),
    Call(
        "npu_quant_matmul",
        (ones(3, 64, dtype=torch.int8), ones(64, 32, dtype=torch.int8), ones(32).float()),
        {"pertoken_scale": ones(3).float(), "output_dtype": 5},
    ),
    Call("npu_weight_quant_batchmatmul", (ones(3, 64), ones(64, 32, dtype=torch.int8), ones(32))),
    Call("npu_trans_quant_param", (ones(32).float(),)),
    Call(
        "npu_fused_infer_attention_score",
        (ones(3, 8, 128), ones(6, 128, 256), ones(6, 128, 256)),
        {**_V1, **_TND, **_PAGED, "sparse_mode": 3, "atten_mask": compressed_mask()},
    ),
    Call(
        "npu_fused_infer_attention_score",
        (ones(3, 8, 128), ones(6, 128, 256), ones(6, 128, 256)),
        {**_V1, **_TND, **_PAGED, "softmax_lse_flag": True},
    ),
    Call(
        "npu_fused_infer_attention_score",
        (ones(3, 1, 8, 64), ones(6, 128, 128), ones(6, 128, 128)),
        {**_V1, **_PAGED, "input_layout": "BSND", "actual_seq_lengths_kv": [5, 130, 7]},
    ),
    Call(
        "npu_fused_infer_attention_score_v2",
        (ones(3, 8, 128), ones(6, 128, 256), ones(6, 128, 256)),
        {**_V2, **_TND_V2, **_PAGED, "return_softmax_lse": True},
    ),
    Call(
        "npu_fusion_attention",
        (ones(3, 8, 128), ones(3, 2, 128), ones(3, 2, 128), 8, "TND"),
        {
            "scale": 0.1,
            "actual_seq_qlen": [1, 3],
            "actual_seq_kvlen": [1, 3],
            "sparse_mode": 3,
            "atten_mask": compressed_mask(),
        },
    ),
    Call(
        "npu_prompt_flash_attention",
        (ones(1, 32, 8, 128), ones(1, 32, 2, 128), ones(1, 32, 2, 128)),
        {**_PROMPT, "input_layout": "BSND", "next_tokens": 65535},
    ),
    Call(
        "npu_incre_flash_attention",
        (ones(3, 1, 1024), ones(6, 128, 256), ones(6, 128, 256)),
        {**_PROMPT, **_PAGED, "input_layout": "BSH", "actual_seq_lengths": [5, 130, 7]},
    ),
)


def put(values: Any, device: str) -> Any:
    return tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, values)


def results(call: Call, device: str) -> list[object]:
    found = getattr(torch.ops.npu, call.op)(*put(call.args, device), **put(dict(call.kwargs), device))
    leaves, _ = tree_flatten(found)
    return [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.op)
def test_shapes_and_dtypes_are_those_of_the_meta_kernel(call: Call) -> None:
    assert results(call, "npu") == results(call, "meta")


def test_no_kernel_is_left_out() -> None:
    with_meta = {name.partition("::")[2] for name in torch._C._dispatch_get_registrations_for_dispatch_key("Meta")}
    assert {call.op for call in CALLS} == DECLARED.keys() & with_meta
