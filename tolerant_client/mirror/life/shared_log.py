"""Up to where the two logs of a partition are the same, and which records only the old source has after that.

The roles are those of the link back (failback.py): the `target` was the original, the `source` may be its copy; after two moves
it is the other way round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import log_offsets
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS, LogSlice
from tolerant_client.mirror.batches.gaps import is_filler
from tolerant_client.mirror.logs.bisection import first_difference_of_logs
from tolerant_client.mirror.logs.reading import read_headers, read_slices

_LISTED = 1_000  # runs of offsets of lost records that are listed
_COUNTED = 1_000_000  # offsets that are searched for records
_PIECE = 10_000  # offsets whose records are in memory at once


@dataclass(frozen=True)
class SharedLog:
    """A partition that both clusters have, or only the target: its logs are the same up to `shared_until`.

    What the target has between there and `target_end` was never copied: `lost_records` committed records, whose offsets are in
    `lost_offsets` as half-open runs; at least that many unless `is_counted`.  The link will copy `to_copy` offsets.  What the
    source has deleted after `shared_until`, up to its `source_start`, nobody can copy any more.
    """

    topic: str
    partition: int
    shared_until: int
    target_end: int
    source_end: int
    lost_records: int = 0
    lost_offsets: tuple[tuple[int, int], ...] = ()
    is_proved: bool = True  # False: nothing shows where the logs stop being the same
    is_open: bool = False  # transactions are open on the target: its log will still grow
    is_counted: bool = True
    source_start: int = 0

    @property
    def is_diverged(self) -> bool:
        return self.target_end > self.shared_until

    @property
    def to_copy(self) -> int:
        return max(0, self.source_end - max(self.shared_until, self.source_start))

    @property
    def is_overtaken(self) -> bool:
        """Whether the source has deleted records that a link which adopts this log would copy next."""
        return 0 < self.shared_until < self.source_start


async def shared_partitions(source: Cluster, target: Cluster, names: Iterable[str]) -> list[TopicPartition]:
    """The partitions of topics that both clusters have."""
    here, there = await source.partitions(names), await target.partitions(names)
    return sorted(
        TopicPartition(topic, n) for topic, numbers in here.items() for n in numbers if n in there.get(topic, ())
    )


async def unshared_logs(source: Cluster, target: Cluster, names: Iterable[str]) -> list[SharedLog]:
    """Partitions with records that only the target has, of topics that both have: nobody has copied them."""
    here, there = await source.partitions(names), await target.partitions(names)
    alone = [TopicPartition(topic, n) for topic in sorted(here) for n in there.get(topic, ()) if n not in here[topic]]
    if not alone:
        return []
    starts = await target.list_offsets(dict.fromkeys(alone, EARLIEST))
    ends = await target.list_offsets(dict.fromkeys(alone, LATEST))
    stable = await target.list_offsets(dict.fromkeys(alone, LATEST), isolation_level=READ_COMMITTED)
    return [
        SharedLog(p.topic, p.partition, starts[p], ends[p], 0, is_open=stable[p] < ends[p])
        for p in alone
        if ends[p] > starts[p]
    ]


async def compare_logs(
    source: Cluster, target: Cluster, partition: TopicPartition, copied_by: Collection[int] = ()
) -> SharedLog:
    """Up to where the two logs of a partition are the same; does not count what the target has after that.

    The target was the original: only its committed records count, and at other offsets the source must have what a mirror fills
    gaps with.  No mirror writes or copies past the start of an open transaction, so nothing after it is shared.  `copied_by` are
    the producer ids of links that copied from the target to the source.
    """
    start, stable, end = (await log_offsets(target, [partition]))[partition]
    source_start, source_stable, source_end = (await log_offsets(source, [partition]))[partition]
    common = max(start, source_start), min(end, source_stable)
    is_proved = True
    if common[0] < common[1]:
        difference = await first_difference_of_logs(target, source, partition, *common, is_committed=True)
        first = common[1] if difference is None else difference
        if difference is None and not await _is_shown(source, target, partition, *common):
            is_proved = await _was_copied(source, partition, first - 1, copied_by) or (
                # Without a record of the source before there (aborted ones and markers alone) the target can lack none of it.
                await _is_bare(target, partition, start, first)
                and await _is_bare(source, partition, source_start, first)
            )
    elif end == 0 or source_stable <= start:
        first = min(end, source_stable)
    elif start == end:
        first = min(end, source_stable)
        # If the source has nothing before that end either, the target can lack none of it.
        is_proved = source_start >= end or first == end and await _was_copied(source, partition, end - 1, copied_by)
    else:
        first, is_proved = start, False  # the source has deleted everything that the target has
    topic, index = partition
    return SharedLog(
        topic, index, first, end, source_end, is_proved=is_proved, is_open=stable < end, source_start=source_start
    )


async def _is_shown(
    source: Cluster, target: Cluster, partition: TopicPartition, from_offset: int, until_offset: int
) -> bool:
    """Whether logs without a difference prove at their common end that one is a copy: a record of both, or filler."""
    span = {partition: (max(from_offset, until_offset - COMPARED_OFFSETS), until_offset)}
    original = (await read_slices(target, span, is_committed=True))[partition]
    copied = (await read_slices(source, span, is_committed=True))[partition]
    return any(offset in original.records or original.is_vacant(offset) for offset in copied.records)


async def shares_records(source: Cluster, target: Cluster, log: SharedLog) -> bool:
    """Whether both logs have the same records somewhere before `shared_until`: two topics of one name have none in common."""
    partition = TopicPartition(log.topic, log.partition)
    start = max(log.source_start, (await target.list_offsets({partition: EARLIEST}))[partition])
    return start < log.shared_until and await _is_shown(source, target, partition, start, log.shared_until)


async def _was_copied(source: Cluster, partition: TopicPartition, offset: int, copied_by: Collection[int]) -> bool:
    """Whether one of these producers wrote the records at an offset; a control batch is no proof: it may be a fence."""
    header = (await read_headers(source, {partition: offset})).get(partition)
    return header is not None and not header.is_control and header.producer_id in copied_by


async def _read_pieces(cluster: Cluster, partition: TopicPartition, at: int, until: int) -> AsyncIterator[LogSlice]:
    """What consumers see of a log between two offsets, in pieces; ends where nothing can be read now."""
    while at < until:
        piece = (await read_slices(cluster, {partition: (at, min(at + _PIECE, until))}, is_committed=True))[partition]
        yield piece
        if piece.until <= at:
            return
        at = piece.until


async def _is_bare(cluster: Cluster, partition: TopicPartition, start: int, until: int) -> bool:
    """Whether consumers see no record between two offsets of a log; False if that takes too long to tell, or cannot be read."""
    at = start
    if until - start > _COUNTED:
        return False
    async for piece in _read_pieces(cluster, partition, start, until):
        if piece.records:
            return False
        at = piece.until
    return at >= until


async def with_losses(target: Cluster, log: SharedLog) -> SharedLog:
    """With the number of committed records that only the target has, and their offsets as far as these are listed."""
    partition = TopicPartition(log.topic, log.partition)
    if not log.is_diverged:
        return log
    start = max(log.shared_until, (await target.list_offsets({partition: EARLIEST}))[partition])
    at, until = start, min(log.target_end, start + _COUNTED)
    number, runs = 0, list[tuple[int, int]]()
    async for piece in _read_pieces(target, partition, start, until):
        for offset in sorted(offset for offset, record in piece.records.items() if not is_filler(record)):
            number += 1
            if runs and runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], offset + 1)
            elif len(runs) < _LISTED:
                runs.append((offset, offset + 1))
        at = max(at, piece.until)
    return replace(log, lost_records=number, lost_offsets=tuple(runs), is_counted=at >= log.target_end)
