"""The records of many batches as columns, found together with numpy, since numpy's cost is per call.

Laws:
- Columns say where keys, values and headers lie: in the fetch itself, unless a batch
  of theirs was compressed; then all are copied into one buffer.
- Bounded are bytes, rows and headers that are made columns of at once (iter_columns): the smallest record takes 7 bytes
  and its columns a hundred, the smallest header 2 and its columns 20.
- What does not add up raises Doubt: the caller then decodes record by record,
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
HEADER: Final = np.dtype(  # as it lies in a batch
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
SLICE_HEADERS: Final = 1 << 18  # or those of one record

_INT64_MAX: Final = 2**63 - 1
_SMALLEST_RECORD: Final = 7  # bytes: length, attributes, two deltas, two null lengths, header count


Headers = npt.NDArray[np.void]  # a row of HEADER for each batch


class Sections(NamedTuple):
    """The decompressed records of batches: those of batch n lie in `joined` from starts[n] to ends[n]."""

    headers: Headers
    joined: bytes | memoryview
    starts: Int64s
    ends: Int64s


Chosen = tuple[int, memoryview | None]  # a batch of a run by its number, and its records if it was compressed


class BatchColumns(NamedTuple):
    """One row for each record; positions are those in `joined`."""

    joined: bytes | memoryview
    headers: Headers
    fields: Fields
    counts: Int64s  # rows of each batch
    offsets: Int64s
    timestamps: Int64s  # milliseconds
    types: npt.NDArray[np.int32]  # 0 create time, 1 log append time


class Run(NamedTuple):
    """Batches one behind the other, that can be trusted as far as their headers tell."""

    records: bytes
    headers: Headers
    starts: Int64s
    ends: Int64s

    def sections(self, chosen: Sequence[Chosen]) -> Sections:
        """Those of some batches; nothing is copied unless one of them was compressed."""
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
    """The batches that lie one behind the other at `starts` up to `end`, checked as iter_batches does.

    For many small batches, several times as fast.  Returns those before the
    first that cannot be trusted, and the error that this one is.
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
    """False if one of them may be one that iter_batches does not trust."""
    base, delta, count = headers["base_offset"], headers["last_offset_delta"], headers["record_count"]
    return bool(
        (headers["magic"] == 2).all()
        and min(base.min(), delta.min(), count.min()) >= 0
        and int(base.max()) + int(delta.max()) < _INT64_MAX
        and (count - 1 <= delta).all()
    )


def batch_header(row: np.void) -> BatchHeader:
    """A row of HEADER as record_batch has it."""
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
    """The columns of batches with at least one record each, below 2 GiB in all, in slices.

    A slice has at most SLICE_ROWS rows, and about `slice_bytes` or one record, and SLICE_HEADERS or those of one record.
    Where records begin is worked out for all of them at once; their fields, which take many times more room, are not.
    Headers are left out unless wanted, but looked at; those of records below `from_offset` are as if there were none,
    since a record that cannot be read must not stop those behind it.
    Raises Doubt, perhaps after some slices, also for a record with more than `most_headers`.
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
    """Neighbours that weigh about `most` together, as half-open ranges: one alone where it weighs more."""
    if len(weights) <= most_rows and int(weights.sum()) <= most:
        return [(0, len(weights))]
    number = (np.cumsum(weights) - weights) // max(most, 1)
    rows = np.arange(len(weights)) // most_rows
    cuts = (np.flatnonzero((np.diff(number) > 0) | (np.diff(rows) > 0)) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, len(weights)]))


def _part(sections: Sections, counts: Int64s, first: int, stop: int) -> tuple[Sections, Int64s, bool]:
    """The batches that rows `first` to `stop` are of, how many of each, and whether the first is not its batch's first."""
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
    """The rows of `whole` with their headers, as many at once as are bounded."""
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
