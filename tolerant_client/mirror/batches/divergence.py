"""Compares the target's log with the source's: by headers where they prove equality, by records elsewhere.

Only what counts is compared: committed records of the source, and everything that
a consumer of either isolation level may see on the target.  Law: a difference
needs evidence on both sides.

    source          target record   target filler   target marker   target hole
    record          must be equal   differs         differs         cleaned: fine
    marker, abort   differs         fine            fine            fine
    hole (cleaned)  fine            fine            fine            fine
"""

from __future__ import annotations

import bisect
import functools
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import crc32c
import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.admin.offsets import leader_epoch_ends
from tolerant_client.cluster.cluster import READ_COMMITTED, READ_UNCOMMITTED, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import RecordBatchError
from tolerant_client.mirror.batches.gaps import is_filler
from tolerant_client.records.read_committed import AbortedTransactions
from tolerant_client.records.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Record,
    decode_records,
    decode_section,
    read_header,
    records_section,
)
from tolerant_client.records.record_fields import scan_ends
from tolerant_client.records.record_sets import decode_messages, iter_record_sets
from tolerant_client.records.varint_columns import Doubt

COMPARED_OFFSETS = 100  # at the end of a log, and at each step of a bisection

_HEADER_READS = ((500, 16 << 10), (200, 128 << 10), (30, 1 << 20), (1, 1 << 20))  # partitions, bytes for each
_PARTITIONS_PER_READ = 50
_FIRST_READ = 1 << 20  # bytes for each partition
_LARGEST_READ = 128 << 20
_EMPTY_RESPONSES = 4
_PROBES_IN_THE_DARK = 64  # of a bisection: ranges without a record on both sides
_LENGTH_AT = 8  # in a batch
_MAGIC_AT = 16
_CHECKED_FIELDS = struct.Struct(">hiqqqhii")  # of a batch header, from its attributes on: what the CRC covers

Range = tuple[int, int]


@dataclass
class LogSlice:
    """What a log has in a range of offsets; an offset in neither `records` nor `vacant` was cleaned away.

    `vacant` are the offsets of markers and of aborted data, as ranges in order: a header of 61 bytes may claim 2^31
    offsets.  `until` is how far the log could be read.
    """

    until: int
    records: dict[int, Record] = field(default_factory=dict)
    vacant: list[range] = field(default_factory=list)

    def is_vacant(self, offset: int) -> bool:
        """Whether the offset is taken by a marker or aborted data."""
        place = bisect.bisect_right(self.vacant, offset, key=lambda span: span.start)
        return place > 0 and offset in self.vacant[place - 1]


def first_difference(source: LogSlice, target: LogSlice, accepted: Collection[range] = ()) -> int | None:
    """The lowest offset where the target's slice contradicts the source's."""
    until = min(source.until, target.until)
    offsets = sorted({*source.records, *target.records})
    for offset in offsets:
        if offset < until and not any(offset in span for span in accepted) and _differs(source, target, offset):
            return offset
    return None


def _differs(source: LogSlice, target: LogSlice, offset: int) -> bool:
    original, copied = source.records.get(offset), target.records.get(offset)
    if original is not None:
        return target.is_vacant(offset) or copied is not None and copied != original
    return copied is not None and source.is_vacant(offset) and not is_filler(copied)


def first_header(records: memoryview) -> BatchHeader | None:
    """The header of a fetch's first batch; None without one, and for message sets of v0 and v1."""
    if len(records) < HEADER_SIZE:
        return None
    header = read_header(records)
    return header if header.magic == 2 else None


def last_header(records: memoryview) -> BatchHeader | None:
    """The header of a fetch's last whole batch; None without one, and for message sets of v0 and v1."""
    last, at = -1, 0
    while len(records) - at >= HEADER_SIZE and records[at + _MAGIC_AT] == 2:
        size = LOG_OVERHEAD + int.from_bytes(records[at + _LENGTH_AT : at + LOG_OVERHEAD], "big", signed=True)
        if not HEADER_SIZE <= size <= len(records) - at:
            break
        last, at = at, at + size
    return None if last < 0 else read_header(records, last)


def first_size(records: memoryview) -> int:
    """The size in bytes of a fetch's first batch or message, whether or not all of it came."""
    if len(records) < LOG_OVERHEAD:
        return LOG_OVERHEAD  # at least
    return LOG_OVERHEAD + int.from_bytes(records[_LENGTH_AT:LOG_OVERHEAD], "big", signed=True)


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
                    _take(found, part, unread[part.partition][1])
                    if found.until >= (part.last_stable_offset if is_committed else part.high_watermark):
                        at_end.add(part.partition)

    await cluster.insist("comparing records", ask)
    return at_end


