"""Records of MirrorMaker 2's heartbeats and checkpoints topics, byte for byte.  Pure.

    heartbeat key    string source alias, string target alias
              value  int16 version 0, int64 timestamp (ms)
    checkpoint key   string group, string topic, int32 partition
               value int16 version 0, int64 upstream offset, int64 downstream offset, string metadata

Strings are UTF-8 after an int16 with their length in bytes, numbers are big-endian (Heartbeat.java and Checkpoint.java of
connect/mirror-client; Type.STRING of Kafka's protocol types).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kafka.structs import TopicPartition

_VERSION = 0
_LONGEST = 32_767  # bytes of a string


class Heartbeat(NamedTuple):
    """A mirror from one cluster to another was alive at `timestamp` (ms)."""

    source_alias: str
    target_alias: str
    timestamp: int


class Checkpoint(NamedTuple):
    """A group whose offset is `upstream` on the source resumes at `downstream` of `partition` on the target."""

    group: str
    partition: TopicPartition
    upstream: int
    downstream: int
    metadata: str


def encode_heartbeat(heartbeat: Heartbeat) -> tuple[bytes, bytes]:
    """Key and value."""
    key = _string(heartbeat.source_alias) + _string(heartbeat.target_alias)
    return key, struct.pack(">hq", _VERSION, heartbeat.timestamp)


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, bytes]:
    """Key and value; raises ValueError for a group or metadata that is too long for a string."""
    topic, partition = checkpoint.partition
    key = _string(checkpoint.group) + _string(topic) + struct.pack(">i", partition)
    head = struct.pack(">hqq", _VERSION, checkpoint.upstream, checkpoint.downstream)
    return key, head + _string(checkpoint.metadata)


def decode_checkpoint(key: bytes, value: bytes) -> Checkpoint:
    """Raises ValueError for bytes that are no checkpoint of this version."""
    group, at = _read_string(key, 0)
    topic, at = _read_string(key, at)
    (partition,) = _unpack(">i", key, at)
    version, upstream, downstream = _unpack(">hqq", value, 0)
    if version != _VERSION:
        raise ValueError(f"version {version}; only {_VERSION} is known")
    metadata, _ = _read_string(value, struct.calcsize(">hqq"))
    return Checkpoint(group, TopicPartition(topic, partition), upstream, downstream, metadata)


def _string(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > _LONGEST:
        raise ValueError(f"{text[:20]!r}... has {len(encoded)} bytes; Kafka's strings have at most {_LONGEST}")
    return struct.pack(">h", len(encoded)) + encoded


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _unpack(">h", data, at)
    start = at + 2
    if length < 0 or start + length > len(data):
        raise ValueError(f"a string of {length} bytes at {at} of {len(data)}")
    return data[start : start + length].decode(), start + length


def _unpack(layout: str, data: bytes, at: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, data, at)
    except struct.error as error:
        raise ValueError(str(error)) from error
