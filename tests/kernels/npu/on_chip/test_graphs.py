"""Captured decode steps give what the same steps give op by op, whatever their lengths, rows and blocks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from text_generation_kernels.interface import CaptureRefused, StepFunction, StepInputs, StepMetadata
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu.graphs import CapturedDecode
from text_generation_kernels.npu.kv_cache import NpuKVCache
from text_generation_kernels.npu_probe import load_torch_npu

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VOCAB_SIZE = 4, 2, 128, 50
MAX_BLOCKS = 3


class OneLayer:
    """Embedding, one layer of attention, and a head: what a step function is made of."""

    def __init__(self, device: NpuDevice) -> None:
        self.device = device
        width = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
        generator = torch.Generator().manual_seed(0)

        def weight(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

        self.table = torch.randn(VOCAB_SIZE, 64, generator=generator).to(device.torch_device)
        self.qkv = device.ops.pack_weight(weight(width, 64))
        self.head = device.ops.pack_weight(weight(VOCAB_SIZE, NUM_HEADS * HEAD_DIM))
        self.cache: NpuKVCache = device.ops.new_kv_cache(16, device.default_block_size, NUM_KV_HEADS, HEAD_DIM)
        num_slots = 16 * device.default_block_size
        old = torch.randn(num_slots, NUM_KV_HEADS, HEAD_DIM, generator=generator).half().to(device.torch_device)
        slots = torch.arange(num_slots, dtype=torch.int32).to(device.torch_device)
        device.ops.store_kv(old, old, self.cache, slots)

    def __call__(self, inputs: StepInputs) -> Tensor:
        ops, sizes = self.device.ops, [NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM]
        fused = ops.linear(ops.embedding(inputs.token_ids, self.table), self.qkv)
        q, k, v = (part.view(len(part), -1, HEAD_DIM) for part in torch.split(fused, sizes, dim=-1))
        ops.store_kv(k, v, self.cache, inputs.step.slot_mapping)
        attended = ops.attention(q, self.cache, inputs.step, HEAD_DIM**-0.5)
        hidden = ops.embedding(inputs.sampled, attended.reshape(len(q), -1))
        return ops.linear(hidden, self.head)


def decode(device: NpuDevice, kv_lens: tuple[int, ...], first_block: int = 0) -> StepInputs:
    """A decode step of rows with these lengths, each in blocks of its own."""
    size = device.default_block_size
    tables = torch.zeros(len(kv_lens), -(-max(kv_lens) // size), dtype=torch.int32)
    slots, block = [], first_block
    for row, kv_len in enumerate(kv_lens):
        count = -(-kv_len // size)
        tables[row, :count] = torch.arange(block, block + count)
        slots.append((block + (kv_len - 1) // size) * size + (kv_len - 1) % size)
        block += count
    put = device.torch_device
    step = StepMetadata(
        positions=torch.tensor([kv_len - 1 for kv_len in kv_lens]).to(put),
        slot_mapping=torch.tensor(slots, dtype=torch.int32).to(put),
        block_tables=tables.to(put),
        cu_seqlens_q=tuple(range(len(kv_lens) + 1)),
        kv_lens=kv_lens,
    )
    token_ids = torch.tensor([(7 * kv_len) % VOCAB_SIZE for kv_len in kv_lens])
    return StepInputs(token_ids.to(put), step, torch.arange(len(kv_lens)).to(put))


def capture(device: NpuDevice, function: StepFunction) -> CapturedDecode:
    captured = device.capture(function, 1024, 8, MAX_BLOCKS)
    assert isinstance(captured, CapturedDecode)
    return captured


@pytest.fixture
def device() -> NpuDevice:
    made = NpuDevice(load_torch_npu(), 0, NpuOptions(graph_sizes=(0, 1, 2, 4, 32)))
    if not made.family.captures_graphs:
        with pytest.raises(CaptureRefused, match=f"graphs are not used on family {made.family.name}"):
            made.capture(OneLayer(made), 1024, 8, MAX_BLOCKS)
        pytest.skip(f"no graphs on {made.name}")
    return made


def test_replays_equal_eager_steps_with_growing_lengths(device: NpuDevice) -> None:
    # Row 16 of the known-broken combinations: replayed with the lengths of the capture, new tokens are never seen.
    layer = OneLayer(device)
    captured = capture(device, layer)
    for kv_len in (1, 2, 100, 127, 128, 129, 300):
        inputs = decode(device, (kv_len, 200))
        expected = layer(inputs)
        assert torch.equal(captured(inputs).cpu(), expected.cpu()), kv_len


def test_steps_of_fewer_rows_are_padded(device: NpuDevice) -> None:
    layer = OneLayer(device)
    captured = capture(device, layer)
    assert captured.sizes == (1, 2, 4, 8)  # never more than may run at once
    for count in (1, 2, 3, 5, 8, 3):
        inputs = decode(device, tuple(range(120, 120 + count)))
        expected = layer(inputs)
        actual = captured(inputs)
        assert actual.shape == (count, VOCAB_SIZE)
        assert torch.equal(actual.cpu(), expected.cpu()), count


def test_padding_writes_into_no_block_of_a_sequence(device: NpuDevice) -> None:
    layer = OneLayer(device)
    captured = capture(device, layer)
    inputs = decode(device, (5, 6, 7), first_block=4)
    captured(inputs)
    before = layer.cache.k.cpu()
    captured(inputs)  # writes the same once more
    after = layer.cache.k.cpu()
    assert torch.equal(after[:-1], before[:-1])


def test_capturing_leaves_the_caches_as_they_are(device: NpuDevice) -> None:
    layer = OneLayer(device)
    before = layer.cache.k.cpu()
    capture(device, layer)
    assert torch.equal(layer.cache.k.cpu()[:-1], before[:-1])


def test_only_decode_steps_that_are_small_enough_fit(device: NpuDevice) -> None:
    captured = capture(device, OneLayer(device))
    inputs = decode(device, (5, 6, 7))
    assert captured.fits(inputs)
    assert not captured.fits(decode(device, (5,) * 9))
    assert not captured.fits(decode(device, (128 * MAX_BLOCKS + 1,)))
    prompt = replace(inputs.step, cu_seqlens_q=(0, 3), kv_lens=(3,), block_tables=inputs.step.block_tables[:1])
    assert not captured.fits(replace(inputs, step=prompt))


def test_some_rows_may_not_be_sampled(device: NpuDevice) -> None:
    layer = OneLayer(device)
    captured = capture(device, layer)
    inputs = decode(device, (5, 6, 7))
    inputs = replace(inputs, sampled=inputs.sampled[1:])
    assert torch.equal(captured(inputs).cpu(), layer(inputs).cpu())


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ("_npu_paged_attention", "_npu_paged_attention would keep the rows' lengths as they were at capture"),
        ("composed", "a graph of 8 rows cannot be captured"),  # it reads lengths from the host in the middle
    ],
)
def test_attention_whose_lengths_cannot_be_refreshed_is_not_captured(
    device: NpuDevice, candidate: str, reason: str
) -> None:
    device.ops.use("attention_decode", candidate)
    with pytest.raises(CaptureRefused, match=reason):
        capture(device, OneLayer(device))
    assert device.ops.tasks.recording is None


def test_without_sizes_nothing_is_captured(device: NpuDevice) -> None:
    plain = NpuDevice(load_torch_npu(), 0, NpuOptions(graph_sizes=(0,)))
    with pytest.raises(CaptureRefused, match="--cuda-graphs names no size"):
        plain.capture(OneLayer(plain), 1024, 8, MAX_BLOCKS)


def test_all_layers_of_a_graph_share_one_workspace(device: NpuDevice) -> None:
    # Thirty layers with 16 MiB each would take half a gigabyte for every size of graph.
    layer = OneLayer(device)

    def held_bytes(num_layers: int) -> int:
        def layers(inputs: StepInputs) -> Tensor:
            logits = [layer(inputs) for _ in range(num_layers)]
            return logits[-1]

        before = device.used_memory_bytes()
        captured = capture(device, layers)
        held = device.used_memory_bytes() - before
        inputs = decode(device, (5, 200))
        assert torch.equal(captured(inputs).cpu(), layer(inputs).cpu())
        return held

    assert held_bytes(12) - held_bytes(1) < 12 << 20
