"""Signatures of four releases, as strings and in torch's registry."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import ops_of, sampled_release
from text_generation_npu_emulator.operators import DECLARED
from text_generation_npu_emulator.schemas import OpRecord

RELEASES = ((2, 1), (2, 5), (2, 8), (2, 13))


def record(release: tuple[int, int], name: str) -> OpRecord:
    return next(op for op in ops_of(release) if op.name == name)


@pytest.mark.parametrize(
    ("release", "sample"), [((2, 1), "2.1.0.post8"), ((2, 7), "2.6.0"), ((2, 13), "2.13.0"), ((3, 0), "2.14.0")]
)
def test_release_stands_for_the_newest_sample_that_is_not_newer(release: tuple[int, int], sample: str) -> None:
    assert sampled_release(release) == sample


def test_older_than_all_samples_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the oldest is 2\.1"):
        sampled_release((2, 0))


@pytest.mark.parametrize("release", [*RELEASES, (2, 3), (2, 6), (2, 10), (2, 14)])
def test_every_signature_parses(release: tuple[int, int]) -> None:
    for op in ops_of(release):
        schema = torch._C.parse_schema(f"{op.namespace}::{op.schema}")
        names = [argument.name for argument in schema.arguments]
        assert len(names) == len(set(names))


def test_newest_sampled_strings_are_those_of_the_file() -> None:
    assert record((2, 13), "npu_swiglu").schema == "npu_swiglu(Tensor input, int dim=-1) -> Tensor"
    assert len(ops_of((2, 13))) == 82


OLDER = {
    ((2, 1), "npu_rotary_mul"): "npu_rotary_mul(Tensor input, Tensor r1, Tensor r2) -> Tensor",
    ((2, 5), "npu_rotary_mul"): 'npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode="half") -> Tensor',
    ((2, 5), "npu_apply_rotary_pos_emb"): (
        "npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, "
        'str layout="BSH") -> (Tensor, Tensor)'
    ),
    ((2, 6), "npu_top_k_top_p"): "npu_top_k_top_p(Tensor logits, Tensor p, Tensor k) -> Tensor",
    ((2, 8), "npu_format_cast"): ("npu_format_cast(Tensor input, int acl_format, int? customize_dtype=None) -> Tensor"),
    ((2, 1), "npu_format_cast"): "npu_format_cast(Tensor input, int acl_format) -> Tensor",
}


@pytest.mark.parametrize("key", OLDER, ids=str)
def test_older_signature(key: tuple[tuple[int, int], str]) -> None:
    assert record(*key).schema == OLDER[key]


def test_training_attention_was_keyword_only() -> None:
    for release, is_positional in (((2, 8), False), ((2, 13), True)):
        schema = torch._C.parse_schema("npu::" + record(release, "npu_fusion_attention").schema)
        scale = next(argument for argument in schema.arguments if argument.name == "scale")
        assert scale.kwarg_only is not is_positional


def test_old_default_of_prompt_attention() -> None:
    assert "pre_tokens=2147473647" in record((2, 8), "npu_prompt_flash_attention").schema


@pytest.mark.parametrize("release", ["2.1.0.post8", "2.5.1", "2.8.0", "2.13.0"])
def test_registry_is_that_of_the_release(make_machine: MachineMaker, release: str) -> None:
    make_machine(torch_npu=release)
    import torch_npu

    assert torch_npu.__version__ == release
    has_atb = not release.startswith("2.1.")
    assert hasattr(torch_npu, "_npu_reshape_and_cache") is has_atb
    assert hasattr(torch.ops.npu, "npu_fused_infer_attention_score_v2") is release.startswith(("2.8", "2.13"))
    assert hasattr(torch_npu, "npu_apply_rotary_pos_emb") is release.startswith(("2.8", "2.13"))
    assert hasattr(torch.ops.npu, "npu_apply_rotary_pos_emb")
    arguments = [argument.name for argument in torch.ops.npu.npu_rotary_mul.default._schema.arguments]
    assert ("rotary_mode" in arguments) is not release.startswith("2.1.")
    x, gamma = torch.ones(2, 64, dtype=torch.float16, device="npu"), torch.ones(64, dtype=torch.float16, device="npu")
    assert torch.equal(torch_npu.npu_rms_norm(x, gamma, epsilon=0.0)[0].cpu(), x.cpu())
    assert int(torch_npu.get_npu_format(x)) == 2
    assert hasattr(torch_npu, "Format") is release.startswith(("2.8", "2.13"))


def test_argument_of_a_later_release_is_not_taken(make_machine: MachineMaker) -> None:
    make_machine(torch_npu="2.5.1")
    x = torch.ones(1, 2, 2, 64, dtype=torch.float16, device="npu")
    with pytest.raises(RuntimeError, match="expected at most 5"):
        torch.ops.npu.npu_apply_rotary_pos_emb(x, x, x, x, layout="BSND", rotary_mode="half")


def test_every_kernel_knows_only_arguments_of_its_op() -> None:
    known: defaultdict[object, set[str]] = defaultdict(set)
    for op in ops_of((2, 13)):
        schema = torch._C.parse_schema(f"{op.namespace}::{op.schema}")
        # A kernel of two versions of an op knows the arguments of both.
        known[DECLARED[op.packet].function if op.packet in DECLARED else None].update(
            argument.name for argument in schema.arguments
        )
    for name, declaration in DECLARED.items():
        assert declaration.known <= known[declaration.function], name
        assert declaration.on_host | declaration.anywhere | declaration.nz <= declaration.known, name


def test_op_that_is_not_emulated_says_so(make_machine: MachineMaker) -> None:
    make_machine()
    with pytest.raises(RuntimeError, match="there is no kernel for the NPU"):
        torch.ops.npu.npu_interleave_rope(*[torch.ones(1, 1, 1, 64, dtype=torch.float16, device="npu")] * 3)
