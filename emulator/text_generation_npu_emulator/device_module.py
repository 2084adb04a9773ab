"""`torch.npu`: the device's services, under the names and with the meanings of torch_npu."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType, TracebackType

import torch

from text_generation_npu_emulator.graph_module import ExternalEvent, NPUGraph, Pool
from text_generation_npu_emulator.graphs import TaskGroup, begin_group, begin_update, end_group, end_update
from text_generation_npu_emulator.launch import Refused
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.streams import Event, Stream, StreamContext, index_of

Device = torch.device | str | int | None


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """torch.npu.get_device_properties."""

    name: str
    total_memory: int
    L2_cache_size: int = 0
    cube_core_num: int = 0
    vector_core_num: int = 0


class Config:
    """torch.npu.config: switches that can be set and not read."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "allow_internal_format":  # others are ignored, as torch_npu does it
            machine_now().allow_internal_format = bool(value)


class NpuModule(ModuleType):
    """torch.npu."""

    def __init__(self) -> None:
        super().__init__("torch.npu")
        self.__path__: list[str] = []
        self.config = Config()
        self.Stream = Stream
        self.Event = Event
        self.ExternalEvent = ExternalEvent
        self.NPUGraph = NPUGraph

    # What there is.

    def is_available(self) -> bool:
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None:
        """Everything is ready from the start."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return len(machine_now().cards)

    def current_device(self) -> int:
        return machine_now().current_device

    def set_device(self, device: Device) -> None:
        machine_now().set_device(index_of(device))

    def device(self, device: Device) -> _DeviceContext:
        return _DeviceContext(index_of(device))

    def get_device_name(self, device: Device = None) -> str:
        index_of(device)
        return machine_now().soc.name

    def get_device_properties(self, device: Device = None) -> DeviceProperties:
        machine_now().require_context("aclrtGetMemInfo")
        return DeviceProperties(machine_now().soc.name, machine_now().allocator.cards[index_of(device)].total)

    def get_soc_version(self) -> int:
        return machine_now().soc.id

    def is_bf16_supported(self) -> bool:
        return machine_now().soc.has_bfloat16

    # Switches.

    def set_compile_mode(self, jit_compile: bool = False) -> None:
        machine_now().jit_compile = bool(jit_compile)

    def is_jit_compile_false(self) -> bool:
        return not machine_now().jit_compile

    def set_option(self, option: Mapping[str, object]) -> None:
        for name, value in option.items():
            enabled = value in ("enable", True)
            if name == "jitCompile":
                machine_now().jit_compile = enabled
            elif name == "ALLOW_INTERNAL_FORMAT":
                machine_now().allow_internal_format = enabled
            else:
                raise Refused(f"option {name!r} is not emulated")

    def manual_seed(self, seed: int) -> None:
        """The cards' random numbers come from the host's generator, which torch.manual_seed seeds."""

    def manual_seed_all(self, seed: int) -> None:
        """As above."""

    # Memory.

    def mem_get_info(self, device: Device = None) -> tuple[int, int]:
        machine_now().require_context("aclrtGetMemInfo")
        card = machine_now().allocator.card(index_of(device))
        return card.free, card.total

    def memory_allocated(self, device: Device = None) -> int:
        return machine_now().allocator.card(index_of(device)).allocated

    def max_memory_allocated(self, device: Device = None) -> int:
        return machine_now().allocator.card(index_of(device)).peak_allocated

    def memory_reserved(self, device: Device = None) -> int:
        return machine_now().allocator.card(index_of(device)).reserved

    def max_memory_reserved(self, device: Device = None) -> int:
        return machine_now().allocator.card(index_of(device)).peak_reserved

    def memory_stats(self, device: Device = None) -> dict[str, int]:
        card = machine_now().allocator.card(index_of(device))
        return {
            "allocated_bytes.all.current": card.allocated,
            "allocated_bytes.all.peak": card.peak_allocated,
            "active_bytes.all.current": card.allocated,
            "active_bytes.all.peak": card.peak_allocated,
            "reserved_bytes.all.current": card.reserved,
            "reserved_bytes.all.peak": card.peak_reserved,
            "num_ooms": card.num_ooms,
            "num_alloc_retries": card.num_ooms,  # each of which looked for memory once more
        }

    def reset_peak_memory_stats(self, device: Device = None) -> None:
        machine_now().allocator.reset_peaks(index_of(device))

    def reset_max_memory_allocated(self, device: Device = None) -> None:
        self.reset_peak_memory_stats(device)

    def empty_cache(self) -> None:
        machine_now().allocator.empty_cache()

    def set_per_process_memory_fraction(self, fraction: float, device: Device = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        machine_now().allocator.card(index_of(device)).fraction = fraction

    # Streams and events.

    def synchronize(self, device: Device = None) -> None:
        machine_now().wait("torch.npu.synchronize()")

    def current_stream(self, device: Device = None) -> Stream:
        return machine_now().current_stream(index_of(device))

    def default_stream(self, device: Device = None) -> Stream:
        return machine_now().default_stream(index_of(device))

    def set_stream(self, stream: Stream) -> None:
        machine_now().set_stream(stream)

    def stream(self, stream: Stream | None) -> StreamContext:
        return StreamContext(stream)

    # Graphs.

    def graph(
        self,
        npu_graph: NPUGraph,
        pool: Pool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        auto_dispatch_capture: bool = False,
    ) -> _GraphContext:
        return _GraphContext(self, npu_graph, pool, stream, capture_error_mode, auto_dispatch_capture)

    def graph_pool_handle(self) -> Pool:
        return Pool()

    def is_current_stream_capturing(self) -> bool:
        return machine_now().capture is not None

    def graph_task_group_begin(self, stream: Stream) -> None:
        begin_group()

    def graph_task_group_end(self, stream: Stream) -> TaskGroup:
        return end_group()

    def graph_task_update_begin(self, stream: Stream, handle: TaskGroup) -> None:
        begin_update(handle)

    def graph_task_update_end(self, stream: Stream) -> None:
        end_update()


class _DeviceContext:
    """torch.npu.device(n)."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._before = 0

    def __enter__(self) -> None:
        self._before = machine_now().current_device
        machine_now().set_device(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        machine_now().set_device(self._before)


class _GraphContext:
    """torch.npu.graph(g): what runs inside, on a stream of its own, is captured."""

    def __init__(
        self,
        module: NpuModule,
        npu_graph: NPUGraph,
        pool: Pool | None,
        stream: Stream | None,
        capture_error_mode: str,
        auto_dispatch_capture: bool,
    ) -> None:
        self._module = module
        self._graph = npu_graph
        self._options: tuple[Pool | None, str, bool] = (pool, capture_error_mode, auto_dispatch_capture)
        self._stream = module.stream(stream or Stream())

    def __enter__(self) -> None:
        self._module.synchronize()
        gc.collect()
        self._module.empty_cache()
        self._stream.__enter__()
        pool, mode, auto = self._options
        self._graph.capture_begin(pool, mode, auto)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._graph.capture_end()
        finally:
            self._stream.__exit__(None, None, None)
