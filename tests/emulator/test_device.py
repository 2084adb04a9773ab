"""The emulated device: storages, views, cards, copies, and what torch's own ops do on it."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import Machine, Refused

ROOT = Path(__file__).parents[2]


def test_views_share_their_storage(machine: Machine) -> None:
    x = torch.zeros(4, 6, device="npu")
    x[1].view(2, 3)[1].fill_(5)
    x.t()[0].add_(1)
    assert x.untyped_storage().data_ptr() == x[1].untyped_storage().data_ptr()
    expected = torch.zeros(4, 6)
    expected[1, 3:] = 5
    expected[:, 0] += 1
    assert torch.equal(x.cpu(), expected)


def test_storage_has_the_bytes_that_were_asked_for(machine: Machine) -> None:
    assert torch.empty(5, 3, dtype=torch.float16, device="npu").untyped_storage().nbytes() == 30


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool])
def test_copy_there_and_back_is_exact(machine: Machine, dtype: torch.dtype) -> None:
    values = torch.arange(24).reshape(2, 3, 4).to(dtype)
    assert torch.equal(values.npu().cpu(), values)  # type: ignore[attr-defined]
    strided = values.transpose(0, 2)
    moved = strided.to("npu")
    assert moved.stride() == strided.stride()
    assert torch.equal(moved.cpu(), strided)


def test_cards_have_memory_of_their_own(machine: Machine) -> None:
    torch.npu.set_device(1)  # type: ignore[attr-defined]
    x = torch.ones(3, device="npu")
    assert x.device == torch.device("npu", 1)
    assert x.to("npu:0").device == torch.device("npu", 0)
    torch.npu.set_device(0)  # type: ignore[attr-defined]
    with torch.npu.device(1):  # type: ignore[attr-defined]
        assert torch.npu.current_device() == 1  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3, device="npu:0")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="ordinal 2"):
        torch.empty(3, device="npu:2")


def test_current_card_is_each_threads_own(machine: Machine) -> None:
    torch.npu.set_device(1)  # type: ignore[attr-defined]
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.npu.current_device()))  # type: ignore[attr-defined]
    thread.start()
    thread.join()
    assert (seen, torch.npu.current_device()) == ([0], 1)  # type: ignore[attr-defined]


def test_visible_devices_are_counted_up_to_the_first_that_is_not_there(make_machine: MachineMaker) -> None:
    make_machine(devices=8, environment={"ASCEND_RT_VISIBLE_DEVICES": "3,5,9,6"})
    assert torch.npu.device_count() == 2  # type: ignore[attr-defined]


def test_ops_without_a_kernel_of_their_own_agree_with_the_cpu(machine: Machine) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    index = torch.tensor([4, 0, 4])
    functions = (
        lambda t, i: torch.cat((t[i], t[:2] * 2)),
        lambda t, i: t.softmax(-1).cumsum(-1),
        lambda t, i: torch.where(t > 0, t, -1.0),
        lambda t, i: t.sort(dim=-1, descending=True).values,
        lambda t, i: t.topk(3).indices,
        lambda t, i: t.index_select(0, i).sum(1, keepdim=True),
        lambda t, i: t.clone().index_copy_(0, i[:2], t[:2]),
        lambda t, i: t.masked_fill(t < 0, 0).argmax(-1),
        lambda t, i: torch.nn.functional.embedding(i, t),
        lambda t, i: torch.nn.functional.silu(t).to(torch.float16),
        lambda t, i: torch.arange(5, device=t.device) + i[0],
        lambda t, i: t.reshape(2, 24).chunk(2, -1)[1].contiguous(),
    )
    for function in functions:
        assert torch.equal(function(x.to("npu"), index.to("npu")).cpu(), function(x, index))


def test_result_given_too_small_is_resized(machine: Machine) -> None:
    x = torch.arange(6.0).npu()  # type: ignore[attr-defined]
    out = torch.empty(0, device="npu")
    torch.add(x, 1, out=out)
    assert out.tolist() == [1, 2, 3, 4, 5, 6]
    out.resize_(8)
    assert out[:6].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_products_are_computed_in_float32(machine: Machine, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b, c = torch.randn(7, 64).to(dtype), torch.randn(64, 9).to(dtype), torch.randn(9).to(dtype)
    on_card = [t.to("npu") for t in (a, b, c)]
    exact = a.double() @ b.double()
    for _ in range(3):  # from the second time on, the float32 copy of the weight is a kept one
        assert torch.equal((on_card[0] @ on_card[1]).cpu(), exact.to(dtype)) or torch.allclose(
            (on_card[0] @ on_card[1]).cpu().double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-5
        )
    linear = torch.nn.functional.linear(on_card[0], on_card[1].t(), on_card[2])
    assert torch.allclose(linear.cpu().double(), exact + c.double(), rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


def test_kept_float32_copy_follows_a_write(machine: Machine) -> None:
    x, w = torch.ones(1, 128).half().npu(), torch.ones(128, 64).half().npu()  # type: ignore[attr-defined]
    for _ in range(3):
        assert (x @ w)[0, 0].item() == 128
    w.fill_(2)
    assert (x @ w)[0, 0].item() == 256


def test_new_memory_holds_rubbish(machine: Machine) -> None:
    assert torch.empty(3, dtype=torch.float16, device="npu").tolist() == [61280.0] * 3


def test_double_becomes_float_with_one_warning(machine: Machine) -> None:
    x = torch.ones(3, device="npu")
    with pytest.warns(UserWarning, match="do not support double"):
        assert x.double().dtype == torch.float32
    assert x.double().dtype == torch.float32


def test_float64_is_not_computed_with(machine: Machine) -> None:
    with pytest.raises(Refused, match="float64"):
        torch.zeros(3, dtype=torch.float64, device="npu")


def test_printing_works_in_every_format(machine: Machine) -> None:
    assert repr(torch.ones(2, device="npu:1")) == "tensor([1., 1.], device='npu:1')"


def test_modules_and_inference_mode(machine: Machine) -> None:
    module = torch.nn.Linear(4, 3)
    expected = module(torch.ones(2, 4))
    module = module.to("npu")
    with torch.inference_mode():
        assert torch.allclose(module(torch.ones(2, 4, device="npu")).cpu(), expected)
    state = {name: value.cpu() for name, value in module.state_dict().items()}
    assert set(state) == {"weight", "bias"}


def test_saved_and_copied_tensors_stay_on_their_card(machine: Machine) -> None:
    x = torch.arange(6.0).view(2, 3).to("npu:1")
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for other in (torch.load(file), copy.deepcopy(x)):
        assert other.device == x.device
        assert torch.equal(other.cpu(), x.cpu())
    assert torch.load(io.BytesIO(file.getvalue()), map_location="cpu").device.type == "cpu"


def test_gradients_flow(machine: Machine) -> None:
    x = torch.ones(3, device="npu", requires_grad=True)
    torch.autograd.backward((x * x).sum())
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_tensor_of_a_replaced_machine_is_refused(make_machine: MachineMaker) -> None:
    make_machine()
    x = torch.ones(3, device="npu")
    make_machine()
    with pytest.raises(RuntimeError, match="was replaced"):
        x + 1


def test_nothing_is_imported_without_the_environment_variable() -> None:
    """The hook that the NPU backend calls does nothing on a real machine."""
    code = (
        "import importlib, sys; "
        "print(importlib.import_module('text_generation_npu_emulator').install_from_environment(), "
        "'torch_npu' in sys.modules)"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'emulator'}:{ROOT / 'kernels'}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["None", "False"]


def test_hook_takes_everything_from_the_environment() -> None:
    code = (
        "import importlib; importlib.import_module('text_generation_npu_emulator').install_from_environment(); "
        "import torch_npu, torch; torch.npu.set_device(0); "
        "print(torch.npu.get_device_name(), torch.npu.get_soc_version(), torch.npu.device_count(), "
        "torch.npu.mem_get_info()[1] >> 20, torch_npu.__version__, hasattr(torch_npu, '_npu_paged_attention'))"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT / 'emulator'}:{ROOT / 'kernels'}",
        "TEXT_GENERATION_NPU_EMULATOR": "Ascend310P3",
        "TEXT_GENERATION_NPU_EMULATOR_DEVICES": "3",
        "TEXT_GENERATION_NPU_EMULATOR_MEMORY_MB": "77",
        "TEXT_GENERATION_NPU_EMULATOR_TORCH_NPU": "2.1.0",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["Ascend310P3", "202", "3", "77", "2.1.0", "False"]
