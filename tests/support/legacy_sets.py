"""Message sets of formats v0 and v1, made by hand from LegacyRecord.java's layout."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from tolerant_client.records import codecs
from tolerant_client.records.codecs import _xxh32

# (key, value) of the sets in corpus/: each was produced twice, so that the second one does not start at offset 0.
CORPUS = ((None, b"first"), (b"k", None), (b"", b""), (b"key", b"the fourth " * 4))
CORPUS_TIME = 1_500_000_000_000  # the first of a v1 set; each one is 7 ms behind the one before


def field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(
    magic: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None, attributes: int = 0
) -> bytes:
    """One message; v0 leaves the timestamp out."""
    body = struct.pack(">BB", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    body += field(key) + field(value)
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def wrapper(magic: int, codec: int, inner: bytes, offset: int, timestamp: int = -1, is_stamped: bool = False) -> bytes:
    """A message whose value is the set `inner`; `offset` is that of its last message."""
    value = codecs.compress(codec, inner)
    if codec == codecs.LZ4 and magic == 0:
        # Wrong in the way that Kafka 0.9 wants it: over the magic number too (KAFKA-3160).
        value = value[:6] + bytes([_xxh32(value[:6]) >> 8 & 0xFF]) + value[7:]
    return message(magic, offset, timestamp, None, value, codec | (8 if is_stamped else 0))


def message_set(
    magic: int, codec: int, pairs: Sequence[tuple[bytes | None, bytes | None]], base_offset: int, first_time: int
) -> bytes:
    """As a broker keeps it: offsets from `base_offset` on, a millisecond from one to the next."""
    count = len(pairs)
    first = base_offset if not codec or not magic else 0  # what is compressed in v1 counts from 0
    inner = b"".join(message(magic, first + i, first_time + i, *pair) for i, pair in enumerate(pairs))
    return wrapper(magic, codec, inner, base_offset + count - 1, first_time + count - 1) if codec else inner
