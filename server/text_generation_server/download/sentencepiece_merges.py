"""BPE merges from the scores of a SentencePiece vocabulary.

SentencePiece joins, among all neighbours whose union is a piece, the pair whose union scores highest. The `tokenizers`
package wants the pairs themselves, best first.
"""

from __future__ import annotations

from collections.abc import Mapping


def merges_from_scores(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, ordered by the third's score; ties by the pieces' ids.

    Args:
        scores: pieces that text may be joined to.
        ids: all pieces; both halves must be among them.
    """
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((-score, ids[left], ids[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