def _take(found: LogSlice, part: FetchedPartition, until: int) -> None:
    """Extends a slice by the whole batches of a response."""
    aborted = AbortedTransactions(part.aborted)
    start = found.until
    for header, view in iter_record_sets(part.records, from_offset=start):
        is_aborted = aborted.cover(header, view)
        if header.base_offset >= until:
            found.until = until
            return
        if header.next_offset <= start:
            continue
        span = range(max(header.base_offset, start), min(header.next_offset, until))
        if is_aborted or (header.is_control and header.record_count):
            found.vacant.append(span)
        elif not header.is_control:
            found.records.update((r.offset, r) for r in tail_records(header, view, start) if r.offset in span)
        found.until = min(header.next_offset, until)


def tail_records(header: BatchHeader, view: memoryview, from_offset: int) -> Iterator[Record]:
    """The records of a batch or legacy set; those before `from_offset` are left out if that saves work."""
    if header.magic < 2:
        yield from (record for record, _ in decode_messages(header, view))
        return
    skipped = from_offset - header.base_offset
    if skipped <= 0 or header.record_count != header.last_offset_delta + 1:
        yield from decode_records(view)
        return
    # Without holes the offsets count the records: only record lengths have to be read.
    section = records_section(header, view)
    try:
        *_, position = scan_ends(section, 0, skipped)
    except (IndexError, Doubt):
        raise RecordBatchError("record length beyond the end of the batch", header.base_offset) from None
    rest = header._replace(record_count=header.record_count - skipped)
    yield from (record for record, _ in decode_section(rest, section[position:]))


async def first_difference_of_logs(
    source: Cluster,
    target: Cluster,
    partition: TopicPartition,
    from_offset: int,
    until_offset: int,
    accepted: Collection[range] = (),
    *,
    is_committed: bool = False,
) -> int | None:
    """The lowest offset in [from_offset, until_offset) where the logs differ, if they differ at the end at all.

    By bisection: a foreign batch shifts everything after it, and a truncated source has other records from there on.  Where
    there is nothing to compare, as in a gap, both sides are searched.  With `is_committed` the target may be the original:
    records of its aborted transactions do not count.
    """
    in_the_dark = _PROBES_IN_THE_DARK

    async def probe(start: int) -> tuple[int | None, bool]:
        """The difference in the range from `start` on, and whether there was anything to compare."""
        spans = {partition: (start, min(start + COMPARED_OFFSETS, until_offset))}
        original = (await read_slices(source, spans, is_committed=True))[partition]
        copied = (await read_slices(target, spans, is_committed=is_committed))[partition]
        return first_difference(original, copied, accepted), bool(original.records.keys() & copied.records.keys())

    async def search(low: int, high: int) -> int | None:
        nonlocal in_the_dark
        if low >= high:
            return None
        start = (low + high) // 2
        differing, is_seen = await probe(start)
        if differing is None and not is_seen:
            in_the_dark -= 1
        if differing is not None or not is_seen and in_the_dark >= 0:
            before = await search(low, start)
            if before is not None or differing is not None:
                return differing if before is None else before
        return await search(start + COMPARED_OFFSETS, high)

    last = max(from_offset, until_offset - COMPARED_OFFSETS)
    if from_offset >= until_offset or (found := (await probe(last))[0]) is None:
        return None
    before = await search(from_offset, last)
    return found if before is None else before


async def agreement_start(
    source: Cluster, target: Cluster, partition: TopicPartition, from_offset: int, until_offset: int
) -> int:
    """The offset in [from_offset, until_offset] from which on the logs agree, although they differ before it.

    By bisection: a topic that was created again has other records up to where its copying resumed.  A range without a
    record on both sides counts as differing.
    """
    low, high = from_offset, until_offset
    while low < high:
        start = max(low, (low + high - COMPARED_OFFSETS) // 2)
        spans = {partition: (start, min(start + COMPARED_OFFSETS, high))}
        original = (await read_slices(source, spans, is_committed=True))[partition]
        copied = (await read_slices(target, spans, is_committed=False))[partition]
        differing = [offset for offset in {*original.records, *copied.records} if _differs(original, copied, offset)]
        if differing:
            low = max(differing) + 1
        elif original.records.keys() & copied.records.keys():
            high = start
        else:
            low = spans[partition][1]
    return high


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


def is_copy(copied: BatchHeader, original: BatchHeader) -> bool:
    """True when the headers prove that two batches have the same offsets and the same records.

    CRC-32C is linear: if the records are equal, the two checksums differ by
    exactly what the headers' difference contributes.
    """
    if _shape(copied) != _shape(original) or copied.codec != original.codec or copied.size != original.size:
        return False
    ours, theirs = (_CHECKED_FIELDS.pack(h.attributes, *h[6:]) for h in (copied, original))
    difference = bytes(a ^ b for a, b in zip(ours, theirs)) + bytes(copied.size - HEADER_SIZE)
    return bool(copied.crc ^ original.crc == crc32c.crc32c(difference) ^ crc32c.crc32c(bytes(len(difference))))


def _shape(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.record_count,
    )
