"""Cuts the bytes of one connection into Kafka frames without copying large ones.

Laws:
- A frame is handed out as a view whose memory is never written again; the receiver owns it and may keep it.
- A frame that does not fit the read-ahead chunk is received straight into a buffer of exactly its size.
- Good frames before a bad length are handed out; then `error` holds the bad length, and nothing more is received.

Wire fact: a frame is a big-endian int32 length and that many bytes
(Kafka protocol guide, "Protocol Primitives").
"""

from __future__ import annotations

import numpy as np

from tolerant_client.errors import FrameError

_PREFIX = 4
_MIN_FRAME = 4  # a correlation id

# The first bytes of other protocols, as a hint for the operator.
_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (b"HTTP", "an HTTP server's response"),
    (b"\x15\x03", "a TLS alert; the listener wants or refuses TLS"),
    (b"\x16\x03", "a TLS handshake; the listener speaks TLS"),
    (b"SSH-", "an SSH server's banner"),
    (b"220 ", "a mail or FTP server's greeting"),
    (b"-ERR", "a Redis server's error"),
)


def describe_bad_prefix(prefix: bytes, max_frame_bytes: int) -> str:
    """Explains a frame length that is not valid, by the protocol that it looks like, without printing payload."""
    length = int.from_bytes(prefix, "big", signed=True)
    for start, stranger in _STRANGERS:
        if prefix.startswith(start):
            return f"Frame length {length} looks like {stranger}; check the port and security_protocol"
    if length < _MIN_FRAME:
        return f"Frame length {length} is too small for a Kafka response"
    return f"Frame length {length} is above receive_message_max_bytes ({max_frame_bytes})"


class FrameAssembler:
    """Frames of one connection; feed it with `writable` and `received`.

    `chunk_bytes` is the read-ahead for small frames, `smallest_frame` the least bytes of a frame (4 in general, 0 for
    raw SASL tokens).
    """

    def __init__(self, max_frame_bytes: int, chunk_bytes: int = 65536) -> None:
        self._max = max_frame_bytes
        self._chunk_bytes = max(chunk_bytes, 2 * _PREFIX)
        self._chunk = memoryview(bytearray(self._chunk_bytes))
        self._start = self._end = 0  # unread bytes of the chunk
        self._is_shared = False  # views of the chunk are with receivers
        self._large: memoryview | None = None
        self._filled = 0
        self.smallest_frame = _MIN_FRAME
        self.error: FrameError | None = None

    @property
    def missing(self) -> int:
        """Bytes that are certainly needed to complete the next frame; 1 while that is not known."""
        return len(self._large) - self._filled if self._large is not None else 1

    def writable(self) -> memoryview:
        """Where the next bytes go; never empty.  Valid until the next `received`."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._chunk[self._end :]

    def received(self, size: int) -> list[memoryview]:
        """Takes `size` bytes written to `writable()`; returns the frames they complete.

        A frame starts at its correlation id.  After a bad length `error` is set, and the bytes after it are ignored.
        """
        if self.error is not None:
            return []
        if self._large is not None:
            self._filled += size
            if self._filled < len(self._large):
                return []
            frame, self._large = self._large, None
            return [frame]
        self._end += size
        return self._cut()

    def _cut(self) -> list[memoryview]:
        frames: list[memoryview] = []
        chunk, start, end = self._chunk, self._start, self._end
        while end - start >= _PREFIX:
            length = int.from_bytes(chunk[start : start + _PREFIX], "big", signed=True)
            if length < self.smallest_frame or length > self._max:
                prefix = bytes(chunk[start : start + _PREFIX])
                self.error = FrameError(describe_bad_prefix(prefix, self._max))
                break
            stop = start + _PREFIX + length
            if stop <= end:
                frames.append(chunk[start + _PREFIX : stop])
                start = stop
                continue
            if length + _PREFIX > len(chunk):
                # Not zeroed: a fresh buffer would be touched twice, page by page.
                self._large = np.empty(length, np.uint8).data
                self._filled = end - start - _PREFIX
                self._large[: self._filled] = chunk[start + _PREFIX : end]
                start = end
            break
        self._start = start
        self._is_shared = self._is_shared or bool(frames)
        self._make_room()
        return frames

    def _make_room(self) -> None:
        """Replaces the chunk with a fresh one before reads become small."""
        chunk = self._chunk
        unread = self._end - self._start
        if not unread and not self._is_shared:
            self._start = self._end = 0
            return
        if len(chunk) - self._end >= len(chunk) // 4 and self._fits(unread):
            return
        # Receivers own the views handed out, so the old chunk is left to them.
        fresh = memoryview(bytearray(self._chunk_bytes)) if self._is_shared else chunk
        fresh[:unread] = chunk[self._start : self._end]
        self._chunk, self._start, self._end, self._is_shared = fresh, 0, unread, False

    def _fits(self, unread: int) -> bool:
        """True when the frame that has begun can end inside this chunk."""
        if unread < _PREFIX:
            return len(self._chunk) - self._start >= _PREFIX
        length = int.from_bytes(self._chunk[self._start : self._start + _PREFIX], "big")
        return self._start + _PREFIX + length <= len(self._chunk)
