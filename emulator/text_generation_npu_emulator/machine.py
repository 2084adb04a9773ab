"""The emulated machine: its cards, their memory, and what is going on on them. One for a process.

Knows torch's registry only as the place from which kernels come: `installation` makes it and puts it there.
"""

from __future__ import annotations

import sys
import threading
import warnings

from torch import Tensor

from text_generation_npu_emulator.counters import Counters
from text_generation_npu_emulator.faults import Fault, parse_faults
from text_generation_npu_emulator.graphs import Capture, Replay, TaskUpdate
from text_generation_npu_emulator.launch import Refused
from text_generation_npu_emulator.memory import MIB, Allocator, Block
from text_generation_npu_emulator.settings import Settings
from text_generation_npu_emulator.soc import Soc
from text_generation_npu_emulator.streams import Stream
from text_generation_npu_emulator.tensors import Tensors


def _default_stream(device: int) -> Stream:
    stream = Stream.__new__(Stream)
    stream.device_index = device
    stream.is_default = True
    return stream


class _ThreadState(threading.local):
    """What a thread has chosen."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Stream] = {}  # the current one, by card
        self.update: TaskUpdate | None = None


class Machine:
    """Cards of one chip type, as the settings want them.

    Raises: ValueError for faults that are not understood.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cards = settings.visible_devices
        self.tensors = self._make_tensors()
        self.counters = Counters()
        self._jit_compile = settings.soc.jit_compile_default
        self.allow_internal_format = settings.soc.internal_format_default
        self.capture: Capture | None = None
        # Compressed masks that were looked at: block, its generation, offset.
        self.checked_masks: set[tuple[int, int, int]] = set()
        self.rotary_table: Tensor | None = None  # what _npu_rotary_embedding kept of its first call
        self._warned: set[str] = set()
        self._faults = parse_faults(settings.faults)
        self._default_streams = [_default_stream(index) for index in range(len(self.cards))]
        self._thread = _ThreadState()
        self._has_chosen = False  # whether a card was named, by any thread
        self._waiting: list[Replay] = []
        self.captured_graphs = 0

    def _make_tensors(self) -> Tensors:
        totals = [self.settings.memory_mb * MIB for _ in self.cards]
        allocator = Allocator(totals, self.settings.others_mb * MIB, self._on_freed)
        return Tensors(allocator, self.settings.silent)

    def _on_freed(self, block: Block) -> None:
        self.tensors.forget(block)

    @property
    def allocator(self) -> Allocator:
        return self.tensors.allocator

    @property
    def jit_compile(self) -> bool:
        """Whether legacy kernels are compiled for each shape."""
        return self._jit_compile

    @jit_compile.setter
    def jit_compile(self, enabled: bool) -> None:
        self._jit_compile = enabled

    def hold_outside(self, nbytes: int) -> None:
        """Memory of the current card that CANN takes for itself, outside of torch_npu's allocator."""
        self.allocator.card(self.current_device).external += nbytes

    @property
    def soc(self) -> Soc:
        return self.settings.soc

    def fault_of(self, name: str) -> Fault | None:
        """The fault injected into an op. "*" stands for the ops of npu:: and atb::."""
        fault = self._faults.get(name)
        if fault is None and "*" in self._faults and (name.startswith(("npu_", "_npu_"))):
            general = self._faults["*"]
            fault = self._faults.setdefault(name, Fault(name, general.kind, general.number))
        return fault

    def give_garbage(self, name: str) -> None:
        """From now on an op computes nonsense, without an error."""
        self._faults.setdefault(name, Fault(name, "noise"))

    def inject(self, faults: str) -> None:
        """From now on ops go wrong as those in the settings do from the start. Raises: ValueError."""
        self._faults.update(parse_faults(faults))

    def warn_once(self, message: str, *, on_stderr: bool = False) -> None:
        """A warning of torch_npu, given once. Its C++ has them on stderr where an op is called as torch.ops.<...>."""
        if message in self._warned:
            return
        self._warned.add(message)
        if on_stderr:
            print(f"[W torch_npu] Warning: {message}", file=sys.stderr, flush=True)
        else:
            warnings.warn(message, UserWarning, stacklevel=3)

    # Cards and streams.

    @property
    def current_device(self) -> int:
        return self._thread.device

    def set_device(self, index: int) -> None:
        self.require_device(index)
        self._thread.device = index
        self._has_chosen = True

    def require_context(self, function: str) -> None:
        """What asks the runtime about a card wants one to be in use: chosen, or with a tensor on it."""
        if not self._has_chosen and self.tensors.next_serial == 1:
            raise RuntimeError(f"NPU function error: {function}, error code is 107002: this process has chosen no card")

    def require_device(self, index: int) -> None:
        if not 0 <= index < len(self.cards):
            raise RuntimeError(
                f"Invalid NPU device ordinal {index}: this process sees {len(self.cards)} NPUs (error code 107001)"
            )

    def current_stream(self, device: int | None = None) -> Stream:
        index = self.current_device if device is None else device
        return self._thread.streams.get(index) or self._default_streams[index]

    def default_stream(self, device: int | None = None) -> Stream:
        return self._default_streams[self.current_device if device is None else device]

    def set_stream(self, stream: Stream) -> None:
        self._thread.streams[stream.device_index] = stream

    # Waiting.

    def wait(self, what: str) -> None:
        """The host waits for the card: refused while capturing, and where it would wait for ever."""
        if self.capture is not None:
            raise Refused(f"{what} waits for the device, which is not allowed while a graph is captured (107030)")
        self.require_nothing_waits(what)
        self.counters.waits += 1

    def require_nothing_waits(self, what: str) -> None:
        if self._waiting:
            raise Refused(
                f"{what} while a replayed graph waits for an ExternalEvent that nobody has recorded: the stream stands "
                "still; update the graph's task groups first"
            )

    # Graphs.

    @property
    def update(self) -> TaskUpdate | None:
        """The task group that this thread is updating."""
        return self._thread.update

    @update.setter
    def update(self, update: TaskUpdate | None) -> None:
        self._thread.update = update

    def require_graphs(self) -> None:
        """Raise Refused where graphs cannot be captured."""
        family = self.soc.family
        if family not in ("310P", "A2", "A3", "A5"):
            raise Refused(f"graphs cannot be captured on {self.soc.name}")
        if family == "310P" and self.settings.cann_release < (9, 0):
            raise Refused(f"graphs on {self.soc.name} need CANN 9.0; this is {self.settings.cann}")
        if self.settings.environment.get("ASCEND_LAUNCH_BLOCKING") == "1":
            raise Refused("graphs cannot be captured with ASCEND_LAUNCH_BLOCKING=1")
        if 0 < self.settings.graphs <= self.captured_graphs:
            raise Refused("stream resources are insufficient (error code 207008)")

    def start_replay(self, replay: Replay) -> None:
        if not replay.advance():
            self._waiting.append(replay)

    def resume_replays(self) -> None:
        """Go on with a replay whose event may have been recorded."""
        self._waiting = [replay for replay in self._waiting if not replay.advance()]
