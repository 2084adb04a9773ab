"""Messages come out of a byte stream as they went in, however it was cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from text_generation_proto.frames import Frames, frame


@given(messages=st.lists(st.binary(max_size=40), max_size=8), cuts=st.lists(st.integers(1, 30), min_size=1))
def test_messages_come_out_whole_and_in_order_however_the_stream_is_cut(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, messages))
    frames, first = Frames(), 0
    received: list[bytes] = []
    while first < len(stream):
        end = first + cuts[len(received) % len(cuts)]
        received += frames.feed(stream[first:end])
        first = end
    assert received == messages


def test_length_is_four_bytes_the_lowest_first() -> None:
    assert frame(b"x" * 258) == b"\x02\x01\x00\x00" + b"x" * 258
