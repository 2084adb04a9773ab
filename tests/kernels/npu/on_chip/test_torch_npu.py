"""What the NPU backend relies on in torch_npu itself. Both hosts of the emulated NPU run this; one has the real one."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu.kv_cache import FRACTAL_NZ, ND_FORMAT
from text_generation_kernels.npu.nz import storage_elements
from text_generation_kernels.npu_probe import load_torch_npu

TORCH_NPU = load_torch_npu()
NPU = TORCH_NPU.npu
MIB = 2**20


@pytest.fixture(autouse=True)
def _formats_allowed(device: NpuDevice) -> Iterator[None]:
    NPU.config.allow_internal_format = True
    yield
    NPU.config.allow_internal_format = device.family.keeps_formats


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.arange(rows * columns).reshape(rows, columns).to(dtype).to("npu")


def seen(tensor: Tensor) -> tuple[object, ...]:
    """What there is to know of a tensor but for its values."""
    return (
        int(TORCH_NPU.get_npu_format(tensor)),
        int(TORCH_NPU.get_storage_size(tensor)),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
    )


@pytest.mark.parametrize(
    ("shape", "dtype"), [((33, 40), torch.float16), ((33, 40), torch.float32), ((40, 33), torch.int8)]
)
def test_a_cast_has_the_size_of_the_formula_and_loses_nothing(shape: tuple[int, int], dtype: torch.dtype) -> None:
    nd = (matrix(*shape, dtype=torch.int32) % 100).to(dtype)
    nz = TORCH_NPU.npu_format_cast(nd, FRACTAL_NZ)
    assert seen(nz) == (FRACTAL_NZ, storage_elements(*shape, nd.itemsize), shape, (shape[1], 1), 0)
    assert torch.equal(TORCH_NPU.npu_format_cast(nz, ND_FORMAT).cpu(), nd.cpu())
    assert torch.equal(nz.cpu(), nd.cpu())
    assert TORCH_NPU.npu_format_cast(nz, FRACTAL_NZ).data_ptr() == nz.data_ptr()


def test_a_cast_takes_the_whole_that_was_allocated() -> None:
    whole = matrix(64, 48)
    for part in (whole[16:32], whole[:, :16], whole.t(), whole.view(4, 16, 48)):
        nz = TORCH_NPU.npu_format_cast(part, FRACTAL_NZ)
        assert seen(nz) == (FRACTAL_NZ, 64 * 48, tuple(part.shape), part.stride(), part.storage_offset())
    assert seen(TORCH_NPU.npu_format_cast(whole[16:32].clone(), FRACTAL_NZ)) == (
        FRACTAL_NZ, 16 * 48, (16, 48), (48, 1), 0
    )  # fmt: skip


def test_what_was_allocated_with_one_axis_stays_nd() -> None:
    for given in (matrix(1, 64)[0].clone(), matrix(1, 64 * 64)[0].clone().view(64, 64)):
        cast = TORCH_NPU.npu_format_cast(given, FRACTAL_NZ)
        assert int(TORCH_NPU.get_npu_format(cast)) == ND_FORMAT
        assert cast.data_ptr() != given.data_ptr()


def test_views_say_that_they_are_in_nz() -> None:
    nz = TORCH_NPU.npu_format_cast(matrix(32, 48), FRACTAL_NZ)
    for view in (nz.t(), nz[:16], nz.view(48, 32)):
        assert int(TORCH_NPU.get_npu_format(view)) == FRACTAL_NZ


def test_a_format_can_be_allocated() -> None:
    made = TORCH_NPU.empty_with_format((33, 40), dtype=torch.float16, device="npu", acl_format=FRACTAL_NZ)
    assert seen(made) == (FRACTAL_NZ, storage_elements(33, 40, 2), (33, 40), (40, 1), 0)


@pytest.mark.parametrize("nbytes", [1, 480, 481, 512, MIB, MIB + 1])
def test_memory_is_charged_in_steps_of_512_with_32_bytes_more(nbytes: int) -> None:
    gc.collect()  # what earlier tests left, which would otherwise go in between
    before = NPU.memory_allocated()
    held = torch.empty(nbytes, dtype=torch.uint8, device="npu")
    assert NPU.memory_allocated() - before == -(-(nbytes + 32) // 512) * 512
    del held
    assert NPU.memory_allocated() == before


def test_cards_have_memory_of_their_own() -> None:
    NPU.empty_cache()
    free = [NPU.mem_get_info(index)[0] for index in range(2)]
    held = torch.empty(64 * MIB, dtype=torch.uint8, device="npu:1")
    assert NPU.mem_get_info(0)[0] == free[0]
    assert free[1] - NPU.mem_get_info(1)[0] >= 64 * MIB
    del held
    NPU.empty_cache()
    assert NPU.mem_get_info(1)[0] == free[1]


def test_what_does_not_fit_is_refused_in_the_same_words() -> None:
    total = NPU.mem_get_info(0)[1]
    NPU.empty_cache()
    ooms = NPU.memory_stats(0)["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError) as refusal:
        torch.empty(total + MIB, dtype=torch.uint8, device="npu:0")
    assert str(refusal.value).startswith(
        "NPU out of memory. Tried to allocate 4.00 GiB (NPU 0; 4.00 GiB total capacity; "
    )
    assert " reserved in total by PyTorch).If reserved memory is >> allocated memory" in str(refusal.value)
    assert NPU.memory_stats(0)["num_ooms"] == ooms + 1
    NPU.set_per_process_memory_fraction(0.25, 0)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"free; 1024\.00 MiB allowed; "):
            torch.empty(total // 2, dtype=torch.uint8, device="npu:0")
    finally:
        NPU.set_per_process_memory_fraction(1.0, 0)


def test_switches(device: NpuDevice) -> None:
    with pytest.raises(AttributeError):
        _ = NPU.config.allow_internal_format
    try:
        NPU.set_compile_mode(jit_compile=True)
        assert not NPU.is_jit_compile_false()
    finally:
        NPU.set_compile_mode()
    assert NPU.is_jit_compile_false()


def test_formats_have_names() -> None:
    assert str(TORCH_NPU.get_npu_format(matrix(2, 2))) == "ND"
    assert int(TORCH_NPU.Format.FRACTAL_NZ) == FRACTAL_NZ


@pytest.mark.filterwarnings("ignore:Device do not support double")
def test_float64_becomes_float32() -> None:
    assert torch.ones(3, dtype=torch.float64).to("npu").dtype == torch.float32


def test_a_graph_reads_its_inputs_anew_and_may_not_wait(device: NpuDevice) -> None:
    if not device.family.captures_graphs:
        pytest.skip(f"no graphs on {device.name}")
    x = torch.zeros(4, device="npu")
    graph = NPU.NPUGraph()
    with pytest.raises(RuntimeError):
        graph.replay()
    with NPU.graph(graph):
        y = x + 1
    for value in (0.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.cpu().tolist() == [value + 1] * 4
    for wait in (lambda: x.sum().item(), x.cpu, NPU.synchronize):
        with pytest.raises(RuntimeError, match="107030"), NPU.graph(NPU.NPUGraph()):
            wait()
    assert not NPU.is_current_stream_capturing()
