"""Builds the native CPU kernels into the package. Without a C++ compiler the package is built without them.

The wheel then carries a library for one kind of processor, and its name says so; it asks for no Python version, since
the library is loaded by its plain C interface.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_BUILD = Path("kernels/text_generation_kernels/native/build.py")


class NativeKernelsHook(BuildHookInterface[Any]):
    """Runs before a wheel, editable or not, is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        spec = importlib.util.spec_from_file_location("native_build", Path(self.root) / _BUILD)
        assert spec is not None
        assert spec.loader is not None
        native_build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native_build)
        try:
            library: Path = native_build.build()
        except native_build.BuildError as error:
            print(f"The CPU kernels are left out, and plain torch will compute: {error}", file=sys.stderr)
            return
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
