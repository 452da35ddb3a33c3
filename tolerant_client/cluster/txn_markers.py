"""WriteTxnMarkers: transaction markers straight to the leader of a partition, as a transaction coordinator writes them.

Wire facts: WriteTxnMarkersRequest.json and WriteTxnMarkersResponse.json of Apache Kafka, version 1 (Kafka 2.8 to
4.x; version 2 adds the transaction's version, which a broker uses for markers of open transactions only).
It needs the permission ClusterAction on the cluster (or Alter, Kafka 4.0).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafka.structs import TopicPartition

from tolerant_client.tracker.primitives import encode_uvarint, read_uvarint, skip_tags
from tolerant_client.tracker.rules.apis import Request

WRITE_TXN_MARKERS_API_KEY = 27

_MARKER = struct.Struct(">qh?")  # producer id, producer epoch, is it a commit
_PRODUCER_ID = struct.Struct(">q")
_PARTITION = struct.Struct(">i")
_RESULT = struct.Struct(">ih")
_NO_TAGS = b"\0"
_COORDINATOR_EPOCH = 0  # the lowest: a marker is refused if its producer's last one had a higher


class WriteTxnMarkers(Request):
    """Abort markers for one partition, in order, each given as (producer id, producer epoch).

    A broker appends each marker by itself and answers when the last one is replicated.  A lost answer is handed up:
    a repeat would append markers anew.
    """

    API_KEY = WRITE_TXN_MARKERS_API_KEY
    API_VERSION = 1
    name = "WriteTxnMarkers"
    expected_ms = 0.0
    resend_safe = False

    __slots__ = ("markers", "partition")

    def __init__(self, partition: TopicPartition, markers: Sequence[tuple[int, int]]) -> None:
        self.partition = partition
        self.markers = markers

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[bytes | bytearray | memoryview]:
        """The whole frame, length prefix included."""
        client = client_id.encode()
        topic = self.partition.topic.encode()
        where = (
            encode_uvarint(2)  # one topic
            + encode_uvarint(len(topic) + 1)
            + topic
            + encode_uvarint(2)  # one partition
            + _PARTITION.pack(self.partition.partition)
            + _NO_TAGS
            + _PARTITION.pack(_COORDINATOR_EPOCH)
            + _NO_TAGS
        )
        body = bytearray(encode_uvarint(len(self.markers) + 1))
        for producer_id, producer_epoch in self.markers:
            body += _MARKER.pack(producer_id, producer_epoch, False) + where
        body += _NO_TAGS
        head = struct.pack(">hhih", self.API_KEY, self.API_VERSION, correlation_id, len(client)) + client + _NO_TAGS
        return [struct.pack(">i", len(head) + len(body)) + head, body]

    def decode_response(self, body: memoryview) -> set[int]:
        """The error codes other than 0; a broker gives one for each producer id.

        Raises ValueError or struct.error when the body is cut, has bytes left over, or speaks of another partition
        or of other producer ids than the request.
        """
        at = skip_tags(body, 0)  # of the header
        count, at = read_uvarint(body, at)
        producers: set[int] = set()
        codes: set[int] = set()
        for _ in range(count - 1):
            producers.add(_PRODUCER_ID.unpack_from(body, at)[0])
            topics, at = read_uvarint(body, at + _PRODUCER_ID.size)
            for _ in range(topics - 1):
                length, at = read_uvarint(body, at)
                topic = str(body[at : at + length - 1], "utf-8")
                partitions, at = read_uvarint(body, at + length - 1)
                for _ in range(partitions - 1):
                    index, code = _RESULT.unpack_from(body, at)
                    at = skip_tags(body, at + _RESULT.size)
                    if self.partition != (topic, index):
                        raise ValueError(f"WriteTxnMarkers answer speaks of {topic}-{index}")
                    codes.add(code)
                at = skip_tags(body, at)
            at = skip_tags(body, at)
        at = skip_tags(body, at)
        if at != len(body):
            raise ValueError(f"WriteTxnMarkers answer has {len(body)} bytes, its fields {at}")
        if producers != {producer_id for producer_id, _ in self.markers}:
            raise ValueError("WriteTxnMarkers answer speaks of other producers than its request")
        return codes - {0}
