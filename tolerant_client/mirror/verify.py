"""Compares two clusters offset by offset: "identical up to offset N" (M9).

Copied batches are compared by the checksum of their records; where the two
logs are cut into batches differently, record by record.  Control batches hold
no records and are passed over on both sides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.plan import select_topics
from tolerant_client.mirror.state import raise_for
from tolerant_client.raw import EARLIEST, LATEST, RawCluster
from tolerant_client.record_batch import BatchHeader, Record, decode_records, iter_batches, payload_digest

_PARTITIONS_AT_ONCE = 64
_FETCH_MAX_BYTES = 32 << 20
_PARTITION_MAX_BYTES = 4 << 20

_Batch = tuple[BatchHeader, memoryview]


@dataclass(frozen=True)
class Difference:
    """The first offset that is not the same on both sides, and in which way."""

    offset: int
    reason: str


@dataclass(frozen=True)
class PartitionReport:
    """Log bounds are half-open; None on the target where it has no such partition."""

    topic: str
    partition: int
    source_start: int
    source_end: int
    target_start: int | None
    target_end: int | None
    identical_until: int
    first_difference: Difference | None


@dataclass(frozen=True)
class VerifyReport:
    """`records` were compared, `seconds` were spent."""

    partitions: tuple[PartitionReport, ...]
    records: int
    seconds: float

    @property
    def identical(self) -> bool:
        return all(p.first_difference is None for p in self.partitions)

    def as_json(self) -> dict[str, Any]:
        return {"identical": self.identical, "partitions": [asdict(p) for p in self.partitions]}


class LogComparison:
    """Compares the batches of one partition as they come from both sides.  Pure.

    `add` takes batches of SOURCE or TARGET in log order, `compare` consumes what
    both have.  `identical_until` is the offset before which all is the same.
    """

    SOURCE, TARGET = 0, 1

    def __init__(self, start: int) -> None:
        self.identical_until = start
        self.records = 0
        self.difference: Difference | None = None
        self._batches: tuple[deque[_Batch], deque[_Batch]] = (deque(), deque())
        self._records: tuple[deque[Record], deque[Record]] = (deque(), deque())
        self._ends = [start, start]  # both sides are known up to here

    def needs(self, side: int) -> bool:
        """True when nothing of `side` is left to compare."""
        return not self._batches[side] and not self._records[side] and self._ends[side] <= self._ends[1 - side]

    def position(self, side: int) -> int:
        """The offset to fetch from next."""
        return self._ends[side]

    def add(self, side: int, header: BatchHeader, batch: memoryview) -> None:
        """Takes the next batch; one that lies before `position` is ignored."""
        if header.next_offset <= self._ends[side]:
            return
        self._ends[side] = header.next_offset
        if not header.is_control:
            self._batches[side].append((header, batch))

    def compare(self) -> None:
        """Compares as far as both sides are known."""
        source, target = self._batches
        while self.difference is None:
            if not any(self._records) and source and target and _same_batch(source[0], target[0]):
                header, _ = source.popleft()
                target.popleft()
                self.records += header.record_count
                self.identical_until = header.next_offset
                continue
            for side in (self.SOURCE, self.TARGET):
                while not self._records[side] and self._batches[side]:
                    _, batch = self._batches[side].popleft()
                    self._records[side].extend(r for r in decode_records(batch) if r.offset >= self.identical_until)
            if not all(self._records):
                self._compare_with_nothing()
                return
            while all(self._records) and self.difference is None:
                self._compare_records(self._records[0].popleft(), self._records[1].popleft())

    def _compare_with_nothing(self) -> None:
        """One side has no record where the other one's next record is, and never will."""
        for side, missing in ((self.SOURCE, "target"), (self.TARGET, "source")):
            if self._records[side] and self._records[side][0].offset < self._ends[1 - side]:
                self.difference = Difference(self._records[side][0].offset, f"missing on the {missing}")
                return
        # A side that has no record left may still end before the other one's next record: a gap in both.
        known = min(*self._ends, *(records[0].offset for records in self._records if records))
        self.identical_until = max(self.identical_until, known)

    def _compare_records(self, source: Record, target: Record) -> None:
        if source.offset != target.offset:
            missing = "target" if source.offset < target.offset else "source"
            self.difference = Difference(min(source.offset, target.offset), f"missing on the {missing}")
            return
        for field in ("timestamp", "key", "value", "headers"):
            if getattr(source, field) != getattr(target, field):
                self.difference = Difference(source.offset, f"{field} differs")
                return
        self.records += 1
        self.identical_until = source.offset + 1


