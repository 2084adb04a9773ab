"""What the emulated machine is like: chip, number of cards, memory, versions, and what is broken about it.

Read from the environment in one place, so that a server started as a child process is told the same way as a test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from text_generation_npu_emulator.soc import Soc, find_soc

VARIABLE = "TEXT_GENERATION_NPU_EMULATOR"


@dataclass(frozen=True, slots=True)
class Settings:
    """One emulated machine. A field `x` is the environment variable `VARIABLE`_X; `soc` is `VARIABLE` itself."""

    soc: Soc
    host: str = "python"  # or "wheel": what stands between torch and the kernels
    devices: int = 2  # cards in the machine; ASCEND_RT_VISIBLE_DEVICES picks from them
    memory_mb: int = 4096  # of one card; a real one's is soc.memory_bytes, which the host seldom has
    others_mb: int = 0  # of that, held by other processes
    torch_npu: str = "2.13.0"  # release whose ops and signatures are there
    cann: str = "8.5.0"  # "missing": torch_npu does not import, as without set_env.sh
    nnal: str = "8.5.0"  # "missing" or "mismatch": torch_npu imports, and the first ATB call fails
    faults: str = ""  # see faults.py
    graphs: int = 0  # how many can be captured before streams run out; 0: any number
    silent: bool = False  # whether to do, like the chip, what the chip gets wrong without an error
    # Variables of CANN and torch_npu themselves, under their own names.
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def visible_devices(self) -> list[int]:
        """The cards this process sees, in order."""
        listed = self.environment.get("ASCEND_RT_VISIBLE_DEVICES")
        if listed is None:
            return list(range(self.devices))
        cards = [int(item) for item in listed.split(",") if item.strip()]
        # The runtime stops at the first id that is not there.
        present: list[int] = []
        for card in cards:
            if not 0 <= card < self.devices:
                break
            present.append(card)
        return present

    @property
    def saturates(self) -> bool:
        """Whether overflow gives the largest number and NaN gives zero."""
        forced = (
            self.environment.get("INF_NAN_MODE_ENABLE") == "0"
            and self.environment.get("INF_NAN_MODE_FORCE_DISABLE") == "1"
        )
        return self.soc.only_saturates or (forced and self.soc.family in ("A2", "A3"))

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version of torch_npu."""
        major, minor = self.torch_npu.split(".")[:2]
        return int(major), int(minor)

    @property
    def cann_release(self) -> tuple[int, int]:
        """Major and minor version of CANN."""
        major, minor = self.cann.split(".")[:2]
        return int(major), int(minor)


def settings_from_environment(environment: Mapping[str, str] | None = None) -> Settings | None:
    """What the environment asks for, None if it asks for no emulated NPU.

    Raises: ValueError for an unknown SoC name or a number that is none.
    """
    environment = dict(os.environ if environment is None else environment)
    name = environment.get(VARIABLE, "")
    if not name:
        return None

    unchanged = Settings(find_soc(name), environment=environment)

    def value(option: str, default: object) -> str:
        return environment.get(f"{VARIABLE}_{option}", str(default))

    return replace(
        unchanged,
        host=value("HOST", unchanged.host),
        devices=int(value("DEVICES", unchanged.devices)),
        memory_mb=int(value("MEMORY_MB", unchanged.memory_mb)),
        others_mb=int(value("OTHERS_MB", unchanged.others_mb)),
        torch_npu=value("TORCH_NPU", unchanged.torch_npu),
        cann=value("CANN", unchanged.cann),
        nnal=value("NNAL", unchanged.nnal),
        faults=value("FAULTS", unchanged.faults),
        graphs=int(value("GRAPHS", unchanged.graphs)),
        silent=value("SILENT", int(unchanged.silent)) == "1",
    )
