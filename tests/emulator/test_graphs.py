"""Captured graphs: nothing runs while capturing, host arguments are frozen, and how they are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import Machine, Refused

BLOCK_SIZE = 16
RUBBISH = 61280.0  # what memory holds that nobody has written


class Decode:
    """A decode step of two sequences over pages: attention, then an activation."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.q = torch.randn(2, 4, 128).half().to("npu")
        self.k, self.v = (torch.randn(6, BLOCK_SIZE, 256).half().to("npu") for _ in range(2))
        self.table = torch.tensor([[1, 3], [5, 2]], dtype=torch.int32, device="npu")

    def attention(self, kv_lens: Sequence[int]) -> Tensor:
        out: Tensor = torch.ops.npu.npu_fused_infer_attention_score(
            self.q,
            self.k,
            self.v,
            actual_seq_lengths=[1, 2],
            actual_seq_lengths_kv=kv_lens,
            block_table=self.table,
            num_heads=4,
            num_key_value_heads=2,
            scale=128**-0.5,
            input_layout="TND",
            block_size=BLOCK_SIZE,
        )[0]
        return out

    def step(self, kv_lens: Sequence[int]) -> Tensor:
        out: Tensor = torch.ops.npu.npu_swiglu(self.attention(kv_lens).view(2, 512))
        return out


def captured(function: Callable[[], Tensor], **options: object) -> tuple[object, Tensor]:
    graph = torch.npu.NPUGraph()  # type: ignore[attr-defined]
    with torch.npu.graph(graph, **options):  # type: ignore[attr-defined]
        out = function()
    return graph, out


def test_capture_runs_nothing(machine: Machine) -> None:
    cache = torch.zeros(4, 2, dtype=torch.float16, device="npu")
    indices = torch.tensor([[1]], device="npu")

    def write() -> Tensor:
        torch.ops.npu.npu_scatter_nd_update_(cache, indices, torch.ones(1, 2, dtype=torch.float16, device="npu"))
        cache.mul_(2)
        return cache + 1

    graph, out = captured(write)
    assert not cache.any()
    assert out[0, 0].item() == RUBBISH
    graph.replay()  # type: ignore[attr-defined]
    assert cache[1].tolist() == [2, 2]
    assert out[:2].tolist() == [[1, 1], [3, 3]]


def test_replay_reads_the_card_anew_and_the_lengths_not(machine: Machine) -> None:
    """Row "graph replay with stale kv lists"."""
    decode = Decode()
    lengths = [20, 9]
    graph, out = captured(lambda: decode.step(lengths))
    lengths[0] = 5  # the list of the capture was kept, not this one
    decode.q.copy_(torch.randn(2, 4, 128).half())
    graph.replay()  # type: ignore[attr-defined]
    assert torch.equal(out.cpu(), decode.step([20, 9]).cpu())
    assert not torch.equal(out.cpu(), decode.step([21, 10]).cpu())


def test_host_tensor_of_lengths_is_frozen_and_one_on_the_card_is_not(machine: Machine) -> None:
    decode = Decode()
    k, v = (cache.view(6, BLOCK_SIZE, 2, 128) for cache in (decode.k, decode.v))

    def step(lengths: Tensor) -> Tensor:
        out = torch.empty_like(decode.q)
        torch.ops.atb._npu_paged_attention(decode.q, k, v, 2, 4, 128**-0.5, decode.table, lengths, out)
        return out

    later = torch.tensor([25, 12], dtype=torch.int32)
    for on_card in (False, True):
        lengths = torch.tensor([20, 9], dtype=torch.int32).to("npu" if on_card else "cpu")
        before = step(lengths).cpu()
        graph, out = captured(lambda lengths=lengths: step(lengths))  # type: ignore[misc]
        lengths.copy_(later)
        graph.replay()  # type: ignore[attr-defined]
        assert torch.equal(out.cpu(), step(later).cpu() if on_card else before)


