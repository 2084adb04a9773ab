"""FRACTAL_NZ: where each element lies, what a cast does, and who may read the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import Machine, Refused
from text_generation_npu_emulator.formats import is_row_major_in_nz, nz_numel, nz_shape, pack, unpack

ND, NZ = 2, 29
SATURATING = ("Ascend910PremiumA", "Ascend310P3")


@pytest.mark.parametrize(
    ("dtype", "elements"), [(torch.float16, 2304), (torch.float32, 2304), (torch.int8, 3072), (torch.bfloat16, 2304)]
)
def test_padded_size_is_the_formulas(dtype: torch.dtype, elements: int) -> None:
    """Seen with the real wheel for 40 x 33."""
    assert nz_numel((40, 33), dtype.itemsize) == elements


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 70), st.sampled_from([torch.float16, torch.int8]))
def test_each_element_lies_in_its_block_and_all_come_back(rows: int, columns: int, dtype: torch.dtype) -> None:
    c0 = 32 // min(dtype.itemsize, 2)
    matrix = torch.arange(1, rows * columns + 1).reshape(1, rows, columns).to(dtype)
    packed = pack(matrix)
    assert tuple(packed.shape) == nz_shape(matrix.shape, dtype.itemsize)
    for i, j in ((0, 0), (rows - 1, columns - 1), (rows // 2, columns // 3)):
        assert packed[0, j // c0, i // 16, i % 16, j % c0] == matrix[0, i, j]
    assert int((packed != 0).sum()) == int((matrix != 0).sum())
    assert torch.equal(unpack(packed, rows, columns), matrix)
    if is_row_major_in_nz(matrix.shape, dtype.itemsize):
        assert torch.equal(packed.reshape(-1), matrix.reshape(-1))


@pytest.mark.parametrize("soc_name", SATURATING)
def test_cast_keeps_values_and_changes_bytes(make_machine: MachineMaker, soc_name: str) -> None:
    machine = make_machine(soc_name)
    import torch_npu

    values = torch.arange(40 * 33).reshape(40, 33).to(torch.float16)
    nd = values.npu()  # type: ignore[attr-defined]
    nz = torch_npu.npu_format_cast(nd, NZ)
    assert (int(torch_npu.get_npu_format(nz)), int(torch_npu.get_npu_format(nd))) == (NZ, ND)
    assert (torch_npu.get_storage_size(nz), torch_npu.get_storage_size(nd)) == (2304, 1320)
    assert nz.shape == nd.shape
    assert torch.equal(nz.cpu(), values)
    assert torch.equal(torch_npu.npu_format_cast(nz, ND).cpu(), values)
    raw = machine.tensors.whole_bytes(nz).view(torch.float16)
    assert torch.equal(raw, pack(values).reshape(-1))


def test_cast_in_place_swaps_the_storage_of_one_tensor_only(make_machine: MachineMaker) -> None:
    make_machine("Ascend910PremiumA")
    import torch_npu

    x = torch.ones(32, 32, dtype=torch.float16, device="npu")
    alias = x.view(32, 32)
    assert torch_npu.npu_format_cast_(x, NZ) is x
    assert (int(torch_npu.get_npu_format(x)), int(torch_npu.get_npu_format(alias))) == (NZ, ND)
    torch_npu.npu_format_cast_(x, alias)
    assert int(torch_npu.get_npu_format(x)) == ND


def test_one_axis_stays_nd(make_machine: MachineMaker) -> None:
    make_machine("Ascend910PremiumA")
    import torch_npu

    assert int(torch_npu.get_npu_format(torch_npu.npu_format_cast(torch.ones(32, device="npu"), NZ))) == ND


@pytest.mark.parametrize("soc_name", ["Ascend910B4", "Ascend910_9391"])
def test_on_a2_a_cast_gives_nd_until_private_formats_are_allowed(
    make_machine: MachineMaker, soc_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Row "NZ cast with allow_internal_format False"."""
    make_machine(soc_name)
    import torch_npu

    nd = torch.ones(32, 32, dtype=torch.float16, device="npu")
    for _ in range(2):
        assert int(torch_npu.get_npu_format(torch_npu.npu_format_cast(nd, NZ))) == ND
    assert capfd.readouterr().err.count("internal format while allow_internal_format=False") == 1
    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    assert int(torch_npu.get_npu_format(torch_npu.npu_format_cast(nd, NZ))) == NZ


def test_the_switch_for_formats_cannot_be_read(make_machine: MachineMaker) -> None:
    make_machine("Ascend910PremiumA")
    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = torch.npu.config.allow_internal_format  # type: ignore[attr-defined]


def test_casts_of_newer_cann_do_not_ask(make_machine: MachineMaker) -> None:
    make_machine(cann="9.1.0")
    import torch_npu

    nd = torch.ones(32, 32, dtype=torch.float16, device="npu")
    assert int(torch_npu.get_npu_format(torch_npu.npu_format_cast(nd, NZ))) == NZ


def test_a5_refuses_an_axis_of_one(make_machine: MachineMaker) -> None:
    make_machine("Ascend950PR")
    import torch_npu

    with pytest.raises(Refused, match="no axis"):
        torch_npu.npu_format_cast(torch.ones(1, 32, dtype=torch.float16, device="npu"), NZ)


