"""Looks at both clusters of a link for what its tasks do not tell: log ends, ages of what is not copied, sizes.

Laws:
- A look never waits for one partition: what has no leader is left out.
- What a look costs is bounded: one request a broker for the ends, one of about a MiB for the ages of MOST_AGES.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import kafka.errors as Errors
from kafka.protocol.admin.cluster import DescribeLogDirsRequest
from kafka.structs import TopicPartition

from tolerant_client.raw import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, RawCluster
from tolerant_client.record_batch import HEADER_SIZE, read_header

MOST_AGES = 64
_AGES_MAX_BYTES = 1 << 20
_MAGIC_AT, _BATCHES = 16, 2  # older formats have no header of a batch


async def stable_ends(source: RawCluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """How far each partition can be copied; those that have no leader, or are not there, are absent."""
    led = await _led(source, partitions)
    return await source.list_offsets(dict.fromkeys(led, LATEST), isolation_level=READ_COMMITTED)


async def log_ends(target: RawCluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Where the logs end (high watermarks); those that have no leader, or are not there, are absent."""
    led = await _led(target, partitions)
    return await target.list_offsets(dict.fromkeys(led, LATEST), isolation_level=READ_UNCOMMITTED)


def leaderless(cluster: RawCluster, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions without a leader, as far as is known without asking; one that is gone, or was never there, is none."""
    metadata = cluster.manager.cluster
    without = [p for p in partitions if cluster.known_leader(p) is None]
    return [p for p in without if p.partition in (metadata.partitions_for_topic(cluster.wire_topic(p.topic)) or ())]


async def written_ms(source: RawCluster, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """When the batch at each offset was written, as its first record says; absent where that is not told.

    Asks for the first MOST_AGES of them.  A broker leaves out batches above the limit but the very first one of an
    answer (KIP-74): give those in another order the next time.
    """
    found: dict[TopicPartition, int] = {}
    chosen = list(positions)[:MOST_AGES]
    for node, members in (await source.by_leader(await _led(source, chosen))).items():
        fetched = await source.fetch(
            node,
            {p: positions[p] for p in members},
            max_wait_ms=0,
            max_bytes=_AGES_MAX_BYTES,
            partition_max_bytes=_AGES_MAX_BYTES // 16,
        )
        for part in fetched:
            if part.error_code == 0 and len(part.records) >= HEADER_SIZE and part.records[_MAGIC_AT] == _BATCHES:
                header = read_header(part.records)
                time_ms = header.max_timestamp if header.has_log_append_time else header.base_timestamp
                if time_ms >= 0:
                    found[part.partition] = time_ms
    return found


async def bytes_per_offset(
    source: RawCluster, partitions: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    """What an offset takes on the source's disks on average (DescribeLogDirs, KIP-113); absent where that is not known.

    Needs Describe on the cluster; without it nothing is known.
    """
    led = await _led(source, partitions)
    starts = await source.list_offsets(dict.fromkeys(led, EARLIEST))
    sizes: dict[TopicPartition, int] = {}
    for node, members in (await source.by_leader(led)).items():
        answer = await source.send(DescribeLogDirsRequest(topics=_by_topic(source, members), max_version=4), node)
        for folder in answer.results:
            for topic in folder.topics:
                for part in topic.partitions:
                    if not part.is_future_key:
                        sizes[TopicPartition(source.topic_of(topic.name), part.partition_index)] = part.partition_size
    return {p: sizes[p] / (ends[p] - start) for p, start in starts.items() if p in sizes and ends.get(p, 0) > start}


def _by_topic(source: RawCluster, partitions: Iterable[TopicPartition]) -> list[Any]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    kind = DescribeLogDirsRequest.DescribableLogDirTopic
    return [kind(topic=source.wire_topic(topic), partitions=indexes) for topic, indexes in by_topic.items()]


async def _led(cluster: RawCluster, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    await cluster.connect(cluster.patience_ms)
    await cluster.track({p.topic for p in partitions})
    led = [p for p in partitions if cluster.known_leader(p) is not None]
    if len(led) < len(partitions):
        try:
            await cluster.refresh()
        except Errors.KafkaError:
            return led
        led = [p for p in partitions if cluster.known_leader(p) is not None]
    return led
