"""The chips that can be emulated: names, integer ids, families, and what torch_npu derives from the id.

Knows nothing about single ops: which of them a family has stands in npu_ops.json. The table is this package's own, and
not the one by which the kernels classify a chip: read from there, an id in the wrong family would agree with itself.
"""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30

# The families' names, ids and memory; the order of names is the order of ids.
_FAMILIES: dict[str, tuple[tuple[int, str, int], ...]] = {
    "A1": (
        (100, "Ascend910PremiumA", 32),
        (101, "Ascend910ProA", 32),
        (102, "Ascend910A", 32),
        (103, "Ascend910ProB", 32),
        (104, "Ascend910B", 32),
    ),
    "310P": (
        (200, "Ascend310P1", 24),
        (201, "Ascend310P2", 24),
        (202, "Ascend310P3", 24),
        (203, "Ascend310P4", 24),
        (204, "Ascend310P5", 24),
        (205, "Ascend310P7", 24),
    ),
    "A2": (
        (220, "Ascend910B1", 64),
        (221, "Ascend910B2", 64),
        (222, "Ascend910B2C", 64),
        (223, "Ascend910B3", 64),
        (224, "Ascend910B4", 32),
        (225, "Ascend910B4-1", 64),
    ),
    "310B": ((240, "Ascend310B1", 8), (241, "Ascend310B2", 8), (242, "Ascend310B3", 8), (243, "Ascend310B4", 8)),
    "A3": (
        (250, "Ascend910_9391", 64),
        (251, "Ascend910_9392", 64),
        (252, "Ascend910_9381", 64),
        (253, "Ascend910_9382", 64),
        (254, "Ascend910_9372", 64),
        (255, "Ascend910_9362", 64),
        (256, "Ascend910_9363", 64),
    ),
}


@dataclass(frozen=True, slots=True)
class Soc:
    """One chip. `family` is "unknown" for an id that torch_npu would accept and nobody has seen yet."""

    name: str
    id: int
    family: str
    memory_bytes: int  # of a real card

    @property
    def has_bfloat16(self) -> bool:
        return self.id >= 220

    @property
    def aclnn_only(self) -> bool:
        return self.id >= 260

    @property
    def only_saturates(self) -> bool:
        """Whether an overflow can only become the largest number, and NaN zero."""
        return self.family in ("A1", "310P")

    @property
    def jit_compile_default(self) -> bool:
        """Whether legacy kernels are compiled for every shape unless that is switched off."""
        return self.family in ("A1", "310P")

    @property
    def internal_format_default(self) -> bool:
        """Whether a cast to a private format converts unless that is switched off."""
        return self.family in ("A1", "310P")


def find_soc(name: str) -> Soc:
    """The chip of a device name. "Name=300" is a chip that does not exist yet, with the id after the sign.

    Raises: ValueError for a name that torch_npu does not know either; it aborts then.
    """
    bare, separator, number = name.partition("=")
    if separator:
        return Soc(bare, int(number), "unknown", 32 * _GIB)
    for family, rows in _FAMILIES.items():
        for soc_id, known, gigabytes in rows:
            if known == name:
                return Soc(name, soc_id, family, gigabytes * _GIB)
    if name.startswith("Ascend950"):
        return Soc(name, 260, "A5", 128 * _GIB)
    raise ValueError(f"unknown SoC name {name!r}; use one of {', '.join(soc_names())}, Ascend950..., or Name=id")


def soc_names() -> list[str]:
    """Every name with an id of its own."""
    return [name for rows in _FAMILIES.values() for _, name, _ in rows]
