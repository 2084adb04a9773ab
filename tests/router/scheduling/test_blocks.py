"""BlockPool: ownership, prefixes and the order in which they are forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_generation_router.scheduling.blocks import BlockCounts, BlockPool, hash_blocks


def filled(pool: BlockPool, token_ids: list[int]) -> tuple[list[int], list[bytes]]:
    """Blocks that hold these tokens, owned once and findable."""
    hashes = hash_blocks(None, token_ids, pool.block_size)
    block_ids = pool.allocate(len(hashes))
    for block_id, block_hash in zip(block_ids, hashes, strict=True):
        pool.remember(block_id, block_hash)
    return block_ids, hashes


def test_hash_depends_on_every_token_before() -> None:
    (first,), (other,) = hash_blocks(None, [1, 2], 2), hash_blocks(None, [1, 3], 2)
    assert first != other
    assert hash_blocks(first, [5, 6], 2) != hash_blocks(other, [5, 6], 2)
    assert hash_blocks(first, [5, 6], 2) == hash_blocks(first, (5, 6, 7), 2)
    assert hash_blocks(None, [1, 2, 5, 6], 2) == [first, *hash_blocks(first, [5, 6], 2)]


def test_freed_block_is_found_again_by_its_prefix() -> None:
    pool = BlockPool(4, 2)
    block_ids, hashes = filled(pool, [1, 2, 3, 4])
    pool.free(block_ids)
    assert pool.counts() == BlockCounts(free=2, cached=2, owned=0)
    assert pool.find_prefix(hashes) == block_ids
    pool.share(block_ids)
    assert pool.counts() == BlockCounts(free=2, cached=0, owned=2)


def test_shared_block_is_freed_by_its_last_owner() -> None:
    pool = BlockPool(4, 2)
    block_ids, _ = filled(pool, [1, 2, 3, 4])
    pool.share(block_ids)
    pool.free(block_ids)
    assert pool.counts().owned == 2
    pool.free(block_ids)
    assert pool.counts().owned == 0


def test_tail_of_a_prefix_is_forgotten_before_its_head() -> None:
    pool = BlockPool(3, 1)
    block_ids, hashes = filled(pool, [7, 8, 9])
    pool.free(block_ids)
    pool.allocate(1)
    assert pool.find_prefix(hashes) == block_ids[:2]
    pool.allocate(1)
    assert pool.find_prefix(hashes) == block_ids[:1]


def test_prefix_used_last_is_forgotten_last() -> None:
    pool = BlockPool(2, 1)
    old, old_hashes = filled(pool, [1])
    new, new_hashes = filled(pool, [2])
    pool.free(old)
    pool.free(new)
    pool.share(old)
    pool.free(old)
    pool.allocate(1)
    assert pool.find_prefix(old_hashes) == old
    assert pool.find_prefix(new_hashes) == []


def test_second_block_with_the_same_prefix_is_not_findable() -> None:
    pool = BlockPool(4, 1)
    first, hashes = filled(pool, [5])
    second, _ = filled(pool, [5])
    assert pool.find_prefix(hashes) == first
    pool.free(second)
    assert pool.counts() == BlockCounts(free=3, cached=0, owned=1)


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=6)), max_size=40))
def test_blocks_are_never_lost_nor_owned_twice(operations: list[tuple[int, list[int]]]) -> None:
    pool = BlockPool(8, 2)
    owners: list[list[int]] = []
    for kind, token_ids in operations:
        needed = -(-len(token_ids) // 2)
        if kind == 0 and pool.num_available >= needed:
            owners.append(pool.allocate(needed))
        elif kind == 1 and pool.num_available >= needed:
            owners.append(filled(pool, token_ids)[0])
        elif kind == 2 and owners:
            pool.free(owners.pop(token_ids[0] % len(owners)))
        elif kind == 3:
            found = pool.find_prefix(hash_blocks(None, token_ids, 2))
            before = pool.num_available
            cached = pool.num_cached(found)
            pool.share(found)
            assert pool.num_available == before - cached
            owners.append(found)
        owned = {block_id for owner in owners for block_id in owner}
        counts = pool.counts()
        assert counts.total == 8
        assert counts.owned == len(owned)
        assert pool.num_available == counts.free + counts.cached == 8 - len(owned)


@pytest.mark.parametrize("owned", [True, False])
def test_forgotten_blocks_are_not_found_and_none_is_lost(owned: bool) -> None:
    pool = BlockPool(4, 2)
    hashes = hash_blocks(None, (1, 2, 3, 4), 2)
    blocks = pool.allocate(2)
    for block_id, block_hash in zip(blocks, hashes, strict=True):
        pool.remember(block_id, block_hash)
    if not owned:
        pool.free(blocks)
    pool.forget([*hashes, b"never remembered"])
    pool.forget(hashes)
    assert pool.find_prefix(hashes) == []
    if owned:
        pool.free(blocks)
    assert pool.counts() == BlockCounts(free=4, cached=0, owned=0)
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]
