"""Every finding that `doctor` can make: a machine that has it, and what the line then says.

Each case starts from a host where all is well (two 910B4), or from one without any NPU, and changes one thing.
"""

from __future__ import annotations

import ast
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launcher.doctor import machines
from tests.launcher.doctor.machines import (
    GIB,
    MAPPING_310P,
    NNAL,
    TABLE_310P,
    TOOLKIT,
    Machine,
    cpu_machine,
    npu_machine,
)
from text_generation_launcher.doctor.findings import Severity, can_serve
from text_generation_launcher.doctor.packages import OUR_PACKAGE

DOCTOR = Path(__file__).parents[3] / "launcher/text_generation_launcher/doctor"
OK, NOTE, WARNING, ERROR = Severity.OK, Severity.NOTE, Severity.WARNING, Severity.ERROR
NO_LIBRARY = "{}: cannot open shared object file: No such file or directory"
Change = Callable[[Machine], object]


@dataclass(frozen=True)
class Case:
    code: str
    severity: Severity
    says: tuple[str, ...]  # parts of the line
    change: Change = lambda machine: None
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}-{self.severity.value}-{self.says[0]}"


def environ(**variables: str) -> Change:
    return lambda machine: machine.environ.update(variables)


def unset(*variables: str) -> Change:
    return lambda machine: [machine.environ.pop(name) for name in variables]


def both(*changes: Change) -> Change:
    return lambda machine: [change(machine) for change in changes]


def broken_import(error: str) -> Change:
    return lambda machine: machine.broken_torch_npu(error)


def chip(name: str, number: int) -> Change:
    return lambda machine: machine.torch_npu("2.8.0.post2", soc_name=name, soc_id=number)


def container(machine: Machine) -> None:
    machine.write("/.dockerenv")


def without_devices(machine: Machine) -> None:
    for path in (machine.root / "dev").iterdir():
        path.unlink()


def without_driver(machine: Machine) -> None:
    without_devices(machine)
    machine.remove("/usr/local/Ascend/driver/version.info")
    machine.remove("/bin/npu-smi")
    machine.broken_torch_npu(NO_LIBRARY.format("libascend_hal.so"))


def without_cann(machine: Machine) -> None:
    (machine.root / "usr/local/Ascend/ascend-toolkit").rename(machine.root / "gone")
    machine.environ.clear()
    machine.broken_torch_npu(NO_LIBRARY.format("libhccl.so"))


def without_nnal(machine: Machine) -> None:
    (machine.root / "usr/local/Ascend/nnal").rename(machine.root / "gone")
    machine.environ.pop("ATB_HOME_PATH")


def without_torch(machine: Machine) -> None:
    for folder in machine.site.glob("torch-*.dist-info"):
        (folder / "METADATA").unlink()
        folder.rmdir()


def our_requirements(machine: Machine) -> None:
    needed = ("grpcio>=1.76", "tokenizers>=0.19", "torch>=2.1", 'ray>=2.9; extra == "ray"')
    machine.package(OUR_PACKAGE, "0.1.0", needed)
    machine.package("grpcio", "1.60.0")


def module(name: str, source: str) -> Change:
    return lambda machine: machine.module(name, source)


