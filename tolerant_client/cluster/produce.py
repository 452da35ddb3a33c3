"""Produce of whole record batches, as slices of the buffer that they were received into: by topic name or by topic id.

Wire facts: ProduceRequest.json and ProduceResponse.json of Apache Kafka.  By name: versions 3 to 7 (Kafka 0.11 to 4.x); zstd
needs 7 (KIP-110).  By id (KIP-516): version 13 (Kafka 4.1), a flexible version (KIP-482); a broker refuses an id that none
of its topics has with UNKNOWN_TOPIC_ID, whatever has that topic's name by now.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping, Sized
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.records.record_batch import read_header
from tolerant_client.tracker.primitives import encode_string, encode_uvarint, read_topic, read_uvarint, skip_tags
from tolerant_client.tracker.rules.apis import PRODUCE, Request

MIN_PRODUCE_VERSION = 3
MAX_PRODUCE_VERSION = 7
PRODUCE_BY_ID_VERSION = 13
NO_APPEND_TIME = -1

_RESPONSE_V5 = struct.Struct(">ihqqq")
_RESPONSE_V3 = struct.Struct(">ihqq")
_NO_TAGS = _NULL = b"\0"
_NO_ERRORS = b"\1\0\0"  # no record errors, no message, no tags: as in nearly every response
_INDEX = struct.Struct(">i")
_LONGEST_REASON = 400  # bytes

_SEQUENCE_MODULUS = 1 << 31


def add_sequence(sequence: int, delta: int) -> int:
    """Sequence numbers wrap from 2**31 - 1 to 0 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + delta) % _SEQUENCE_MODULUS


class ProducedPartition(NamedTuple):
    """One partition of a Produce response; `base_offset` is -1 where the broker did not say it.

    `log_append_time` is the time that the broker gave the records, in ms.  With CreateTime it is NO_APPEND_TIME, or, for
    a batch that the broker already had, the batch's max timestamp.  `refused_index` is that of the first record in the batch
    for which the broker has refused it, None if it names none, and `reason` is what the broker says of it: text from outside,
    in one line of at most a few hundred characters.  Only versions by id have them.
    """

    partition: TopicPartition
    error_code: int
    base_offset: int
    log_append_time: int = NO_APPEND_TIME
    refused_index: int | None = None
    reason: str = ""


class ProduceResult(list[ProducedPartition]):
    """The partitions of one response; `throttle_time_ms` is how long the broker throttles us (KIP-219)."""

    __slots__ = ("throttle_time_ms",)

    def __init__(self, partitions: Iterable[ProducedPartition], throttle_time_ms: int) -> None:
        super().__init__(partitions)
        self.throttle_time_ms = throttle_time_ms


