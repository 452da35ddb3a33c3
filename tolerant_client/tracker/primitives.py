"""The strings, varints and topic lists that the raw requests and responses share (Kafka protocol guide, "Protocol Primitives")."""

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

    Raises ValueError or struct.error if the bytes are no topic.
    """
    (length,) = _LENGTH.unpack_from(body, at)
    if length < 0:
        raise ValueError(f"topic name of {length} bytes")  # would lead back to bytes that were read
    at += _LENGTH.size
    name = str(body[at : at + length], "utf-8")
    at += length
    (count,) = _COUNT.unpack_from(body, at)
    return name, count, at + _COUNT.size


def encode_uvarint(value: int) -> bytes:
    """An UNSIGNED_VARINT: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_uvarint(body: memoryview | bytes | bytearray, at: int) -> tuple[int, int]:
    """The number at `at`, of at most 5 bytes, and the position after it; raises ValueError if it is cut or longer."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(body):
            raise ValueError("varint is cut")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("varint does not end")


def skip_tags(body: memoryview | bytes | bytearray, at: int) -> int:
    """The end of the tagged fields (KIP-482) that start at `at`; raises ValueError if they are cut."""
    count, at = read_uvarint(body, at)
    for _ in range(count):
        _, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        at += size
        if at > len(body):
            raise ValueError("tagged fields are cut")
    return at
