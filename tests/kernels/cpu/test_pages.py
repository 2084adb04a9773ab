"""Memory whose pages come when they are written to, or ahead of that."""

from __future__ import annotations

import torch

from text_generation_kernels.cpu.pages import LazyMemory
from text_generation_kernels.cpu.peak import resident_bytes

_ELEMENTS = 32 << 20  # 64 MiB of bfloat16


def test_memory_that_nobody_has_written_to_takes_no_room() -> None:
    before = resident_bytes()
    tensor = LazyMemory().zeros((4, _ELEMENTS // 4), torch.bfloat16)
    assert resident_bytes() - before < tensor.nbytes // 8
    assert tensor.shape == (4, _ELEMENTS // 4)
    assert tensor.dtype == torch.bfloat16


def test_supplied_pages_are_there_and_keep_what_was_written() -> None:
    memory = LazyMemory()
    before = resident_bytes()
    tensors = [memory.zeros((_ELEMENTS // 2 + uneven,), torch.bfloat16) for uneven in (0, 1)]
    for tensor in tensors:
        tensor[-1] = 5.0
    memory.supply_pages().join(60)
    assert resident_bytes() - before > 2 * _ELEMENTS * 7 // 8
    for tensor in tensors:
        assert tensor[-1] == 5.0
        assert not tensor[:-1].any()


def test_a_tensor_takes_its_memory_with_it_and_none_is_supplied_to_it_any_more() -> None:
    memory = LazyMemory()
    before = resident_bytes()
    tensor = memory.zeros((_ELEMENTS,), torch.bfloat16)
    del tensor
    thread = memory.supply_pages()
    thread.join(60)
    assert not thread.is_alive()
    assert resident_bytes() - before < 2 * _ELEMENTS // 8


def test_a_tensor_without_elements_needs_no_memory() -> None:
    assert LazyMemory().zeros((0, 3), torch.float32).shape == (0, 3)
