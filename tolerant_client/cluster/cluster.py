"""A Kafka cluster as the mirror and the Spark source see it: partitions, offsets, raw batches.

Its brokers are in `connections.py`, its topics in `leaders.py`; this module sends requests to partition leaders.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.connections import (
    FETCH,
    PRODUCE,
    PRODUCE_OLD,
    READ,
    ROWS,
    STATE,
    LeftThrottledError,
    lane_of,
)
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.fetch import (
    FIRST_BATCH_FETCH_VERSION,
    MAX_FETCH_VERSION,
    MIN_FETCH_VERSION,
    FetchedPartition,
    FetchResult,
    RawFetch,
)
from tolerant_client.cluster.fetch_session import FetchSession
from tolerant_client.cluster.leaders import Leaders
from tolerant_client.cluster.produce import (
    MAX_PRODUCE_VERSION,
    MIN_PRODUCE_VERSION,
    PRODUCE_BY_ID_VERSION,
    ProduceResult,
    RawProduce,
)
from tolerant_client.cluster.soon import SoonTurns
from tolerant_client.errors import UnsupportedSourceError
from tolerant_client.tracker.rules.apis import FETCH_BY_ID_VERSION

EARLIEST = -2
LATEST = -1
EARLIEST_LOCAL = -4
MAX_TIMESTAMP = -3  # KIP-734, Kafka 3.0

CONSUMER, DEBUGGING_REPLICA = -1, -2  # replica ids of ListOffsets: who asks
READ_UNCOMMITTED, READ_COMMITTED = 0, 1  # isolation levels of Fetch and ListOffsets (KIP-98)

_LIST_LOCAL_OFFSETS = 8  # KIP-405
_NO_IDS: Mapping[TopicPartition, uuid.UUID] = MappingProxyType({})
_LIST_OFFSETS_BY_TIME = 1  # version 0 knows when segments were written, not records


class OffsetAndEpoch(NamedTuple):
    """An offset, and the leader epoch that its leader told with it (KIP-320); -1 where it told none (before 2.1).

    Of LATEST it is the leader's own, of other offsets that of the record there.  A log that is not cut below the offset ends
    this epoch there or later.
    """

    offset: int
    leader_epoch: int


class Cluster(Leaders):
    """One Kafka cluster, addressed as `Connections` and `Leaders` say."""

    async def require_record_batches(self) -> None:
        """Raises UnsupportedSourceError for brokers before 0.11, which know no record batches."""
        await self.connect()
        self.version(RawFetch, FIRST_BATCH_FETCH_VERSION, MAX_FETCH_VERSION)
        self.version(RawProduce, MIN_PRODUCE_VERSION, MAX_PRODUCE_VERSION)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        """Offsets by timestamp in ms (EARLIEST, LATEST = high watermark, or a time); -1 where there is none.

        With isolation level 1 LATEST is the last stable offset.

        Sends one request to each leader; partitions whose response is an error are asked again.
        Raises UnsupportedSourceError for a time if the brokers are older than 0.10.1.
        """
        told = await self.list_offsets_and_epochs(timestamps, isolation_level=isolation_level)
        return {p: at.offset for p, at in told.items()}

    async def list_offsets_and_epochs(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Like list_offsets, with leader epochs."""
        found: dict[TopicPartition, OffsetAndEpoch] = {}
        without_times: set[TopicPartition] = set()
        if any(timestamp >= 0 for timestamp in timestamps.values()):
            await self.connect()
            if self.highest_version(ListOffsetsRequest) < _LIST_OFFSETS_BY_TIME:
                raise UnsupportedSourceError(
                    f"The brokers of the {self.name} find no offsets by time;"
                    " give offsets, or use Kafka 0.10.1 or newer"
                )

        async def ask() -> None:
            failure: Exception | None = None
            for node, members in (await self.by_leader(p for p in timestamps if p not in found)).items():
                told = await self.offsets_and_epochs_at(node, members, timestamps, isolation_level)
                for partition, response in told.items():
                    if not isinstance(response, Exception):
                        found[partition] = response
                    elif isinstance(response, Errors.UnsupportedForMessageFormatError) and partition in without_times:
                        # Messages of format 0 have no times: none is at or after a time.
                        found[partition] = OffsetAndEpoch(-1, -1)
                    else:
                        if isinstance(response, Errors.UnsupportedForMessageFormatError):
                            without_times.add(partition)
                        failure = response
            if failure is not None:
                raise failure
            if missing := [p for p in timestamps if p not in found]:
                raise Errors.UnknownTopicOrPartitionError(
                    f"{missing[0].topic}-{missing[0].partition}: missing in the response"
                )

        if timestamps:
            await self.insist("listing offsets", ask)
        return found

    async def offsets_at(
        self,
        node_id: int,
        partitions: Iterable[TopicPartition],
        timestamps: Mapping[TopicPartition, int],
        isolation_level: int,
        *,
        replica_id: int = CONSUMER,
    ) -> dict[TopicPartition, int | Exception]:
        """What one node says of each partition, asked once: an offset (for MAX_TIMESTAMP the latest time), or an error.

        For DEBUGGING_REPLICA, LATEST is the end of the node's own log, whether or not it leads (KafkaApis.scala,
        handleListOffsetRequest; the same in all versions from 0.11 on).
        """
        told = await self.offsets_and_epochs_at(node_id, partitions, timestamps, isolation_level, replica_id=replica_id)
        return {p: at.offset if isinstance(at, OffsetAndEpoch) else at for p, at in told.items()}

    async def offsets_and_epochs_at(
        self,
        node_id: int,
        partitions: Iterable[TopicPartition],
        timestamps: Mapping[TopicPartition, int],
        isolation_level: int,
        *,
        replica_id: int = CONSUMER,
    ) -> dict[TopicPartition, OffsetAndEpoch | Exception]:
        """Like offsets_at, with leader epochs."""
        topic_type = ListOffsetsRequest.ListOffsetsTopic
        by_topic: dict[str, list[Any]] = {}
        for p in partitions:
            by_topic.setdefault(p.topic, []).append(
                topic_type.ListOffsetsPartition(
                    partition_index=p.partition, timestamp=timestamps[p], current_leader_epoch=-1, max_num_offsets=1
                )
            )
        request = ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=isolation_level,
            topics=[topic_type(name=self.wire_topic(topic), partitions=parts) for topic, parts in by_topic.items()],
            max_version=_LIST_LOCAL_OFFSETS if {EARLIEST_LOCAL, MAX_TIMESTAMP} & {*timestamps.values()} else 6,
        )
        told: dict[TopicPartition, OffsetAndEpoch | Exception] = {}
        for topic in (await self.send(request, node_id)).topics:
            name = self.topic_of(topic.name)
            for part in topic.partitions:
                partition = TopicPartition(name, part.partition_index)
                if part.error_code:
                    told[partition] = Errors.for_code(part.error_code)(f"{name}-{part.partition_index}")
                elif partition in timestamps:
                    old = part.old_style_offsets  # of version 0
                    offset = old[0] if old else part.offset
                    offset = part.timestamp if timestamps[partition] == MAX_TIMESTAMP else offset
                    told[partition] = OffsetAndEpoch(offset, part.leader_epoch)
        return told

    # -- batches --------------------------------------------------------------

    @property
    def has_tiers(self) -> bool:
        """Whether the brokers may keep records only in remote storage (KIP-405); true only once connected."""
        return self.highest_version(ListOffsetsRequest) >= _LIST_LOCAL_OFFSETS

    @property
    def fetches_by_id(self) -> bool:
        """Whether sessions name topics by id (KIP-516, Kafka 3.1); true only once connected."""
        return self.highest_version(RawFetch) >= FETCH_BY_ID_VERSION

    async def session(self, node_id: int, *, isolation_level: int = 0) -> FetchSession:
        """A new incremental fetch session with a node."""
        await self.connect()
        has_ids = self.fetches_by_id and node_id not in self.nodes_without_ids
        return FetchSession(self._fetch_version(), isolation_level, self.names, self.topic_id if has_ids else None)

    async def send_fetch(self, node_id: int, request: RawFetch) -> FetchResult:
        """Sends a fetch on the node's own fetch connection.

        Raises UnsupportedVersionError, and sends nothing, where the node is older than the first one that was asked.
        """
        await self.connect()
        lane = self.lane(FETCH, node_id)
        connection = await self.manager.get_connection(lane)
        if request.API_VERSION > connection.broker_version_data.api_versions[request.API_KEY][1]:
            self.nodes_without_ids.add(node_id)
            raise Errors.UnsupportedVersionError(
                f"node {node_id} of the {self.name} does not know Fetch version {request.API_VERSION}"
            )
        response: FetchResult = await self.send(request, lane)
        return response

    async def fetch(
        self,
        node_id: int,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int = 500,
        max_bytes: int = 16 << 20,
        partition_max_bytes: int = 4 << 20,
        isolation_level: int = 0,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> list[FetchedPartition]:
        """One fetch without a session; errors of partitions are in their `error_code`.

        With `topic_ids`, given for all topics, it fetches only topics that still have these ids, whatever has their
        names by now.  It then raises UnsupportedVersionError, and sends nothing, where the node knows no ids (before
        Kafka 3.1).  With `max_wait_ms` 0 it waits for no long poll, unless it fetches by id.
        A response without any partition under a quota says nothing of them: it is fetched again for the cluster's patience.
        """
        await self.connect()
        request = RawFetch(
            FETCH_BY_ID_VERSION if topic_ids else self._fetch_version(),
            positions,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
            isolation_level=isolation_level,
            names=self.names,
            topic_ids=topic_ids,
        )
        began = time.monotonic()
        while True:
            if topic_ids:
                response = await self.send_fetch(node_id, request)
            else:
                response = await self.send(request, self.lane(FETCH if max_wait_ms else READ, node_id))
            if (
                response.partitions
                or not response.throttle_time_ms
                or time.monotonic() - began > self.patience_ms / 1000
            ):
                break
        if response.error_code:
            raise Errors.for_code(response.error_code)(f"fetch from node {node_id} of the {self.name}")
        return response.partitions

    def _fetch_version(self) -> int:
        return self.version(RawFetch, MIN_FETCH_VERSION, MAX_FETCH_VERSION)

    def produces_by_id(self, node_id: int, lane: str = PRODUCE) -> bool:
        """Whether a node takes batches for topics by id (KIP-516, Kafka 4.1); true only once connected."""
        # A node that is not upgraded yet says so itself.
        known = self.manager._conns.get(lane_of(lane, node_id)) or self.manager
        _, highest = known.broker_version_data.api_versions.get(RawProduce.API_KEY, (0, -1))
        return bool(highest >= PRODUCE_BY_ID_VERSION)

    def produce(
        self,
        node_id: int,
        batches: Mapping[TopicPartition, memoryview],
        timeout_ms: int = 30_000,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] = _NO_IDS,
        lane: str = PRODUCE,
    ) -> Any:
        """Sends one batch per partition; returns a kafka Future of ProduceResult (None with acks=0), for pipelining.

        It fails while the node's lane for it is not `sendable`.
        With `topic_ids`, given for all partitions, only topics that still have these ids take the batches, whatever has
        their names by now, where the node knows ids (Kafka 4.1); other nodes take them by name.
        """
        try:
            request = RawProduce(
                self.version(RawProduce, MIN_PRODUCE_VERSION, MAX_PRODUCE_VERSION),
                batches,
                timeout_ms,
                acks=acks,
                transactional_id=transactional_id,
                topic_ids=topic_ids
                if topic_ids.keys() >= batches.keys() and self.produces_by_id(node_id, lane)
                else None,
            )
            future = self.manager.send(request, name := self.lane(lane, node_id))
        except Errors.KafkaError as error:  # the node is unknown, has refused our credentials, or is too old
            return Future().failure(error)
        if lane in (PRODUCE, PRODUCE_OLD):
            self.held_up.sent(name, future)
        return future

    async def produce_soon(
        self, node_id: int, batches: Mapping[TopicPartition, memoryview], *, transactional_id: str | None = None
    ) -> ProduceResult:
        """As `produce`, for a few bytes that may wait for no quota (soon.py).

        Only those of a transaction are ever sent twice: their sequence tells the repeat.
        """
        has_sequences = transactional_id is not None
        purpose = ROWS if has_sequences else STATE
        lane = lane_of(purpose, node_id)
        turns = self._soon.setdefault(lane, SoonTurns(has_sequences=has_sequences))
        while True:
            async with turns.turn():
                await self.sendable(lane)
                try:
                    result: ProduceResult = await self.produce(
                        node_id, batches, transactional_id=transactional_id, lane=purpose
                    )
                except Errors.KafkaError as error:
                    if not has_sequences or not isinstance(error.__cause__ or error, LeftThrottledError):
                        raise
                    continue  # it was behind the request that was throttled first
                if result.throttle_time_ms:
                    turns.throttled()
                self.leave_throttled(lane=lane)
                return result

    async def append(self, partition: TopicPartition, batch: memoryview) -> int:
        """Appends a small batch, tried once; returns its base offset when all in-sync replicas have it.

        Raises Kafka's error; the batch may have been appended nevertheless.
        """
        node_id = await self.leader(partition)
        (part,) = await self.produce_soon(node_id, {partition: batch})
        if part.error_code:
            raise Errors.for_code(part.error_code)(f"appending to {partition.topic}-{partition.partition}")
        return int(part.base_offset)
