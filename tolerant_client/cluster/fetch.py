"""Fetch of whole record batches: requests by topic name or by topic id, and responses as views.

Wire facts: FetchRequest.json and FetchResponse.json of Apache Kafka.  By name: versions 0 to 11 (Kafka 0.8 to 4.x; 0 to 3
as in Kafka 3.9, the last release that supports them).  By id (KIP-516): version 13 (Kafka 3.1 to 4.x), a flexible version
(KIP-482): lengths and counts are unsigned varints plus one, and each structure ends with tagged fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import NamedTuple, Protocol

from kafka.structs import TopicPartition

from tolerant_client.tracker.primitives import encode_string, encode_uvarint, read_topic, read_uvarint, skip_tags
from tolerant_client.tracker.rules.apis import FETCH, FETCH_BY_ID_VERSION, Request

MIN_FETCH_VERSION = 0
MAX_FETCH_VERSION = 11
FIRST_BATCH_FETCH_VERSION = 4  # responses to older versions hold message sets of v0 and v1

FINAL_EPOCH = -1  # a request with this session epoch neither uses nor opens a session
_PARTITION_V11 = struct.Struct(">iiqqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V4 = struct.Struct(">iqi")
_RESPONSE_V5 = struct.Struct(">ihqqqi")
_RESPONSE_V4 = struct.Struct(">ihqqi")
_RESPONSE_V0 = struct.Struct(">ihq")

_NO_TAGS = b"\0"
_PARTITION_BY_ID = struct.Struct(">iiqiqib")  # including its tagged fields, which are empty
_HEAD_BY_ID = struct.Struct(">ihi")
_RESPONSE_BY_ID = struct.Struct(">ihqqq")
_ABORTED_BY_ID = struct.Struct(">qq")


class TopicNames(Protocol):
    """The caller's names of topics and the brokers' own: a link's target and source names."""

    def to_source(self, topic: str) -> str:
        """The brokers' name of a topic; raises OptionError for a name that stands for no topic of theirs."""

    def to_target(self, topic: str) -> str:
        """The caller's name of a brokers' topic."""


class FetchedPartition(NamedTuple):
    """One partition of a Fetch response.

    `records` is a view of whole record batches and perhaps, at its end, of one
    that is cut; it keeps the received frame alive and belongs to the receiver.
    Offsets are -1 where the broker does not know them; brokers before 0.11 know
    no transactions, so their last stable offset is the high watermark.  It is never below the log's start here: if an open
    transaction began before that, brokers (4.2) tell the offset of the batch in which the log starts.
    """

    partition: TopicPartition
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # (producer_id, first_offset)
    records: memoryview


class FetchResult(NamedTuple):
    """A decoded Fetch response; `session_id` 0 means that there is no session."""

    error_code: int
    session_id: int
    throttle_time_ms: int
    partitions: list[FetchedPartition]


