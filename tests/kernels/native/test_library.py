"""How the library is found, and what is said where it is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.implementations import library_or_skip
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.native import build as native_build
from text_generation_kernels.native.library import (
    INSTRUCTION_SET_VARIABLE,
    LibraryUnavailable,
    Team,
    choose_instruction_set,
    load_library,
)


def test_a_missing_library_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(
        LibraryUnavailable, match=r"not built .*build it with: python -m text_generation_kernels\.native"
    ):
        load_library(tmp_path / "none.so")


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"\x7fELF but not really")
    with pytest.raises(LibraryUnavailable, match=r"broken\.so does not load"):
        load_library(path)


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = shutil.copy(library_or_skip().functions._name, tmp_path / "old.so")
    monkeypatch.setattr("text_generation_kernels.native.library.source_digest", lambda: "another")
    with pytest.raises(LibraryUnavailable, match="was built from other sources than those beside it"):
        load_library(Path(path))


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are() -> None:
    library = library_or_skip()
    assert choose_instruction_set(library, None) == library.instruction_sets[0]
    with pytest.raises(LibraryUnavailable, match=f"sse9 was asked for; .*{library.instruction_sets[0]}"):
        choose_instruction_set(library, "sse9")
    with pytest.raises(LibraryUnavailable, match="sse9 cannot be run here"):
        Team(library, 1, "sse9")


def test_the_environment_chooses_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    library = library_or_skip()
    for name in library.instruction_sets:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
        assert f"native {name} kernels" in CpuDevice().ops.description
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, "none")
    assert CpuDevice().ops.name == "cpu"


def test_without_the_library_torch_computes_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_library() -> None:
        raise LibraryUnavailable("the native CPU kernels are not built")

    monkeypatch.delenv(INSTRUCTION_SET_VARIABLE, raising=False)
    monkeypatch.setattr("text_generation_kernels.cpu.device.load_library", no_library)
    assert CpuDevice(kv_dtype=None).ops.name == "cpu"
    assert caplog.messages == ["computing with plain torch, several times slower: the native CPU kernels are not built"]
    with pytest.raises(LibraryUnavailable):
        CpuDevice(native=True)


@pytest.mark.parametrize(
    ("kv_dtype", "quantize", "message"),
    [
        (torch.bfloat16, None, "without the native CPU kernels keys and values are kept in float32"),
        (None, "w8a16", "--quantize w8a16 needs the native CPU kernels"),
        (None, "gptq", "--quantize gptq is not served on the CPU; use w8a16"),
    ],
)
def test_what_plain_torch_cannot_do_is_refused(
    kv_dtype: torch.dtype | None, quantize: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CpuDevice(kv_dtype, quantize, native=False)


def test_the_server_keeps_keys_in_bfloat16_unless_told_otherwise() -> None:
    library_or_skip()
    assert "in bfloat16" in CpuDevice(kv_dtype=None).ops.description
    assert "in float32" in CpuDevice(kv_dtype=torch.float32).ops.description


def test_without_a_compiler_the_build_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(native_build.BuildError, match=r"no C\+\+ compiler was found; install g\+\+"):
        native_build.build(tmp_path / "out.so")


def test_a_compiler_that_fails_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(native_build.BuildError, match="false failed: exit status 1"):
        native_build.build(tmp_path / "out.so", cxx="false")
    with pytest.raises(native_build.BuildError, match="there are no native kernels for m68k"):
        native_build.build(tmp_path / "out.so", machine="m68k")
    assert not list(tmp_path.iterdir())


def test_an_assembler_that_does_not_know_amx_builds_the_rest(tmp_path: Path) -> None:
    """A compiler that makes empty files of anything, refuses AMX, and writes down what it was asked."""
    asked = tmp_path / "asked"
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {asked}\n'
        'for file; do case "$file" in *.cpp) grep -q \'^asm("tdp\' "$file" && exit 1;; esac; done\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'touch "$2"\n'
    )
    compiler.chmod(0o755)
    native_build.build(tmp_path / "out.so", machine="x86_64", cxx=str(compiler))
    compiled = [line for line in asked.read_text().splitlines() if "/src/" in line]
    assert not any("kernels_amx.cpp" in line for line in compiled)
    assert any("kernels_avx512.cpp" in line for line in compiled)
    assert all("-DTGK_WITHOUT_AMX" in line for line in compiled)


def test_a_process_that_may_not_use_tiles_has_the_next_set() -> None:
    """Linux refuses tiles to a process with a signal stack that could not hold them."""
    library = library_or_skip()
    if "amx" not in library.instruction_sets:
        pytest.skip("this processor or this library has no amx")
    program = (
        "import ctypes, sys\n"
        "stack = (ctypes.c_char * 6144)()\n"
        "class Stack(ctypes.Structure):\n"
        "    _fields_ = (('sp', ctypes.c_void_p), ('flags', ctypes.c_int), ('size', ctypes.c_size_t))\n"
        "own = Stack(ctypes.addressof(stack), 0, len(stack))\n"
        "assert ctypes.CDLL(None).sigaltstack(ctypes.byref(own), None) == 0\n"
        "from text_generation_kernels.native.library import load_library\n"
        "print(*load_library().instruction_sets)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(library.instruction_sets[1:])


def test_no_symbol_is_shared_between_instruction_sets() -> None:
    """One that was would be the linker's choice of instruction set, and an illegal instruction on older processors."""
    library = library_or_skip()
    if shutil.which("nm") is None:
        pytest.skip("binutils' nm is not installed")
    names = subprocess.run(["nm", "-C", library.functions._name], capture_output=True, text=True, check=True).stdout
    # Shared ones may only come from files that are compiled for any processor.
    weak = [line.split(maxsplit=2)[2] for line in names.splitlines() if len(line.split()) > 2 and " W " in line]
    sets = ("::amx", "::av", "::neon")
    kernels = [name for name in weak if "tgk::" in name and not any(own in name for own in sets)]
    assert kernels == [] or all("Team" in name for name in kernels)
