"""What was found on a machine: records of plain values. Nothing here says whether it is good or bad."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PackageFacts:
    """Versions from package metadata; None: not installed."""

    python: str
    torch: str | None
    torch_npu: str | None
    numpy: str | None
    missing: tuple[str, ...]  # requirements of ours that are not installed
    outdated: tuple[str, ...]  # those that are, in a version below, with that version
    cann_python_missing: tuple[str, ...]  # packages that CANN's op compiler imports and that are not installed


@dataclass(frozen=True)
class Installation:
    """A CANN or NNAL on this machine."""

    path: str
    version: str  # "" where no file says it
    set_env: str  # the script that makes it usable; "" if there is none beside it


@dataclass(frozen=True)
class AscendFacts:
    """What files and variables say about driver, CANN and NNAL."""

    driver_version: str | None  # None: no version.info; "": it states none
    home: str | None  # ASCEND_HOME_PATH
    cann: Installation | None  # of ASCEND_HOME_PATH; without that the first one found
    installations: tuple[Installation, ...]
    missing_libraries: tuple[str, ...]  # of those that torch_npu links against, not on the library path
    kernels: tuple[str, ...]  # chips that CANN has compiled kernels for, by its folder names
    nnal: Installation | None
    nnal_home: str | None  # ATB_HOME_PATH
    has_libatb: bool


@dataclass(frozen=True)
class Chip:
    """One row of npu-smi. An NPU is a card here, and a card may have two chips."""

    npu: int
    chip: int
    logic_id: int | None  # what ASCEND_RT_VISIBLE_DEVICES counts
    name: str
    health: str
    bus_id: str
    used_mb: int
    total_mb: int


@dataclass(frozen=True)
class SmiFacts:
    """What npu-smi says."""

    path: str | None = None
    version: str = ""
    error: str = ""  # one line if it failed
    chips: tuple[Chip, ...] = ()
    processes: tuple[str, ...] = ()  # "NPU 7 chip 0: python (pid 499214), 26322 MB"


@dataclass(frozen=True)
class DeviceNode:
    """A device file of the driver."""

    path: str
    mode: str  # "rw-rw----"
    owner: str  # "root:HwHiAiUser"
    may_open: bool


@dataclass(frozen=True)
class NodeFacts:
    """Device files, and who asks for them."""

    cards: tuple[DeviceNode, ...]  # /dev/davinciN
    managers: tuple[DeviceNode, ...]
    missing_managers: tuple[str, ...]
    user: str
    groups: tuple[str, ...]
    in_container: bool


@dataclass(frozen=True)
class ImportFacts:
    """How far a child process came that imported torch and torch_npu."""

    tried: tuple[str, ...] = ()
    torch: str | None = None
    torch_npu: str | None = None
    num_devices: int | None = None
    soc_id: int | None = None
    soc_name: str = ""
    memory: tuple[tuple[int, int], ...] = ()  # (free, total) bytes of each visible card
    stage: str = ""  # where it failed: torch, torch_npu, devices, chip, memory
    error: str = ""  # one line
    timed_out: bool = False


@dataclass(frozen=True)
class MachineFacts:
    """The host itself."""

    num_cores: int  # that may be used, quota counted
    allowed_cores: frozenset[int]
    numa_cores: dict[int, tuple[int, ...]]  # node -> its cores
    chip_nodes: dict[str, int]  # bus id of a chip -> its NUMA node; absent where the host does not say
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class ModelFacts:
    """A checkpoint's sizes, from config.json and the headers of its weights."""

    folder: str | None  # None: not on this machine as a folder
    problem: str = ""  # one line: why there are no numbers
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    max_positions: int = 0  # as config.json states it
    scales_positions: bool = False  # by rope scaling, which moves the limit
    dtypes: tuple[str, ...] = ()  # of the weights: "bfloat16", ...
    float_elements: int = 0
    linear_elements: int = 0  # those of float_elements in matrices other than embedding and output head
    other_bytes: int = 0  # of tensors that are not float
    is_quantized: bool = False
    stored_bytes: int = 0


@dataclass(frozen=True)
class Facts:
    """All of it."""

    packages: PackageFacts
    ascend: AscendFacts
    smi: SmiFacts
    nodes: NodeFacts
    imports: ImportFacts
    machine: MachineFacts
    model: ModelFacts
    variables: dict[str, str] = field(default_factory=dict)  # those of the environment that findings judge
    taken_ports: tuple[int, ...] = ()  # of HCCL's range
    emulated_chip: str = ""  # the chip that stands in for this machine's own, "" for none