def test_task_update_gives_a_replay_new_lengths(machine: Machine) -> None:
    decode = Decode()
    stream = torch.npu.Stream()  # type: ignore[attr-defined]
    event = torch.npu.ExternalEvent()  # type: ignore[attr-defined]
    handles = []

    def step() -> Tensor:
        event.wait(torch.npu.current_stream())  # type: ignore[attr-defined]
        event.reset(torch.npu.current_stream())  # type: ignore[attr-defined]
        torch.npu.graph_task_group_begin(torch.npu.current_stream())  # type: ignore[attr-defined]
        out = decode.attention([20, 9])
        handles.append(torch.npu.graph_task_group_end(torch.npu.current_stream()))  # type: ignore[attr-defined]
        return out.view(2, 512) * 2

    def update(lengths: Sequence[int]) -> None:
        with torch.npu.stream(stream):  # type: ignore[attr-defined]
            torch.npu.graph_task_update_begin(stream, handles[0])  # type: ignore[attr-defined]
            decode.attention(lengths)
            torch.npu.graph_task_update_end(stream)  # type: ignore[attr-defined]
            event.record(stream)

    graph, out = captured(step)
    for lengths in ([21, 10], [32, 16]):
        update(lengths)
        graph.replay()  # type: ignore[attr-defined]
        assert torch.equal(out.cpu(), decode.attention(lengths).view(2, 512).cpu() * 2)
    # The other order works, too: the replay stands still until its event is recorded.
    graph.replay()  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="nobody has recorded"):
        out.cpu()
    with pytest.raises(Refused, match="nobody has recorded"):
        out + 1
    update([7, 7])
    assert torch.equal(out.cpu(), decode.attention([7, 7]).view(2, 512).cpu() * 2)


def test_update_must_be_of_the_same_op_and_the_same_tensors(machine: Machine) -> None:
    decode = Decode()
    handles = []

    def step() -> Tensor:
        torch.npu.graph_task_group_begin(torch.npu.current_stream())  # type: ignore[attr-defined]
        out = decode.attention([20, 9])
        handles.append(torch.npu.graph_task_group_end(torch.npu.current_stream()))  # type: ignore[attr-defined]
        return out

    captured(step)
    other = Decode()
    stream = torch.npu.current_stream()  # type: ignore[attr-defined]
    wrong: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: decode.q + 1, "cannot be replaced by add"),
        (lambda: other.attention([1, 1]), "must be those of the capture"),
    )
    for function, error in wrong:
        torch.npu.graph_task_update_begin(stream, handles[0])  # type: ignore[attr-defined]
        with pytest.raises(Refused, match=error):
            function()
        with pytest.raises(Refused, match="0 were updated"):
            torch.npu.graph_task_update_end(stream)  # type: ignore[attr-defined]


def test_graph_updates_its_lists_itself_when_it_was_captured_so(machine: Machine) -> None:
    decode = Decode()
    graph, out = captured(lambda: decode.step([20, 9]), auto_dispatch_capture=True)
    for lengths in ([21, 10], [22, 11]):
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])  # type: ignore[attr-defined]
        graph.replay()  # type: ignore[attr-defined]
        assert torch.equal(out.cpu(), decode.step(lengths).cpu())
    with pytest.raises(Refused, match="not captured with a list"):
        graph.update(cpu_update_input=[{"scale": 1.0}])  # type: ignore[attr-defined]


def test_form_with_workspace_and_outputs(machine: Machine) -> None:
    decode = Decode()
    arguments = {
        "actual_seq_lengths": [1, 2],
        "actual_seq_lengths_kv": [20, 9],
        "block_table": decode.table,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "scale": 128**-0.5,
        "input_layout": "TND",
        "block_size": BLOCK_SIZE,
    }
    tensors = decode.q, decode.k, decode.v
    workspace = torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(*tensors, **arguments)
    out, lse = torch.empty_like(decode.q), torch.empty(1, device="npu")
    torch.ops.npu.npu_fused_infer_attention_score.out(*tensors, **arguments, workspace=workspace, out=[out, lse])
    assert torch.equal(out.cpu(), decode.attention([20, 9]).cpu())


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0, 0].item(),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "from the host": lambda x: torch.ones(2).to("npu"),
    "synchronize": lambda x: torch.npu.synchronize(),  # type: ignore[attr-defined]
    "stream": lambda x: torch.npu.current_stream().synchronize(),  # type: ignore[attr-defined]
    "event": lambda x: torch.npu.Event().synchronize(),  # type: ignore[attr-defined]
    "nonzero": lambda x: x.nonzero(),
    "boolean index": lambda x: x[x > 0],
    "unique": torch.unique,
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_refused_while_capturing(machine: Machine, name: str) -> None:
    x = torch.ones(2, 2, device="npu")
    with pytest.raises(Refused, match="not allowed while a graph is captured"):
        captured(lambda: WAITS[name](x))  # type: ignore[arg-type, return-value]
    assert not torch.npu.is_current_stream_capturing()  # type: ignore[attr-defined]


