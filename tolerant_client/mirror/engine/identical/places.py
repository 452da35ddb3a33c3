"""Whether batches of the link lie where they belong.  Their sequences show it (M2): each counts what the link wrote before it.

Laws:
- A batch continues the one before it of the same producer id: its sequence is the next.  If offsets are missing between the
  two, it may be ahead by as many (the cleaner removed batches), or equal its own offset (the broker had forgotten the producer).
- The first batch of a producer id shows where it belongs only if its sequence equals its offset.
- The batches of a gap have no sequences of the link's data.  Those of a transaction are the link's only if they were aborted,
  and are filler.
- A batch that repeats a sequence was appended twice; one that is ahead continues a batch that was refused.  Either lies where
  the source has something else, which is no loss of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.batches.gaps import is_filler, is_filler_marker
from tolerant_client.mirror.logs.reading import read_headers, read_slices
from tolerant_client.records.record_batch import ABORT, BatchHeader, control_type, iter_batches

MOST_STEPS_BACK = 1000  # batches that are read to find the last data, before markers or for its sequence
_STEPS_BACK = 50  # batches that are searched for one of the link
_HALF = 1 << 30  # of all sequences
_READ_BYTES = 4 << 20  # in one fetch
_MOST_BYTES = 256 << 20  # of a log that are read for the headers of its batches


class Places(NamedTuple):
    """What the sequences of a range show: `wrong` is the first misplaced batch; a range without one may still be unproved."""

    is_proved: bool
    wrong: BatchHeader | None = None


def is_in_place(header: BatchHeader, before: BatchHeader | None) -> bool | None:
    """Whether a batch of the link lies where it belongs; `before` is the link's last one before it.  None if nothing shows it."""
    is_at_its_offset = header.base_sequence == add_sequence(header.base_offset, 0)
    if before is None or before.producer_id != header.producer_id:
        return is_at_its_offset or None
    ahead = add_sequence(header.base_sequence, -add_sequence(before.base_sequence, before.last_offset_delta + 1))
    missing = header.base_offset - before.next_offset
    return ahead == 0 or missing > 0 and (ahead <= missing or is_at_its_offset and ahead < _HALF)


async def read_places(
    target: Cluster, partition: TopicPartition, bounds: tuple[int, int], first: BatchHeader, own: Collection[int]
) -> Places:
    """Whether all batches from `first`, one of the link, up to the end of `bounds` lie where they belong.

    `bounds` span what the link has written; filler of gaps in transactions has no sequence that could be wrong.
    Also unproved if more than the batches of 256 MB would have to be read.
    """
    before = await _before(target, partition, bounds[0], first, own)
    at, is_proved, read = first.base_offset, True, 0
    while at < bounds[1] and (batches := await _batches(target, partition, at)):
        headers = [header for header, _ in batches]
        for header in headers:
            if fills_gap(header):
                continue
            says = is_in_place(header, before) if header.producer_id in own else False
            if says is False:
                return Places(False, header)
            is_proved = is_proved and says is True
            before = header
        at = headers[-1].next_offset
        read += sum(header.size for header in headers)
        if read >= _MOST_BYTES and at < bounds[1]:
            return Places(False)
    return Places(is_proved)


async def _before(
    target: Cluster, partition: TopicPartition, start: int, first: BatchHeader, own: Collection[int]
) -> BatchHeader | None:
    passed = await step_back(target, {partition: first}, {partition: start}, lambda h: h is first or fills_gap(h))
    found = passed[partition]
    return found if found is not first and not fills_gap(found) and found.producer_id in own else None


async def first_of_others(
    target: Cluster, partition: TopicPartition, until: int, own: Collection[int]
) -> BatchHeader | None:
    """The first batch of a log, of those that begin before `until`, that is no plain data of the link, `own` its producer ids.

    Raises OffsetNotAvailableError, which is retriable, if the log could not be read up to there: what was not read may be
    anybody's.
    """
    at = (await target.list_offsets({partition: EARLIEST}))[partition]
    while at < until:
        try:
            batches = await _batches(target, partition, at)
        except Errors.OffsetOutOfRangeError:
            batches = ()  # another writer of the link has just deleted it, or an election truncated it
        for header, _ in batches:
            if header.base_offset >= until:
                return None
            if header.producer_id not in own or fills_gap(header):
                return header
        if not batches:
            raise Errors.OffsetNotAvailableError(
                f"the log of {partition.topic}-{partition.partition} was read up to offset {at}, not to {until}"
            )
        at = batches[-1][0].next_offset
    return None


