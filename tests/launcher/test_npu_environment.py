"""What shards on NPUs are started with: their environment, the ports of their group, and the cores they run on."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.doctor.machines import npu_machine
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_launcher.cpu_binding import NotFound, bind_cores, parse_cores, share_out
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.hccl_ports import NUM_PORTS, VARIABLE, claim_hccl_ports
from text_generation_launcher.plan import LaunchPlan, make_plan, with_cores, with_hccl_ports
from text_generation_launcher.settings import parse_command_line


def plan(*arguments: str, **environ: str) -> LaunchPlan:
    environ = {EMULATOR_VARIABLE: "Ascend910B4", **environ}
    return make_plan(parse_command_line(["--device", "npu", *arguments], environ), environ)


def test_shards_import_torch_without_its_plugins() -> None:
    """Where CANN is missing a bare `import torch` fails as soon as torch_npu is installed."""
    assert plan().shard_program(0).environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def test_an_allocators_settings_are_the_users_alone() -> None:
    """expandable_segments and max_split_size_mb exclude each other: nothing is added to what a user has chosen."""
    for environ in ({}, {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64"}):
        seen = plan(**environ).shard_program(0).environment
        assert {name: value for name, value in seen.items() if "ALLOC_CONF" in name} == environ


@pytest.fixture
def first_port() -> int:
    """Of a range that nobody uses, below the ports that the system gives away."""
    for base in range(20011, 32000, NUM_PORTS):
        with claim_hccl_ports({}, first=base) as found:
            return found
    raise AssertionError("no free range")


def test_servers_side_by_side_have_ports_of_their_own_for_hccl(first_port: int) -> None:
    """G48: two servers with two shards each on one host; a range that is taken is passed over."""
    with claim_hccl_ports({}, first_port) as one, claim_hccl_ports({}, first_port) as other:
        assert one == first_port
        assert other >= one + NUM_PORTS
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", first_port + 3))
        listener.listen()
        with claim_hccl_ports({}, first_port) as found:
            assert found == first_port + NUM_PORTS
    with claim_hccl_ports({}, first_port) as again:
        assert again == first_port  # a claim ends with its server
    shards = with_hccl_ports(plan("--num-shard", "2"), 60016)
    assert [shards.shard_program(rank).environment[VARIABLE] for rank in (0, 1)] == ["60016", "60016"]


def test_a_users_own_port_for_hccl_is_kept(first_port: int) -> None:
    """G48."""
    with claim_hccl_ports({VARIABLE: "61000"}, first_port) as found:
        assert found == 61000


def test_no_ports_for_hccl_is_one_line() -> None:
    with pytest.raises(LauncherError, match="no 16 ports from 65530 on are free for HCCL; set HCCL_IF_BASE_PORT"):
        claim_hccl_ports({}, first=65530).__enter__()


def test_each_shard_runs_on_cores_beside_its_npu(tmp_path: Path) -> None:
    """Half of a node's cores, shared among the NPUs there; npu-smi and /sys are those of a host with two 910B4."""
    machine = npu_machine(tmp_path)
    for node, (bus, cores) in enumerate((("c1", "0-3"), ("01", "4-7"))):
        machine.write(f"/sys/bus/pci/devices/0000:{bus}:00.0/numa_node", f"{node}\n")
        machine.write(f"/sys/devices/system/node/node{node}/cpulist", f"{cores}\n")
    two = plan("--num-shard", "2")
    assert bind_cores(two, machine.host) == ((0, 1), (4, 5))
    assert bind_cores(plan(ASCEND_RT_VISIBLE_DEVICES="1"), machine.host) == ((4, 5),)
    assert bind_cores(plan("--num-shard", "2", CPU_BINDING_NUM="3"), machine.host) == ((0, 1, 2), (4, 5, 6))
    bound = with_cores(two, ((0, 1), (4, 5)))
    arguments = bound.shard_program(1).arguments
    assert arguments[arguments.index("--cpu-cores") + 1] == "4,5"


def test_what_is_not_known_binds_nothing_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    machine = npu_machine(tmp_path)
    machine.write("/sys/bus/pci/devices/0000:c1:00.0/numa_node", "-1\n")
    assert bind_cores(plan(), machine.host) == ()
    machine.remove("/bin/npu-smi")
    assert bind_cores(plan(), machine.host) == ()
    machine.cores = frozenset({7})
    said = [record.getMessage() for record in caplog.records]
    assert "the memory node of NPU 0 at 0000:C1:00.0 is not known here" in said[0]
    assert "npu-smi, which knows where NPUs are, is not there" in said[1]
    assert all("--bind-cpu false leaves this out" in line for line in said)


@given(
    nodes=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    allowed=st.frozensets(st.integers(0, 23)),
    wanted=st.none() | st.integers(1, 6),
)
def test_shares_are_disjoint_and_allowed(nodes: list[int], allowed: frozenset[int], wanted: int | None) -> None:
    cores_of_nodes = {node: range(8 * node, 8 * node + 8) for node in range(3)}
    try:
        shares = share_out(nodes, cores_of_nodes, allowed, wanted)
    except NotFound:
        return
    assert len(shares) == len(nodes)
    together = [core for share in shares for core in share]
    assert len(together) == len(set(together))
    assert allowed.issuperset(together)
    for node, share in zip(nodes, shares, strict=True):
        assert share
        assert set(share) <= set(cores_of_nodes[node])
        assert wanted is None or len(share) == wanted


def test_lists_of_cores() -> None:
    assert parse_cores("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_cores("\n") == []


@pytest.fixture
def core() -> int:
    return min(os.sched_getaffinity(0))


@pytest.mark.parametrize("refused", [False, True])
def test_a_shard_binds_itself_before_torch_is_imported(core: int, refused: bool) -> None:
    """A core that is not there is refused by the system: a warning, and the shard goes on."""
    cores = [100_000] if refused else [core]
    script = (
        "import os, sys; from text_generation_server.__main__ import _bind; "
        f"_bind({cores}); assert 'torch' not in sys.modules; print(sorted(os.sched_getaffinity(0)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    if refused:
        assert "this shard runs on any core: it may not be bound to 100000" in done.stderr
        assert done.stdout.strip() == str(sorted(os.sched_getaffinity(0)))
    else:
        assert done.stdout.strip() == str([core])
