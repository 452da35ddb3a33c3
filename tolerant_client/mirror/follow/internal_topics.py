"""MirrorMaker 2's own topics of one compacted partition: making them and writing to them.

What is written here may be written twice: the last record of a key counts, and a repeat is equal to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.plan import (
    CLEANUP_POLICY,
    TIMESTAMP_AFTER,
    TIMESTAMP_BEFORE,
    TIMESTAMP_TYPE,
    TopicSpec,
)
from tolerant_client.mirror.state.topics import create_topics, fit_topics
from tolerant_client.records.record_batch import Record, encode_batch

_BATCH_BYTES = 500_000
_RECORD_OVERHEAD = 30
_LONG_MAX = str(2**63 - 1)


async def write_records(
    cluster: Cluster, topic: str, records: Iterable[tuple[bytes, bytes]], now_ms: int, *, replication_factor: int
) -> None:
    """Appends (key, value) records, and returns once all in-sync replicas have them; makes the topic where it is missing.

    It gets as many replicas as there are brokers, if these are fewer.  Raises OptionError where this is not
    allowed, ClusterUnreachableError.
    """
    partition = TopicPartition(topic, 0)

    async def append(batch: bytes) -> None:
        node = await cluster.leader(partition)
        (answer,) = await cluster.produce_and_wait(node, {partition: memoryview(batch)})
        if answer.error_code:
            raise Errors.for_code(answer.error_code)(f"appending to {topic}")

    try:
        if topic not in await cluster.partitions([topic]):
            await _create(cluster, topic, replication_factor)
        for batch in _batches(records, now_ms):
            await cluster.insist(f"writing {topic}", lambda batch=batch: append(batch))  # type: ignore[misc]
    except (Errors.TopicAuthorizationFailedError, Errors.ClusterAuthorizationFailedError) as error:
        raise OptionError(
            f"Topic {topic} of the {cluster.name} cannot be written ({error}); grant Create, Describe and Write on it, or"
            " switch off what writes it"
        ) from error


async def _create(cluster: Cluster, topic: str, replication_factor: int) -> None:
    await cluster.refresh()
    brokers = len(cluster.manager.cluster.brokers())
    replicas = min(replication_factor, brokers) if replication_factor > 0 else -1  # the broker's default (KIP-464)
    config = {
        CLEANUP_POLICY: "compact",
        TIMESTAMP_TYPE: "CreateTime",
        TIMESTAMP_BEFORE: _LONG_MAX,  # the clocks of the two clusters may differ
        TIMESTAMP_AFTER: _LONG_MAX,
    }
    topics, _ = await fit_topics(cluster, [TopicSpec(topic, 1, replicas, config)])
    await create_topics(cluster, topics)


def _batches(records: Iterable[tuple[bytes, bytes]], now_ms: int) -> Iterator[bytes]:
    batch: list[Record] = []
    size = 0
    for key, value in records:
        if batch and size + len(key) + len(value) > _BATCH_BYTES:
            yield encode_batch(batch)
            batch, size = [], 0
        batch.append(Record(0, now_ms, key, value))
        size += len(key) + len(value) + _RECORD_OVERHEAD
    if batch:
        yield encode_batch(batch)
