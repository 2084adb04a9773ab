"""Findings about software: Python packages, torch and torch_npu, CANN, NNAL, the driver, and how they fit together.

Pure functions of facts. What an NPU needs is an error only where an NPU is to be served on; elsewhere it is a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_launcher.doctor.facts import Facts
from text_generation_launcher.doctor.findings import Finding, Severity, error, note, ok, warning
from text_generation_launcher.doctor.packages import release
from text_generation_launcher.doctor.target import Target
from text_generation_launcher.doctor.versions import cann_order, cann_released_with

_OLDEST_TORCH = (2, 1, 0)
_DEFAULT_SET_ENV = "/usr/local/Ascend/ascend-toolkit/set_env.sh"
_MISSING_LIBRARY = re.compile(r"(lib[\w.+-]*\.so[\w.]*): cannot open shared object file")


def judge_software(facts: Facts, target: Target) -> Iterator[Finding]:
    yield from _our_packages(facts)
    yield from _torch(facts)
    if facts.emulated_chip:
        yield from _emulator(facts, target)
        return
    yield from _torch_npu(facts, target)
    yield from _pairing(facts, target)
    yield from _driver(facts, target)
    yield from _cann(facts, target)
    yield from _cann_pairing(facts, target)
    yield from _cann_python(facts, target)
    yield from _nnal(facts, target)


def _our_packages(facts: Facts) -> Iterator[Finding]:
    missing, outdated = facts.packages.missing, facts.packages.outdated
    remedy = "install this project again: pip install ."
    if missing:
        yield error("python-packages", f"Python packages are missing: {', '.join(missing)}", remedy)
    if outdated:
        yield warning("python-packages", f"Python packages are too old: {', '.join(outdated)}", remedy)


def _torch(facts: Facts) -> Iterator[Finding]:
    version, imports = facts.packages.torch, facts.imports
    if version is None:
        yield error("torch", "torch is not installed", "pip install torch", "torch 2.1 or newer")
        return
    if release(version) < _OLDEST_TORCH:
        yield error("torch", f"torch {version} is too old", "pip install -U torch", "torch 2.1 or newer")
        return
    if imports.stage != "torch":
        how = " and can be imported" if imports.torch else ""
        yield ok("torch", f"torch {version} is installed{how} (Python {facts.packages.python})")
    elif imports.timed_out:
        yield note("torch", f"torch {version} is installed; importing it takes long, and {imports.error}")
    else:
        remedy = f"install it again: pip install --force-reinstall torch=={_plain(version)}"
        yield error("torch", f"torch {version} cannot be imported: {imports.error}", remedy)
    numpy = facts.packages.numpy
    if numpy is not None and release(numpy) >= (2,) and release(version) < (2, 3):
        seen = f"torch {version} was built for numpy 1, and numpy {numpy} is installed"
        yield warning("numpy-pairing", seen, 'pip install "numpy<2"', "numpy below 2 with torch before 2.3")


def _torch_npu(facts: Facts, target: Target) -> Iterator[Finding]:
    version, imports = facts.packages.torch_npu, facts.imports
    if version is None:
        torch = facts.packages.torch
        which = f"torch-npu=={_plain(torch)}" if torch else "torch-npu"
        has_cards = bool(facts.nodes.cards or facts.smi.chips)
        if has_cards and not target.is_npu:
            seen = "torch_npu is not installed, though this machine has NPUs: the server would run on the CPU"
            yield warning("torch-npu", seen, f"pip install {which} to serve on them")
        elif not target.is_npu:
            yield note("torch-npu", "torch_npu is not installed: no NPU can be used")
        else:
            yield error("torch-npu", "torch_npu is not installed, and --device npu needs it", f"pip install {which}")
        return
    if "torch_npu" not in imports.tried or imports.stage == "torch":
        yield note("torch-npu", f"torch_npu {version} is installed; it was not imported")
        return
    if imports.stage != "torch_npu":
        yield ok("torch-npu", f"torch_npu {version} can be imported")
        return
    severity = Severity.ERROR if target.is_npu else Severity.NOTE
    if imports.timed_out:
        seen = f"torch_npu {version} cannot be imported in time: {imports.error}"
        yield Finding(
            severity, "torch-npu-slow", seen, "", "text-generation-launcher doctor --import-timeout waits longer"
        )
        return
    seen = f"torch_npu {version} cannot be imported: {imports.error}"
    yield Finding(severity, "torch-npu-import", seen, "", _import_remedy(facts))


def _emulator(facts: Facts, target: Target) -> Iterator[Finding]:
    where = "shards run on it" if target.is_npu else "it is not used"
    seen = f"{EMULATOR_VARIABLE}={facts.emulated_chip} asks for an emulated NPU, and {where}"
    yield note("emulator", f"{seen}; this machine's driver, CANN and cards were not looked at")
    if facts.imports.stage == "torch_npu":
        seen = f"the emulated torch_npu cannot be imported: {facts.imports.error}"
        yield error("torch-npu-import", seen, f"unset {EMULATOR_VARIABLE} to serve without it")


def _import_remedy(facts: Facts) -> str:
    """What to do about an import of torch_npu that failed, by what it says."""
    message, torch_npu = facts.imports.error, facts.packages.torch_npu or ""
    library = _MISSING_LIBRARY.search(message)
    if library and library[1].startswith("libatb"):
        return "install NNAL of CANN's version and source its nnal/atb/set_env.sh"
    if library and library[1].startswith(("libascend_hal", "libdrv", "libdcmi")):
        return f"{library[1]} is the driver's: mount /usr/local/Ascend/driver into the container, or install the driver"
    if library:
        return _source_line(facts)
    if "undefined symbol" in message or "version `" in message:
        return (
            f"torch_npu {torch_npu} was built for another torch or CANN: pip install torch=={_plain(torch_npu)}, and a "
            "CANN that this torch_npu was released for"
        )
    return "or use --device cpu, which serves on the CPU"


def _source_line(facts: Facts) -> str:
    installed = next((found for found in facts.ascend.installations if found.set_env), None)
    if installed is None:
        return f"install CANN, then: source {_DEFAULT_SET_ENV}"
    return f"source {installed.set_env}"


def _pairing(facts: Facts, target: Target) -> Iterator[Finding]:
    torch, torch_npu = facts.packages.torch, facts.packages.torch_npu
    if torch is None or torch_npu is None:
        return
    severity = Severity.ERROR if target.is_npu else Severity.NOTE
    if release(torch) != release(torch_npu):
        allowed = f"torch {_plain(torch_npu)} with torch_npu {torch_npu}"
        remedy = f"pip install torch=={_plain(torch_npu)}, or the torch_npu of torch {_plain(torch)}"
        seen = f"torch {torch} and torch_npu {torch_npu} do not belong together"
        yield Finding(severity, "torch-pairing", seen, allowed, remedy)
    if "+cu" in torch and target.is_npu:
        seen = f"torch {torch} is a CUDA build, beside which torch_npu may refuse to load"
        remedy = f"pip install torch=={_plain(torch)}+cpu --index-url https://download.pytorch.org/whl/cpu"
        yield warning("torch-cuda", seen, remedy)


def _driver(facts: Facts, target: Target) -> Iterator[Finding]:
    version, smi, nodes = facts.ascend.driver_version, facts.smi, facts.nodes
    if version:
        yield ok("driver", f"Ascend driver {version}")
    elif version is not None or smi.chips or nodes.cards:
        where = "mount /usr/local/Ascend/driver/version.info into the container" if nodes.in_container else ""
        yield note("driver", "an Ascend driver is there, and its version is not readable", where)
    elif target.is_npu and not facts.imports.num_devices:
        remedy = (
            "start the container with the cards and the driver: --device /dev/davinci0 --device /dev/davinci_manager "
            "--device /dev/devmm_svm --device /dev/hisi_hdc -v /usr/local/Ascend/driver:/usr/local/Ascend/driver"
            if nodes.in_container
            else "install driver and firmware of the card"
        )
        yield error("driver", "no Ascend driver: neither /usr/local/Ascend/driver nor /dev/davinci* is there", remedy)
    elif not target.is_npu:
        yield note("driver", "no Ascend driver: neither /usr/local/Ascend/driver nor /dev/davinci* is there")


def _cann(facts: Facts, target: Target) -> Iterator[Finding]:
    ascend, imports = facts.ascend, facts.imports
    is_needed = target.is_npu and facts.packages.torch_npu is not None
    severity = Severity.ERROR if is_needed else Severity.NOTE
    if ascend.cann is None:
        if ascend.home:
            seen = f"ASCEND_HOME_PATH is {ascend.home}, and nothing is there"
            yield Finding(severity, "cann", seen, "", "source the set_env.sh of a CANN that is there, or install one")
        elif imports.torch_npu is None:
            seen = "CANN is not installed in /usr/local/Ascend or ~/Ascend"
            remedy = f"install the toolkit and the kernels of the chip, then: source {_DEFAULT_SET_ENV}"
            yield Finding(severity, "cann", seen, "", remedy if is_needed else "")
        return
    version = ascend.cann.version or "of unknown version"
    if ascend.home and ascend.home.rstrip("/") != ascend.cann.path.rstrip("/"):
        yield warning(
            "cann-environment",
            f"ASCEND_HOME_PATH is {ascend.home}, where nothing is; CANN {version} is in {ascend.cann.path}",
            _source_line(facts),
        )
    elif not ascend.home and imports.torch_npu is None:
        seen = f"CANN {version} is in {ascend.cann.path}, but its set_env.sh was not sourced: ASCEND_HOME_PATH is unset"
        yield Finding(severity, "cann-environment", seen, "", _source_line(facts))
    else:
        yield ok("cann", f"CANN {version} in {ascend.cann.path}")
    if ascend.missing_libraries and imports.torch_npu is None:
        seen = f"not on the library path: {', '.join(ascend.missing_libraries)}"
        yield Finding(severity, "cann-libraries", seen, "", f"{_source_line(facts)}, which sets LD_LIBRARY_PATH")


def _cann_pairing(facts: Facts, target: Target) -> Iterator[Finding]:
    torch_npu, cann = facts.packages.torch_npu, facts.ascend.cann
    if torch_npu is None or cann is None or not cann.version or not target.is_npu:
        return
    wanted = cann_released_with(torch_npu)
    if wanted is None:
        yield note("cann-pairing", f"which CANN torch_npu {torch_npu} was released with is not known here")
    elif cann_order(cann.version) < cann_order(wanted):
        seen = f"torch_npu {torch_npu} was released with CANN {wanted}, and CANN {cann.version} is older"
        remedy = f"install CANN {wanted}, or a torch_npu that CANN {cann.version} came with"
        yield warning("cann-pairing", seen, remedy, f"CANN {wanted} or newer")
    else:
        yield ok("cann-pairing", f"torch_npu {torch_npu} was released with CANN {wanted}; {cann.version} is there")


def _cann_python(facts: Facts, target: Target) -> Iterator[Finding]:
    missing = facts.packages.cann_python_missing
    if missing and target.is_npu and facts.packages.torch_npu is not None:
        seen = f"Python packages that CANN's op compiler imports are missing: {', '.join(missing)}"
        yield warning("cann-python", seen, f"pip install {' '.join(missing)}")


def _nnal(facts: Facts, target: Target) -> Iterator[Finding]:
    ascend = facts.ascend
    if not target.is_npu or facts.packages.torch_npu is None:
        return
    if ascend.nnal is None and not ascend.has_libatb:
        remedy = "a 910A needs none; on other chips install Ascend-cann-nnal of CANN's version"
        yield note("nnal", "NNAL (ATB) is not installed: the ops that need it are not used", remedy)
        return
    version = ascend.nnal.version if ascend.nnal else ""
    if not ascend.has_libatb:
        script = ascend.nnal.set_env if ascend.nnal and ascend.nnal.set_env else "nnal/atb/set_env.sh"
        seen = f"NNAL {version or 'of unknown version'} is installed, and libatb.so is not on the library path"
        yield warning("nnal", seen, f"source {script}")
        return
    cann = ascend.cann.version if ascend.cann else ""
    if version and cann and cann_order(version) != cann_order(cann):
        seen = f"NNAL {version} and CANN {cann} are of different releases: ATB's first call may fail"
        yield warning("nnal-pairing", seen, f"install NNAL {cann}", "the same release of both")
        return
    yield ok("nnal", f"NNAL (ATB) {version or 'of unknown version'}")


def _plain(version: str) -> str:
    """The version to ask pip for: "2.8.0" of "2.8.0+cpu" and of "2.8.0.post2"."""
    return ".".join(str(part) for part in release(version))