def test_allocation_in_a_format(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3")
    import torch_npu

    cache = torch_npu.empty_with_format((3, 4, 32, 16), dtype=torch.float16, device="npu:0", acl_format=NZ)
    assert int(torch_npu.get_npu_format(cache)) == NZ
    assert int(torch_npu.get_npu_format(cache.zero_())) == NZ
    assert not cache.cpu().any()


@pytest.mark.parametrize("soc_name", ["Ascend910PremiumA", "Ascend310P3", "Ascend910B4", "Ascend950PR"])
@pytest.mark.parametrize("num_tokens", [1, 17])
def test_linear_with_an_nz_weight_equals_nd(make_machine: MachineMaker, soc_name: str, num_tokens: int) -> None:
    make_machine(soc_name)
    import torch_npu

    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    torch.manual_seed(0)
    x, w, b = (torch.randn(s).half().npu() for s in ((num_tokens, 64), (48, 64), (48,)))  # type: ignore[attr-defined]
    nz = torch_npu.npu_format_cast(w, NZ)
    for _ in range(3):
        assert torch.equal(torch.nn.functional.linear(x, nz).cpu(), torch.nn.functional.linear(x, w).cpu())
        assert torch.equal(torch.nn.functional.linear(x, nz, b).cpu(), torch.nn.functional.linear(x, w, b).cpu())
    assert int(torch_npu.get_npu_format(nz.t())) == NZ


def nz_weight(make_machine: MachineMaker, **settings: object) -> torch.Tensor:
    make_machine("Ascend910PremiumA", **settings)
    weight = torch.arange(64 * 32).reshape(64, 32).half().npu()  # type: ignore[attr-defined]
    nz: torch.Tensor = torch.ops.npu.npu_format_cast(weight, NZ)
    return nz


def test_slice_still_says_nz_and_is_refused(make_machine: MachineMaker) -> None:
    """Row "NZ slice/cat/view"."""
    nz = nz_weight(make_machine)
    part = nz[:32]
    assert torch.ops.npu.get_npu_format(part) == NZ
    x = torch.ones(1, 32, dtype=torch.float16, device="npu")
    with pytest.raises(Refused, match="slice first, cast after"):
        torch.nn.functional.linear(x, part)
    assert torch.equal(part.cpu(), nz.cpu()[:32])  # the way to the host converts it


def test_slice_is_read_wrongly_by_a_chip_that_says_nothing(make_machine: MachineMaker) -> None:
    nz = nz_weight(make_machine, silent=True)
    x = torch.ones(1, 32, dtype=torch.float16, device="npu")
    product = torch.nn.functional.linear(x, nz[:32])
    assert not torch.equal(product.cpu(), torch.nn.functional.linear(x, nz.cpu()[:32].to("npu")).cpu())


def test_what_is_cast_is_the_tensor_that_was_allocated(make_machine: MachineMaker) -> None:
    """A slice that is cast is a slice of the whole in FRACTAL_NZ, which no product reads; a copy of it is not."""
    make_machine("Ascend910PremiumA")
    whole = torch.arange(64 * 32).reshape(64, 32).half().to("npu")
    for part in (whole[16:32], whole[:, :16], whole.t()):
        nz = torch.ops.npu.npu_format_cast(part, NZ)
        assert int(torch.ops.npu.get_npu_format(nz)) == NZ
        assert torch.ops.npu.get_storage_size(nz) == 64 * 32
        assert (nz.shape, nz.stride(), nz.storage_offset()) == (part.shape, part.stride(), part.storage_offset())
        assert torch.equal(nz.cpu(), part.cpu())
        assert torch.equal(torch.ops.npu.npu_format_cast(nz, ND).cpu(), part.cpu())
    x = torch.ones(1, 32, dtype=torch.float16, device="npu")
    with pytest.raises(Refused, match="slice first, cast after"):
        torch.nn.functional.linear(x, torch.ops.npu.npu_format_cast(whole[16:32], NZ))
    alone = torch.ops.npu.npu_format_cast(whole[16:32].clone(), NZ)
    assert torch.ops.npu.get_storage_size(alone) == 16 * 32
    assert torch.equal(torch.nn.functional.linear(x, alone).cpu(), torch.nn.functional.linear(x, whole[16:32]).cpu())


def test_a_matrix_that_was_allocated_with_one_axis_stays_nd(make_machine: MachineMaker) -> None:
    make_machine("Ascend910PremiumA")
    matrix = torch.ones(32 * 32, dtype=torch.float16, device="npu").view(32, 32)
    assert int(torch.ops.npu.get_npu_format(torch.ops.npu.npu_format_cast(matrix, NZ))) == ND


def test_nz_is_refused_by_ops_that_cannot_read_it(make_machine: MachineMaker) -> None:
    nz = nz_weight(make_machine)
    reads: tuple[Callable[[], object], ...] = (
        lambda: nz + 1,
        lambda: torch.cat((nz, nz)),
        nz.sum,
        lambda: nz[torch.zeros(1, dtype=torch.int64, device="npu")],
        lambda: torch.ops.npu.npu_silu(nz),
    )
    for function in reads:
        with pytest.raises(Refused, match="FRACTAL_NZ"):
            function()


def test_writes_into_nz_are_refused(make_machine: MachineMaker) -> None:
    nz = nz_weight(make_machine)
    writes: tuple[Callable[[], object], ...] = (
        lambda: nz.copy_(torch.ones(64, 32)),
        lambda: nz.add_(1),
        lambda: nz[0].fill_(1),
    )
    for function in writes:
        with pytest.raises(Refused, match="FRACTAL_NZ"):
            function()


def test_plain_machine_has_no_nz(machine: Machine) -> None:
    assert torch.ops.npu.get_npu_format(torch.ones(2, 2, device="npu")) == ND
