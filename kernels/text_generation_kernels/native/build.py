"""Builds the native library with the system's C++ compiler. The standard library only: package builds run it alone.

`python -m text_generation_kernels.native.build` builds it in place, for a source tree.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
LIBRARY = Path(__file__).parent / "libtext_generation_kernels.so"

# Contraction off: whether a product and a sum are rounded once or twice is the source's choice, not the compiler's.
# gcc's own AVX-512 header trips its warnings about uninitialized values.
_FLAGS = (
    "-O2", "-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
    "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
)  # fmt: skip
_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_X86 = {
    "kernels_avx2.cpp": _AVX2,
    "kernels_avx512.cpp": _AVX512,
    "kernels_amx.cpp": _AVX512,
}
_ARM: dict[str, tuple[str, ...]] = {"kernels_neon.cpp": ()}
_SETS = {"x86_64": _X86, "aarch64": _ARM}
# What not every assembler knows: a line that shows whether this one does, and what the rest is told where it does not.
_AMX_LINE = r'asm("tdpbf16ps %tmm2, %tmm1, %tmm0\n vcvtne2ps2bf16 %zmm2, %zmm1, %zmm0");'
_OPTIONAL = {"kernels_amx.cpp": (_AMX_LINE, "-DTGK_WITHOUT_AMX")}


class BuildError(RuntimeError):
    """The library cannot be built here. The message is one line."""


def source_digest(sources: Path = SOURCES) -> str:
    """A digest of every source file: a library says which one it was built from."""
    digest = hashlib.sha256()
    for path in sorted(sources.iterdir()):
        if path.suffix in {".h", ".cpp"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> str | None:
    """The C++ compiler: what CXX names, else g++ or c++; None where there is none."""
    named = os.environ.get("CXX")
    return named or shutil.which("g++") or shutil.which("c++")


def build(
    library: Path = LIBRARY, *, machine: str | None = None, cxx: str | None = None, extra_flags: Sequence[str] = ()
) -> Path:
    """Compile every source and link the library.

    Args:
        machine: "x86_64" or "aarch64"; None: this one.
        cxx: the compiler; None: `compiler()`.
        extra_flags: for compiling and linking, e.g. sanitizers.
    Raises: BuildError.
    """
    machine = machine or platform.machine()
    sets = _SETS.get(machine)
    if sets is None:
        raise BuildError(f"there are no native kernels for {machine}")
    cxx = cxx or compiler()
    if cxx is None:
        raise BuildError("no C++ compiler was found; install g++ for faster CPU kernels")
    own = {name for other in _SETS.values() for name in other}
    missing = {name for name in sets if name in _OPTIONAL and not _compiles(cxx, _OPTIONAL[name][0])}
    without = [_OPTIONAL[name][1] for name in sorted(missing)]
    wanted = set(sets) - missing
    names = [path.name for path in sorted(SOURCES.glob("*.cpp")) if path.name not in own or path.name in wanted]
    with tempfile.TemporaryDirectory() as folder:

        def compile_one(name: str) -> str:
            target = str(Path(folder) / f"{name}.o")
            digest = f'-DTGK_SOURCE_DIGEST="{source_digest()}"'
            flags = [*_FLAGS, *sets.get(name, ()), digest, *without, *extra_flags]
            _run([cxx, *flags, "-c", str(SOURCES / name), "-o", target])
            return target

        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sorted(names, key=lambda name: name not in sets)))
        # Linked beside its place and then moved there: a process that has the old one loaded keeps it.
        linked = library.with_suffix(f".{os.getpid()}")
        try:
            _run([cxx, "-shared", "-pthread", *extra_flags, *objects, "-o", str(linked)])
            linked.replace(library)
        finally:
            linked.unlink(missing_ok=True)
    return library


def _compiles(cxx: str, line: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(line)
        try:
            _run([cxx, "-c", str(source), "-o", str(source.with_suffix(".o"))])
        except BuildError:
            return False
    return True


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {lines[0] if lines else f'exit status {done.returncode}'}")


def main() -> int:
    try:
        print(build())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
