"""The noise of sampling, as a function of (seed, position) and of nothing else.

There is no generator, so there is no state to keep, to restore after a preemption or to lose when rows join and leave:
a position that is computed again draws the same number. One uniform number a token is enough, because the choice
inverts the cumulative distribution; noise over the vocabulary (an exponential race) would cost 49,152 numbers instead,
and those of different devices and library versions differ. A hash on the host gives the same bits everywhere.
"""

from __future__ import annotations

import hashlib
import struct


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), uniform over seeds and positions, with 53 random bits.

    Args:
        seed, position: 0 ... 2**64 - 1.
    """
    digest = hashlib.blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)
