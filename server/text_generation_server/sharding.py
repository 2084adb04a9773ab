"""Who holds what under tensor parallelism: arithmetic on ints, one function a rule.

Knows no tensors and no processes. Attention heads must divide; vocabulary and MLP width may be split unevenly.
"""

from __future__ import annotations

from dataclasses import dataclass


class ShardingError(ValueError):
    """A model that cannot be split over the asked number of shards; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of rows, columns or heads."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def scaled(self, size: int) -> Span:
        """The range in elements, when each of these has `size` of them."""
        return Span(self.start * size, self.stop * size)


def split(size: int, rank: int, world_size: int) -> Span:
    """A rank's share of `size` things in order; the first ranks hold one more where it does not divide."""
    share, rest = divmod(size, world_size)
    start = rank * share + min(rank, rest)
    return Span(start, start + share + (1 if rank < rest else 0))


@dataclass(frozen=True, slots=True)
class HeadShard:
    """A rank's attention heads. Local query head h reads local key/value head h // (len(query) // len(kv))."""

    query: Span
    kv: Span


def split_heads(num_heads: int, num_kv_heads: int, rank: int, world_size: int) -> HeadShard:
    """A rank's query heads and the key/value heads that they read.

    With more ranks than key/value heads, each of these is held by several ranks.

    Raises:
        ShardingError: the heads do not divide.
    """
    _check_heads(num_heads, num_kv_heads, world_size)
    query = split(num_heads, rank, world_size)
    if world_size <= num_kv_heads:
        return HeadShard(query, split(num_kv_heads, rank, world_size))
    kv_head = rank * num_kv_heads // world_size
    return HeadShard(query, Span(kv_head, kv_head + 1))


def allowed_world_sizes(num_heads: int, num_kv_heads: int, max_world_size: int) -> list[int]:
    """Numbers of shards, ascending, over which these heads can be split."""
    return [n for n in range(1, max_world_size + 1) if _heads_divide(num_heads, num_kv_heads, n)]


def _heads_divide(num_heads: int, num_kv_heads: int, world_size: int) -> bool:
    kv_divides = num_kv_heads % world_size == 0 or world_size % num_kv_heads == 0
    return num_heads % world_size == 0 and kv_divides


def _check_heads(num_heads: int, num_kv_heads: int, world_size: int) -> None:
    if _heads_divide(num_heads, num_kv_heads, world_size):
        return
    *others, last = [str(n) for n in allowed_world_sizes(num_heads, num_kv_heads, world_size)]
    use = f"{', '.join(others)} or {last}" if others else last
    if num_heads % world_size:
        raise ShardingError(
            f"num_attention_heads={num_heads} is not divisible by num_shard={world_size}: {num_heads} attention heads "
            f"cannot be split over {world_size} shards; use --num-shard {use}"
        )
    raise ShardingError(
        f"num_key_value_heads={num_kv_heads} is neither a multiple nor a divisor of num_shard={world_size}: "
        f"{num_kv_heads} key/value heads cannot be split over {world_size} shards; use --num-shard {use}"
    )
