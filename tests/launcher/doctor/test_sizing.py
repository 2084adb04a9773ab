"""The doctor's sum against the shard's own, which does it with a device at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.doctor.machines import GIB, cpu_machine
from text_generation_launcher.doctor.checkpoint import probe_model
from text_generation_launcher.doctor.facts import ModelFacts
from text_generation_launcher.doctor.sizing import Sizes, estimate
from text_generation_server.memory_budget import MemoryBudget, cache_bytes
from text_generation_server.settings import ServeSettings

SIZES = st.integers(0, 80 * GIB)
SERVE = ServeSettings(model_id="")


@given(
    kind=st.sampled_from(["cpu", "npu"]),
    total=SIZES,
    free=SIZES,
    used=SIZES,
    fraction=st.sampled_from([0.5, 0.9, 1.0]),
    most=st.none() | st.integers(0, 80),
    reserved=st.none() | st.integers(0, 80),
    num_shards=st.integers(1, 8),
)
def test_cache_is_what_the_shard_would_give_it(
    weightless: ModelFacts,
    *,
    kind: str,
    total: int,
    free: int,
    used: int,
    fraction: float,
    most: int | None,
    reserved: int | None,
    num_shards: int,
) -> None:
    """With weights of `used` bytes, which are loaded by then: on the CPU all shards' are, in one memory."""
    wanted = cache_bytes(
        kind,
        total_bytes=total,
        free_bytes=free,
        used_bytes=used,
        budget=MemoryBudget(
            fraction, None if most is None else most * GIB, None if reserved is None else reserved * GIB
        ),
        world_size=num_shards,
    )
    found = estimate(
        replace(weightless, stored_bytes=used * num_shards),
        ServeSettings(model_id="", cuda_memory_fraction=fraction, max_memory_gb=most, reserved_memory_gb=reserved),
        kind,
        num_shards=num_shards,
        memory=(free + used * (num_shards if kind == "cpu" else 1), total),
        environ={"HCCL_BUFFSIZE": "0"},
    ).cache_bytes
    assert found == wanted


@pytest.fixture(scope="module")
def weightless(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    machine = cpu_machine(tmp_path_factory.mktemp("machine"))
    return replace(probe_model(machine.host, machine.model()), float_elements=0, stored_bytes=0)


@pytest.fixture
def model(tmp_path: Path) -> ModelFacts:
    """2 GiB in bfloat16, 1 GiB of it linear; 4 layers of 4 key/value heads of 128."""
    machine = cpu_machine(tmp_path)
    return probe_model(machine.host, machine.model())


def sizes(model: ModelFacts, serve: ServeSettings, kind: str = "npu", num_shards: int = 1) -> Sizes:
    memory = (31 * GIB, 32 * GIB)
    return estimate(model, serve, kind, num_shards=num_shards, memory=memory, environ={})


def test_weights_in_bytes(model: ModelFacts) -> None:
    assert sizes(model, SERVE).weight_bytes == 2 * GIB
    assert sizes(model, SERVE, num_shards=2).weight_bytes == GIB
    assert sizes(model, replace(SERVE, dtype="float32")).weight_bytes == 4 * GIB
    assert sizes(model, replace(SERVE, quantize="w8a16")).weight_bytes == 1.5 * GIB
    assert sizes(replace(model, float_elements=0, stored_bytes=GIB), SERVE).weight_bytes == GIB


def test_a_token_in_bytes(model: ModelFacts) -> None:
    token = 2 * 4 * 4 * 128  # keys and values, layers, heads, numbers of a head
    assert sizes(model, SERVE).token_bytes == 2 * token
    assert sizes(model, SERVE, num_shards=2).token_bytes == token
    assert sizes(model, SERVE, num_shards=8).token_bytes == token // 2  # a head is the least that a shard holds
    assert sizes(model, replace(SERVE, kv_cache_dtype="float32"), "cpu").token_bytes == 4 * token


def test_buffers_of_hccl_count_where_there_is_a_group(model: ModelFacts) -> None:
    alone, pair = sizes(model, SERVE), sizes(model, SERVE, num_shards=2)
    assert pair.cache_bytes == alone.cache_bytes + GIB - 400 * 2**20


def test_max_memory_gb_is_the_cap(model: ModelFacts) -> None:
    found = sizes(model, replace(SERVE, max_memory_gb=8.0))
    assert found.cap_bytes == 8 * GIB
    assert found.cache_bytes == 8 * GIB - 2 * GIB - 2 * GIB
