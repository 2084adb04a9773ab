"""What is the same for all layers of a step is made by the first of them, and made anew for the next step."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.kernels.npu.fake_module import described_ops
from text_generation_kernels.npu.kv_cache import NpuKVCache
from text_generation_kernels.npu.ops import NpuOps

HEADS = (3, 64)


def written_slots(ops: NpuOps) -> list[Tensor]:
    """Collects the slots that each layer's write is given."""
    given: list[Tensor] = []
    ops.use("store_kv", "composed")
    store = ops.choices["store_kv"].available[0]
    run = store.run

    def recording(k: Tensor, v: Tensor, cache: NpuKVCache, slots: Tensor) -> None:
        given.append(slots)
        run(k, v, cache, slots)

    object.__setattr__(store, "run", recording)
    return given


def test_slots_are_made_once_a_step() -> None:
    ops = described_ops("A2")
    given = written_slots(ops)
    layers = [ops.new_kv_cache(2, 16, *HEADS) for _ in range(3)]
    larger = ops.new_kv_cache(4, 16, *HEADS)
    k = torch.ones(2, *HEADS, dtype=torch.float16)
    steps = [torch.tensor(slots, dtype=torch.int32) for slots in ([5, -1], [-1, 6])]
    for step in steps:
        for cache in (*layers, larger):
            ops.store_kv(k, k, cache, step)
    assert given[0] is given[1] is given[2]
    assert given[4] is given[5] is given[6]
    assert [slots.tolist() for slots in (given[0], given[3], given[4], given[7])] == [
        [5, 33],
        [5, 65],
        [32, 6],
        [64, 6],
    ]
    for cache in (*layers, larger):
        assert cache.k[:-1].flatten(0, 1).any(dim=-1).any(dim=-1).nonzero().flatten().tolist() == [5, 6]
