"""Whether a link has copied records whose producer was told nothing of them.

Laws:
- A copy has the offset, key, value and headers of its record, and its timestamp, or that of the append where the source gives
  times (LogAppendTime).  It has the producer id of its link: nothing tells it from another record with the same content and time.
- Only what lies before the end of the copies counts: after it others have written.  In the producer's own cluster all that its log has
  counts.
- A log is read from where the producer's last acknowledged record is, or else from the first record that may be one of the
  sought by its timestamp.  The clock of a broker that gives times is at most CLOCKS_MS behind the producer's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.mirror.batches.divergence import tail_records
from tolerant_client.records.record_batch import Record
from tolerant_client.records.record_sets import iter_record_sets
from tolerant_client.stock.sought_batches import Sought, Tell

CLOCKS_MS: Final = 60_000
LEAST_BYTES: Final = 64 << 10  # of a fetch: others' records may lie between
MOST_BYTES: Final = 4 << 20
_PATIENCE_MS = 5_000
_AT_ONCE = 20  # partitions


class Search(ABC):
    """Looks for the batches of `sought` in the records of one log; `found` are the offsets of those that are there.  Does no I/O."""

    def __init__(self, sought: Sought) -> None:
        self.found: list[int] = []
        self._has_append_times = sought.appended_since_ms is not None
        self._least_ms = least_ms(sought)

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether what follows in the log tells nothing more."""

    @abstractmethod
    def _take(self, record: Record) -> None:
        """The next record of the log, or one that was read before, after a failure."""

    def read(self, records: memoryview, from_offset: int, end: int) -> int:
        """Takes a response's records from an offset on, up to `end`; returns the offset that follows."""
        for header, view in iter_record_sets(records, from_offset=from_offset):
            if header.base_offset >= end:
                return end
            # Whether the times of batches from before 1970 are right depends on who wrote them.
            may_be_sought = self._least_ms < 0 or header.max_timestamp >= self._least_ms
            if may_be_sought and not header.is_control:
                for record in tail_records(header, view, from_offset):
                    if record.offset < end:
                        self._take(record)
            from_offset = header.next_offset
        return from_offset

    def _is_copy(self, found: Record, sought: Record) -> bool:
        if (found.key, found.value, found.headers) != (sought.key, sought.value, sought.headers):
            return False
        return found.timestamp >= self._least_ms if self._has_append_times else found.timestamp == sought.timestamp


class SearchInOrder(Search):
    """Looks for batches whose offsets nobody has told: in the order of both, at the first place where a whole one is."""

    def __init__(self, sought: Sought) -> None:
        super().__init__(sought)
        self._left = deque(sought.batches)
        self._last = deque[Record]()  # the last records, whose offsets follow one another
        self._until = -1

    @property
    def is_over(self) -> bool:
        """Whether all of them are found."""
        return not self._left

    def _take(self, record: Record) -> None:
        if self.is_over or record.offset <= self._until:
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


class SearchAtOffsets(Search):
    """Looks for each batch at its own offset alone."""

    def __init__(self, sought: Sought) -> None:
        super().__init__(sought)
        self._missing = {place: len(batch) for place, batch in zip(sought.places, sought.batches, strict=True)}
        self._sought = {
            place + n: (record, place)
            for place, batch in zip(sought.places, sought.batches, strict=True)
            for n, record in enumerate(batch)
        }
        self._last_place = max(self._sought)
        self._until = -1

    @property
    def is_over(self) -> bool:
        """Whether all places have been read."""
        return self._until >= self._last_place

    def _take(self, record: Record) -> None:
        self._until = record.offset
        sought, place = self._sought.pop(record.offset, (None, -1))
        if sought is not None and self._is_copy(record, sought):
            self._missing[place] -= 1
            if not self._missing[place]:
                self.found.append(place)


def least_ms(sought: Sought) -> int:
    """The least timestamp that the copies of these records may have, in ms; below 0 before 1970."""
    if sought.appended_since_ms is not None:
        return max(0, sought.appended_since_ms - CLOCKS_MS)
    return min(record.timestamp for batch in sought.batches for record in batch)


async def find_copies(
    config: Mapping[str, Any],
    ends: Mapping[TopicPartition, int] | None,
    net: Any,
    sought: Mapping[TopicPartition, Sought],
    tell: Tell,
) -> None:
    """Like `find_copies_in`, in the cluster that `config` connects to, with connections of its own.  Raises KafkaError."""
    cluster = Cluster(config, net, name="own cluster" if ends is None else "standby", patience_ms=_PATIENCE_MS)
    try:
        await cluster.connect()
        await find_copies_in(cluster, sought, ends, tell)
    finally:
        cluster.close()


async def find_copies_in(
    cluster: Cluster, sought: Mapping[TopicPartition, Sought], ends: Mapping[TopicPartition, int] | None, tell: Tell
) -> None:
    """Tells the offsets of the sought batches that the cluster has below `ends`, as stock/sought_batches.py defines.

    Without `ends` those are the logs' own.
    """
    left = iter(list(sought))

    async def find() -> None:
        for partition in left:
            try:
                end = (await cluster.list_offsets({partition: LATEST}) if ends is None else ends)[partition]
                found: Sequence[int] | Exception = await _find(cluster, partition, sought[partition], end)
            except Exception as error:
                found = error
            tell(partition, found)

    for future in [cluster.net.call_soon_with_future(find) for _ in range(min(_AT_ONCE, len(sought)))]:
        await future


async def _find(cluster: Cluster, partition: TopicPartition, sought: Sought, end: int) -> list[int]:
    search: Search
    if sought.places:
        search = SearchAtOffsets(sought)
        end = min(end, sought.places[-1] + len(sought.batches[-1]))
    else:
        search = SearchInOrder(sought)
    offset = sought.from_offset
    if offset < 0:
        since = least_ms(sought)
        asked = EARLIEST if since < 0 else since  # ListOffsets has other meanings for times below 0
        told = (await cluster.list_offsets({partition: asked}))[partition]
        offset = end if told < 0 else told  # -1: nothing is as young as that
    while offset < end and not search.is_over:
        read_from = offset

        async def read(read_from: int = read_from) -> int:
            part = await fetch_alone(cluster, partition, read_from, min(MOST_BYTES, max(LEAST_BYTES, sought.size)))
            if (until := search.read(part.records, read_from, end)) > read_from:
                return until
            raise Errors.OffsetNotAvailableError(f"{partition.topic}-{partition.partition}: not all is replicated")

        try:
            offset = await cluster.insist("reading what was copied", read)
        except Errors.OffsetOutOfRangeError:  # retention has taken the first ones
            offset = (await cluster.list_offsets({partition: EARLIEST}))[partition]
            if offset <= read_from:
                raise
    return search.found
