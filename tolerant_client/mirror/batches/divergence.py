"""Compares the target's log with the source's: by headers where they prove equality, by records elsewhere.

Only what counts is compared: committed records of the source, and everything that
a consumer of either isolation level may see on the target.  Pure.  Law: a difference
needs evidence on both sides.

    source          target record   target filler   target marker   target hole
    record          must be equal   differs         differs         cleaned: fine
    marker, abort   differs         fine            fine            fine
    hole (cleaned)  fine            fine            fine            fine
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import crc32c

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

_LENGTH_AT = 8  # in a batch
_MAGIC_AT = 16
_CHECKED_FIELDS = struct.Struct(">hiqqqhii")  # of a batch header, from its attributes on: what the CRC covers

Range = tuple[int, int]


@dataclass
class LogSlice:
    """What a log has in a range of offsets; an offset in neither `records` nor `vacant` was cleaned away.

    `vacant` are the offsets of markers and of aborted data, `stamped` those whose times the broker has overwritten
    (LogAppendTime), as ranges in order: a header of 61 bytes may claim 2^31 offsets.  `until` is how far the log could be read.
    """

    until: int
    records: dict[int, Record] = field(default_factory=dict)
    vacant: list[range] = field(default_factory=list)
    stamped: list[range] = field(default_factory=list)

    def is_vacant(self, offset: int) -> bool:
        """Whether the offset is taken by a marker or aborted data."""
        return _is_in(self.vacant, offset)

    def is_stamped(self, offset: int) -> bool:
        """Whether the record at the offset has its broker's time."""
        return _is_in(self.stamped, offset)

    def extend(self, part: FetchedPartition, until: int) -> None:
        """Takes the whole batches of a response, up to `until`."""
        aborted = AbortedTransactions(part.aborted)
        start = self.until
        for header, view in iter_record_sets(part.records, from_offset=start):
            is_aborted = aborted.cover(header, view)
            if header.base_offset >= until:
                self.until = until
                return
            if header.next_offset <= start:
                continue
            span = range(max(header.base_offset, start), min(header.next_offset, until))
            if is_aborted or (header.is_control and header.record_count):
                self.vacant.append(span)
            elif not header.is_control:
                self.records.update((r.offset, r) for r in tail_records(header, view, start) if r.offset in span)
                if header.has_log_append_time:
                    self.stamped.append(span)
            self.until = min(header.next_offset, until)


def _is_in(spans: Sequence[range], offset: int) -> bool:
    """Whether an offset is in one of these ranges, which are in order."""
    place = bisect.bisect_right(spans, offset, key=lambda span: span.start)
    return place > 0 and offset in spans[place - 1]


def first_difference(source: LogSlice, target: LogSlice, accepted: Collection[range] = ()) -> int | None:
    """The lowest offset where the target's slice contradicts the source's."""
    until = min(source.until, target.until)
    offsets = sorted({*source.records, *target.records})
    for offset in offsets:
        if offset < until and not any(offset in span for span in accepted) and differs(source, target, offset):
            return offset
    return None


def differs(source: LogSlice, target: LogSlice, offset: int) -> bool:
    """Whether the target's slice contradicts the source's at an offset."""
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
