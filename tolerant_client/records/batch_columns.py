"""The records of many batches as columns; numpy reads the batches together, since its cost is per call.

Laws:
- Columns hold the positions of keys, values and headers in the fetch itself; if one of
  the batches was compressed, all are copied into one buffer.
- iter_columns bounds the bytes, rows and headers that become columns at once: the smallest record takes 7 bytes
  and its columns a hundred, the smallest header 2 and its columns 20.
- Inconsistent data raises Doubt: the caller then decodes record by record,
  and that path finds the error to raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt

from tolerant_client.errors import RecordBatchError
from tolerant_client.records.record_batch import (
    ATTRIBUTES_OFFSET,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    BatchHeader,
    iter_batches,
)
from tolerant_client.records.record_fields import MAX_HEADERS, Fields, Places, find_records, read_fields, read_headers
from tolerant_client.records.varint_columns import Bytes, Doubt, Int64s

_HEADER_BYTES: Final = np.dtype(f"V{HEADER_SIZE}")
HEADER: Final = np.dtype(  # the layout in a batch
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
SLICE_BYTES: Final = 8 << 20  # of decompressed records
SLICE_ROWS: Final = 1 << 16
SLICE_HEADERS: Final = 1 << 18  # or the headers of one record

_INT64_MAX: Final = 2**63 - 1
_SMALLEST_RECORD: Final = 7  # bytes: length, attributes, two deltas, two null lengths, header count


Headers = npt.NDArray[np.void]  # a row of HEADER for each batch


class Sections(NamedTuple):
    """The decompressed records of batches: the records of batch n are joined[starts[n]:ends[n]]."""

    headers: Headers
    joined: bytes | memoryview
    starts: Int64s
    ends: Int64s


Chosen = tuple[int, memoryview | None]  # a batch's number in a run, and its decompressed records if it was compressed


class BatchColumns(NamedTuple):
    """One row for each record; positions are relative to `joined`."""

    joined: bytes | memoryview
    headers: Headers
    fields: Fields
    counts: Int64s  # rows of each batch
    offsets: Int64s
    timestamps: Int64s  # milliseconds
    types: npt.NDArray[np.int32]  # 0 create time, 1 log append time


class Run(NamedTuple):
    """Contiguous batches whose headers are sound."""

    records: bytes
    headers: Headers
    starts: Int64s
    ends: Int64s

    def sections(self, chosen: Sequence[Chosen]) -> Sections:
        """The sections of some batches; nothing is copied unless one of them was compressed."""
        numbers = [number for number, _ in chosen]
        headers, starts, ends = self.headers[numbers], self.starts[numbers] + HEADER_SIZE, self.ends[numbers]
        if all(section is None for _, section in chosen):
            return Sections(headers, self.records, starts, ends)
        view = memoryview(self.records)
        bounds = zip(chosen, starts.tolist(), ends.tolist())
        return join_sections(headers, [view[a:b] if section is None else section for (_, section), a, b in bounds])


def read_run(
    records: bytes, starts: Sequence[int], end: int, *, verify_crc: bool = True
) -> tuple[Run, RecordBatchError | None]:
    """The contiguous batches that begin at `starts`, the last one up to `end`, checked as iter_batches checks them.

    This is several times as fast as iter_batches for many small batches.  Returns the
    batches before the first that cannot be trusted, and the error of that one.
    """
    view = memoryview(records)
    bounds = np.array([*starts, end], np.int64)
    stops = [*starts[1:], end]
    whole = next((n for n, (a, b) in enumerate(zip(starts, stops)) if b - a < HEADER_SIZE), len(starts))
    headers = np.empty(0, HEADER)
    if whole:
        everywhere = np.ndarray((len(records) - HEADER_SIZE + 1,), _HEADER_BYTES, records, 0, (1,))
        headers = everywhere[bounds[:whole]].view(HEADER)
    run = Run(records, headers, bounds[:-1], bounds[1:])
    if whole == len(starts) and _are_sound(headers):
        if not verify_crc:
            return run, None
        crcs = [crc32c.crc32c(view[a + ATTRIBUTES_OFFSET : b]) for a, b in zip(starts, stops)]
        if crcs == headers["crc"].tolist():
            return run, None
    for number, (start, stop) in enumerate(zip(starts, stops)):
        try:
            list(iter_batches(view[start:stop], verify_crc=verify_crc))
        except RecordBatchError as error:
            return Run(records, headers[:number], run.starts[:number], run.ends[:number]), error
    return run, None


def _are_sound(headers: Headers) -> bool:
    """Whether iter_batches would accept all of them; False also in doubt."""
    base, delta, count = headers["base_offset"], headers["last_offset_delta"], headers["record_count"]
    return bool(
        (headers["magic"] == 2).all()
        and min(base.min(), delta.min(), count.min()) >= 0
        and int(base.max()) + int(delta.max()) < _INT64_MAX
        and (count - 1 <= delta).all()
    )


def batch_header(row: np.void) -> BatchHeader:
    """A row of HEADER as a BatchHeader."""
    base_offset, length, *rest = row.item()
    return BatchHeader(base_offset, length + LOG_OVERHEAD, *rest)


def join_sections(headers: Headers, sections: Sequence[memoryview]) -> Sections:
    """Sections from records_section, copied into one buffer unless there is only one."""
    sizes = np.array([len(section) for section in sections], np.int64)
    ends = np.cumsum(sizes)
    joined: bytes | memoryview = sections[0] if len(sections) == 1 else b"".join(sections)
    return Sections(headers, joined, ends - sizes, ends)


def iter_columns(
    sections: Sections,
    include_headers: bool,
    *,
    from_offset: int = 0,
    slice_bytes: int = SLICE_BYTES,
    most_headers: int = MAX_HEADERS,
) -> Iterator[BatchColumns]:
    """The columns of batches with at least one record each and less than 2 GiB in all, in slices.

    A slice has at most SLICE_ROWS rows, about `slice_bytes` or one record, and about SLICE_HEADERS or the headers of one
    record.  Record boundaries are found for all batches at once; the fields, which take many times more memory, are
    read slice by slice.  Headers are checked, but returned only with `include_headers`.  Records below `from_offset`
    count as records without headers, and theirs are not checked: an unreadable record must not stop the ones after it.
    Raises Doubt, perhaps after some slices, also for a record with more than `most_headers` if headers are included.
    """
    headers, joined, starts, ends = sections
    counts = headers["record_count"].astype(np.int64)
    # Refuse counts before anything is sized by them.
    if len(joined) >= 2**31 or bool((counts * _SMALLEST_RECORD > ends - starts).any()):
        raise Doubt
    data = np.frombuffer(joined, np.uint8)
    places = find_records(joined, data, counts, starts, ends)
    last_delta = -1
    for first, stop in spans(places.length, slice_bytes, SLICE_ROWS):
        part, rows, is_within = _part(sections, counts, first, stop)
        fields = read_fields(data, Places(*(column[first:stop] for column in places)))
        timed = _offsets_and_timestamps(part.headers, rows, fields)
        columns = BatchColumns(joined, part.headers, fields, rows, *timed)
        delta = fields.offset_delta
        if is_within and delta[0] <= last_delta:
            raise Doubt
        last_delta = int(delta[-1])
        yield from _with_headers(part, data, columns, include_headers, from_offset, most_headers)


def spans(weights: Int64s, most: int, most_rows: int) -> list[tuple[int, int]]:
    """Half-open ranges of rows that together weigh about `most`, at most `most_rows` each; a heavier row is alone."""
    if len(weights) <= most_rows and int(weights.sum()) <= most:
        return [(0, len(weights))]
    number = (np.cumsum(weights) - weights) // max(most, 1)
    rows = np.arange(len(weights)) // most_rows
    cuts = (np.flatnonzero((np.diff(number) > 0) | (np.diff(rows) > 0)) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, len(weights)]))


def _part(sections: Sections, counts: Int64s, first: int, stop: int) -> tuple[Sections, Int64s, bool]:
    """The batches of rows `first` to `stop`, the rows of each, and whether row `first` is inside its batch, not its first."""
    headers, joined, starts, ends = sections
    tails = np.cumsum(counts)
    a, b = np.searchsorted(tails, (first, stop - 1), "right").tolist()
    edges: Int64s = np.clip(tails[a : b + 1], first, stop)
    rows: Int64s = np.diff(edges, prepend=first)
    part = Sections(headers[a : b + 1], joined, starts[a : b + 1], ends[a : b + 1])
    return part, rows, first > int(tails[a] - counts[a])


def _with_headers(
    sections: Sections, data: Bytes, whole: BatchColumns, include_headers: bool, from_offset: int, most: int
) -> Iterator[BatchColumns]:
    """The rows of `whole` with their headers if included, about SLICE_HEADERS headers at once."""
    passed = int(np.searchsorted(whole.offsets, from_offset))
    if passed:
        whole.fields.header_count[:passed] = 0
    if not include_headers:
        read_headers(data, whole.fields, False, passed)
        yield whole
        return
    for first, stop in spans(whole.fields.header_count, SLICE_HEADERS, SLICE_ROWS):
        if (first, stop) == (0, len(whole.offsets)):
            part, rows = sections, whole.counts
        else:
            part, rows, _ = _part(sections, whole.counts, first, stop)
        fields = whole.fields.rows(slice(first, stop))
        gone = min(max(passed - first, 0), stop - first)
        fields = fields._replace(headers=read_headers(data, fields, True, gone, most=most))
        times, types = whole.timestamps[first:stop], whole.types[first:stop]
        yield BatchColumns(whole.joined, part.headers, fields, rows, whole.offsets[first:stop], times, types)


def _offsets_and_timestamps(
    headers: Headers, counts: Int64s, fields: Fields
) -> tuple[Int64s, Int64s, npt.NDArray[np.int32]]:
    delta = fields.offset_delta
    tails = np.cumsum(counts) - 1  # the last row of each batch
    ascends = delta[1:] > delta[:-1]
    ascends[tails[:-1]] = True  # from one batch to the next
    if (
        not ascends.all()
        or bool((delta[tails - counts + 1] < 0).any())
        or bool((delta[tails] > headers["last_offset_delta"]).any())
    ):
        raise Doubt
    offsets = np.repeat(headers["base_offset"].astype(np.int64), counts)
    offsets += delta
    base, elapsed = headers["base_timestamp"].astype(np.int64), fields.timestamp_delta
    if int(base.min()) + int(elapsed.min()) < -(2**63) or int(base.max()) + int(elapsed.max()) > _INT64_MAX:
        raise Doubt
    timestamps = np.repeat(base, counts)
    timestamps += elapsed
    is_stamped = headers["attributes"] & LOG_APPEND_TIME_BIT != 0
    if not is_stamped.any():
        return offsets, timestamps, np.zeros(len(timestamps), np.int32)
    stamped = np.repeat(is_stamped, counts)
    stamps = np.repeat(headers["max_timestamp"].astype(np.int64), counts)
    return offsets, np.where(stamped, stamps, timestamps), stamped.astype(np.int32)
