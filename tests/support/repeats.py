"""kafka-python's requests over a plain connection, once or twice, for tests that show what a broker answers.

Each request has to fall under the row of api_rows.py that its test names, and
each answer has to pass for its own (requests.py), so both are shown as well.
"""

from __future__ import annotations

import itertools
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tolerant_client.tracker.rules.api_rows import ApiRow
from tolerant_client.tracker.rules.requests import KafkaRequest, with_correlation_id

PATIENCE = 30.0
NOT_YET = frozenset({14, 15, 16, 51})  # a coordinator that loads, or ends the transaction before
TIMEOUT_MS = 30_000


class Wire:
    """A plain connection that sends kafka-python's requests, once or twice, and decodes what comes."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.ids = itertools.count(1)
        self.versions = {ApiVersionsRequest.API_KEY: 0}
        answer = self.ask(ApiVersionsRequest(), version=0)
        self.versions = {api.api_key: api.max_version for api in answer.api_keys}

    def speaks(self, request: Any) -> bool:
        return request.API_KEY in self.versions

    def ask(self, request: Any, version: int | None = None) -> Any:
        adapted = self._adapt(request, version)
        return self._exchange(adapted, adapted.frame_buffers(0, "test"))

    def twice(self, row: ApiRow, request: Any, version: int | None = None) -> tuple[Any, Any]:
        """Both answers to the same bytes; the request has to fall under `row`."""
        adapted = self._adapt(request, version)
        assert adapted.row is row
        frame = adapted.frame_buffers(0, "test")
        return self._exchange(adapted, frame), self._exchange(adapted, frame)

    def ready(self, request: Callable[[], Any], code: Callable[[Any], int], version: int | None = None) -> Any:
        """The first answer that does not say that a coordinator is not there yet."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.ask(request(), version)
            if code(answer) not in NOT_YET or time.monotonic() > deadline:
                return answer
            time.sleep(0.05)

    def _adapt(self, request: Any, version: int | None) -> KafkaRequest:
        newest = self.versions.get(request.API_KEY, -1)
        if version is None:
            version = min(newest, request.max_version)
        if version > newest or newest < 0:
            pytest.skip(f"this broker does not speak {request.name} version {max(0, version)}")
        request.API_VERSION = version
        return KafkaRequest(request)

    def _exchange(self, adapted: KafkaRequest, frame: list[Any]) -> Any:
        correlation_id = next(self.ids)
        self.socket.sendall(b"".join(bytes(part) for part in with_correlation_id(frame, correlation_id)))
        (size,) = struct.unpack(">i", self._receive(4))
        body = self._receive(size)
        assert struct.unpack_from(">i", body) == (correlation_id,)
        return adapted.decode_response(memoryview(body)[4:])

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            assert part, "the broker closed the connection"
            received += part
        return bytes(received)


def code_of(row: ApiRow) -> int:
    """The error code that the row's repeat shows first."""
    found = re.search(r"\b(\d+) [A-Z]", row.repeat_shows)
    assert found is not None, row.repeat_shows
    return int(found.group(1))


def codes_of(row: ApiRow) -> list[int]:
    return [int(code) for code in re.findall(r"\b(\d+) [A-Z]", row.repeat_shows)]


def assert_same(row: ApiRow, answers: tuple[Any, Any]) -> None:
    assert row.repeat_shows.startswith("same response")
    assert answers[0] == answers[1]


def new(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:8]}"


# -- requests -----------------------------------------------------------------


def create(name: str, partitions: int = 1, validate_only: bool = False) -> Any:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])],
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )


def batch(producer_id: int = -1, epoch: int = -1, sequence: int = -1, is_transactional: bool = False) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, is_transactional, producer_id, epoch, sequence, 1000)
    builder.append(0, 1, None, b"value", [])
    return bytes(builder.build())


def produce(topic: str, records: bytes, transactional_id: str | None = None) -> Any:
    data = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=TIMEOUT_MS,
        topic_data=[data(name=topic, partition_data=[data.PartitionProduceData(index=0, records=records)])],
    )


def produced(answer: Any) -> tuple[int, int]:
    (partition,) = answer.responses[0].partition_responses
    return partition.error_code, partition.base_offset


def log_end(wire: Wire, topic: str) -> int:
    kind = ListOffsetsRequest.ListOffsetsTopic
    partition = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    answer = wire.ask(
        ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[kind(name=topic, partitions=[partition])]), 7
    )
    return int(answer.topics[0].partitions[0].offset)


def init(transactional_id: str | None, producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=producer_id, producer_epoch=epoch
    )


def commit(group: str, topic: str, offset: int, generation: int = -1, member_id: str = "") -> Any:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = kind.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[kind(name=topic, partitions=[partition])],
    )


def partition_code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def committed(wire: Wire, group: str) -> int:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    answer = wire.ask(OffsetFetchRequest(groups=[asked], require_stable=False), 8)
    return next((p.committed_offset for t in answer.groups[0].topics for p in t.partitions), -1)


def delete_offsets(group: str, topic: str) -> Any:
    kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = kind.OffsetDeleteRequestPartition(partition_index=0)
    return OffsetDeleteRequest(group_id=group, topics=[kind(name=topic, partitions=[partition])])


def join(group: str, member_id: str = "", instance: str | None = None, rebalance_ms: int = 30_000) -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0" * 8)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[protocol],
        reason=None,
    )


def sync(group: str, generation: int, member_id: str, assignment: bytes = b"mine") -> Any:
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[kind(member_id=member_id, assignment=assignment)],
    )


def heartbeat(group: str, generation: int, member_id: str) -> Any:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=None)


def error(answer: Any) -> int:
    return int(answer.error_code)


def wait_for_leader(wire: Wire, name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name)]
        (found,) = wire.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False)).topics
        if found.partitions and all(p.leader_id >= 0 and not p.error_code for p in found.partitions):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def find_coordinator(wire: Wire, key_type: int, key: str) -> None:
    """Waits for the coordinator of a group (0) or a transactional.id (1); the first call makes its topic."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    wire.ready(lambda: request, lambda answer: int(answer.coordinators[0].error_code))
