"""What is wrong without an error on a chip, and a model that is served there: the effect, then that it stays away.

Here are the combinations that no test of a single op can show. README.md beside this file lists all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.emulator.conftest import MachineMaker
from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from tests.support.witness import Witness
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu.kv_cache import new_cache
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_npu_emulator import Machine
from text_generation_router.scheduling.request import Request

SATURATING = ("Ascend910PremiumA", "Ascend310P3")
NEAR_TIE = 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("model"),
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        num_hidden_layers=2,
    )


def replica_on(folder: Path, options: NpuOptions | None = None) -> InProcessReplica:
    device = NpuDevice(load_torch_npu(), 0, options)
    engine = load_engine(folder, device.default_block_size, device)
    return InProcessReplica(engine, num_blocks=12, max_sequences=4, max_step_tokens=64)


def compiled_shapes(machine: Machine, op: str) -> int:
    """Shapes of an op that a chip would compile, one after the other."""
    return len(machine.counters.shapes[op])


@pytest.mark.parametrize("soc_name", SATURATING)
def test_steps_of_any_size_have_few_shapes_and_none_is_compiled(
    make_machine: MachineMaker, soc_name: str, folder: Path
) -> None:
    """A 910A or 310P with its default jit_compile compiles every new shape while it serves, for minutes.

    Compilation is switched off, and shapes are rounded up all the same, for what stays compiled by the vendor.
    """
    machine = make_machine(soc_name)
    replica = replica_on(folder)
    machine.counters.shapes.clear()
    for length in range(1, 49):
        replica.answer(Request(tuple(range(4, 4 + length)), 2))
    assert machine.counters.compilations == 0
    # Steps of 16, 32 and 48 tokens, and of as many sampled rows.
    assert 0 < compiled_shapes(machine, "npu_rms_norm") <= 4


@pytest.mark.parametrize("soc_name", SATURATING)
def test_activations_beyond_float16_saturate_without_a_sign_of_it(make_machine: MachineMaker, soc_name: str) -> None:
    """A model trained in bfloat16 and run in float16 on a 910A or 310P: what overflows is 65504, and nothing is inf or
    NaN. So values have to be compared with a reference, and shares at 65504 counted."""
    make_machine(soc_name)
    x = torch.full((2, 64), 300.0)
    weight = torch.full((32, 64), 30.0)
    seen = F.linear(x.half().to("npu"), weight.half().to("npu"))
    normal = torch.ops.npu.npu_rms_norm(seen, torch.ones(32, dtype=torch.float16, device="npu"))[0]
    assert seen.cpu().eq(65504).all()
    assert seen.isfinite().all()
    assert normal.isfinite().all()  # and a norm later there is no trace of it
    assert (F.linear(x, weight) > 65504).all()


@pytest.mark.parametrize("soc_name", SATURATING)
def test_hidden_keys_of_nan_and_infinity_reach_no_row(make_machine: MachineMaker, soc_name: str, folder: Path) -> None:
    """A chip that turns NaN into 0 hides what a mask of infinities does; here masks are finite, softmax is in float32,
    and what others left in a block is taken out before it is multiplied."""
    make_machine(soc_name)
    replica = replica_on(folder)
    for cache in replica.engine._kv_caches:
        if getattr(cache, "layout", "nd") == "nd":
            cache.k.fill_(65504)
            cache.v.fill_(65504)
    prompt = tuple(range(4, 40))
    answer = replica.answer(Request(prompt, 6))
    Witness(folder).assert_greedy(prompt, [event.token_id for event in answer], NEAR_TIE)


def test_caches_of_two_formats_are_refused_when_they_are_made(make_machine: MachineMaker) -> None:
    """One cache in NZ and one in ND: reshape_and_cache silently takes the way of ND."""
    make_machine("Ascend310P3")
    torch_npu = load_torch_npu()

    class HalfDeaf:
        """torch_npu whose every second cast is ignored."""

        def __init__(self) -> None:
            self.casts = 0

        def __getattr__(self, name: str) -> object:
            return getattr(torch_npu, name)

        def npu_format_cast(self, tensor: torch.Tensor, layout: int) -> torch.Tensor:
            self.casts += 1
            cast: torch.Tensor = torch_npu.npu_format_cast(tensor, layout)
            return tensor if self.casts % 2 == 0 else cast

    with pytest.raises(RuntimeError, match=r"caches in NZ were asked for, formats \[29, 2\] came"):
        new_cache(HalfDeaf(), torch.device("npu", 0), torch.float16, "nz", (2, 128, 1, 128))


def test_a_large_vocabulary_has_a_head_that_is_multiplied_fast(make_machine: MachineMaker, tmp_path: Path) -> None:
    """V > 65535 in a (K, V) layout is slow, and refused in a quantised product: the head is (V, K), in float16."""
    machine = make_machine()
    folder = make_checkpoint(
        tmp_path, hidden_size=64, head_dim=16, num_hidden_layers=1, vocab_size=65552, tie_word_embeddings=False
    )
    replica = replica_on(folder)
    assert replica.answer(Request((5, 6, 7), 2))
    assert machine.counters.slow_matmuls == 0
    assert not [name for name in machine.counters.calls if "quant" in name]


def test_ids_of_a_310p_go_over_gloo(make_machine: MachineMaker) -> None:
    """HCCL has no broadcast on a 310P: the device says so, and the group beside HCCL is used for sampled ids."""
    for soc_name, broadcasts in (("Ascend310P3", False), ("Ascend910PremiumA", True), ("Ascend910B4", True)):
        make_machine(soc_name)
        assert NpuDevice(load_torch_npu(), 0).broadcasts is broadcasts
