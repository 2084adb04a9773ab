"""npu_ops.json is what the wheel has registered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import torch

from text_generation_kernels.npu_probe import load_torch_npu

TORCH_NPU = load_torch_npu()
OPS: Mapping[str, Any] = json.loads(
    resources.files("text_generation_kernels.npu").joinpath("npu_ops.json").read_text()
)["ops"]


def registered_schema(namespace: str, name: str) -> str:
    base, _, overload = name.partition(".")
    op = getattr(getattr(getattr(torch.ops, namespace), base, None), overload or "default", None)
    return "not registered" if op is None else str(op._schema)


def test_the_wheel_is_the_release_that_the_table_describes() -> None:
    assert TORCH_NPU.__version__.split("+")[0] == "2.13.0"


def test_every_signature_is_the_wheels() -> None:
    seen = {name: registered_schema(op["namespace"], name) for name, op in OPS.items()}
    assert seen == {name: op["schema"] for name, op in OPS.items()}
    assert len(seen) > 80


def test_every_op_is_where_torch_npu_shows_it() -> None:
    for name, op in OPS.items():
        base = name.partition(".")[0]
        assert hasattr(TORCH_NPU, base) == (op["python"] == f"torch_npu.{base}"), name
        assert hasattr(TORCH_NPU.atb, base) == (op["python"] == f"torch_npu.atb.{base}"), name
