"""The strings and topic lists that the raw requests and answers share (Kafka protocol guide, "Protocol Primitives")."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">i")


def encode_string(text: str) -> bytes:
    """A STRING: int16 length and UTF-8."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def read_topic(body: memoryview, at: int) -> tuple[str, int, int]:
    """The name of a topic and the number of its partitions that follow; (name, count, next position).

    Raises ValueError or struct.error on what is no topic.
    """
    (length,) = _LENGTH.unpack_from(body, at)
    if length < 0:
        raise ValueError(f"topic name of {length} bytes")  # would lead back to bytes that were read
    at += _LENGTH.size
    name = str(body[at : at + length], "utf-8")
    at += length
    (count,) = _COUNT.unpack_from(body, at)
    return name, count, at + _COUNT.size
