"""Who holds what: tables of inputs and outputs, and the invariants of every split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_generation_server.sharding import (
    HeadShard,
    ShardingError,
    Span,
    allowed_world_sizes,
    split,
    split_heads,
)


@pytest.mark.parametrize(
    ("size", "world_size", "expected"),
    [
        (8, 1, [(0, 8)]),
        (8, 2, [(0, 4), (4, 8)]),
        (259, 2, [(0, 130), (130, 259)]),
        (5, 3, [(0, 2), (2, 4), (4, 5)]),
    ],
)
def test_split_gives_the_first_ranks_one_more(size: int, world_size: int, expected: list[tuple[int, int]]) -> None:
    assert [split(size, rank, world_size) for rank in range(world_size)] == [Span(*pair) for pair in expected]


@given(size=st.integers(1, 1000), world_size=st.integers(1, 16))
def test_splits_cover_everything_once_and_evenly(size: int, world_size: int) -> None:
    spans = [split(size, rank, world_size) for rank in range(world_size)]
    assert [i for span in spans for i in range(span.start, span.stop)] == list(range(size))
    lengths = [len(span) for span in spans]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "world_size", "expected"),
    [
        (4, 2, 1, [((0, 4), (0, 2))]),
        (4, 2, 2, [((0, 2), (0, 1)), ((2, 4), (1, 2))]),
        (4, 2, 4, [((0, 1), (0, 1)), ((1, 2), (0, 1)), ((2, 3), (1, 2)), ((3, 4), (1, 2))]),
        (4, 1, 2, [((0, 2), (0, 1)), ((2, 4), (0, 1))]),
    ],
)
def test_kv_heads_follow_their_query_heads(
    num_heads: int,
    num_kv_heads: int,
    world_size: int,
    expected: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    shards = [split_heads(num_heads, num_kv_heads, rank, world_size) for rank in range(world_size)]
    assert shards == [HeadShard(Span(*query), Span(*kv)) for query, kv in expected]


@given(num_kv_heads=st.integers(1, 12), group=st.integers(1, 12), data=st.data())
def test_every_query_head_finds_its_kv_head_on_its_rank(num_kv_heads: int, group: int, data: st.DataObject) -> None:
    num_heads = num_kv_heads * group
    world_size = data.draw(st.sampled_from(allowed_world_sizes(num_heads, num_kv_heads, num_heads)))
    for rank in range(world_size):
        shard = split_heads(num_heads, num_kv_heads, rank, world_size)
        local_group = len(shard.query) // len(shard.kv)
        for local, head in enumerate(range(shard.query.start, shard.query.stop)):
            assert shard.kv.start + local // local_group == head // group


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "world_size", "message"),
    [
        (
            28,
            28,
            8,
            "num_attention_heads=28 is not divisible by num_shard=8: 28 attention heads cannot be split over 8 shards; "
            "use --num-shard 1, 2, 4 or 7",
        ),
        (
            5,
            5,
            2,
            "num_attention_heads=5 is not divisible by num_shard=2: 5 attention heads cannot be split over 2 shards; "
            "use --num-shard 1",
        ),
        (
            12,
            4,
            6,
            "num_key_value_heads=4 is neither a multiple nor a divisor of num_shard=6: 4 key/value heads cannot be "
            "split over 6 shards; use --num-shard 1, 2 or 4",
        ),
    ],
)
def test_heads_that_do_not_divide_are_refused_with_what_would(
    num_heads: int, num_kv_heads: int, world_size: int, message: str
) -> None:
    """Case G27."""
    with pytest.raises(ShardingError) as caught:
        split_heads(num_heads, num_kv_heads, 0, world_size)
    assert str(caught.value) == message
