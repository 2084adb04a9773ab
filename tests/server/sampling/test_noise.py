"""The noise is uniform, and a function of (seed, position) alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from text_generation_server.sampling import uniform

LARGEST_SEED = 2**64 - 1


@pytest.mark.parametrize(
    ("seed", "position", "expected"),
    [
        (0, 0, 0.0564663990004608),
        (42, 7, 0.8614033402518924),
        (LARGEST_SEED, 0, 0.5687207756392662),
        (LARGEST_SEED, 131071, 0.9607944284216413),
    ],
)
def test_noise_is_the_same_on_every_platform_and_in_every_release(seed: int, position: int, expected: float) -> None:
    assert uniform(seed, position) == expected


def test_noise_is_the_top_53_bits_of_the_hash() -> None:
    digest = hashlib.blake2b(LARGEST_SEED.to_bytes(8, "little") + (3).to_bytes(8, "little"), digest_size=8).digest()
    bits = "".join(f"{byte:08b}" for byte in reversed(digest))[:53]
    assert uniform(LARGEST_SEED, 3) == sum(2.0 ** -(i + 1) for i, bit in enumerate(bits) if bit == "1")


@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_noise_is_uniform_and_neighbours_are_unrelated(along: str) -> None:
    count = 20_000
    values = np.array([uniform(5, i) if along == "positions" else uniform(i, 5) for i in range(count)])
    assert values.min() >= 0.0
    assert values.max() < 1.0
    observed = np.histogram(values, bins=100, range=(0, 1))[0]
    chi_square = ((observed - count / 100) ** 2 / (count / 100)).sum()
    assert chi_square < 149.4  # the 99.9 % point for 99 degrees of freedom
    correlation = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(correlation) < 3.3 / count**0.5


def test_seeds_and_positions_are_not_exchangeable() -> None:
    assert uniform(1, 2) != uniform(2, 1)