def fills_gap(header: BatchHeader) -> bool:
    """Whether a batch is of a kind that fills offsets without records: a marker or transactional."""
    return header.is_control or header.is_transactional


async def step_back(
    target: Cluster,
    last: Mapping[TopicPartition, BatchHeader],
    least: Mapping[TopicPartition, int],
    passes: Callable[[BatchHeader], bool],
    steps: int = _STEPS_BACK,
) -> dict[TopicPartition, BatchHeader]:
    """The last batch of each partition for which `passes` is false; if there is none, the first batch that was reached.

    Reads none below the offset `least`, and at most `steps` batches of a partition; one request for each broker and step.
    """
    found = dict(last)
    for _ in range(steps):
        back = {p: h.base_offset - 1 for p, h in found.items() if passes(h) and h.base_offset > least[p]}
        before = await read_headers(target, back) if back else {}
        if not before:
            break
        found |= before
    return found


async def ends_of_link(
    target: Cluster, spans: Mapping[TopicPartition, tuple[int, int]], own: Collection[int]
) -> dict[TopicPartition, int]:
    """Where the part of the link ends in logs that begin with a batch of it and in which others wrote last; by bisection.

    `spans` go from the first offset of a log to a batch of others.  Absent if a log does not begin with a batch of the link.  Where
    nothing tells who wrote, as between bare markers, it counts as others': then the part is longer.
    """
    first = await read_headers(target, {p: start for p, (start, _) in spans.items()})
    known = {p: (header.next_offset, spans[p][1]) for p, header in first.items() if header.producer_id in own}
    while between := {p: (low + high) // 2 for p, (low, high) in known.items() if low < high}:
        there = await read_headers(target, between)
        least = {p: known[p][0] - 1 for p in there}
        data = await step_back(target, there, least, lambda h: h.is_control and not _is_own(h, own))
        in_gaps = {
            p: (h.base_offset, h.next_offset) for p, h in data.items() if h.is_transactional and not h.is_control
        }
        slices = await read_slices(target, in_gaps, is_committed=False)
        for p, at in between.items():
            low, high = known[p]
            is_links = p in there and (
                data[p].base_offset < low or _is_own(data[p], own) or p in slices and _is_filler(slices[p])
            )
            known[p] = (min(there[p].next_offset, high), high) if is_links else (low, at)
    return {p: low for p, (low, _) in known.items()}


def _is_own(header: BatchHeader, own: Collection[int]) -> bool:
    return header.producer_id in own or is_filler_marker(header)


def _is_filler(copied: LogSlice) -> bool:
    return bool(copied.records) and all(map(is_filler, copied.records.values()))


async def ends_in_gap(
    target: Cluster, partition: TopicPartition, last: BatchHeader, own: Collection[int], adopted: int, copied: int
) -> bool:
    """Whether a log ends with what the link writes into gaps: a filler marker, aborted filler, or bare abort markers.

    Bare markers have the producer id of a transaction; what is before them shows whose they are: a batch of the link, what it
    `adopted`, or nothing, either ever or since the link had `copied` that far.  What was adopted may end with any marker: a
    failback begins with the log of its target, which was the source.
    """
    if last.next_offset <= adopted:
        return True
    header = last
    for _ in range(_STEPS_BACK):
        if is_filler_marker(header):
            return True
        if not header.is_control:
            break
        batches = await _batches(target, partition, header.base_offset, max_bytes=1)
        if not batches or control_type(batches[0][1]) != ABORT:
            return False
        if header.base_offset <= max(adopted, copied):
            return True
        before = (await read_headers(target, {partition: header.base_offset - 1})).get(partition)
        if before is None:
            return False
        header = before
    if not header.is_transactional or header.is_control:
        return header.is_control or header.producer_id in own
    span = (header.base_offset, header.next_offset)
    return _is_filler((await read_slices(target, {partition: span}, is_committed=False))[partition])


async def _batches(
    target: Cluster, partition: TopicPartition, at: int, max_bytes: int | None = None
) -> Sequence[tuple[BatchHeader, memoryview]]:
    """A run of batches, from the one that has the offset on; only that one if `max_bytes` has room for no more."""
    batches: list[tuple[BatchHeader, memoryview]] = []

    async def ask() -> None:
        part = await fetch_alone(target, partition, at, max_bytes or _READ_BYTES)
        batches[:] = [(header, batch) for header, batch in iter_batches(part.records) if header.next_offset > at]

    await target.insist("reading where batches lie", ask)
    return batches
