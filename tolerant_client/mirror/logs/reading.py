"""Reads a log from its leaders: headers of batches, slices of records, where an election truncated it.

Law: what is absent from a result was not read; it is never evidence that the log has nothing there.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.admin.offsets import leader_epoch_ends
from tolerant_client.cluster.cluster import READ_COMMITTED, READ_UNCOMMITTED, Cluster
from tolerant_client.mirror.batches.divergence import LogSlice, Range, first_header
from tolerant_client.records.record_batch import BatchHeader

_HEADER_READS = ((500, 16 << 10), (200, 128 << 10), (30, 1 << 20), (1, 1 << 20))  # partitions, bytes for each
_PARTITIONS_PER_READ = 50
_FIRST_READ = 1 << 20  # bytes for each partition
_LARGEST_READ = 128 << 20
_EMPTY_RESPONSES = 4


async def read_headers(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, BatchHeader]:
    """The header of the batch that contains each offset; partitions that failed, or have older formats, are absent.

    A response leaves out every batch above the limit but the very first (ReplicaManager.scala, firstEntryIncomplete).  So
    the rest is fetched with larger limits, and finally one by one.
    """
    headers: dict[TopicPartition, BatchHeader] = {}

    async def ask(node: int, chunk: Sequence[TopicPartition], limit: int) -> None:
        positions = {p: offsets[p] for p in chunk if p not in headers}
        fetched = await cluster.fetch(node, positions, max_wait_ms=0, partition_max_bytes=limit)
        for part in fetched:
            header = None if part.error_code else first_header(part.records)
            if header is not None and header.base_offset <= positions.get(part.partition, -1) <= header.last_offset:
                headers[part.partition] = header
        if any(part.error_code for part in fetched):
            await cluster.refresh()

    for node, members in (await cluster.by_leader(offsets)).items():
        for size, limit in _HEADER_READS:
            for chunk in chunks([p for p in members if p not in headers], size):
                await cluster.insist("reading the last batches", functools.partial(ask, node, chunk, limit))
    return headers


async def require_readable(cluster: Cluster, partitions: Collection[TopicPartition]) -> None:
    """Raises TopicAuthorizationFailedError for what we may not read, which read_headers omits like any failure.

    Partitions without a leader are skipped.
    """

    async def ask(node: int, members: Sequence[TopicPartition]) -> None:
        for part in await cluster.fetch(node, dict.fromkeys(members, 0), max_wait_ms=0, partition_max_bytes=1):
            if part.error_code == Errors.TopicAuthorizationFailedError.errno:
                raise Errors.TopicAuthorizationFailedError(
                    f"Fetch of {part.partition.topic}-{part.partition.partition}"
                )

    if partitions:
        await cluster.track({p.topic for p in partitions})
    by_node: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        if (node := cluster.known_leader(partition)) is not None:
            by_node.setdefault(node, []).append(partition)
    for node, members in by_node.items():
        for chunk in chunks(members, _PARTITIONS_PER_READ):
            await cluster.insist("reading the logs", functools.partial(ask, node, chunk))


async def has_nothing_at(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
    """The partitions where the cleaner has left no batch at an offset or after it."""
    found: set[TopicPartition] = set()
    for partition, offset in offsets.items():

        async def ask(partition: TopicPartition = partition, offset: int = offset) -> None:
            node = await cluster.leader(partition)
            # In a request for one partition its first batch is always sent.
            responses = [await cluster.fetch(node, {partition: offset}, max_wait_ms=0) for _ in range(_EMPTY_RESPONSES)]
            if all(part.error_code == 0 and not len(part.records) for response in responses for part in response):
                found.add(partition)

        await cluster.insist("reading the ends of logs", ask)
    return found


async def read_slices(
    cluster: Cluster, ranges: Mapping[TopicPartition, Range], *, is_committed: bool, first_bytes: int = _FIRST_READ
) -> dict[TopicPartition, LogSlice]:
    """What each log has in its range; with `is_committed` up to the last stable offset, without aborted records.

    One request for each broker and chunk of partitions, repeated as needed; the first ones fetch `first_bytes` of each.
    """
    slices = {p: LogSlice(from_offset) for p, (from_offset, _) in ranges.items()}
    for chunk in chunks(ranges, _PARTITIONS_PER_READ):
        unread = {p: ranges[p] for p in chunk if ranges[p][0] < ranges[p][1]}
        limit, in_vain = first_bytes, 0
        while unread and in_vain < _EMPTY_RESPONSES:
            before = {p: slices[p].until for p in unread}
            at_end = await _read_once(cluster, slices, unread, limit, is_committed)
            unread = {p: r for p, r in unread.items() if slices[p].until < r[1] and p not in at_end}
            if unread and all(slices[p].until == before[p] for p in unread):
                in_vain += 1
                limit = min(limit * 8, _LARGEST_READ)  # brokers before 0.10.1 cut a larger batch
    return slices


async def _read_once(
    cluster: Cluster,
    slices: Mapping[TopicPartition, LogSlice],
    unread: Mapping[TopicPartition, Range],
    limit: int,
    is_committed: bool,
) -> set[TopicPartition]:
    """Extends each slice by one fetch; returns the partitions that have no more to read now."""
    at_end: set[TopicPartition] = set()

    async def ask() -> None:
        remaining = [p for p in unread if slices[p].until < unread[p][1] and p not in at_end]
        for node, members in (await cluster.by_leader(remaining)).items():
            fetched = await cluster.fetch(
                node,
                {p: slices[p].until for p in members},
                max_wait_ms=0,
                partition_max_bytes=limit,
                isolation_level=READ_COMMITTED if is_committed else READ_UNCOMMITTED,
            )
            for part in fetched:
                if part.error_code == Errors.OffsetOutOfRangeError.errno:
                    at_end.add(part.partition)  # retention has just removed it, or an election: nothing to compare
                elif part.error_code:
                    raise Errors.for_code(part.error_code)(
                        f"Fetch of {part.partition.topic}-{part.partition.partition}"
                    )
                elif part.partition in unread:
                    found = slices[part.partition]
                    found.extend(part, unread[part.partition][1])
                    if found.until >= (part.last_stable_offset if is_committed else part.high_watermark):
                        at_end.add(part.partition)

    await cluster.insist("comparing records", ask)
    return at_end


async def source_truncations(
    source: Cluster, copied: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Where an election truncated the source's logs below what was copied (KIP-101, KIP-320, incident 4).

    `copied` has the leader epoch of the last copied batch and the offset after
    it.  The leader tells where that epoch ends in its log; what was copied from
    there on is gone.  Partitions without a truncation are absent, and all
    partitions if the brokers (before 2.1) cannot tell.
    """
    ends = await leader_epoch_ends(source, {p: epoch for p, (epoch, _) in copied.items() if epoch >= 0})
    return {p: end for p, end in ends.items() if p in copied and 0 <= end < copied[p][1]}