def _same_batch(source: _Batch, target: _Batch) -> bool:
    return source[0].base_offset == target[0].base_offset and payload_digest(source[1]) == payload_digest(target[1])


async def verify(
    source: RawCluster, target: RawCluster, topics: str, progress: Callable[[int], None] = lambda records: None
) -> VerifyReport:
    """Compares every topic of the source whose name matches, up to both log ends at the start.

    `progress` is told the number of records compared so far.  Raises OptionError
    when nothing matches and ClusterUnreachableError.
    """
    started = time.monotonic()
    await source.connect()
    await target.connect()
    chosen = await source.partitions()
    chosen = {name: chosen[name] for name in select_topics(topics, chosen)}
    present = await target.partitions(chosen)
    partitions = [TopicPartition(name, index) for name, indexes in chosen.items() for index in indexes]
    both = [p for p in partitions if p.partition in present.get(p.topic, ())]
    if not partitions:
        raise OptionError(f"The topics matching {topics!r} have no partitions")
    bounds = [
        await cluster.list_offsets(dict.fromkeys(wanted, which))
        for cluster, wanted in ((source, partitions), (target, both))
        for which in (EARLIEST, LATEST)
    ]
    logs = {p: LogComparison(max(bounds[0][p], bounds[2][p])) for p in both}
    ends = {p: min(bounds[1][p], bounds[3][p]) for p in both}
    compared = 0
    for first in range(0, len(both), _PARTITIONS_AT_ONCE):
        chunk = {p: logs[p] for p in both[first : first + _PARTITIONS_AT_ONCE]}
        while open_logs := {p: log for p, log in chunk.items() if log.difference is None and log.identical_until < ends[p]}:
            await _fetch_both(source, target, open_logs, ends)
            progress(compared + sum(log.records for log in chunk.values()))
        compared += sum(log.records for log in chunk.values())
    reports = tuple(_report(p, [b.get(p) for b in bounds], logs.get(p)) for p in partitions)
    return VerifyReport(reports, compared, time.monotonic() - started)


def _report(partition: TopicPartition, bounds: list[int | None], log: LogComparison | None) -> PartitionReport:
    source_start, source_end, target_start, target_end = bounds
    assert source_start is not None and source_end is not None
    difference: Difference | None
    if log is None or target_start is None or target_end is None:
        identical_until, difference = source_start, Difference(source_start, "the target has no such partition")
    else:
        identical_until, difference = log.identical_until, log.difference
        if difference is None and source_start != target_start:
            ahead = "source" if source_start > target_start else "target"
            difference = Difference(min(source_start, target_start), f"the {ahead} log starts later")
        elif difference is None and source_end != target_end:
            behind = "target" if source_end > target_end else "source"
            difference = Difference(min(source_end, target_end), f"the {behind} log ends earlier")
    return PartitionReport(
        partition.topic, partition.partition, source_start, source_end, target_start, target_end, identical_until, difference
    )


async def _fetch_both(
    source: RawCluster, target: RawCluster, logs: Mapping[TopicPartition, LogComparison], ends: Mapping[TopicPartition, int]
) -> None:
    """Fetches what is missing of both sides at the same time, and compares."""
    futures = []
    for side, cluster in ((LogComparison.SOURCE, source), (LogComparison.TARGET, target)):
        positions = {p: log.position(side) for p, log in logs.items() if log.needs(side) and log.position(side) < ends[p]}
        futures.append((side, source.net.call_soon_with_future(_read, cluster, positions)))
    for side, future in futures:
        for partition, batches in (await future).items():
            for header, batch in batches:
                logs[partition].add(side, header, batch)
    for log in logs.values():
        log.compare()


async def _read(cluster: RawCluster, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[_Batch]]:
    """The next whole batches of each partition that has any; at least one partition has."""

    async def ask() -> dict[TopicPartition, list[_Batch]]:
        found: dict[TopicPartition, list[_Batch]] = {}
        groups: Iterable[tuple[int, list[TopicPartition]]] = (await cluster.by_leader(positions)).items()
        for node, members in groups:
            fetched = await cluster.fetch(
                node,
                {p: positions[p] for p in members},
                max_wait_ms=100,
                max_bytes=_FETCH_MAX_BYTES,
                partition_max_bytes=_PARTITION_MAX_BYTES,
            )
            for part in fetched:
                if part.error_code:
                    await cluster.refresh()
                    raise_for(part.error_code, f"Fetch of {part.partition.topic}-{part.partition.partition}")
                if part.partition in positions:
                    found[part.partition] = list(iter_batches(part.records))
        return found

    return await cluster.insist("reading record batches", ask) if positions else {}
