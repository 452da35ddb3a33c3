"""What the mirror's own topics on a target have in common: one partition, as durable as the target can, written rarely.

Control, claims and ledger; each says itself what its records mean.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.mirror.batches.divergence import read_slices
from tolerant_client.mirror.state.plan import TIMESTAMP_AFTER, TIMESTAMP_BEFORE, TIMESTAMP_TYPE, TopicSpec
from tolerant_client.mirror.state.topics import create_topics, fit_topics
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import Record, encode_batch

_LONG_MAX = str(2**63 - 1)


async def has_topic(cluster: Cluster, topic: str) -> bool:
    """Whether it is there; asked each time, since of a topic that was deleted nobody knows the end."""
    return topic in await cluster.partitions([topic])


async def create_own_topic(target: Cluster, topic: str, config: Mapping[str, str], *, insync_of_two: int) -> None:
    """Makes the topic where it is not there; one that is stays as it is.

    `insync_of_two`: how many replicas must have a record where the target has two brokers.  Raises OptionError.
    """
    await target.connect()
    replicas = min(3, len(target.manager.cluster.brokers()))
    durable = {
        "min.insync.replicas": {1: "1", 2: str(insync_of_two)}.get(replicas, "2"),
        TIMESTAMP_TYPE: "CreateTime",
        TIMESTAMP_BEFORE: _LONG_MAX,
        TIMESTAMP_AFTER: _LONG_MAX,
    }
    topics, _ = await fit_topics(target, [TopicSpec(topic, 1, replicas, {**durable, **config})])
    await create_topics(target, topics)


async def append_own(target: Cluster, topic: str, key: str, value: bytes | None) -> int:
    """Appends one record and returns its offset, once all in-sync replicas have it; tried once.

    It may be there although an error is raised, or twice, so it must say the same then.
    """
    partition = TopicPartition(topic, 0)
    batch = encode_batch([Record(0, int(time.time() * 1000), key.encode(), value)], codec=codecs.GZIP)
    node = await target.leader(partition)
    (produced,) = await target.produce_and_wait(node, {partition: memoryview(bytearray(batch))})
    raise_for(produced.error_code, f"appending to {topic}")
    return int(produced.base_offset)


async def end_of(cluster: Cluster, topic: str) -> int:
    """Where the topic's log ends."""
    partition = TopicPartition(topic, 0)
    return (await cluster.list_offsets({partition: LATEST}))[partition]


async def read_own(cluster: Cluster, topic: str, start: int, end: int, what: str) -> list[Record]:
    """The records from `start` on that are still there, all up to `end`; `what` names them in errors."""
    partition = TopicPartition(topic, 0)

    async def read() -> list[Record]:
        first = max(start, (await cluster.list_offsets({partition: EARLIEST}))[partition])
        if first >= end:
            return []
        found = (await read_slices(cluster, {partition: (first, end)}, is_committed=False))[partition]
        if found.until < end:  # an answer that said so falsely, or a log that was made anew
            raise Errors.OffsetNotAvailableError(f"{topic} could be read up to {found.until} of {end} only")
        return [record for _, record in sorted(found.records.items())]

    return await cluster.insist(f"reading {what}", read)
