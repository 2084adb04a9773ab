"""The chip families: which SoC ids they have, and what that means for the software. One table, which alone decides.

A chip is classified by its integer id, never by its name: the bare name "Ascend910B" is id 104, a chip of the 910A
class, and would be taken for a 910B (220 and up) by anything that looks at prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass

# Set, it names an emulated chip: the package of that name then stands in for torch_npu, on machines without a card.
EMULATOR_VARIABLE = "TEXT_GENERATION_NPU_EMULATOR"


class UnsupportedSoc(ValueError):
    """A chip that no code here was written for. The message is one line with its id and its name."""


@dataclass(frozen=True)
class Family:
    """What is the same for all chips of a family."""

    name: str  # as npu_ops.json calls it
    products: str
    ids: range  # of torch_npu's get_soc_version()
    has_bfloat16: bool
    saturates: bool  # an overflow becomes +-65504 and a NaN 0: neither ever shows
    compiles_at_run_time: bool  # torch_npu's default for jit_compile
    keeps_formats: bool  # torch_npu's default for allow_internal_format; without it a cast to NZ silently stays ND
    tries_nz: bool  # whether linear weights are to be in NZ when nobody said
    token_multiple: int  # step sizes are rounded up to this, so that few shapes occur
    captures_graphs: bool
    broadcasts: bool  # whether HCCL has broadcast
    may_act_as: tuple[str, ...]  # families whose ops and limits are all within this one's


A1 = Family(
    name="A1",
    products="Ascend 910A class: Atlas 800 (9000, 9010), 300T",
    ids=range(100, 105),
    has_bfloat16=False,
    saturates=True,
    compiles_at_run_time=True,
    keeps_formats=True,
    tries_nz=True,
    token_multiple=16,
    captures_graphs=False,
    broadcasts=True,
    may_act_as=("A1",),
)
I310P = Family(
    name="310P",
    products="Atlas 300I Pro, 300I Duo, 300V",
    ids=range(200, 206),
    has_bfloat16=False,
    saturates=True,
    compiles_at_run_time=True,
    keeps_formats=True,
    tries_nz=True,
    token_multiple=16,
    captures_graphs=False,
    broadcasts=False,
    may_act_as=("310P", "A1"),
)
A2 = Family(
    name="A2",
    products="Ascend 910B class: Atlas 800T A2, 800I A2",
    ids=range(220, 226),
    has_bfloat16=True,
    saturates=False,
    compiles_at_run_time=False,
    keeps_formats=False,
    tries_nz=False,
    token_multiple=1,
    captures_graphs=True,
    broadcasts=True,
    may_act_as=("A2", "A1"),
)
A3 = Family(
    name="A3",
    products="Ascend 910C: Atlas A3, one device per die",
    ids=range(250, 257),
    has_bfloat16=True,
    saturates=False,
    compiles_at_run_time=False,
    keeps_formats=False,
    tries_nz=False,
    token_multiple=1,
    captures_graphs=True,
    broadcasts=True,
    may_act_as=("A3", "A2", "A1"),
)
A5 = Family(
    name="A5",
    products="Ascend 950",
    ids=range(260, 261),
    has_bfloat16=True,
    saturates=False,
    compiles_at_run_time=False,
    keeps_formats=False,
    tries_nz=False,
    token_multiple=1,
    captures_graphs=True,
    broadcasts=True,
    may_act_as=("A5",),
)
FAMILIES = (A1, I310P, A2, A3, A5)

# Known, and not served: nobody has said which attention these could run.
_REFUSED = {"310B (Atlas 200I A2, 500 A2)": range(240, 244)}


def classify(soc_id: int, soc_name: str) -> Family:
    """The family of a chip.

    Args:
        soc_id: torch_npu's get_soc_version().
        soc_name: torch_npu's get_device_name(), for messages only.
    Raises: UnsupportedSoc.
    """
    for family in FAMILIES:
        if soc_id in family.ids:
            return family
    for name, ids in _REFUSED.items():
        if soc_id in ids:
            raise UnsupportedSoc(f"SoC id {soc_id} ({soc_name}) is of the family {name}, which is not supported")
    known = ", ".join(f"{f.ids.start}-{f.ids.stop - 1} ({f.name})" for f in FAMILIES)
    raise UnsupportedSoc(f"SoC id {soc_id} ({soc_name}) is unknown; supported ids are {known}")


def acting_as(family: Family, name: str) -> Family:
    """The family to be treated as, for somebody who distrusts what a chip is said to have: a lesser one, never more.

    Raises: UnsupportedSoc.
    """
    if name not in family.may_act_as:
        allowed = ", ".join(family.may_act_as)
        raise UnsupportedSoc(f"a chip of family {family.name} cannot be treated as {name}; NPU_FAMILY may be {allowed}")
    return next(f for f in FAMILIES if f.name == name)
