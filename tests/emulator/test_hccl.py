"""Two processes, two cards, one communicator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOCS = ("Ascend910B4", "Ascend910PremiumA", "Ascend310P3")

WORKER = """
import sys, torch, torch.distributed as dist, text_generation_npu_emulator as emulator
rank, folder = int(sys.argv[1]), sys.argv[2]
def check(soc_name):
    machine = emulator.install(soc_name, memory_mb=1024)
    torch.npu.set_device(rank)
    free = torch.npu.mem_get_info()[0]
    dist.init_process_group("hccl", init_method=f"file://{folder}/{soc_name}", rank=rank, world_size=2)
    x = torch.full((3,), 1.5 + rank, dtype=torch.float16, device="npu")
    dist.all_reduce(x)
    assert x.tolist() == [4, 4, 4] and x.device.index == rank, x
    big = torch.full((1,), 60000.0, dtype=torch.float16, device="npu")
    dist.all_reduce(big)
    assert big.item() == (65504 if machine.soc.only_saturates else float("inf")), big
    gathered = torch.empty(4, dtype=torch.int64, device="npu")
    dist.all_gather_into_tensor(gathered, torch.tensor([rank, 7], device="npu"))
    assert gathered.tolist() == [0, 7, 1, 7], gathered
    parts = [torch.empty(2, device="npu") for _ in range(2)]
    dist.all_gather(parts, torch.full((2,), float(rank), device="npu"))
    assert torch.stack(parts).tolist() == [[0, 0], [1, 1]]
    scattered = torch.empty(2, device="npu")
    dist.reduce_scatter_tensor(scattered, torch.arange(4.0, device="npu"))
    assert scattered.tolist() == [[0, 2], [4, 6]][rank]
    token = torch.full((2,), 5 + rank, device="npu")
    def refused(function, words):
        try:
            function()
        except emulator.Refused as error:
            assert words in str(error), error
            return
        raise AssertionError(words)
    if machine.soc.family == "310P":
        refused(lambda: dist.broadcast(token, 0), "broadcast is not supported")
    else:
        dist.broadcast(token, 0)
        assert token.tolist() == [5, 5]
    beside = dist.new_group(backend="gloo")
    host = torch.full((2,), rank + 1)
    dist.broadcast(host, 1, group=beside)
    assert host.tolist() == [2, 2]
    refused(lambda: dist.all_reduce(torch.ones(4, 4, device="npu").t()[:2]), "contiguous")
    refused(lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool, device="npu")), "bool")
    assert dist.get_backend() == "hccl"
    assert free - torch.npu.mem_get_info()[0] >= 400 << 20, "the communicator's buffers are counted"
    name = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    assert name.startswith("hccl_world")
    if machine.soc.family == "A2":
        y = torch.full((2,), float(rank + 1), device="npu")
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            z = y + 1
            dist.all_reduce(z)
        y.fill_(10.0)
        graph.replay()
        assert z.tolist() == [22, 22], z
    dist.barrier()
    dist.destroy_process_group()
for soc_name in sys.argv[3:]:
    check(soc_name)
    print(soc_name)
"""


def test_two_ranks_agree_on_every_family(tmp_path: Path) -> None:
    """Rows "310P + HCCL broadcast" and "TP all-reduce in fp16 on A1 saturates"."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'emulator'}:{ROOT / 'kernels'}", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path), *SOCS],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        results = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [out.split() for out, _ in results] == [list(SOCS)] * 2, results
