"""Who owns which block of a replica's KV cache, and which blocks hold a prefix that somebody may want again.

Knows block ids and hashes; knows nothing about sequences, tokens' texts or devices.

A block is in exactly one of three states:

    owned   references > 0; in the block table of that many sequences
    cached  references = 0, has a hash; findable by its prefix until it is taken for something else
    free    references = 0, no hash

`_available` holds the cached and the free ones in the order in which they will be taken.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass

BlockHash = bytes


def hash_blocks(parent: BlockHash | None, token_ids: SequenceABC[int], block_size: int) -> list[BlockHash]:
    """The identities of full blocks: a block's tokens and all tokens before it, through the hash of the block before.

    A cryptographic hash, because two different prefixes with one hash would be wrong text without an error. SHA-256,
    for which processors have instructions: 0.5 µs a block of 16, where BLAKE2 takes twice as long.

    Args:
        parent: of the block before the first; None: there is none.
        token_ids: of the blocks; what is left over behind the last full one is not looked at.
    """
    packed = array("I", token_ids).tobytes()
    block_bytes = block_size * array("I").itemsize
    sha256, block_hash = hashlib.sha256, parent or b""
    hashes: list[BlockHash] = []
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        block_hash = sha256(block_hash + packed[start : start + block_bytes]).digest()
        hashes.append(block_hash)
    return hashes


@dataclass(frozen=True, slots=True)
class BlockCounts:
    free: int
    cached: int
    owned: int

    @property
    def total(self) -> int:
        return self.free + self.cached + self.owned


class BlockPool:
    """The blocks of one replica, the same on each of its ranks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size  # tokens
        self._references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        # A dict for its order: the first is taken next, and a cached block in the middle is taken back in O(1).
        self._available: dict[int, None] = dict.fromkeys(range(num_blocks))
        self._num_cached = 0  # of the available ones

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out now: free and cached ones."""
        return len(self._available)

    def counts(self) -> BlockCounts:
        num_available = len(self._available)
        return BlockCounts(
            free=num_available - self._num_cached, cached=self._num_cached, owned=self.num_blocks - num_available
        )

    def find_prefix(self, hashes: SequenceABC[BlockHash]) -> list[int]:
        """Blocks of the longest prefix of `hashes` that is still there, owned or cached. Takes nothing."""
        found: list[int] = []
        for block_hash in hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_cached(self, block_ids: SequenceABC[int]) -> int:
        """How many of these blocks nobody owns, so that `share` makes fewer available."""
        return sum(1 for block_id in block_ids if self._references[block_id] == 0)

    def share(self, block_ids: SequenceABC[int]) -> None:
        """Take one more reference to each of these blocks, found by `find_prefix`."""
        for block_id in block_ids:
            if self._references[block_id] == 0:
                del self._available[block_id]
                self._num_cached -= 1
            self._references[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with unknown content, forgetting the longest unused prefixes first.

        The caller has checked `num_available`.
        """
        assert count <= len(self._available), "more blocks asked for than available"
        taken: list[int] = []
        for _ in range(count):
            block_id = next(iter(self._available))
            del self._available[block_id]
            block_hash = self._hash_of[block_id]
            if block_hash is not None:
                del self._block_of[block_hash]
                self._hash_of[block_id] = None
                self._num_cached -= 1
            self._references[block_id] = 1
            taken.append(block_id)
        return taken

    def free(self, block_ids: SequenceABC[int]) -> None:
        """Give back one reference to each block of a block table, in the table's order.

        Freed from the tail, so that the end of a prefix is forgotten before its beginning, without which it is no use.
        """
        for block_id in reversed(block_ids):
            assert self._references[block_id] > 0, f"block {block_id} freed twice"
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                self._available[block_id] = None
                if self._hash_of[block_id] is not None:
                    self._num_cached += 1

    def forget(self, hashes: SequenceABC[BlockHash]) -> None:
        """Make blocks unfindable: what was written into them is not to be trusted."""
        for block_hash in hashes:
            block_id = self._block_of.pop(block_hash, None)
            if block_id is not None:
                self._hash_of[block_id] = None
                if self._references[block_id] == 0:
                    self._num_cached -= 1

    def remember(self, block_id: int, block_hash: BlockHash) -> None:
        """Make an owned block findable: it is full, and its keys and values are computed by a step already planned.

        Steps run in order, so whoever finds the block reads it after it was written. If another block holds the same
        prefix already, that one stays the findable one.
        """
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block_id
            self._hash_of[block_id] = block_hash
