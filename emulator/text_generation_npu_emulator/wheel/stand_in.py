"""The stand-in for the CANN runtime, loaded into this process: what it is told about the machine, and what it calls.

Loaded before torch_npu, whose libraries then find theirs by name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from text_generation_npu_emulator.memory import MIB
from text_generation_npu_emulator.settings import Settings
from text_generation_npu_emulator.wheel.build import LIBRARIES, NAME

# ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT. Which error it is says the message; torch_npu looks at neither.
_REFUSED = 107030


class Events(Protocol):
    """What happens in the runtime that only the emulator can do. Numbers name graphs and task groups; none is 0."""

    def begin_capture(self) -> int: ...
    def end_capture(self) -> None: ...
    def replay(self, graph: int) -> None: ...
    def destroy(self, graph: int) -> None: ...
    def begin_group(self) -> None: ...
    def end_group(self) -> int: ...
    def begin_update(self, group: int) -> None: ...
    def end_update(self) -> None: ...
    def mark(self, event: int, what: int) -> None: ...
    def wait(self) -> None: ...


_NUMBER = ctypes.c_uint64
# Name, what is given, and whether a number comes back rather than an error code; see stand_in.h.
_HOOKS: tuple[tuple[str, tuple[Any, ...], bool], ...] = (
    ("begin_capture", (), True),
    ("end_capture", (), False),
    ("replay", (_NUMBER,), False),
    ("destroy", (_NUMBER,), False),
    ("begin_group", (), False),
    ("end_group", (), True),
    ("begin_update", (_NUMBER,), False),
    ("end_update", (), False),
    ("mark", (_NUMBER, ctypes.c_int32), False),
    ("wait", (), False),
)


class StandIn:
    """The loaded library.

    Args:
        folder: of the built libraries.
    """

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / f"lib{NAME}.so"), ctypes.RTLD_GLOBAL)
        for name in LIBRARIES:
            ctypes.CDLL(str(folder / f"lib{name}.so"), ctypes.RTLD_GLOBAL)
        self._hooks: list[Any] = []  # which the library calls for as long as the process lives

    def configure(self, settings: Settings, events: Events) -> None:
        """Describe the machine. Before torch_npu is imported, and once."""
        self._hooks = [self._hook(*hook, getattr(events, hook[0])) for hook in _HOOKS]
        table = (ctypes.c_void_p * len(self._hooks))(*(ctypes.cast(hook, ctypes.c_void_p) for hook in self._hooks))
        self._library.stand_in_configure(
            settings.soc.name.encode(),
            settings.cann.encode(),
            len(settings.visible_devices),
            ctypes.c_size_t(settings.memory_mb * MIB),
            ctypes.c_size_t(settings.others_mb * MIB),
            int(not settings.soc.only_saturates),
            table,
        )

    def reserve(self, device: int, nbytes: int) -> None:
        """Take memory of a card outside of torch_npu's allocator."""
        self._library.stand_in_reserve(device, ctypes.c_size_t(nbytes))

    def _hook(self, name: str, given: tuple[Any, ...], gives_number: bool, function: Callable[..., Any]) -> Any:
        def call(*arguments: int) -> int:
            try:
                result = function(*arguments)
            except Exception as error:  # no exception passes through C: torch_npu raises it anew, with this message
                self._library.stand_in_explain(str(error).encode())
                return 0 if gives_number else _REFUSED
            return int(result) if gives_number else 0

        return ctypes.CFUNCTYPE(_NUMBER if gives_number else ctypes.c_int, *given)(call)
