"""Which chip is of which family, and which is none of ours."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from text_generation_kernels.npu.soc import FAMILIES, UnsupportedSoc, acting_as, classify

CONTENT = json.loads(resources.files("text_generation_kernels.npu").joinpath("npu_ops.json").read_text())
SOCS = [
    (family, soc_id, name.replace("*", ""))
    for family, chips in CONTENT["soc_families"].items()
    for soc_id, name in zip(chips["ids"], chips["names"], strict=True)
]


@pytest.mark.parametrize(("family", "soc_id", "name"), [soc for soc in SOCS if soc[0] != "310B"])
def test_every_chip_of_torch_npu_is_of_its_family(family: str, soc_id: int, name: str) -> None:
    assert classify(soc_id, name).name == family


def test_the_bare_name_of_the_910b_is_an_old_chip() -> None:
    # Row 2 of the known-broken combinations: by its prefix it would be taken for a 910B.
    assert classify(104, "Ascend910B").name == "A1"
    assert classify(220, "Ascend910B1").name == "A2"


@pytest.mark.parametrize(
    ("soc_id", "name"), [(99, "Ascend909"), (105, "Ascend910X"), (219, "Ascend910B0"), (226, "Ascend910B5"), (261, "")]
)
def test_an_unknown_chip_is_refused_with_its_number_and_name(soc_id: int, name: str) -> None:
    with pytest.raises(UnsupportedSoc) as refused:
        classify(soc_id, name)
    assert f"SoC id {soc_id} ({name}) is unknown; supported ids are 100-104 (A1)" in str(refused.value)


@pytest.mark.parametrize("soc_id", range(240, 244))
def test_the_310b_is_refused_by_name(soc_id: int) -> None:
    with pytest.raises(UnsupportedSoc, match=rf"SoC id {soc_id} \(Ascend310B\) is of the family 310B .* not supported"):
        classify(soc_id, "Ascend310B")


def test_ids_of_families_do_not_overlap() -> None:
    ids = [soc_id for family in FAMILIES for soc_id in family.ids]
    assert len(ids) == len(set(ids))


def test_a_chip_may_be_treated_as_less_and_never_as_more() -> None:
    a1, i310p, a2, a3, a5 = FAMILIES
    assert acting_as(a3, "A2") is a2
    assert acting_as(a2, "A1") is a1
    assert acting_as(i310p, "A1") is a1
    for family, more in ((a1, "A2"), (a1, "310P"), (i310p, "A2"), (a2, "A3"), (a2, "A5"), (a5, "A3")):
        with pytest.raises(UnsupportedSoc, match=f"cannot be treated as {more}; NPU_FAMILY may be "):
            acting_as(family, more)


def test_saturating_chips_have_no_bfloat16_and_must_not_compile_per_shape() -> None:
    for family in FAMILIES:
        old = family.name in ("A1", "310P")
        assert family.saturates == old
        assert family.has_bfloat16 != old
        assert family.compiles_at_run_time == old
        assert (family.token_multiple > 1) == old
        assert family.tries_nz == old