def test_training_attention_cannot_be_captured(machine: Machine) -> None:
    q = torch.ones(4, 2, 64, dtype=torch.float16, device="npu")
    with pytest.raises(Refused, match="cannot be captured"):
        captured(
            lambda: torch.ops.npu.npu_fusion_attention(q, q, q, 2, "TND", actual_seq_qlen=[4], actual_seq_kvlen=[4])
        )


@pytest.mark.parametrize(
    ("soc_name", "settings", "error"),
    [
        ("Ascend910PremiumA", {}, "cannot be captured on"),
        ("Ascend310P3", {}, "need CANN 9.0"),
        ("Ascend910B4", {"environment": {"ASCEND_LAUNCH_BLOCKING": "1"}}, "ASCEND_LAUNCH_BLOCKING"),
    ],
)
def test_who_has_no_graphs(make_machine: MachineMaker, soc_name: str, settings: dict[str, object], error: str) -> None:
    make_machine(soc_name, **settings)
    with pytest.raises(Refused, match=error):
        torch.npu.NPUGraph().capture_begin()  # type: ignore[attr-defined]


def test_capture_needs_a_stream_of_its_own(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3", cann="9.0.0")
    with pytest.raises(Refused, match="not the default one"):
        torch.npu.NPUGraph().capture_begin()  # type: ignore[attr-defined]
    x = torch.ones(2, device="npu")
    graph, out = captured(lambda: x + 1)
    graph.replay()  # type: ignore[attr-defined]
    assert out.tolist() == [2, 2]
    with pytest.raises(Refused, match="was not captured"):
        torch.npu.NPUGraph().replay()  # type: ignore[attr-defined]


def test_events_measure_time(machine: Machine) -> None:
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))  # type: ignore[attr-defined]
    start.record()
    torch.ones(1000, device="npu").sum().item()
    end.record()
    assert 0 < start.elapsed_time(end) < 10_000
    with pytest.raises(Refused, match="enable_timing"):
        torch.npu.Event().elapsed_time(end)  # type: ignore[attr-defined]


def test_graphs_of_one_pool_share_the_memory_between_their_ops(make_machine: MachineMaker) -> None:
    """Intermediate results do not add up, neither over a graph's layers nor over graphs."""
    make_machine(memory_mb=64)
    x = torch.ones(1 << 20, device="npu")  # 4 MiB

    def layers() -> Tensor:
        y = x
        for _ in range(20):
            y = y + 1
        return y

    npu = torch.npu  # type: ignore[attr-defined]
    first, out = captured(layers)
    free = npu.mem_get_info()[0]
    assert 64 - (free >> 20) <= 4 * 4 + 1
    second, again = captured(layers, pool=first.pool())  # type: ignore[attr-defined]
    assert free - npu.mem_get_info()[0] <= (4 << 20) + 512  # its result alone
    for graph, result in ((first, out), (second, again)):
        x.fill_(2)
        graph.replay()  # type: ignore[attr-defined]
        assert result[:2].tolist() == [22, 22]
    del first, second, out, again, graph, result
    npu.empty_cache()
    assert npu.mem_get_info()[0] == (60 << 20) - 512


def test_streams_run_out_after_some_graphs(make_machine: MachineMaker) -> None:
    make_machine(graphs=2)
    x = torch.ones(2, device="npu")
    kept = [captured(lambda: x + 1) for _ in range(2)]
    with pytest.raises(Refused, match="stream resources are insufficient"):
        captured(lambda: x + 1)
    assert len(kept) == 2
