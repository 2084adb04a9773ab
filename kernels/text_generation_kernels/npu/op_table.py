"""Reader of npu_ops.json: which torch_npu ops there are, and what is known of them on each chip family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op, or one overload of it, e.g. "npu_fused_infer_attention_score.out"."""

    name: str
    namespace: str  # of torch.ops: "npu" or "atb"
    schema: str  # in torch_npu 2.13
    support: Mapping[str, str]  # by family: "y" documented, "t" seen in tests or products, "n" not there, "?" unknown
    by_release: Mapping[str, Any]  # how other releases differ from 2.13
    first_seen_in: str


@cache
def op_records() -> dict[str, OpRecord]:
    """All ops of npu_ops.json by name."""
    content = json.loads(resources.files(__package__).joinpath("npu_ops.json").read_text(encoding="utf-8"))
    return {
        name: OpRecord(
            name=name,
            namespace=op["namespace"],
            schema=op["schema"],
            support=op["socs"],
            by_release=op["signature_by_release"],
            first_seen_in=op["first_seen_in"],
        )
        for name, op in content["ops"].items()
    }