ON_NPU = (
    # Python packages
    Case(
        "python-packages",
        ERROR,
        ("are missing: tokenizers>=0.19;", "pip install ."),
        our_requirements,
    ),
    Case("python-packages", WARNING, ("too old: grpcio>=1.76 (1.60.0 is installed);",), our_requirements),
    Case("torch", OK, ("torch 2.8.0+cpu is installed and can be imported",)),
    Case("torch-npu", OK, ("torch_npu 2.8.0.post2 can be imported",)),
    Case("torch-npu", NOTE, ("it was not imported",), arguments=("--device", "cpu")),
    Case(
        "torch-npu-import",
        ERROR,
        ("ImportError: libhccl.so: cannot open", "; source /usr/local/Ascend/ascend-toolkit/set_env.sh"),
        broken_import(NO_LIBRARY.format("libhccl.so")),
    ),
    Case("torch-npu-import", ERROR, ("nnal/atb/set_env.sh",), broken_import(NO_LIBRARY.format("libatb.so"))),
    Case("torch-npu-import", ERROR, ("is the driver's",), broken_import(NO_LIBRARY.format("libascend_hal.so"))),
    Case(
        "torch-npu-import",
        ERROR,
        ("undefined symbol: _ZN2at", "was built for another torch or CANN", "pip install torch==2.8.0"),
        broken_import("libtorch_npu.so: undefined symbol: _ZN2at3fooEv"),
    ),
    Case(
        "torch-npu-import",
        ERROR,
        ("the process ended with signal 6", "or use --device cpu"),
        module("torch_npu", "import os\nos.abort()\n"),
    ),
    Case(
        "torch-npu-import",
        ERROR,
        ("the process ended with exit status 3: driver is asleep",),
        module("torch_npu", "import os, sys\nprint('driver is asleep', file=sys.stderr, flush=True)\nos._exit(3)\n"),
    ),
    Case("torch-pairing", ERROR, ("do not belong together", "pip install torch==2.8.0"), lambda m: m.torch("2.7.1")),
    Case("torch-cuda", WARNING, ("is a CUDA build", "torch==2.8.0+cpu"), lambda m: m.torch("2.8.0+cu128")),
    # Driver
    Case("driver", OK, ("Ascend driver 24.1.rc3",)),
    Case("driver", NOTE, ("not readable",), lambda m: m.remove("/usr/local/Ascend/driver/version.info")),
    Case("driver", ERROR, ("no Ascend driver", "install driver and firmware"), without_driver),
    Case("driver", ERROR, ("no Ascend driver", "--device /dev/davinci_manager"), both(without_driver, container)),
    # CANN and NNAL
    Case("cann", OK, (f"CANN 8.5.0 in {TOOLKIT}",)),
    Case("cann", ERROR, ("CANN is not installed", "install the toolkit"), without_cann),
    Case(
        "cann",
        ERROR,
        ("ASCEND_HOME_PATH is /opt/cann, and nothing is there",),
        both(without_cann, environ(ASCEND_HOME_PATH="/opt/cann")),
    ),
    Case(
        "cann-environment",
        ERROR,
        ("set_env.sh was not sourced", "; source /usr/local/Ascend/ascend-toolkit/set_env.sh"),
        both(unset("ASCEND_HOME_PATH"), broken_import(NO_LIBRARY.format("libhccl.so"))),
    ),
    Case(
        "cann-environment",
        WARNING,
        ("ASCEND_HOME_PATH is /opt/cann, where nothing is",),
        environ(ASCEND_HOME_PATH="/opt/cann"),
    ),
    Case(
        "cann-libraries",
        ERROR,
        ("not on the library path: libgraph.so;", "LD_LIBRARY_PATH"),
        both(lambda m: m.remove(f"{TOOLKIT}/lib64/libgraph.so"), broken_import(NO_LIBRARY.format("libgraph.so"))),
    ),
    Case("cann-pairing", OK, ("was released with CANN 8.5.0",)),
    Case(
        "cann-pairing",
        WARNING,
        ("CANN 8.3.RC1 is older", "CANN 8.5.0 or newer"),
        lambda m: m.write(f"{TOOLKIT}/version.cfg", "toolkit_running_version=[8.3.0.1.200:8.3.RC1]\n"),
    ),
    Case("cann-pairing", NOTE, ("is not known here",), lambda m: m.torch_npu("2.8.0.post99")),
    Case(
        "cann-python",
        WARNING,
        ("missing: decorator", "pip install decorator"),
        lambda m: (m.site / "decorator-99.0.dist-info/METADATA").unlink(),
    ),
    Case(
        "cann-kernels", WARNING, ("ascend910b, and none for Ascend910A", "folder ascend910)"), chip("Ascend910A", 102)
    ),
    Case("nnal", OK, ("NNAL (ATB) 8.5.0",)),
    Case("nnal", NOTE, ("NNAL (ATB) is not installed",), without_nnal),
    Case(
        "nnal",
        WARNING,
        ("libatb.so is not on the library path", f"source {NNAL}/set_env.sh"),
        lambda m: m.remove(f"{NNAL}/latest/atb/cxx_abi_0/lib/libatb.so"),
    ),
    Case(
        "nnal-pairing",
        WARNING,
        ("NNAL 8.3.RC1 and CANN 8.5.0", "install NNAL 8.5.0"),
        lambda m: m.write(f"{NNAL}/latest/version.info", "    Ascend-cann-atb : 8.3.RC1\n"),
    ),
    # Device files and npu-smi
    Case("device-nodes", OK, ("/dev/davinci0, /dev/davinci1 can be opened by me",)),
    Case("device-nodes", ERROR, ("there is no /dev/davinci0", "install the driver"), without_driver),
    Case("device-nodes", ERROR, ("--device /dev/davinci0",), both(without_driver, container)),
    Case("device-managers", WARNING, ("/dev/devmm_svm not there",), lambda m: m.remove("/dev/devmm_svm")),
    Case(
        "device-permission",
        ERROR,
        ("me (groups me, HwHiAiUser) may not open /dev/davinci1 (rw-rw---- root:", "usermod -aG"),
        both(lambda m: m.write("/dev/davinci1", mode=0o660), broken_import("driver error 87")),
    ),
    Case("device-permission", NOTE, ("may not open /dev/davinci1",), lambda m: m.write("/dev/davinci1", mode=0o660)),
    Case(
        "device-permission",
        ERROR,
        ("--group-add NUMBER",),
        both(container, lambda m: m.write("/dev/davinci0", mode=0o660), broken_import("driver error 87")),
    ),
    Case("npu-smi", OK, ("npu-smi 24.1.rc3 sees NPU 0 chip 0 910B4 3373 of 32768 MB",)),
    Case("npu-smi", NOTE, ("health and memory of the cards are not checked",), lambda m: m.remove("/bin/npu-smi")),
    Case(
        "npu-smi",
        WARNING,
        ("dcmi module initialize failed. ret is -8005", "mount /usr/local/dcmi"),
        both(container, lambda m: m.npu_smi("dcmi module initialize failed. ret is -8005", status=1)),
    ),
    Case(
        "npu-smi",
        WARNING,
        ("ret is -8005", "me must be in group HwHiAiUser"),
        both(
            lambda m: m.write("/dev/davinci0", mode=0o660),
            lambda m: m.npu_smi("dcmi module initialize failed. ret is -8005", status=1),
        ),
    ),
    Case("npu-smi", WARNING, ("ret is -8020", "driver is loaded"), lambda m: m.npu_smi("ret is -8020", status=1)),
    Case("npu-health", WARNING, ("NPU 1 chip 1: Alarm",), lambda m: m.npu_smi(TABLE_310P, MAPPING_310P)),
    Case(
        "device-busy",
        NOTE,
        ("NPU 1 chip 0: VLLMWorker_TP (pid 19341), 1200 MB",),
        lambda m: m.npu_smi(TABLE_310P, MAPPING_310P),
    ),
    # What torch_npu sees
    Case("device-count", ERROR, ("sees no card", "device files"), lambda m: m.torch_npu("2.8.0.post2", num_cards=0)),
    Case(
        "device-count",
        ERROR,
        ("sees no card", "see that ASCEND_RT_VISIBLE_DEVICES lists"),
        environ(ASCEND_RT_VISIBLE_DEVICES="7"),
    ),
    Case(
        "device-answer",
        ERROR,
        ("the cards do not answer: RuntimeError: 507899", "reset the card"),
        module(
            "torch_npu",
            "import torch, types\ndef fail(index): raise RuntimeError('507899')\n"
            "torch.npu = types.SimpleNamespace(device_count=lambda: 1, get_device_name=fail)\n",
        ),
    ),
    Case(
        "visible-devices",
        OK,
        ("shard 0 = device 1 (NPU 1 chip 0, 910B4, 0000:01:00.0), shard 1 = device 0 (NPU 0",),
        environ(ASCEND_RT_VISIBLE_DEVICES="1,0"),
    ),
    Case(
        "visible-devices",
        ERROR,
        ("ASCEND_RT_VISIBLE_DEVICES=0,1,3, and torch_npu sees 2 of them", "ids of 0,1"),
        environ(ASCEND_RT_VISIBLE_DEVICES="0,1,3"),
    ),
    Case("visible-devices", ERROR, ("7 not there", "ids of 0,1"), environ(ASCEND_RT_VISIBLE_DEVICES="7")),
    Case(
        "visible-devices",
        ERROR,
        ("2 shards are asked for, and 1 devices are visible",),
        lambda m: m.torch_npu("2.8.0.post2", num_cards=1),
        ("--num-shard", "2"),
    ),
    Case("chip", OK, ("Ascend910B4 (SoC id 224) is of family A2",)),
    Case("chip", OK, ("Ascend910B (SoC id 104) is of family A1", "saturates"), chip("Ascend910B", 104)),
    Case("chip", ERROR, ("310B", "not supported", "use --device cpu"), chip("Ascend310B1", 240)),
    Case("chip", ERROR, ("SoC id 999 (Ascend999) is unknown",), chip("Ascend999", 999)),
    Case(
        "dtype",
        ERROR,
        ("bfloat16 is asked for, and Ascend910PremiumA (family A1) has none (allowed: float16, float32)",),
        chip("Ascend910PremiumA", 100),
        ("--dtype", "bfloat16"),
    ),
    Case(
        "dtype",
        WARNING,
        ("the weights are bfloat16; Ascend310P3 (family 310P) has none", "65504"),
        chip("Ascend310P3", 202),
        ("--model-id", "MODEL"),
    ),
    # Cores
    Case("affinity", OK, ("0000:01:00.0 on node 0 (4 usable cores)",)),
    Case("affinity", NOTE, ("--bind-cpu is off",), arguments=("--bind-cpu", "false")),
    Case(
        "affinity",
        NOTE,
        ("is not readable",),
        lambda m: [m.write(f"/sys/bus/pci/devices/0000:{bus}:00.0/numa_node", "-1\n") for bus in ("c1", "01")],
    ),
    Case(
        "affinity-far",
        WARNING,
        ("beside 0000:C1:00.0",),
        lambda m: setattr(m, "cores", frozenset({0, 1})),
    ),
    # What was asked for
    Case("device", OK, ("Serving on the NPU; devices seen: 0,1",)),
    Case(
        "options", ERROR, ("ASCEND_RT_VISIBLE_DEVICES='a,b' is not a list",), environ(ASCEND_RT_VISIBLE_DEVICES="a,b")
    ),
    Case("options", ERROR, ("ASCEND_RT_VISIBLE_DEVICES='' is not a list",), environ(ASCEND_RT_VISIBLE_DEVICES="")),
    Case("options", ERROR, ("--num-shard 4 needs 4 NPUs",), arguments=("--num-shard", "4")),
    Case("options", ERROR, ("is true but `num_shard` <= 1",), arguments=("--sharded", "true", "--num-shard", "1")),
    Case("options", ERROR, ("./nowhere does not exist",), arguments=("--model-id", "./nowhere")),
    Case(
        "allocator",
        ERROR,
        ("combines expandable_segments with max_split_size_mb",),
        environ(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True,max_split_size_mb:64"),
    ),
    Case(
        "allocator-twice",
        WARNING,
        ("both set",),
        environ(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True", PYTORCH_ALLOC_CONF="expandable_segments:True"),
    ),
    Case("launch-blocking", WARNING, ("--cuda-graphs 0",), environ(ASCEND_LAUNCH_BLOCKING="1")),
    Case(
        "launch-blocking",
        NOTE,
        ("makes every op wait",),
        environ(ASCEND_LAUNCH_BLOCKING="1"),
        ("--cuda-graphs", "0"),
    ),
    # Weights, cache and limits
    Case("shards", ERROR, ("cannot be split", "--num-shard 1"), arguments=("--model-id", "ODD", "--num-shard", "2")),
    Case(
        "weights",
        ERROR,
        ("weights in float16 take 2.0 GiB", "the card has 1.0 GiB", "--num-shard"),
        lambda m: m.torch_npu("2.8.0.post2", total_bytes=GIB, free_bytes=GIB),
        ("--model-id", "MODEL"),
    ),
    Case(
        "cache",
        ERROR,
        ("no cache fits: weights in float16 take 2.0 GiB, the card has 4.0 GiB",),
        lambda m: m.torch_npu("2.8.0.post2", total_bytes=4 * GIB, free_bytes=4 * GIB),
        ("--model-id", "MODEL"),
    ),
    Case(
        "free-memory",
        ERROR,
        ("no cache fits into what is free now", "end what else uses the memory"),
        lambda m: m.torch_npu("2.8.0.post2", free_bytes=3 * GIB),
        ("--model-id", "MODEL"),
    ),
    Case(
        "memory",
        NOTE,
        ("the memory of the cards is not known",),
        both(lambda m: m.remove("/bin/npu-smi"), broken_import("no")),
        ("--model-id", "MODEL"),
    ),
    Case(
        "memory-options",
        WARNING,
        ("MAX_MEMORY_GB is 64, and the device has 32.0 GiB",),
        arguments=("--max-memory-gb", "64", "--model-id", "MODEL"),
    ),
)

ON_CPU = (
    Case("device", OK, ("torch_npu is not installed: serving on the CPU",)),
    Case(
        "device",
        WARNING,
        ("ASCEND_RT_VISIBLE_DEVICES is set, but torch_npu is not installed",),
        environ(ASCEND_RT_VISIBLE_DEVICES="0"),
    ),
    Case("options", ERROR, ("--device npu needs torch_npu",), arguments=("--device", "npu")),
    Case("torch", ERROR, ("torch is not installed", "torch 2.1 or newer"), without_torch),
    Case("torch", ERROR, ("torch 1.11.0 is too old",), lambda m: m.torch("1.11.0")),
    Case(
        "torch",
        ERROR,
        ("torch 2.8.0+cpu cannot be imported: ImportError: libgomp.so.1", "pip install --force-reinstall torch==2.8.0"),
        module("torch", "raise ImportError('libgomp.so.1: cannot open shared object file')\n"),
    ),
    Case("torch", NOTE, ("it did not end in",), module("torch", "import time\ntime.sleep(60)\n")),
    Case(
        "numpy-pairing",
        WARNING,
        ("torch 2.1.0 was built for numpy 1, and numpy 2.1.0 is installed", 'pip install "numpy<2"'),
        lambda m: m.torch("2.1.0"),
    ),
    Case("torch-npu", NOTE, ("torch_npu is not installed: no NPU can be used",)),
    Case(
        "torch-npu",
        WARNING,
        ("though this machine has NPUs", "pip install torch-npu==2.8.0"),
        lambda m: m.write("/dev/davinci0"),
    ),
    Case("torch-npu", ERROR, ("--device npu needs it",), arguments=("--device", "npu")),
    Case(
        "emulator",
        NOTE,
        ("asks for an emulated NPU, and it is not used",),
        environ(TEXT_GENERATION_NPU_EMULATOR="Ascend910B4"),
        ("--device", "cpu"),
    ),
    Case(
        "torch-npu-import",
        ERROR,
        ("the emulated torch_npu cannot be imported", "unset TEXT_GENERATION_NPU_EMULATOR"),
        environ(TEXT_GENERATION_NPU_EMULATOR="Ascend1000"),
    ),
    Case("driver", NOTE, ("no Ascend driver",)),
    Case("cann", NOTE, ("CANN is not installed",)),
    Case("npu-smi", NOTE, ("npu-smi is not there",)),
    Case("cores", OK, ("on 2 NUMA node(s)",)),
    Case("model", NOTE, ("the demo model",)),
    Case("model", NOTE, ("some/model is not on this machine yet",), arguments=("--model-id", "some/model")),
    Case("model", NOTE, ("config.json has no num_attention_heads",), arguments=("--model-id", "EMPTY")),
    Case(
        "positions",
        ERROR,
        ("--max-total-tokens 5000 is more than the model's 4096 positions (allowed: up to 4096)",),
        arguments=("--model-id", "MODEL", "--max-total-tokens", "5000"),
    ),
    Case("cache", OK, ("weights in bfloat16 take 2.0 GiB, the host has 16.0 GiB",), arguments=("--model-id", "MODEL")),
    Case(
        "cache",
        NOTE,
        ("requests are limited to that", "4,096"),
        lambda m: m.memory(16, 2.08),
        ("--model-id", "MODEL", "--reserved-memory-gb", "0"),
    ),
    Case(
        "free-memory",
        ERROR,
        ("--max-total-tokens 4096 does not fit into what is free now", "alone, 4"),
        lambda m: m.memory(16, 2.08),
        ("--model-id", "MODEL", "--reserved-memory-gb", "0", "--max-total-tokens", "4096"),
    ),
    Case(
        "cache",
        ERROR,
        ("--max-total-tokens 4096 does not fit: weights", "lower it to 2"),
        lambda m: m.memory(2.08, 2.08),
        ("--model-id", "MODEL", "--reserved-memory-gb", "0", "--max-total-tokens", "4096"),
    ),
    Case(
        "cache",
        WARNING,
        ("--max-batch-total-tokens 9000000 is more than fits",),
        arguments=("--model-id", "MODEL", "--max-batch-total-tokens", "9000000"),
    ),
)


def check(machine: Machine, case: Case) -> None:
    case.change(machine)
    folders: dict[str, Callable[[], str]] = {
        "MODEL": machine.model,
        "ODD": lambda: machine.model(num_attention_heads=15, num_key_value_heads=5),
        "EMPTY": lambda: machine.model(num_attention_heads=None),
    }
    arguments = [folders[word]() if word in folders else word for word in case.arguments]
    if "EMPTY" in case.arguments:
        (machine.root / "model/config.json").write_text("{}")
    findings = [finding for finding in machine.examine(*arguments).findings if finding.code == case.code]
    fitting = [finding for finding in findings if all(part in str(finding) for part in case.says)]
    assert fitting, f"{case.code} says {[str(finding) for finding in findings]}"
    assert fitting[0].severity is case.severity


@pytest.mark.parametrize("case", ON_NPU, ids=str)
def test_finding_on_a_host_with_npus(tmp_path: Path, case: Case) -> None:
    check(npu_machine(tmp_path), case)


@pytest.mark.parametrize("case", ON_CPU, ids=str)
def test_finding_on_a_host_without_npus(tmp_path: Path, case: Case) -> None:
    check(cpu_machine(tmp_path), case)


def test_a_sound_host_with_npus_has_nothing_but_ok(tmp_path: Path) -> None:
    machine = npu_machine(tmp_path)
    examination = machine.examine("--model-id", machine.model(), "--num-shard", "2")
    assert {finding.severity for finding in examination.findings} == {OK}


def test_torch_npu_is_believed_before_npu_smi_about_which_cards_there_are(tmp_path: Path) -> None:
    """In a container with one card of eight, npu-smi may count as the host does."""
    machine = npu_machine(tmp_path)
    machine.torch_npu("2.8.0.post2", num_cards=1)
    machine.npu_smi(machines.TABLE_910B, machines.MAPPING_910B.replace("0    ", "4    "))
    machine.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0"
    assert can_serve(machine.examine().findings)


def test_what_an_npu_needs_is_no_error_where_the_cpu_is_asked_for(tmp_path: Path) -> None:
    machine = npu_machine(tmp_path)
    without_driver(machine)
    assert not can_serve(machine.examine().findings)
    assert can_serve(machine.examine("--device", "cpu").findings)


def test_a_broken_torch_npu_never_ends_on_the_cpu_by_itself(tmp_path: Path) -> None:
    machine = npu_machine(tmp_path)
    machine.broken_torch_npu(NO_LIBRARY.format("libhccl.so"))
    for device in ("auto", "npu"):
        examination = machine.examine("--device", device)
        assert examination.target.kind == "npu"
        assert not can_serve(examination.findings)


def test_an_import_that_takes_too_long_is_ended_and_said(tmp_path: Path) -> None:
    machine = npu_machine(tmp_path)
    machine.module("torch_npu", "import time\ntime.sleep(60)\n")
    found = {finding.code: finding for finding in machine.examine(import_timeout_s=0.5).findings}
    assert found["torch-npu-slow"].severity is ERROR
    assert "--import-timeout" in found["torch-npu-slow"].remedy
    assert "torch-npu-import" not in found


def test_cards_that_do_not_answer_in_time_are_no_proof_of_a_fault(tmp_path: Path) -> None:
    machine = npu_machine(tmp_path)
    machine.module(
        "torch_npu",
        "import torch, types, time\ntorch.npu = types.SimpleNamespace(device_count=lambda: time.sleep(60))\n",
    )
    found = {finding.code: finding for finding in machine.examine(import_timeout_s=0.5).findings}
    assert found["device-answer"].severity is WARNING
    assert "in time" in found["device-answer"].seen


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def test_ports_in_use_are_found_before_a_model_is_loaded(tmp_path: Path, listener: int) -> None:
    """G48, the part that a doctor can see."""
    machine = npu_machine(tmp_path)
    assert machine.findings()["http-port"].severity is OK
    found = machine.findings("--port", str(listener))["http-port"]
    assert found.severity is ERROR
    assert f"port {listener} is in use" in str(found)

    machine.environ["HCCL_IF_BASE_PORT"] = str(listener)
    two = ("--num-shard", "2")
    assert "hccl-ports" not in machine.findings()
    found = machine.findings(*two)["hccl-ports"]
    assert found.severity is WARNING
    assert str(listener) in found.seen
    assert "HCCL_IF_BASE_PORT" in found.remedy

    assert "master-port" not in machine.findings(*two)
    found = machine.findings(*two, "--master-port", str(listener))["master-port"]
    assert found.severity is ERROR


def test_every_rule_has_a_case() -> None:
    """Codes in the source against those of the tables above and of the tests around them."""
    makers = {"ok", "note", "warning", "error"}
    written = set()
    for path in DOCTOR.glob("judge_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                position = 1 if node.func.id == "Finding" else 0
                if node.func.id == "Finding" or node.func.id in makers:
                    code = node.args[position]
                    assert isinstance(code, ast.Constant), (
                        f"{path.name}:{node.lineno}: the code of a finding is a constant"
                    )
                    written.add(str(code.value))
    shown = {case.code for case in (*ON_NPU, *ON_CPU)}
    assert written - shown == {"torch-npu-slow", "http-port", "master-port", "hccl-ports"}
    assert shown <= written
