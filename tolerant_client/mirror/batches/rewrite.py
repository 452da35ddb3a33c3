"""Rewrites batches that cannot be appended as they are (M8): same records, same offsets, other batches.

Laws:
- Every record comes out once, at its offset, with its timestamp, key, value and headers, byte for byte.
- The result is contiguous and covers [start, until): each offset without a record is taken by filler or by a
  Gap, so a batch's sequence still follows from its offset (law B of identical/partition.py).
- Two writers may form different batches; the broker's sequence check accepts the first and refuses what overlaps,
  so nothing is appended twice.
- No batch is larger than the target accepts, as it is sent (which max.message.bytes limits), and none has more
  than batch_encoding.MAX_BATCH_BYTES of records, unless it has only one record.
- A call costs a millisecond however few its records are, so as many small batches as possible are rewritten by one, also
  across gaps, and of several codecs; but no more than `is_enough`, since nothing else runs meanwhile.
- Neighbours of several codecs get one of those that compress: producers with other settings than their neighbours' have a topic
  in which hardly two batches in a row have the same one.

A broker accepts only batches whose offset deltas are 0, 1, 2... without holes (LogValidator.java), and would
assign log append time again.  So the timestamps of a batch with log append time, which all equal its max
timestamp, become the create time of each record.  Messages of v0 have no timestamp: their records get -1
(NO_TIMESTAMP), which every broker accepts.

No I/O and no clock here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa

from tolerant_client.errors import OversizedRecordError, RecordBatchError
from tolerant_client.mirror.batches.columns import batch_rows, message_rows
from tolerant_client.mirror.batches.gaps import FILLER, Gap
from tolerant_client.records.arrow import gather
from tolerant_client.records.batch_columns import (
    HEADER,
    BatchColumns,
    Headers,
    Sections,
    join_sections,
)
from tolerant_client.records.batch_encoding import MAX_BATCH_BYTES, encode_groups
from tolerant_client.records.record_batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    encode_headers,
    read_header,
    records_section,
)
from tolerant_client.records.record_sets import unfold
from tolerant_client.records.varint_columns import Int64s

SMALL_BATCH_BYTES: Final = 16 * 1024  # two neighbours below this size are merged
LARGEST_HOLE: Final = 4096  # offsets; longer holes stay gaps, which are filled without holding them in memory
MOST_FILLER: Final = 1 << 18  # records in one call

BATCHES_AT_ONCE: Final = 4096
_BYTES_AT_ONCE: Final = (1 << 18, 1 << 20)  # of batches as they are sent: compressed ones, others
_BEGINNING: Final = struct.Struct(">8xi4xB4xh")  # of a batch: its length, magic and attributes
_DELETE_HORIZON_BIT: Final = 0x40  # KIP-534: the base timestamp says when the source may drop tombstones
_WINDOW_BYTES: Final = 4 << 20  # of decompressed records decoded at once: numpy's cost is per call
_SMALL_SECTION: Final = 4096  # bytes
_NO_HEADERS: Final = encode_headers(())
_RAISE: Final = "raise it, or let the mirror leave such records out (--on-oversized continue; in a file tolerant.on.oversized = continue)"
_FILLER_HEADERS: Final = encode_headers([(FILLER, None)])

Batch = tuple[BatchHeader, memoryview]


class _Rows(NamedTuple):
    """Records as columns; headers stay encoded bytes, which begin with their count."""

    offsets: Int64s
    timestamps: Int64s
    keys: Any
    values: Any
    headers: Any | None


_NO_BYTES: Final = pa.nulls(0, pa.binary())  # pa.array would import pandas
_NO_ROWS: Final = _Rows(np.empty(0, np.int64), np.empty(0, np.int64), _NO_BYTES, _NO_BYTES, None)


class Coalesced(NamedTuple):
    """The first `size` bytes of records, up to and including batch `last`, as `items`."""

    items: list[Batch]
    last: BatchHeader
    size: int


class _Window(NamedTuple):
    """Neighbours of one magic."""

    headers: Sequence[BatchHeader]
    views: Sequence[memoryview]
    sizes: Int64s  # of the views, bytes


class _Run(NamedTuple):
    """The positions of v2 batches in `records`."""

    records: bytes | memoryview
    headers: Headers
    starts: Int64s
    ends: Int64s


def must_rewrite(header: BatchHeader, *, start: int, max_batch_bytes: int) -> bool:
    """True for a batch (or legacy set) that cannot be appended at `start` as it is."""
    return (
        header.record_count != header.last_offset_delta + 1
        or header.base_offset < start
        or header.magic < 2
        or header.size > max_batch_bytes
        or header.has_log_append_time
        or bool(header.attributes & _DELETE_HORIZON_BIT)
    )


def is_enough(count: int, size: int, codec: int) -> bool:
    """Whether no more should be rewritten at once than `count` batches of `size` bytes, the last of which has this codec."""
    return count >= BATCHES_AT_ONCE or size >= _BYTES_AT_ONCE[not codec]


def rewrite(
    batches: Sequence[Batch],
    start: int,
    *,
    until: int | None = None,
    fill_holes: bool,
    is_compacted: bool,
    max_batch_bytes: int,
    joined_bytes: int | None = None,
    codec: int | None = None,
) -> list[Batch | Gap]:
    """The committed records of one partition in [start, until) as batches with contiguous offsets.

    `batches` are those of record_batch.iter_batches or legacy_records.iter_record_sets, in log order; `until` defaults
    to the end of the last one.  The returned batches have their absolute base offset in the header, are writable, for
    record_batch.restamp, and have `codec`, or one of the originals'.  Those of several records have at most
    `joined_bytes`, by default `max_batch_bytes`.  With `fill_holes` holes become filler records, except
    long ones (LARGEST_HOLE, MOST_FILLER); the others become gaps.
    Raises OversizedRecordError, with the offset, for a record that does not fit; RecordBatchError for damage.
    """
    end = batches[-1][0].next_offset if until is None else until
    # What does not shrink is sent uncompressed, and a broker that compresses it makes it up to a sixth larger (snappy).
    room = min(max_batch_bytes * 6 // 7 if codec else max_batch_bytes, joined_bytes or max_batch_bytes)

    def rewritten(some: Sequence[Batch], start: int, end: int) -> list[Batch | Gap]:
        items: list[Batch | Gap] = []
        position, filler_left = start, MOST_FILLER if fill_holes else 0
        time: int | None = None
        for rows, original in _windows(some, start, end):
            stop = int(rows.offsets[-1]) + 1 if len(rows.offsets) else end
            if time is None:
                time = int(rows.timestamps[0]) if len(rows.offsets) else some[-1][0].max_timestamp
            rows, gaps, used = _fill(rows, position, stop, time, filler_left, is_compacted)
            items += _encode(rows, gaps, original if codec is None else codec, max_batch_bytes, room)
            position, filler_left = stop, filler_left - used
            time = max(time, int(rows.timestamps.max(initial=time)))
        return items

    items: list[Batch | Gap] = []
    while True:
        try:
            return items + rewritten(batches, start, end)
        except OversizedRecordError as error:
            if codec is not None or len({header.codec for header, _ in batches}) == 1:
                raise
            # Its neighbours' codec does not make it small enough: it may fit in its own.
            alone = next(n for n, (header, _) in enumerate(batches) if error.offset < header.next_offset)
            stops = [max(start, batches[alone][0].base_offset), min(batches[alone][0].next_offset, end)]
            for some, stop in zip((batches[:alone], batches[alone : alone + 1]), stops):
                items += rewritten(some, start, stop) if some and start < stop else []
                start = stop
            batches = batches[alone + 1 :]
            if not batches:
                return items


def coalesce(
    records: memoryview,
    start: int,
    *,
    until: int | None = None,
    max_batch_bytes: int,
    joined_bytes: int | None = None,
) -> Coalesced | None:
    """The small batches at the start of `records`, a fetch at `start`, as fewer larger ones; None if there are less than two.

    The result is that of iter_batches, must_rewrite and rewrite together, without an object for each batch.  It ends before
    the first batch that is large, cut, damaged, of another format, transactional, or must be rewritten for other reasons,
    before the first from `until` on, and where it `is_enough`: the caller handles the rest.
    """
    starts, stop = _small_batches(records)
    if len(starts) < 2 or max_batch_bytes < 2 * SMALL_BATCH_BYTES:
        return None
    begins = np.array(starts, np.int64)
    headers = _headers_at(records, begins)
    offsets, counts = headers["base_offset"].astype(np.int64), headers["record_count"].astype(np.int64)
    is_plain = (headers["attributes"] & ~CODEC_MASK == 0) & (counts == headers["last_offset_delta"] + 1) & (counts > 0)
    is_plain &= offsets == start + np.cumsum(counts) - counts
    if until is not None:
        is_plain &= offsets < until
    count = len(starts) if is_plain.all() else int(is_plain.argmin())
    checksum, ends = crc32c.crc32c, [*starts[1:], stop]
    crcs = [checksum(records[a + ATTRIBUTES_OFFSET : b]) for a, b in zip(starts[:count], ends)]
    if crcs != headers["crc"][:count].tolist():
        count = int((np.array(crcs) == headers["crc"][:count]).argmin())
    if count < 2:
        return None
    room = min(max_batch_bytes, joined_bytes or max_batch_bytes)
    run = _Run(records, headers[:count], begins[:count], np.array(ends[:count], np.int64))
    items: list[Batch] = []
    for a, b in _spans((run.ends - run.starts[0] - 1) // _WINDOW_BYTES, 0, count):
        part = _Run(records, run.headers[a:b], run.starts[a:b], run.ends[a:b])
        codec = _codec_of(part.headers["attributes"])
        for rows in _read_run(part, codec):
            encoded = _encode(rows, (), codec, max_batch_bytes, room)
            items += (item for item in encoded if not isinstance(item, Gap))
    return Coalesced(items, read_header(records, starts[count - 1]), ends[count - 1])


def _small_batches(records: memoryview) -> tuple[list[int], int]:
    """Where the small v2 batches at the start of `records` begin, and where the last one ends."""
    unpack_from, end, position = _BEGINNING.unpack_from, len(records), 0
    starts: list[int] = []
    while end - position >= HEADER_SIZE:
        length, magic, attributes = unpack_from(records, position)
        following = position + length + LOG_OVERHEAD
        if magic != 2 or not HEADER_SIZE <= length + LOG_OVERHEAD < SMALL_BATCH_BYTES or following > end:
            break
        starts.append(position)
        position = following
        if is_enough(len(starts), position, attributes & CODEC_MASK):
            break
    return starts, position


def _windows(batches: Sequence[Batch], start: int, until: int) -> Iterator[tuple[_Rows, int]]:
    """The records in [start, until), in pieces of bounded size, each with its codec; the last piece is empty."""
    headers, views = [header for header, _ in batches], [view for _, view in batches]
    count = len(views)
    begins, deltas, magics, attributes = (
        np.fromiter(map(itemgetter(BatchHeader._fields.index(name)), headers), np.int64, count)
        for name in ("base_offset", "last_offset_delta", "magic", "attributes")
    )
    sizes = np.fromiter(map(len, views), np.int64, count)
    ends = begins + deltas + 1
    is_early = begins[1:] < ends[:-1]
    if is_early.any():
        raise RecordBatchError("record batch that begins before the last one ended", int(begins[1:][is_early.argmax()]))
    first, last = int(ends.searchsorted(start, "right")), int(begins.searchsorted(until))
    codec = headers[-1].codec
    for a, b in _spans(magics, first, last):
        for c, d in _spans((np.cumsum(sizes[a:b]) - 1) // _WINDOW_BYTES, 0, b - a):
            window = _Window(headers[a + c : a + d], views[a + c : a + d], sizes[a + c : a + d])
            codec = _codec_of(attributes[a + c : a + d])
            for rows in _read_v2(window, codec) if headers[a].magic == 2 else _read_legacy(window):
                if len((rows := _within(rows, start, until)).offsets):
                    yield rows, codec
    yield _NO_ROWS, codec


def _codec_of(attributes: Any) -> int:
    """The codec for the records of neighbours with these attributes: what compresses most of those that are compressed."""
    codecs = np.bincount(attributes & CODEC_MASK, minlength=2)
    return int(codecs[1:].argmax()) + 1 if codecs[1:].any() else 0


def _spans(numbers: Int64s, first: int, last: int) -> list[tuple[int, int]]:
    """Half-open ranges of neighbours in [first, last) with the same number."""
    edges = [first, *(np.flatnonzero(np.diff(numbers[first:last])) + first + 1).tolist(), last]
    return [(a, b) for a, b in zip(edges, edges[1:]) if a < b]


def _read_v2(window: _Window, codec: int) -> Iterator[_Rows]:
    joined = b"".join(window.views)
    ends = np.cumsum(window.sizes)
    starts = ends - window.sizes
    run = _Run(joined, _headers_at(joined, starts), starts, ends)
    is_chosen = (run.headers["record_count"] > 0) & (run.headers["attributes"] & CONTROL_BIT == 0)
    if not is_chosen.all():
        run = _Run(joined, run.headers[is_chosen], starts[is_chosen], ends[is_chosen])
    yield from _read_run(run, codec)


def _headers_at(records: bytes | memoryview, starts: Int64s) -> Headers:
    return np.ndarray((len(records) - HEADER_SIZE + 1,), f"V{HEADER_SIZE}", records, 0, (1,))[starts].view(HEADER)


def _read_run(run: _Run, codec: int) -> Iterator[_Rows]:
    """The records of batches, none of which is empty; with `codec` 0 none is compressed."""
    if not codec:
        sections = Sections(run.headers, run.records, run.starts + HEADER_SIZE, run.ends)
        yield from map(_rows, batch_rows(sections, _WINDOW_BYTES)) if len(run.headers) else ()
        return
    view, first = memoryview(run.records), 0
    batches = (view[a:b] for a, b in zip(run.starts.tolist(), run.ends.tolist()))
    for unfolded in _bounded(records_section(read_header(batch), batch) for batch in batches):
        last = first + len(unfolded)
        yield from map(_rows, batch_rows(join_sections(run.headers[first:last], unfolded), _WINDOW_BYTES))
        first = last


def _bounded(sections: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Groups of neighbours that are decoded together."""
    found: list[memoryview] = []
    size = 0
    for section in sections:
        # An unfolded small batch lies in a large buffer of its own.
        found.append(section if len(section) > _SMALL_SECTION else memoryview(bytes(section)))
        size += len(section)
        if size > _WINDOW_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def _read_legacy(window: _Window) -> Iterator[_Rows]:
    first = 0
    for sections in _bounded(map(unfold, window.headers, window.views)):
        last = first + len(sections)
        yield from map(_rows, message_rows(window.headers[first:last], window.views[first:last], sections))
        first = last


