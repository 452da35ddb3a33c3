"""framing.py: frames come out whole, owned by the receiver, and bad lengths are named."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolerant_client.tracker.framing import FrameAssembler


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def feed(assembler: FrameAssembler, data: bytes, sizes: list[int] | None = None) -> list[memoryview]:
    """Writes `data` where the assembler wants it, in pieces of at most the sizes given."""
    frames: list[memoryview] = []
    at = 0
    turn = 0
    while at < len(data):
        room = assembler.writable()
        assert len(room) > 0
        size = min(len(room), len(data) - at, sizes[turn % len(sizes)] if sizes else len(data))
        turn += 1
        room[:size] = data[at : at + size]
        at += size
        frames += assembler.received(size)
    return frames


@given(
    bodies=st.lists(st.binary(min_size=4, max_size=300), max_size=20),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=10),
    chunk=st.integers(8, 256),
)
def test_whole_bytewise_and_random_pieces_give_the_same_frames(
    bodies: list[bytes], sizes: list[int], chunk: int
) -> None:
    data = b"".join(map(frame, bodies))
    for pieces in (None, [1], sizes):
        assembler = FrameAssembler(1 << 20, chunk_bytes=chunk)
        frames = feed(assembler, data, pieces)
        # Compared at the end: no frame may change while later ones arrive.
        assert [bytes(f) for f in frames] == bodies
        assert assembler.error is None
        assert assembler._large is None and assembler._start == assembler._end  # no frame has begun


def test_large_frame_is_received_into_a_buffer_of_its_size() -> None:
    assembler = FrameAssembler(1 << 20, chunk_bytes=64)
    body = bytes(range(256)) * 40
    data = frame(body)
    assert feed(assembler, data[:64]) == []
    assert len(assembler.writable()) == len(data) - 64
    (received,) = feed(assembler, data[64:])
    assert received == body
    # Nothing but this frame is kept alive by it.
    assert memoryview(received.obj).nbytes == len(body)


def test_frames_stay_as_they_are_while_the_chunk_is_refilled() -> None:
    assembler = FrameAssembler(1 << 20, chunk_bytes=64)
    kept = [feed(assembler, frame(bytes([n]) * 20))[0] for n in range(50)]
    assert [bytes(view) for view in kept] == [bytes([n]) * 20 for n in range(50)]


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [
        (b"HTTP", "an HTTP server"),
        (b"\x15\x03\x03\x00", "a TLS alert"),
        (b"\x16\x03\x01\x02", "a TLS handshake"),
        (b"SSH-", "SSH"),
        (struct.pack(">i", -1), "-1 is too small"),
        (struct.pack(">i", 3), "3 is too small"),
        (struct.pack(">i", 1001), "receive_message_max_bytes (1000)"),
    ],
)
def test_bad_length_is_named_after_the_good_frames(prefix: bytes, hint: str) -> None:
    assembler = FrameAssembler(1000)
    frames = feed(assembler, frame(b"good one") + prefix + b"secret payload")
    assert [bytes(f) for f in frames] == [b"good one"]
    assert hint in str(assembler.error)
    assert "secret" not in str(assembler.error)
    assert assembler.received(10) == []


def test_frame_of_the_largest_size_is_accepted() -> None:
    assembler = FrameAssembler(1000)
    (received,) = feed(assembler, frame(b"x" * 1000))
    assert len(received) == 1000


def test_empty_frame_is_a_frame_where_raw_tokens_are_expected() -> None:
    assembler = FrameAssembler(1000)
    assembler.smallest_frame = 0
    assert [bytes(f) for f in feed(assembler, frame(b"") + frame(b"ab"))] == [b"", b"ab"]
