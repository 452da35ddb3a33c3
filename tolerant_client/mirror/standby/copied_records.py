"""Whether a link has copied records whose producer was told nothing of them.

Laws:
- A copy has the offset, key, value and headers of its record, and its timestamp, or that of the append where the source gives
  times (LogAppendTime).  It has the producer id of its link: nothing tells it from another record with the same content and time.
- Only what lies before the end of the copies counts: after it others have written.
- A log is read from where the producer's last acknowledged record is, or else from the first record that may be one of the
  sought by its timestamp.  The clock of a broker that gives times is at most CLOCKS_MS behind the producer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.mirror.batches.divergence import tail_records
from tolerant_client.records.record_batch import Record
from tolerant_client.records.record_sets import iter_record_sets
from tolerant_client.stock.moved_batches import Sought

CLOCKS_MS: Final = 60_000
_PATIENCE_MS = 5_000


class Search:
    """Looks for batches in the records of one log, in the order of both; `found` are the offsets of the first ones.  Does no I/O."""

    def __init__(self, sought: Sought) -> None:
        self.found: list[int] = []
        self._left = deque(sought.batches)
        # From when on a copy may have the time of its append.
        self._appended_ms = None if sought.keeps_times else sought.since_ms - CLOCKS_MS
        self._least_ms = least_ms(sought)
        self._last = deque[Record]()  # the last records, whose offsets follow one another
        self._until = -1

    @property
    def is_over(self) -> bool:
        """Whether all of them are found."""
        return not self._left

    def read(self, records: memoryview, from_offset: int, end: int) -> int:
        """Takes a response's records from an offset on, up to `end`; returns the offset that follows."""
        for header, view in iter_record_sets(records, from_offset=from_offset):
            if header.base_offset >= end:
                return end
            if header.max_timestamp >= self._least_ms and not header.is_control:
                for record in tail_records(header, view, from_offset):
                    if record.offset < end:
                        self._add(record)
            from_offset = header.next_offset
        return from_offset

    def _add(self, record: Record) -> None:
        if self.is_over or record.offset <= self._until:  # read again after a failure
            return
        if record.offset != self._until + 1:
            self._last.clear()
        self._until = record.offset
        self._last.append(record)
        batch = self._left[0]
        while len(self._last) > len(batch):
            self._last.popleft()
        if len(self._last) == len(batch) and all(map(self._is_copy, self._last, batch)):
            self.found.append(self._last[0].offset)
            self._left.popleft()
            self._last.clear()

    def _is_copy(self, found: Record, sought: Record) -> bool:
        if (found.key, found.value, found.headers) != (sought.key, sought.value, sought.headers):
            return False
        is_appended = self._appended_ms is not None and found.timestamp >= self._appended_ms
        return is_appended or found.timestamp == sought.timestamp


def least_ms(sought: Sought) -> int:
    """The least timestamp that the copies of these records may have, in ms."""
    times = [record.timestamp for batch in sought.batches for record in batch]
    return max(0, min(times if sought.keeps_times else [sought.since_ms - CLOCKS_MS, *times]))


async def find_copies(
    net: Any, standby: Mapping[str, Any], sought: Mapping[TopicPartition, Sought], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[int]]:
    """The offsets of the sought batches that the cluster at `standby` has below `ends`, as stock/moved_batches.py defines.

    Raises KafkaError.
    """
    cluster = Cluster(standby, net, name="standby", patience_ms=_PATIENCE_MS)
    try:
        starts = {p: one.from_offset for p, one in sought.items()}
        starts |= await cluster.list_offsets({p: least_ms(one) for p, one in sought.items() if one.from_offset < 0})
        return {p: await _find(cluster, p, one, starts[p], ends[p]) for p, one in sought.items()}
    finally:
        cluster.close()


async def _find(cluster: Cluster, partition: TopicPartition, sought: Sought, start: int, end: int) -> list[int]:
    search = Search(sought)
    offset = end if start < 0 else start  # -1: nothing is as young as that
    while offset < end and not search.is_over:
        read_from = offset

        async def read(read_from: int = read_from) -> int:
            part = await fetch_alone(cluster, partition, read_from)
            return search.read(part.records, read_from, end)

        try:
            offset = await cluster.insist("reading what was copied", read)
        except Errors.OffsetOutOfRangeError:
            break
        if offset == read_from:
            raise Errors.OffsetNotAvailableError(f"{partition.topic}-{partition.partition}: not all is replicated")
    return search.found
