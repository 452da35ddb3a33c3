"""Puts planned nasty topics onto one broker, hundreds at once: every request carries a batch of each partition.

The broker must not ask coordinators about transactions, of which they know nothing here
(BROKER_CONFIG): batches are marked as transactional and ended by WriteTxnMarkers straight to the leader, as a
coordinator does it.  What lies in the logs then is the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.producer import WriteTxnMarkersRequest
from kafka.structs import TopicPartition

from support.nasty_topics import Append, Marker, NastyPartition, NastyTopic, Step
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.connections import PRODUCE
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.records.record_batch import encode_batch
from tolerant_client.testing import KafkaCluster

CLEANER_CONFIG: Mapping[str, str] = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.threads": "1",
    "log.segment.delete.delay.ms": "1000",
    # Hundreds of logs with two index files for each segment, all of them mapped.
    "log.index.size.max.bytes": "65536",
}
BROKER_CONFIG: Mapping[str, str] = {**CLEANER_CONFIG, "transaction.partition.verification.enable": "false"}
_PIPELINE = 8
_REQUEST_BYTES = 4 << 20
_TOPIC_RESOURCE = 2
_SET = 0

_Logs = Mapping[TopicPartition, NastyPartition]


def write_topics(cluster: KafkaCluster, topics: Sequence[NastyTopic], patience_s: float = 60) -> None:
    """Creates and fills all topics, waiting for the cleaner where a plan says so; one node, no traffic beside."""
    logs = {partition: log for topic in topics for partition, log in topic.by_partition.items()}
    with Cluster({"bootstrap_servers": cluster.bootstrap_servers}, name="nasty writer") as raw:

        async def run() -> None:
            await _create(raw, topics)
            at = dict.fromkeys(logs, 0)
            rounds = max((len(log.cleanings) for log in logs.values()), default=0)
            for n in range(rounds + 1):
                until = {p: log.cleanings[n] if n < len(log.cleanings) else len(log.steps) for p, log in logs.items()}
                # Those without a next cleaning write on in the last round only, so that a cleaner finds them all quiet.
                until = {p: at[p] if n < rounds and n >= len(log.cleanings) else until[p] for p, log in logs.items()}
                await append_steps(raw, {p: log.steps[at[p] : until[p]] for p, log in logs.items()})
                at = until
                if n < rounds:
                    wanted = {p: cleanable_after(log, n) for p, log in logs.items() if n < len(log.cleanings)}
                    await _cleaned(raw, cluster, wanted, patience_s)
            await delete_records(raw, {p: log.start for p, log in logs.items() if log.start})
            await alter_topics(raw, {t.name: t.config_later for t in topics if t.config_later})

        raw.run(run)


def create_nasty_topics(servers: str, topics: Sequence[NastyTopic]) -> None:
    with Cluster({"bootstrap_servers": servers}, name="nasty writer") as raw:
        raw.run(_create, raw, topics)


async def _create(raw: Cluster, topics: Sequence[NastyTopic]) -> None:
    await raw.connect()
    await create_topics(raw, [TopicSpec(t.name, len(t.partitions), 1, t.config) for t in topics])
    # A broker knows new topics a little later than the controller.
    await raw.list_offsets({partition: LATEST for topic in topics for partition in topic.by_partition})


async def append_steps(raw: Cluster, steps: Mapping[TopicPartition, Sequence[Step]]) -> None:
    """The steps of each partition in their order; all partitions side by side."""
    waiting = {partition: deque(todo) for partition, todo in steps.items() if todo}
    in_flight: deque[tuple[Any, Callable[[Any], None]]] = deque()
    node_id = await raw.leader(next(iter(waiting))) if waiting else -1
    while waiting:
        step_of = {partition: todo.popleft() for partition, todo in waiting.items()}
        waiting = {partition: todo for partition, todo in waiting.items() if todo}
        # A broker takes one request of a connection after the other, so a round needs no answers of the last one.
        for future, check in _requests(raw, node_id, step_of):
            in_flight.append((future, check))
            if len(in_flight) >= _PIPELINE:
                future, check = in_flight.popleft()
                check(await future)
    for future, check in in_flight:
        check(await future)


def _requests(
    raw: Cluster, node_id: int, steps: Mapping[TopicPartition, Step]
) -> Iterator[tuple[Any, Callable[[Any], None]]]:
    """One step of each partition; transactional batches of a request are of one producer."""
    groups: dict[tuple[int, int] | None, dict[TopicPartition, Append]] = {}
    for partition, step in steps.items():
        if isinstance(step, Append):
            who = (step.producer_id, step.epoch) if step.is_transactional else None
            groups.setdefault(who, {})[partition] = step
    for who, members in groups.items():
        batches: dict[TopicPartition, memoryview] = {}
        for partition, step in members.items():
            batches[partition] = memoryview(_encode(step))
            if sum(map(len, batches.values())) > _REQUEST_BYTES:
                yield _produce(raw, node_id, batches, who), _check_produced(members)
                batches = {}
        if batches:
            yield _produce(raw, node_id, batches, who), _check_produced(members)
    markers = {partition: step for partition, step in steps.items() if isinstance(step, Marker)}
    if markers:
        yield raw.manager.send(_marker_request(markers), raw.lane(PRODUCE, node_id)), _check_markers


def _encode(step: Append) -> bytes:
    return encode_batch(
        step.records,
        codec=step.codec,
        producer_id=step.producer_id,
        producer_epoch=step.epoch,
        base_sequence=step.sequence,
        is_transactional=step.is_transactional,
    )


def _produce(raw: Cluster, node_id: int, batches: Mapping[TopicPartition, memoryview], who: object) -> Any:
    return raw.produce(node_id, batches, transactional_id=None if who is None else "nasty")


def _check_produced(members: Mapping[TopicPartition, Append]) -> Callable[[Any], None]:
    def check(answer: Any) -> None:
        for part in answer:
            assert (part.error_code, part.base_offset) == (0, members[part.partition].offset), (
                part,
                str(members[part.partition]),
            )

    return check


def _marker_request(markers: Mapping[TopicPartition, Marker]) -> WriteTxnMarkersRequest:
    marker_type = WriteTxnMarkersRequest.WritableTxnMarker
    topic_type = marker_type.WritableTxnMarkerTopic
    # One entry a partition: a producer may end transactions of different epochs and ways in one request.
    return WriteTxnMarkersRequest(
        markers=[
            marker_type(
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                transaction_result=marker.is_commit,
                topics=[topic_type(name=partition.topic, partition_indexes=[partition.partition])],
                coordinator_epoch=0,
            )
            for partition, marker in markers.items()
        ],
        max_version=1,
    )


def _check_markers(answer: Any) -> None:
    for marker in answer.markers:
        for topic in marker.topics:
            assert not any(p.error_code for p in topic.partitions), (marker.producer_id, topic)


# -- the cleaner --------------------------------------------------------------


def cleanable_after(log: NastyPartition, round_number: int) -> int:
    """Where the cleaner comes to in a round: the segment that the last step began, 0 if an open transaction is before.

    It cleans whole segments only, and which one ends before that transaction depends on their timestamps.
    """
    count = log.cleanings[round_number]
    active = log.steps[count - 1].offset
    return active if log.stable_after(count) > active else 0


def cleaner_checkpoint(cluster: KafkaCluster) -> dict[TopicPartition, int]:
    """Up to where the cleaner of a one-node cluster has cleaned each log (LogCleanerManager.java)."""
    found: dict[TopicPartition, int] = {}
    for path in Path(cluster.work_dir).glob("node-1/data*/cleaner-offset-checkpoint"):
        for line in path.read_text().splitlines()[2:]:  # version, number of entries
            topic, partition, offset = line.split()
            found[TopicPartition(topic, int(partition))] = int(offset)
    return found


async def _cleaned(
    raw: Cluster, cluster: KafkaCluster, wanted: Mapping[TopicPartition, int], patience_s: float
) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        found = cleaner_checkpoint(cluster)
        missing = {p: offset for p, offset in wanted.items() if found.get(p, 0) < offset}
        if not missing:
            return
        assert time.monotonic() < deadline, f"not cleaned after {patience_s} s: {missing}, checkpoint {found}"
        await raw.net.sleep(0.1)


# -- what administrators do ---------------------------------------------------


async def delete_records(raw: Cluster, starts: Mapping[TopicPartition, int]) -> None:
    topic_type = DeleteRecordsRequest.DeleteRecordsTopic
    for node_id, members in (await raw.by_leader(starts)).items():
        request = DeleteRecordsRequest(
            topics=[
                topic_type(
                    name=p.topic,
                    partitions=[topic_type.DeleteRecordsPartition(partition_index=p.partition, offset=starts[p])],
                )
                for p in members
            ],
            timeout_ms=30_000,
        )
        for topic in (await raw.send(request, node_id)).topics:
            assert not any(p.error_code for p in topic.partitions), topic


async def alter_topics(raw: Cluster, changes: Mapping[str, Mapping[str, str]]) -> None:
    """Sets configurations of many topics in one request."""
    if not changes:
        return
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=_TOPIC_RESOURCE,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(name=key, config_operation=_SET, value=value)
                    for key, value in config.items()
                ],
            )
            for name, config in changes.items()
        ],
        validate_only=False,
    )
    for result in (await raw.send(request)).responses:
        assert result.error_code == 0, result