class RawFetch(Request):
    """A Fetch request whose response is handed over as views, never copied.

    `positions` maps partitions to the offset to fetch from; in a session, only
    those that changed since the session's last request.  With `names`, partitions
    have the link's target names here and in the response.  With `topic_ids`, given
    for every topic of the session by the caller's name, topics are requested by id;
    `version` is that of requests by name.
    """

    API_KEY = FETCH
    name = "Fetch"

    def __init__(
        self,
        version: int,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = FINAL_EPOCH,
        forgotten: Iterable[TopicPartition] = (),
        names: TopicNames | None = None,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> None:
        self.API_VERSION = FETCH_BY_ID_VERSION if topic_ids else version
        self.positions = positions
        self.max_wait_ms = max_wait_ms
        self.max_bytes = max_bytes
        self.partition_max_bytes = partition_max_bytes
        self.isolation_level = isolation_level
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.forgotten = tuple(forgotten)
        self.names = names
        self.topic_ids = topic_ids or {}
        self.expected_ms = float(max_wait_ms)
        # The broker refuses an epoch that it has seen (71), so only a request
        # outside any session may be sent again unchanged.
        self.resend_safe = session_epoch == FINAL_EPOCH

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[bytes | bytearray | memoryview]:
        client = client_id.encode()
        version = self.API_VERSION
        tags = _NO_TAGS if self.topic_ids else b""
        body = bytearray(struct.pack(">iii", -1, self.max_wait_ms, 1))
        if version >= 3:
            body += struct.pack(">i", self.max_bytes)
        if version >= 4:
            body += struct.pack(">b", self.isolation_level)
        if version >= 7:
            body += struct.pack(">ii", self.session_id, self.session_epoch)
        by_topic = _by_topic(self.positions)
        body += self._count(by_topic)
        for topic, partitions in by_topic.items():
            body += self._encode_topic(topic) + self._count(partitions)
            for partition in partitions:
                offset = self.positions[partition]
                if version >= FETCH_BY_ID_VERSION:
                    body += _PARTITION_BY_ID.pack(partition.partition, -1, offset, -1, -1, self.partition_max_bytes, 0)
                elif version >= 9:
                    body += _PARTITION_V11.pack(partition.partition, -1, offset, -1, self.partition_max_bytes)
                elif version >= 5:
                    body += _PARTITION_V5.pack(partition.partition, offset, -1, self.partition_max_bytes)
                else:
                    body += _PARTITION_V4.pack(partition.partition, offset, self.partition_max_bytes)
            body += tags
        if version >= 7:
            forgotten = _by_topic(self.forgotten)
            body += self._count(forgotten)
            for topic, partitions in forgotten.items():
                body += self._encode_topic(topic) + self._count(partitions) + _numbers(partitions) + tags
        if version >= 11:
            body += self._count("") if self.topic_ids else encode_string("")  # rack_id, empty
        body += tags
        head = struct.pack(">hhih", self.API_KEY, version, correlation_id, len(client)) + client + tags
        return [struct.pack(">i", len(head) + len(body)) + head, body]

    def _count(self, items: Sized) -> bytes:
        return encode_uvarint(len(items) + 1) if self.topic_ids else struct.pack(">i", len(items))

    def _encode_topic(self, topic: str) -> bytes:
        if self.topic_ids:
            return self.topic_ids[topic].bytes
        return encode_string(topic if self.names is None else self.names.to_source(topic))

    def decode_response(self, body: memoryview) -> FetchResult:
        """Decodes a response to this request's version.

        Raises ValueError or struct.error when the body is cut, has bytes left over, names a
        partition twice (one of them is another partition), or names a topic by an id that is
        not of the session.  The caller ignores partitions that were not asked for.
        """
        if self.topic_ids:
            return self._decoded_by_id(body)
        version = self.API_VERSION
        at, throttle_time_ms, error_code, session_id = 0, 0, 0, 0
        if version >= 1:
            (throttle_time_ms,) = struct.unpack_from(">i", body)
            at = 4
        if version >= 7:
            error_code, session_id = struct.unpack_from(">hi", body, at)
            at += 6
        (topics,) = struct.unpack_from(">i", body, at)
        at += 4
        fetched: list[FetchedPartition] = []
        for _ in range(topics):
            topic, count, at = read_topic(body, at)
            if self.names is not None:
                topic = self.names.to_target(topic)
            for _ in range(count):
                log_start, n_aborted = -1, 0
                if version >= 5:
                    index, error, high, stable, log_start, n_aborted = _RESPONSE_V5.unpack_from(body, at)
                    at += _RESPONSE_V5.size
                elif version == 4:
                    index, error, high, stable, n_aborted = _RESPONSE_V4.unpack_from(body, at)
                    at += _RESPONSE_V4.size
                else:
                    index, error, high = _RESPONSE_V0.unpack_from(body, at)
                    stable = high
                    at += _RESPONSE_V0.size
                aborted: tuple[tuple[int, int], ...] = ()
                if n_aborted > 0:
                    flat = struct.unpack_from(f">{2 * n_aborted}q", body, at)
                    aborted = tuple(zip(flat[::2], flat[1::2]))
                    at += 16 * n_aborted
                if version >= 11:
                    at += 4  # preferred_read_replica
                (size,) = struct.unpack_from(">i", body, at)
                at += 4
                size = max(size, 0)
                records = body[at : at + size]
                at += size
                fetched.append(_fetched(TopicPartition(topic, index), error, high, stable, log_start, aborted, records))
        _require_whole(body, at, fetched)
        return FetchResult(error_code, session_id, throttle_time_ms, fetched)

    def _decoded_by_id(self, body: memoryview) -> FetchResult:
        topics = {topic_id.bytes: topic for topic, topic_id in self.topic_ids.items()}
        at = skip_tags(body, 0)
        throttle_time_ms, error_code, session_id = _HEAD_BY_ID.unpack_from(body, at)
        count, at = read_uvarint(body, at + _HEAD_BY_ID.size)
        fetched: list[FetchedPartition] = []
        for _ in range(count - 1):
            topic = topics.get(bytes(body[at : at + 16]))
            if topic is None:
                raise ValueError("Fetch response has a topic id that is not of its session")
            partitions, at = read_uvarint(body, at + 16)
            for _ in range(partitions - 1):
                index, error, high, stable, log_start = _RESPONSE_BY_ID.unpack_from(body, at)
                n_aborted, at = read_uvarint(body, at + _RESPONSE_BY_ID.size)
                aborted = []
                for _ in range(n_aborted - 1):
                    aborted.append(_ABORTED_BY_ID.unpack_from(body, at))
                    at = skip_tags(body, at + _ABORTED_BY_ID.size)
                size, at = read_uvarint(body, at + 4)  # after preferred_read_replica
                size = max(size - 1, 0)
                records = body[at : at + size]
                at = skip_tags(body, at + size)
                fetched.append(_fetched(TopicPartition(topic, index), error, high, stable, log_start, aborted, records))
            at = skip_tags(body, at)
        at = skip_tags(body, at)
        _require_whole(body, at, fetched)
        return FetchResult(error_code, session_id, throttle_time_ms, fetched)


def _fetched(
    partition: TopicPartition,
    error: int,
    high: int,
    stable: int,
    log_start: int,
    aborted: Iterable[tuple[int, int]],
    records: memoryview,
) -> FetchedPartition:
    stable = stable if stable < 0 else max(stable, log_start)
    return FetchedPartition(partition, error, high, stable, log_start, tuple(aborted), records)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    return by_topic


def _numbers(partitions: Sequence[TopicPartition]) -> bytes:
    return struct.pack(f">{len(partitions)}i", *(partition.partition for partition in partitions))


def _require_whole(body: memoryview, at: int, fetched: Sequence[FetchedPartition]) -> None:
    if at != len(body):
        raise ValueError(f"Fetch response has {len(body)} bytes, its fields {at}")
    if len({part.partition for part in fetched}) < len(fetched):
        raise ValueError("Fetch response names a partition twice")
