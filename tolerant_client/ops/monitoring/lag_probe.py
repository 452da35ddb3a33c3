"""Looks at both clusters of a link for what its tasks do not tell: log ends, ages of what is not copied, sizes.

Laws:
- A look never waits for one partition: what has no leader, or one that does not respond, is left out.
- What a look costs is bounded: one request a broker for the ends, one of about a MiB for the ages of MOST_AGES.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.log_dirs import describe_log_dirs
from tolerant_client.cluster.admin.offsets import LedOffsets, list_led_offsets
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.records.record_batch import HEADER_SIZE, read_header

MOST_AGES = 64
_AGES_MAX_BYTES = 1 << 20
_MAGIC_AT, _BATCHES = 16, 2  # older formats have no header of a batch


class SourceEnds(NamedTuple):
    """High watermarks and last stable offsets of partitions, and why others could not be asked."""

    ends: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]
    left_out: Mapping[TopicPartition, str]


async def source_ends(source: Cluster, partitions: Collection[TopicPartition]) -> SourceEnds:
    """Where the source's logs end, and how far each partition can be copied.

    The high watermark is asked first, so that what is appended between does not look like an open transaction.
    """
    high = await log_ends(source, partitions)
    stable = await list_led_offsets(
        source, dict.fromkeys(high.offsets, LATEST), isolation_level=READ_COMMITTED, looks=1
    )
    ends = {p: max(high.offsets[p], offset) for p, offset in stable.offsets.items()}
    return SourceEnds(ends, stable.offsets, {**high.left_out, **stable.left_out})


async def log_ends(cluster: Cluster, partitions: Collection[TopicPartition]) -> LedOffsets:
    """Where the logs end (high watermarks), and why those of others are not known."""
    await cluster.connect(cluster.patience_ms)
    found = await list_led_offsets(cluster, dict.fromkeys(partitions, LATEST), looks=1)
    if found.left_out:
        cluster.manager.cluster.request_update()  # for the next look
    return found


async def written_ms(source: Cluster, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
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
    source: Cluster, partitions: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    """What an offset takes on the source's disks on average (DescribeLogDirs, KIP-113); absent where that is not known.

    Needs Describe on the cluster; without it nothing is known.
    """
    led = await _led(source, partitions)
    starts = await source.list_offsets(dict.fromkeys(led, EARLIEST))
    sizes: dict[TopicPartition, int] = {}
    for node, members in (await source.by_leader(led)).items():
        for one in await describe_log_dirs(source, node, members):
            sizes.update(one.sizes)
    return {p: sizes[p] / (ends[p] - start) for p, start in starts.items() if p in sizes and ends.get(p, 0) > start}


async def _led(cluster: Cluster, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
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
