"""framing.py on any bytes at all: how they are cut into reads changes nothing, bad lengths included.

(tests/unit/tracker/test_framing.py has the same for streams of good frames.)
"""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from tolerant_client.errors import FrameError
from tolerant_client.tracker.framing import FrameAssembler

LARGEST = 500

good = st.binary(min_size=4, max_size=80).map(lambda body: struct.pack(">i", len(body)) + body)
bad = st.sampled_from([-1, 0, 3, LARGEST + 1, 2**31 - 1, -(2**31)]).map(lambda length: struct.pack(">i", length))
streams = st.lists(st.one_of(good, good, bad, st.binary(max_size=9)), max_size=12).map(b"".join)


def read(data: bytes, sizes: list[int], chunk: int) -> tuple[list[bytes], str]:
    """What comes out of `data` in reads of these sizes, over and over."""
    assembler = FrameAssembler(LARGEST, chunk_bytes=chunk)
    frames: list[memoryview] = []
    at = turn = 0
    while at < len(data) and assembler.error is None:
        room = assembler.writable()
        size = min(len(room), len(data) - at, sizes[turn % len(sizes)])
        room[:size] = data[at : at + size]
        frames += assembler.received(size)
        at, turn = at + size, turn + 1
    return [bytes(frame) for frame in frames], str(assembler.error)


def reference(data: bytes) -> tuple[list[bytes], bool]:
    """The frames by the protocol guide, and whether the stream ends in a bad length."""
    frames: list[bytes] = []
    while len(data) >= 4:
        (length,) = struct.unpack_from(">i", data)
        if not 4 <= length <= LARGEST:
            return frames, True
        if len(data) < 4 + length:
            break
        frames.append(data[4 : 4 + length])
        data = data[4 + length :]
    return frames, False


@given(data=streams, sizes=st.lists(st.integers(1, 90), min_size=1, max_size=6), chunk=st.integers(8, 200))
@example(data=b"", sizes=[1], chunk=8)
def test_any_bytes_give_the_same_frames_and_the_same_error_in_any_pieces(
    data: bytes, sizes: list[int], chunk: int
) -> None:
    frames, is_bad = reference(data)
    for pieces in ([len(data) or 1], [1], sizes):
        got, error = read(data, pieces, chunk)
        assert got == frames
        assert (error != str(None)) == is_bad


@given(data=streams)
def test_nothing_comes_after_a_bad_length(data: bytes) -> None:
    assembler = FrameAssembler(LARGEST)
    room = assembler.writable()
    room[:8] = struct.pack(">ii", -1, 4)
    assert assembler.received(8) == []
    assert isinstance(assembler.error, FrameError)
    more = assembler.writable()
    size = min(len(more), len(data))
    more[:size] = data[:size]
    assert assembler.received(size) == []
