"""Who may import whom (docs/architecture.md, section 3), read from the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {
    "text_generation_proto": "proto",
    "text_generation_cli": "cli",
    "text_generation_kernels": "kernels",
    "text_generation_server": "server",
    "text_generation_router": "router",
    "text_generation_launcher": "launcher",
    "text_generation_benchmark": "bench",
    "text_generation_npu_emulator": "emulator",
}
ALLOWED = {
    "text_generation_proto": set(),
    "text_generation_cli": set(),
    "text_generation_kernels": set(),
    "text_generation_server": {"text_generation_proto", "text_generation_cli", "text_generation_kernels"},
    "text_generation_router": {"text_generation_proto", "text_generation_cli"},
    "text_generation_launcher": {
        "text_generation_cli",
        "text_generation_router.settings",
        "text_generation_server.settings",
        # `doctor` judges a machine by the rules that shards follow. These modules are tables and arithmetic (below).
        "text_generation_server.memory_budget",
        "text_generation_server.sharding",
        "text_generation_kernels.npu.soc",
    },
    "text_generation_benchmark": {"text_generation_proto", "text_generation_cli", "text_generation_router"},
    # Imported by nobody: the NPU backend loads it by name when an environment variable asks for it.
    "text_generation_npu_emulator": set(),
}
FORBIDDEN = {
    "text_generation_router": {"torch", "torch_npu", "transformers"},
    "text_generation_launcher": {"torch", "torch_npu", "grpc", "fastapi", "transformers"},
    "text_generation_benchmark": {"torch", "torch_npu", "transformers"},
}


def imported_modules(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.add(node.module)
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return modules


def sources(package: str) -> list[Path]:
    return sorted((ROOT / OURS[package] / package).rglob("*.py"))


@pytest.mark.parametrize("package", OURS)
def test_package_imports_only_what_it_may(package: str) -> None:
    for path in sources(package):
        for module in imported_modules(path):
            top = module.partition(".")[0]
            if top in OURS and top != package:
                allowed = ALLOWED[package]
                fits = any(module == name or module.startswith(f"{name}.") for name in allowed)
                # `from text_generation_router import settings` names the package first.
                fits = fits or any(name.startswith(f"{module}.") for name in allowed)
                assert fits, f"{path} imports {module}"
            assert top not in FORBIDDEN.get(package, set()), f"{path} imports {module}"


def test_scheduling_imports_the_standard_library_only() -> None:
    for path in sources("text_generation_router"):
        if "scheduling" in path.parts:
            for module in imported_modules(path):
                top = module.partition(".")[0]
                inside = module.startswith("text_generation_router.scheduling")
                assert inside or top in sys.stdlib_module_names, f"{path} imports {module}"


@pytest.mark.parametrize(
    "module",
    [
        "text_generation_server.memory_budget",
        "text_generation_server.sharding",
        "text_generation_kernels.npu.soc",
    ],
)
def test_what_the_launcher_takes_from_the_shards_is_the_standard_library_alone(module: str) -> None:
    """Its packages too: they run when a module of theirs is imported."""
    package, *inner = module.split(".")
    folders = [ROOT / OURS[package] / "/".join([package, *inner[:depth]]) for depth in range(len(inner))]
    files = [*(folder / "__init__.py" for folder in folders), (folders[-1] / inner[-1]).with_suffix(".py")]
    for file in files:
        tops = {name.partition(".")[0] for name in imported_modules(file)}
        assert tops <= sys.stdlib_module_names, f"{file} imports {tops - sys.stdlib_module_names}"


def test_torch_npu_is_imported_by_the_npu_backend_alone() -> None:
    for package in OURS:
        for path in sources(package):
            if "npu" not in path.relative_to(ROOT).as_posix():
                assert "torch_npu" not in {module.partition(".")[0] for module in imported_modules(path)}


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("text_generation_router.server", {"torch", "transformers"}),
        ("text_generation_launcher.__main__", {"torch", "grpc", "fastapi", "transformers"}),
        ("text_generation_benchmark.worker", {"torch", "transformers", "textual"}),
        # What draws and prints does not wait for what measures to be imported, and does without the extra.
        ("text_generation_benchmark.__main__", {"torch", "grpc", "fastapi", "transformers", "textual"}),
    ],
)
def test_running_program_has_not_loaded_what_it_must_not(module: str, forbidden: set[str]) -> None:
    """Through somebody else's import, too."""
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not forbidden & set(loaded)
