"""Memory of the emulated cards: who holds how much, what the most was, and what does not fit.

Behaves like a caching allocator that never fragments: freed memory stays reserved until `empty_cache`, or until
something else needs it. A storage's end is not announced to us; expired ones are looked for whenever the numbers could
come out too high, so that every number that is read, and every peak, is exact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from text_generation_npu_emulator.storage import flat_host_tensor, new_host_bytes, on_card, strong, weak

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

GRANULARITY = 512
TAIL_PADDING = 32
MIB = 1 << 20
GIB = 1 << 30


@dataclass(slots=True)
class Block:
    """One storage: its bytes on the host, its card, its format, and how often it was written."""

    serial: int  # unique, and increasing in the order of allocation
    card: StorageWeakRef  # to the storage on the card: the block ends with it
    host: StorageWeakRef  # to the host storage whose bytes these are
    nbytes: int  # as asked for
    charged_bytes: int  # as counted
    device: int
    generation: int = 0  # changes with every write
    nz_shape: tuple[int, ...] | None = None  # logical shape of the tensor that was cast to FRACTAL_NZ; None: ND
    base_shape: tuple[int, ...] | None = None  # of the row-major tensor that it was made for; None: of no such one

    def host_storage(self) -> torch.UntypedStorage:
        return strong(self.host)


@dataclass(slots=True)
class CardMemory:
    """The books of one card, in bytes."""

    total: int
    others: int = 0  # held by other processes
    external: int = 0  # held by this process outside the allocator: communicators' buffers
    pools: int = 0  # kept free for graphs between their replays
    fraction: float = 1.0
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    num_ooms: int = 0

    @property
    def limit(self) -> int:
        return min(self.total - self.others - self.external - self.pools, int(self.total * self.fraction))

    @property
    def free(self) -> int:
        return max(0, self.total - self.others - self.external - self.pools - self.reserved)


class Allocator:
    """All storages of all cards of this process."""

    def __init__(self, totals: list[int], others: int, on_freed: Callable[[Block], None]) -> None:
        """`on_freed` hears of each block some time after its storage is gone."""
        self.cards = [CardMemory(total, others) for total in totals]
        self._blocks: dict[int, Block] = {}  # by address
        self._on_freed = on_freed
        self._next_serial = 1
        self._lock = threading.RLock()

    @property
    def next_serial(self) -> int:
        """Blocks made from now on have at least this serial."""
        return self._next_serial

    def allocate(self, nbytes: int, device: int) -> Tensor:
        """A flat uint8 tensor on a card, not initialized.

        Raises: torch.OutOfMemoryError, with torch_npu's words.
        """
        charged = -(-(nbytes + TAIL_PADDING) // GRANULARITY) * GRANULARITY if nbytes else 0
        with self._lock:
            card = self.cards[device]
            wanted = card.allocated + charged
            if wanted > card.reserved or wanted > card.peak_allocated or wanted > card.limit:
                self.sweep()
                wanted = card.allocated + charged
            if wanted > card.limit:
                card.num_ooms += 1
                card.reserved = card.allocated
                raise torch.OutOfMemoryError(_out_of_memory(card, device, nbytes))
            host = new_host_bytes(nbytes)
            tensor = self._enter(host, nbytes, charged, device)
            card.allocated += charged
            card.reserved = min(max(card.reserved, card.allocated), max(card.limit, card.allocated))
            card.peak_allocated = max(card.peak_allocated, card.allocated)
            card.peak_reserved = max(card.peak_reserved, card.reserved)
        return tensor

    def _enter(self, host: Tensor, nbytes: int, charged: int, device: int) -> Tensor:
        tensor = on_card(host, device)
        address = host.data_ptr()
        self._forget(address)
        self._blocks[address] = Block(self._next_serial, weak(tensor), weak(host), nbytes, charged, device)
        self._next_serial += 1
        return tensor

    def revive(self, storage: torch.UntypedStorage, serial: int, device: int) -> Tensor:
        """All bytes of a storage made while capturing, on its card.

        Where it has gone meanwhile, and only the graph has kept its bytes, it lives on in the graph's pool, uncharged.
        """
        with self._lock:
            block = self._blocks.get(storage.data_ptr())
            if block is not None and block.serial == serial and not block.card.expired():
                flat = on_card(new_host_bytes(0), device)
                size = [block.nbytes or 1]
                torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
                    torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), flat, strong(block.card), 0, size, [1]
                )
                return flat
            return self._enter(flat_host_tensor(storage), storage.nbytes(), 0, device)

    def block_of(self, tensor: Tensor) -> Block:
        """The block that a tensor on a card lies in."""
        block = self._blocks.get(tensor.untyped_storage().data_ptr())
        if block is None:
            raise RuntimeError("a tensor of an emulated machine that was replaced by another is used")
        return block

    def sweep(self) -> None:
        """Notice which storages are gone."""
        with self._lock:
            for address, block in list(self._blocks.items()):
                if block.card.expired():
                    self._forget(address)

    def _forget(self, address: int) -> None:
        block = self._blocks.pop(address, None)
        if block is not None:
            self.cards[block.device].allocated -= block.charged_bytes
            self._on_freed(block)

    def card(self, device: int) -> CardMemory:
        """The books of a card, up to date."""
        self.sweep()
        return self.cards[device]

    def empty_cache(self) -> None:
        self.sweep()
        for card in self.cards:
            card.reserved = card.allocated

    def reset_peaks(self, device: int) -> None:
        card = self.card(device)
        card.peak_allocated = card.allocated
        card.peak_reserved = card.reserved


def _size(nbytes: int) -> str:
    for limit, unit, name in ((1024, 0, "bytes"), (MIB, 1024, "KiB"), (GIB, MIB, "MiB")):
        if nbytes <= limit:
            return f"{nbytes / unit:.2f} {name}" if unit else f"{nbytes} {name}"
    return f"{nbytes / GIB:.2f} GiB"


def _out_of_memory(card: CardMemory, device: int, nbytes: int) -> str:
    allowed = f"{_size(int(card.total * card.fraction))} allowed; " if card.fraction < 1 else ""
    return (
        f"NPU out of memory. Tried to allocate {_size(nbytes)} (NPU {device}; {_size(card.total)} total capacity; "
        f"{_size(card.allocated)} already allocated; {_size(card.allocated)} current active; {_size(card.free)} free; "
        f"{allowed}{_size(card.reserved)} reserved in total by PyTorch).If reserved memory is >> allocated memory try "
        "setting max_split_size_mb to avoid fragmentation."
    )
