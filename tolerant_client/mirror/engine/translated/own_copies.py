"""What the producer of a link's copies has in the target's log: which of it was committed, and whether the last copy is still there.

Laws:
- Copies are in transactions (copy_transaction.py): a batch without one, where the map has the last copy, is of others, who wrote there
  after the log had lost it.  That header is all that whoever foresees the mirror reads of a log; the mirror compares the record, too.
- A transaction is over at its producer's next marker, which says how it ended: what others have open beside it hides nothing of it.
- A copy, and the row of the map that tells of it, are in one transaction.  So a committed copy after the last one that the map tells of,
  or one without any row, shows that the map has lost rows: then what was copied is unknown, never nothing (map_topic.py).
- A row is written before a log's first copy, so that of a log without a row even an aborted copy shows it.
- Others may have written much there: MOST_BYTES are read, and what was not read shows nothing.
- Where a log has lost the marker of an aborted copy, the producer's next commit would commit that copy, too: what is open there once
  the producer's transactions are over (InitProducerId) has to be aborted before.  The log's leader says what is open (KIP-664); a log
  that is read in part does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.offset_map import MapRow
from tolerant_client.records.record_batch import ABORT, BatchHeader, control_type
from tolerant_client.records.record_sets import iter_record_sets

MOST_BYTES: Final = 1 << 20  # of one log
_PIECE: Final = 128 << 10  # bytes, since many partitions may read at the same time


class OwnTransactions:
    """Follows the transactions of one producer through a log.  Pure."""

    def __init__(self, producer_id: int) -> None:
        self._producer_id = producer_id
        self._open_at: int | None = None  # where the first batch begins of the one that is not over yet

    def feed(self, header: BatchHeader, batch: memoryview) -> int | None:
        """Takes the next batch of the log; where the copies begin that it commits.  Raises RecordBatchError for damage."""
        if header.producer_id != self._producer_id:
            return None
        if not header.is_control:
            if self._open_at is None and header.record_count:
                self._open_at = header.base_offset
            return None
        ended, self._open_at = self._open_at, None
        return ended if header.record_count and control_type(batch) != ABORT else None


async def committed_copy(
    target: Cluster, partition: TopicPartition, start: int, end: int, producer_id: int
) -> int | None:
    """The offset of a copy in [start, end) that this producer has committed, as far as the log is read.  Raises KafkaError."""
    own = OwnTransactions(producer_id)
    async for header, batch in _batches(target, partition, start, end):
        if (found := own.feed(header, batch)) is not None:
            return found
    return None


async def is_uncommitted(target: Cluster, partition: TopicPartition, offset: int, end: int, producer_id: int) -> bool:
    """Whether what this producer has at an offset of a log that ends at `end` was aborted, or has no marker.  Raises KafkaError.

    Call it after the producer's transactions are over.
    """
    until = offset
    async for header, batch in _batches(target, partition, offset, end):
        if header.producer_id == producer_id and header.is_control and header.record_count:
            return control_type(batch) == ABORT
        until = header.next_offset
    return until >= end


async def followed(target: Cluster, rows: Mapping[TopicPartition, MapRow]) -> dict[TopicPartition, int]:
    """The logs in which the last copy that these rows tell of, and the next batch, are of one producer: its id.  Raises KafkaError.

    What others write there, which may be much, costs one header.
    """
    last = await read_headers(target, {p: row.target_until - 1 for p, row in rows.items()})
    after = await read_headers(target, {p: rows[p].target_until + 1 for p in last})  # behind the marker
    own = {p: header for p, header in after.items() if header.producer_id == last[p].producer_id}
    return {p: header.producer_id for p, header in own.items() if header.is_transactional and not header.is_control}


async def replaced(target: Cluster, last: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
    """The logs where others have written in place of their last copies, which were at these offsets.  Raises KafkaError."""
    headers = await read_headers(target, last) if last else {}
    return frozenset(p for p, header in headers.items() if not header.is_transactional)


async def _batches(
    target: Cluster, partition: TopicPartition, start: int, end: int
) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
    at, size = max(start, (await target.list_offsets({partition: EARLIEST}))[partition]), 0
    while at < end and size < MOST_BYTES:
        records = (await fetch_alone(target, partition, at, _PIECE)).records
        before, size = at, size + len(records)
        for header, batch in iter_record_sets(records, from_offset=at):
            if header.next_offset > at:
                yield header, batch
                at = header.next_offset
        if at == before:
            return  # nothing more is shown
