"""Ops are bound by argument names to what the installed wheel has, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.npu.releases import lookup_in
from text_generation_kernels.npu.op_table import op_records
from text_generation_kernels.npu.schemas import InstalledOps, OpUnavailable


def installed(family: str = "A2", release: str = "2.13.0") -> InstalledOps:
    return InstalledOps(family, lookup_in(release))


def test_an_op_that_a_family_lacks_is_refused() -> None:
    with pytest.raises(OpUnavailable, match="_npu_paged_attention does not exist on chips of family A1"):
        installed("A1").bind("_npu_paged_attention", "query")


def test_an_op_that_a_release_lacks_is_refused_with_the_release_that_has_it() -> None:
    with pytest.raises(OpUnavailable, match=r"has no _npu_reshape_and_cache \(seen from 2\.5\.1 on\)"):
        installed(release="2.1.0.post8").bind("_npu_reshape_and_cache", "key")


def test_an_argument_that_a_release_lacks_is_refused_by_name() -> None:
    arguments = ("key", "value", "key_cache", "value_cache", "slot_mapping", "cache_mode")
    with pytest.raises(
        OpUnavailable, match="npu_scatter_pa_kv_cache of the installed torch_npu has no argument cache_mode"
    ):
        installed("A5", "2.8.0").bind("npu_scatter_pa_kv_cache", *arguments)
    installed("A5").bind("npu_scatter_pa_kv_cache", *arguments)


def test_an_argument_that_is_wanted_and_not_given_is_refused_by_name() -> None:
    with pytest.raises(
        OpUnavailable, match="npu_rms_norm of the installed torch_npu wants gamma, which is unknown here"
    ):
        installed().bind("npu_rms_norm", "input", "epsilon")


def test_an_argument_with_one_meaning_is_passed_where_it_exists() -> None:
    given: dict[str, Any] = {}

    class Recorder:
        def __init__(self, schema: Any) -> None:
            self._schema = schema

        def __call__(self, **arguments: Any) -> None:
            given.update(arguments)

    for release, expected in (("2.13.0", {"layout", "rotary_mode"}), ("2.5.1", {"layout"})):
        described = lookup_in(release)("npu", "npu_apply_rotary_pos_emb", "default")
        ops = InstalledOps("A2", lambda *_, schema=described._schema: Recorder(schema))
        call = ops.bind(
            "npu_apply_rotary_pos_emb", "query", "key", "cos", "sin", "layout", where_known={"rotary_mode": "half"}
        )
        given.clear()
        call(layout="BSND")
        assert set(given) == expected


@pytest.mark.parametrize(("release", "expected"), [("2.13.0", 2147483647), ("2.5.1", 2147473647)])
def test_a_default_that_differs_is_read_from_the_installed_wheel(release: str, expected: int) -> None:
    assert installed("310P", release).default_of("npu_prompt_flash_attention", "pre_tokens") == expected


def test_the_table_of_ops_knows_every_op_that_is_bound_by_name() -> None:
    records = op_records()
    assert len(records) == 82
    assert records["_npu_reshape_and_cache"].namespace == "atb"
    assert records["npu_fused_infer_attention_score.out"].support["A2"] == "y"