class RawProduce(Request):
    """A Produce request of one record batch for each partition.

    The batches are sent without being copied and must not be changed until the
    request is settled.  `acks` is -1 (all), 1, or 0: then there is no response.
    With `topic_ids`, given for all partitions, topics are named by id; `version`
    is that of requests by name.
    A lost response is handed up: the batches belong to an idempotent producer, so
    the response to a later batch of the partition proves that this one was
    appended, and their owner knows what to do about the rest.  So silence and a
    probe's response settle it, except where a batch has no producer id.
    """

    API_KEY = PRODUCE
    name = "Produce"
    expected_ms = 0.0
    resend_safe = False

    __slots__ = ("API_VERSION", "acks", "batches", "timeout_ms", "topic_ids", "transactional_id")

    def __init__(
        self,
        version: int,
        batches: Mapping[TopicPartition, memoryview],
        timeout_ms: int,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> None:
        self.API_VERSION = PRODUCE_BY_ID_VERSION if topic_ids else version
        self.batches = batches
        self.timeout_ms = timeout_ms
        self.acks = acks
        self.transactional_id = transactional_id
        self.topic_ids = topic_ids or {}

    @property
    def is_repeated_above(self) -> bool:
        """Whether a broker recognises each batch by its sequence, so that its owner may send it again at any time."""
        return all(read_header(batch).producer_id >= 0 for batch in self.batches.values())

    def expect_response(self) -> bool:
        return self.acks != 0

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[bytes | bytearray | memoryview]:
        """The whole frame, length prefix included; batches appear as the views given."""
        client = client_id.encode()
        tags = _NO_TAGS if self.topic_ids else b""
        by_topic: dict[bytes, list[tuple[int, memoryview]]] = {}
        for partition, batch in self.batches.items():
            topic = self.topic_ids[partition].bytes if self.topic_ids else encode_string(partition.topic)
            by_topic.setdefault(topic, []).append((partition.partition, batch))
        head = bytearray(4)
        head += struct.pack(">hhih", self.API_KEY, self.API_VERSION, correlation_id, len(client)) + client + tags
        head += self._encode_transactional_id()
        head += struct.pack(">hi", self.acks, self.timeout_ms) + self._count(by_topic)
        buffers: list[bytes | bytearray | memoryview] = []
        size = 0
        for topic, batches in by_topic.items():
            head += topic + self._count(batches)
            for index, batch in batches:
                head += struct.pack(">i", index) + self._count(batch)
                buffers += (head, batch)
                size += len(head) + len(batch)
                head = bytearray(tags)
            head += tags
        head += tags
        if head:
            buffers.append(head)
        struct.pack_into(">i", buffers[0], 0, size + len(head) - 4)
        return buffers

    def _count(self, items: Sized) -> bytes:
        return encode_uvarint(len(items) + 1) if self.topic_ids else struct.pack(">i", len(items))

    def _encode_transactional_id(self) -> bytes:
        if self.transactional_id is None:
            return _NULL if self.topic_ids else struct.pack(">h", -1)
        if self.topic_ids:
            encoded = self.transactional_id.encode()
            return self._count(encoded) + encoded
        return encode_string(self.transactional_id)

    def decode_response(self, body: memoryview) -> ProduceResult:
        """Decodes a response to this request's version.

        Raises ValueError or struct.error when the body is cut, has bytes left
        over, or does not name exactly the partitions of the request.
        """
        if self.topic_ids:
            return self._decoded_by_id(body)
        (topics,) = struct.unpack_from(">i", body)
        at = 4
        produced: list[ProducedPartition] = []
        layout = _RESPONSE_V5 if self.API_VERSION >= 5 else _RESPONSE_V3
        for _ in range(topics):
            topic, count, at = read_topic(body, at)
            for _ in range(count):
                index, error, base_offset, append_time = layout.unpack_from(body, at)[:4]
                at += layout.size
                produced.append(ProducedPartition(TopicPartition(topic, index), error, base_offset, append_time))
        (throttle_time_ms,) = struct.unpack_from(">i", body, at)
        at += 4
        return self._whole(body, at, produced, throttle_time_ms)

    def _decoded_by_id(self, body: memoryview) -> ProduceResult:
        known = {(topic_id.bytes, p.partition): p for p, topic_id in self.topic_ids.items()}
        at = skip_tags(body, 0)
        topics, at = read_uvarint(body, at)
        produced: list[ProducedPartition] = []
        for _ in range(topics - 1):
            topic_id = bytes(body[at : at + 16])
            count, at = read_uvarint(body, at + 16)
            for _ in range(count - 1):
                index, error, base_offset, append_time, _log_start = _RESPONSE_V5.unpack_from(body, at)
                refused, reason, at = _read_errors(body, at + _RESPONSE_V5.size)
                if (partition := known.get((topic_id, index))) is None:
                    raise ValueError("Produce response names other partitions than its request")
                produced.append(ProducedPartition(partition, error, base_offset, append_time, refused, reason))
            at = skip_tags(body, at)
        (throttle_time_ms,) = struct.unpack_from(">i", body, at)
        return self._whole(body, skip_tags(body, at + 4), produced, throttle_time_ms)

    def _whole(
        self, body: memoryview, at: int, produced: list[ProducedPartition], throttle_time_ms: int
    ) -> ProduceResult:
        if at != len(body):
            raise ValueError(f"Produce response has {len(body)} bytes, its fields {at}")
        if {p.partition for p in produced} != self.batches.keys():
            raise ValueError("Produce response names other partitions than its request")
        return ProduceResult(produced, throttle_time_ms)


def _read_errors(body: memoryview, at: int) -> tuple[int | None, str, int]:
    """The index of the first record that is refused, None without one, why the batch is refused, and the position after both."""
    if body[at : at + 3] == _NO_ERRORS:
        return None, "", at + 3
    first: tuple[int, str] | None = None
    errors, at = read_uvarint(body, at)
    for _ in range(errors - 1):
        (index,) = _INDEX.unpack_from(body, at)
        why, at = _read_reason(body, at + _INDEX.size)
        at = skip_tags(body, at)
        first = (index, why) if first is None else min(first, (index, why))
    of_batch, at = _read_reason(body, at)
    index, of_record = first or (None, "")
    return index, of_record or of_batch, skip_tags(body, at)


def _read_reason(body: memoryview, at: int) -> tuple[str, int]:
    """The start of a COMPACT_NULLABLE_STRING in one line, "" for null, and the position after the string."""
    length, at = read_uvarint(body, at)
    end = at + max(length - 1, 0)
    text = str(body[at : min(end, at + _LONGEST_REASON)], "utf-8", "replace")
    return " ".join(text.split()), end
