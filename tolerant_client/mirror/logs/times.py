"""The first record of a time or later, where a broker tells the offset of a marker.

Brokers list offsets by the timestamps of batches, of markers too (LogSegment.java, findOffsetByTimestamp), and a marker has the
time at which its transaction ended.  So where records have the times of their events, a marker is younger than the records
that follow it; and the gaps of a copy are younger than all that it copied.

Law: the log is read from what the broker told on.  What a marker or filler of a mirror hides costs its reading, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.cluster import Cluster, OffsetAndEpoch
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.batches.divergence import tail_records
from tolerant_client.mirror.batches.gaps import is_filler
from tolerant_client.records.record_sets import iter_record_sets

_PARTITIONS_PER_READ = 50
_PARTITION_BYTES = 1 << 20


async def first_records(
    cluster: Cluster,
    told: Mapping[TopicPartition, OffsetAndEpoch],
    ends: Mapping[TopicPartition, int],
    time_ms: int,
) -> dict[TopicPartition, OffsetAndEpoch]:
    """The first record at or after each offset and below `ends` that is not older than `time_ms`; a partition without one is absent.

    What the broker told is kept, with its leader epoch, unless a marker or filler is there.  Raises what Cluster.insist does.
    """
    found: dict[TopicPartition, OffsetAndEpoch] = {}
    unread = {p: at.offset for p, at in told.items() if at.offset < ends[p]}

    def read(part: FetchedPartition) -> None:
        p = part.partition
        for header, view in iter_record_sets(part.records, from_offset=unread[p]):
            if not header.is_control and header.max_timestamp >= time_ms:
                for record in tail_records(header, view, unread[p]):
                    if unread[p] <= record.offset < ends[p] and record.timestamp >= time_ms and not is_filler(record):
                        is_told = record.offset == told[p].offset
                        found[p] = told[p] if is_told else OffsetAndEpoch(record.offset, header.partition_leader_epoch)
                        del unread[p]
                        return
            unread[p] = max(unread[p], header.next_offset)
        if unread[p] >= ends[p]:
            del unread[p]

    async def read_once(members: Sequence[TopicPartition]) -> None:
        before = {p: unread[p] for p in members if p in unread}  # of a chunk that is read again some may be found
        for node, theirs in (await cluster.by_leader(before)).items():
            positions = {p: unread[p] for p in theirs}
            for part in await cluster.fetch(node, positions, max_wait_ms=0, partition_max_bytes=_PARTITION_BYTES):
                if part.error_code:
                    name = f"{part.partition.topic}-{part.partition.partition}"
                    raise Errors.for_code(part.error_code)(f"Fetch of {name}")
                read(part)
        if before and all(unread.get(p) == at for p, at in before.items()):
            raise Errors.OffsetNotAvailableError("the leaders returned no record below the ends of their logs")

    while unread:
        for chunk in chunks(list(unread), _PARTITIONS_PER_READ):
            await cluster.insist("reading the times of records", partial(read_once, chunk))
    return found
