"""A scheduler and a real engine joined by wire bytes in one process: everything between a request and its tokens but
sockets, so that a property test can run many schedules in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import Device
from text_generation_proto import generate_pb2 as pb
from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.plan import StepPlan
from text_generation_router.scheduling.request import Request, TokenEvent
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig
from text_generation_router.scheduling.sequence import Sequence
from text_generation_router.wire import decode_result, encode_plan
from text_generation_server.engine import CacheShape, Engine
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank
from text_generation_server.sampling import Sampler


def load_engine(
    folder: Path, block_size: int = 16, device: Device | None = None, *, capture_steps: bool = True
) -> Engine:
    device, group = device or CpuDevice(), LoneRank()
    model = load_model(folder, device, group)
    return Engine(model, device, group, Sampler(device.ops), block_size, capture_steps=capture_steps)


@dataclass
class InProcessReplica:
    """Runs requests on an engine; `depth` steps are planned ahead of their answers at most."""

    engine: Engine
    num_blocks: int = 256
    max_sequences: int = 40
    max_total_tokens: int = 256
    max_step_tokens: int = 512
    mixed_steps: bool = True
    prefix_caching: bool = True
    depth: int = 2
    max_guesses: int = 0
    events: dict[int, list[TokenEvent]] = field(default_factory=dict)  # by id(sequence)
    faults: dict[int, str] = field(default_factory=dict)  # by id(sequence): why its logits were no numbers

    def __post_init__(self) -> None:
        block_size = self.engine.block_size
        self.engine.allocate(CacheShape(self.num_blocks, block_size, self.max_sequences, self.max_total_tokens))
        self.pool = BlockPool(self.num_blocks, block_size)
        config = SchedulerConfig(
            self.max_step_tokens,
            self.max_sequences,
            self.mixed_steps,
            self.prefix_caching,
            max_guesses=self.max_guesses,
            max_guessing_tokens=self.max_sequences,
        )
        self.scheduler = Scheduler(config, self.pool)
        self._sent: deque[tuple[StepPlan, bytes]] = deque()

    def submit(self, request: Request) -> Sequence:
        sequence = self.scheduler.submit(request)
        self.events[id(sequence)] = []
        return sequence

    def tick(self) -> bool:
        """Plan as far ahead as allowed, then run and answer the oldest step. False when there is nothing to do."""
        while len(self._sent) < self.depth:
            plan = self.scheduler.plan()
            if plan is None:
                break
            self._sent.append((plan, encode_plan(plan)))
        if not self._sent:
            return False
        _, message = self._sent.popleft()
        answer = self.engine.step(pb.StepRequest.FromString(message)).SerializeToString()
        result = decode_result(pb.StepResponse.FromString(answer))
        for sequence, reason in self.scheduler.end_faulty(result):
            self.faults[id(sequence)] = reason
        for sequence, event in self.scheduler.complete(result):
            self.events[id(sequence)].append(event)
        return True

    def run(self) -> None:
        while self.tick():
            pass

    def answer(self, request: Request) -> list[TokenEvent]:
        """One request, run until nothing is left to do."""
        sequence = self.submit(request)
        self.run()
        return self.events[id(sequence)]
