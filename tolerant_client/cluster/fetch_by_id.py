"""Fetch requests and answers that call topics by their ids (KIP-516).

Wire facts: FetchRequest.json and FetchResponse.json of Apache Kafka, version 13 (Kafka 3.1 to 4.x); it is a flexible
version (KIP-482): lengths and counts are unsigned varints of one more, and each structure ends with tagged fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FETCH_API_KEY, FetchAnswer, FetchedPartition, RawFetch
from tolerant_client.records.primitives import encode_uvarint, read_uvarint, skip_tags

FETCH_BY_ID_VERSION = 13

_NO_TAGS = b"\0"
_ASKED = struct.Struct(">iiqiqib")  # a partition and its tagged fields, none
_HEAD = struct.Struct(">ihi")
_ANSWERED = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")


class RawFetchById(RawFetch):
    """A RawFetch of version 13; `topic_ids` has every topic of the session, as the caller calls it."""

    __slots__ = ("topic_ids",)

    def __init__(
        self, topic_ids: Mapping[str, uuid.UUID], positions: Mapping[TopicPartition, int], **options: Any
    ) -> None:
        super().__init__(FETCH_BY_ID_VERSION, positions, **options)
        self.topic_ids = topic_ids

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[bytes | bytearray | memoryview]:
        """The whole frame, length prefix included."""
        client = client_id.encode()
        body = bytearray(
            struct.pack(
                ">iiiibii",
                -1,
                self.max_wait_ms,
                1,
                self.max_bytes,
                self.isolation_level,
                self.session_id,
                self.session_epoch,
            )
        )
        by_topic: dict[str, list[TopicPartition]] = {}
        for partition in self.positions:
            by_topic.setdefault(partition.topic, []).append(partition)
        body += encode_uvarint(len(by_topic) + 1)
        for topic, partitions in by_topic.items():
            body += self.topic_ids[topic].bytes + encode_uvarint(len(partitions) + 1)
            for partition in partitions:
                body += _ASKED.pack(
                    partition.partition, -1, self.positions[partition], -1, -1, self.partition_max_bytes, 0
                )
            body += _NO_TAGS
        forgotten: dict[str, list[int]] = {}
        for partition in self.forgotten:
            forgotten.setdefault(partition.topic, []).append(partition.partition)
        body += encode_uvarint(len(forgotten) + 1)
        for topic, numbers in forgotten.items():
            body += self.topic_ids[topic].bytes + encode_uvarint(len(numbers) + 1)
            body += struct.pack(f">{len(numbers)}i", *numbers) + _NO_TAGS
        body += encode_uvarint(1) + _NO_TAGS  # rack_id, empty
        head = struct.pack(">hhih", FETCH_API_KEY, self.API_VERSION, correlation_id, len(client)) + client + _NO_TAGS
        return [struct.pack(">i", len(head) + len(body)) + head, body]

    def decode_response(self, body: memoryview) -> FetchAnswer:
        """As RawFetch; raises ValueError for a topic that is not of the session, too."""
        topics = {topic_id.bytes: topic for topic, topic_id in self.topic_ids.items()}
        at = skip_tags(body, 0)
        throttle_time_ms, error_code, session_id = _HEAD.unpack_from(body, at)
        count, at = read_uvarint(body, at + _HEAD.size)
        fetched: list[FetchedPartition] = []
        for _ in range(count - 1):
            topic = topics.get(bytes(body[at : at + 16]))
            if topic is None:
                raise ValueError("Fetch answer has a topic id that is not of its session")
            partitions, at = read_uvarint(body, at + 16)
            for _ in range(partitions - 1):
                index, error, high, stable, log_start = _ANSWERED.unpack_from(body, at)
                n_aborted, at = read_uvarint(body, at + _ANSWERED.size)
                aborted = []
                for _ in range(n_aborted - 1):
                    aborted.append(_ABORTED.unpack_from(body, at))
                    at = skip_tags(body, at + _ABORTED.size)
                size, at = read_uvarint(body, at + 4)  # behind preferred_read_replica
                size = max(size - 1, 0)
                records = body[at : at + size]
                at = skip_tags(body, at + size)
                fetched.append(
                    FetchedPartition(
                        TopicPartition(topic, index), error, high, stable, log_start, tuple(aborted), records
                    )
                )
            at = skip_tags(body, at)
        at = skip_tags(body, at)
        if at != len(body):
            raise ValueError(f"Fetch answer has {len(body)} bytes, its fields {at}")
        if len({part.partition for part in fetched}) < len(fetched):
            raise ValueError("Fetch answer names a partition twice")
        return FetchAnswer(error_code, session_id, throttle_time_ms, fetched)