def _rows(columns: BatchColumns) -> _Rows:
    fields, buffer = columns.fields, pa.py_buffer(columns.joined)
    everything = np.arange(len(columns.offsets))
    headers = None
    if fields.header_count.any():
        start = fields.header_start()
        headers = gather(buffer, start, fields.end - start, everything)
    return _Rows(
        columns.offsets,
        columns.timestamps,
        gather(buffer, fields.key_start, fields.key_length, everything),
        gather(buffer, fields.value_start, fields.value_length, everything),
        headers,
    )


def _within(rows: _Rows, start: int, until: int) -> _Rows:
    first, last = np.searchsorted(rows.offsets, [start, until]).tolist()
    if first == 0 and last == len(rows.offsets):
        return rows
    return _Rows(
        rows.offsets[first:last],
        rows.timestamps[first:last],
        rows.keys[first:last],
        rows.values[first:last],
        None if rows.headers is None else rows.headers[first:last],
    )


def _fill(
    rows: _Rows, start: int, until: int, time: int, most: int, is_compacted: bool
) -> tuple[_Rows, list[Gap], int]:
    """The rows with filler between them, the remaining gaps, and the number of filler records.

    Filler has the greatest timestamp before it, `time` or a row's: so a search by time never ends at filler, and
    retention keeps it as long as the records next to it.
    """
    count = len(rows.offsets)
    edges = np.concatenate(([start - 1], rows.offsets, [until]))
    holes = np.diff(edges) - 1  # offsets that are missing before each row, and after the last
    if not holes.any():
        return rows, [], 0
    filled = np.where(holes <= LARGEST_HOLE, holes, 0)
    filled[np.cumsum(filled) > most] = 0
    gaps = [Gap(int(edges[n]) + 1, int(edges[n + 1])) for n in np.flatnonzero(holes - filled).tolist()]
    used = int(filled.sum())
    if not used:
        return rows, gaps, 0
    places = np.cumsum(filled[:-1]) + np.arange(count)  # positions of the rows
    take = np.full(count + used, count)  # the row at each position, or `count` for filler
    take[places] = np.arange(count)
    runs = filled + 1  # each hole with the row after it, which the last one lacks
    runs[-1] -= 1
    offsets = np.arange(count + used) + np.repeat(np.append(rows.offsets - places, until - count - used), runs)
    times = np.repeat(np.maximum.accumulate(np.append(time, rows.timestamps)), runs)
    times[places] = rows.timestamps
    headers = pa.array([_NO_HEADERS] * count, pa.binary()) if rows.headers is None else rows.headers
    filler = (FILLER.encode() if is_compacted else None, None, _FILLER_HEADERS)
    columns = [
        pa.concat_arrays([column, pa.array([value], column.type)]).take(pa.array(take))
        for column, value in zip((rows.keys, rows.values, headers), filler)
    ]
    return _Rows(offsets, times, *columns), gaps, used


def _encode(rows: _Rows, gaps: Sequence[Gap], codec: int, max_batch_bytes: int, room: int) -> Iterator[Batch | Gap]:
    """The rows as batches, none of them across a gap, and the gaps between them; `room` bounds those of several records."""
    waiting = list(reversed(gaps))
    if len(rows.offsets):
        cuts = _cuts(rows)
        encoded = encode_groups(
            rows.keys,
            rows.values,
            rows.headers,
            rows.timestamps,
            np.diff(cuts),
            codec=codec,
            max_batch_bytes=min(room, MAX_BATCH_BYTES),
        )
        for _, (data, _record_count, first_row, _) in encoded:
            base_offset = int(rows.offsets[first_row])
            while waiting and waiting[-1].from_offset < base_offset:
                yield waiting.pop()
            if len(data) > max_batch_bytes:
                raise OversizedRecordError(
                    f"the record at offset {base_offset} takes a batch of {len(data)} bytes, the target's"
                    f" max.message.bytes is {max_batch_bytes}",
                    base_offset,
                    len(data),
                    max_batch_bytes,
                ).advising(_RAISE)
            yield read_header(data)._replace(base_offset=base_offset), data
    yield from reversed(waiting)


def _cuts(rows: _Rows) -> Int64s:
    """Where batches must end: at gaps, and where the timestamps of a batch would span 2^63 ms or more."""
    count = len(rows.offsets)
    cuts = [0, *(np.flatnonzero(np.diff(rows.offsets) != 1) + 1).tolist(), count]
    if int(rows.timestamps.max()) - int(rows.timestamps.min()) >= 2**63:
        least = most = int(rows.timestamps[0])
        for row, timestamp in enumerate(rows.timestamps.tolist()):
            least, most = min(least, timestamp), max(most, timestamp)
            if most - least >= 2**63:
                cuts.append(row)
                least = most = timestamp
        cuts = sorted(set(cuts))
    return np.array(cuts, np.int64)
