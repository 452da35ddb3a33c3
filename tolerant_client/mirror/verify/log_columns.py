"""What a fetch holds, for a comparison of two logs: whole batches, and their records as columns.

Laws:
- Only what was checked is handed on: checksums, headers that add up, offsets that ascend.
- Control batches and the batches of aborted transactions are left out: they hold no committed record.
- No Python object is made per record, except where numpy leaves a record to decode_records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tolerant_client.arrow import gather
from tolerant_client.batch_columns import HEADER, BatchColumns, Headers, batch_header, join_sections, read_columns, read_run
from tolerant_client.committed import skip_aborted
from tolerant_client.consumer_records import survey
from tolerant_client.errors import RecordBatchError
from tolerant_client.legacy_records import decode_messages, iter_record_sets, message_columns, unfold
from tolerant_client.mirror.gaps import FILLER
from tolerant_client.record_batch import (
    CONTROL_BIT,
    LOG_OVERHEAD,
    BatchHeader,
    Record,
    decode_records,
    records_section,
)
from tolerant_client.record_fields import Doubt, Fields, HeaderFields, Int64s

_FILLER_KEY: Final = FILLER.encode()
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8

Mask = npt.NDArray[np.bool_]


class Batches(NamedTuple):
    """Batches of one log in order; views[n] are the bytes of headers[n], whose magic may be 0, 1 or 2."""

    headers: Headers
    views: list[memoryview]

    @property
    def next_offsets(self) -> Int64s:
        offsets: Int64s = self.headers["base_offset"].astype(np.int64)
        offsets += self.headers["last_offset_delta"]
        offsets += 1
        return offsets

    def chosen(self, mask: Mask) -> Batches:
        if mask.all():
            return self
        return Batches(self.headers[mask], [self.views[n] for n in np.flatnonzero(mask).tolist()])

    def first(self, count: int) -> Batches:
        return Batches(self.headers[:count], self.views[:count])

    def followed_by(self, other: Batches) -> Batches:
        if not self.views:
            return other
        return Batches(np.concatenate((self.headers, other.headers)), self.views + other.views)


NO_BATCHES: Final = Batches(np.empty(0, HEADER), [])


def read_batches(
    records: memoryview, position: int, aborted: Iterable[tuple[int, int]] = ()
) -> tuple[Batches, int]:
    """The batches from `position` on that may hold committed records, and the offset behind all whole ones.

    `aborted` is what the same answer says: (producer id, first offset) pairs.
    What follows the first batch that cannot be trusted is left for the next fetch.
    Raises RecordBatchError when that leaves nothing.
    """
    found, distrust = _whole_batches(records, position)
    following = found.next_offsets
    found = found.chosen(following > position)
    if not found.views:
        raise distrust or RecordBatchError(f"{len(records)} bytes without a whole record batch", position)
    if (found.headers["base_offset"][1:] < following[following > position][:-1]).any():
        raise RecordBatchError("record batches out of order", int(found.headers["base_offset"][0]))
    end = int(following[-1])
    counts = (found.headers["attributes"] & CONTROL_BIT == 0) & (found.headers["record_count"] > 0)
    if pairs := tuple(aborted):
        headers = zip(map(batch_header, found.headers), found.views)
        kept = [header.base_offset for header, _ in skip_aborted(headers, pairs)]
        counts &= np.isin(found.headers["base_offset"], kept)
    return found.chosen(counts), end


def is_cut(records: memoryview) -> bool:
    """True when not even the first batch came whole: the limit was too small for it."""
    return len(records) < LOG_OVERHEAD or LOG_OVERHEAD + _LENGTH.unpack_from(records, _LENGTH_AT)[0] > len(records)


def _whole_batches(records: memoryview, position: int) -> tuple[Batches, RecordBatchError | None]:
    found = NO_BATCHES
    for stretch in survey(records)[0]:
        part = records[stretch.starts[0] : stretch.end]
        if stretch.is_legacy:
            sets: list[tuple[BatchHeader, memoryview]] = []
            try:
                for each in iter_record_sets(part, from_offset=position):
                    sets.append(each)
            except RecordBatchError as error:
                return found.followed_by(_legacy(sets)), error
            found = found.followed_by(_legacy(sets))
            continue
        run, distrust = read_run(cast("bytes", records), stretch.starts, stretch.end)  # any buffer will do
        bounds = zip(run.starts.tolist(), run.ends.tolist())
        found = found.followed_by(Batches(run.headers, [records[a:b] for (a, b), _ in zip(bounds, run.headers)]))
        if distrust is not None:
            return found, distrust
    return found, None


def _legacy(sets: Sequence[tuple[BatchHeader, memoryview]]) -> Batches:
    rows = [(h.base_offset, h.size - LOG_OVERHEAD, *h[2:]) for h, _ in sets]
    # iter_record_sets says -1 for what v0 and v1 have not; the columns of crc are unsigned.
    return Batches(np.array(rows, HEADER) if rows else np.empty(0, HEADER), [view for _, view in sets])


def unfold_batch(row: np.void, view: memoryview) -> memoryview:
    """The records of one batch, decompressed; raises RecordBatchError when that cannot be."""
    header = batch_header(row)
    return unfold(header, view) if header.magic < 2 else records_section(header, view)


def read_rows(batches: Batches, sections: Sequence[memoryview]) -> BatchColumns:
    """All records of batches that are all v2, or all of one older magic; sections[n] is what views[n] unfolds to.

    Raises RecordBatchError.
    """
    try:
        if batches.headers["magic"][0] == 2:
            return read_columns(join_sections(batches.headers, sections), True)
        return message_columns(list(zip(map(batch_header, batches.headers), sections)))
    except Doubt:
        return _plain_columns([r for row, view in zip(batches.headers, batches.views) for r in _decode(row, view)])


def _decode(row: np.void, view: memoryview) -> Iterable[Record]:
    header = batch_header(row)
    if header.magic < 2:
        return (record for record, _ in decode_messages(header, view))
    return decode_records(view)


def _plain_columns(records: Sequence[Record]) -> BatchColumns:
    """What numpy does not read, laid out so that columns can say where it is."""
    joined = bytearray()

    def place(data: bytes | None) -> tuple[int, int]:
        start = len(joined)
        joined.extend(data or b"")
        return start, -1 if data is None else len(data)

    keys, values, names, contents = [], [], [], []
    for record in records:
        keys.append(place(record.key))
        values.append(place(record.value))
        for name, content in record.headers:
            names.append(place(name.encode("utf-8", "surrogateescape")))
            contents.append(place(content))

    def columns(places: list[tuple[int, int]]) -> tuple[Int64s, Int64s]:
        both = np.array(places, np.int64).reshape(-1, 2)
        return both[:, 0].copy(), both[:, 1].copy()

    counts = np.array([len(record.headers) for record in records], np.int64)
    zeros = np.zeros(len(records), np.int64)
    placed = (np.repeat(np.arange(len(records)), counts), *columns(names), *columns(contents))
    headers = HeaderFields(*(column.astype(np.int32) for column in placed))
    fields = Fields(zeros, zeros, zeros, *columns(keys), *columns(values), counts, headers)
    offsets = np.array([record.offset for record in records], np.int64)
    timestamps = np.array([record.timestamp for record in records], np.int64)
    return BatchColumns(bytes(joined), np.empty(0, HEADER), fields, zeros[:0], offsets, timestamps, zeros.astype(np.int32))


def key_column(columns: BatchColumns, rows: Int64s) -> pa.Array:
    """The keys of `rows`, null where there is none."""
    return gather(pa.py_buffer(columns.joined), columns.fields.key_start, columns.fields.key_length, rows)


def is_filler(columns: BatchColumns, rows: Int64s) -> Mask:
    """Which of `rows` are filler records of the mirror, as gaps.is_filler says of one."""
    fields, headers = columns.fields, columns.fields.headers
    found: Mask = (fields.header_count[rows] == 1) & (fields.value_length[rows] < 0)
    found &= np.isin(fields.key_length[rows], (-1, len(_FILLER_KEY)))
    places = np.flatnonzero(found)
    if len(places) and headers is not None:
        owned = np.searchsorted(headers.record, rows[places])
        names = gather(pa.py_buffer(columns.joined), headers.key_start, headers.key_length, owned)
        keys = pc.fill_null(key_column(columns, rows[places]), _FILLER_KEY)
        is_named = pc.and_(pc.equal(names, _FILLER_KEY), pc.equal(keys, _FILLER_KEY))
        found[places] = is_named.to_numpy(zero_copy_only=False)
    return found


def differing(source: BatchColumns, target: BatchColumns, rows: tuple[Int64s, Int64s]) -> dict[str, Mask]:
    """Where row n of rows[0] on the source is not row n of rows[1] on the target, by field; fields that agree are absent."""
    sides = (source, target)
    buffers = [pa.py_buffer(side.joined) for side in sides]
    found: dict[str, Mask] = {}

    def note(name: str, mask: Mask | None) -> None:
        if mask is not None and mask.any():
            found[name] = mask

    def column(which: str) -> list[pa.Array]:
        return [
            gather(buffer, getattr(side.fields, f"{which}_start"), getattr(side.fields, f"{which}_length"), kept)
            for buffer, side, kept in zip(buffers, sides, rows)
        ]

    note("timestamp", source.timestamps[rows[0]] != target.timestamps[rows[1]])
    note("key", _unequal(*column("key")))
    note("value", _unequal(*column("value")))
    note("headers", _unequal_headers(sides, buffers, rows))
    return found


def _unequal(one: pa.Array, other: pa.Array) -> Mask | None:
    if one.equals(other):
        return None
    differs = pc.fill_null(pc.not_equal(one, other), False)
    mask: Mask = pc.or_(differs, pc.xor(pc.is_null(one), pc.is_null(other))).to_numpy(zero_copy_only=False)
    return mask


def _unequal_headers(
    sides: tuple[BatchColumns, BatchColumns], buffers: Sequence[pa.Buffer], rows: tuple[Int64s, Int64s]
) -> Mask | None:
    counts = [side.fields.header_count[kept] for side, kept in zip(sides, rows)]
    mask: Mask = counts[0] != counts[1]
    comparable = np.flatnonzero(~mask & (counts[0] > 0))
    if len(comparable):
        owners = np.repeat(comparable, counts[0][comparable])
        columns = []
        for side, buffer, kept in zip(sides, buffers, rows):
            headers = side.fields.headers
            assert headers is not None  # there are some
            chosen = _header_places(headers, side.fields.header_count, kept[comparable])
            columns.append(
                (
                    gather(buffer, headers.key_start, headers.key_length, chosen),
                    gather(buffer, headers.value_start, headers.value_length, chosen),
                )
            )
        for one, other in zip(*columns):
            unequal = _unequal(one, other)
            if unequal is not None:
                mask[owners[unequal]] = True
    return mask


def _header_places(headers: HeaderFields, counts: Int64s, rows: Int64s) -> Int64s:
    """Where the headers of `rows` are among all, one record's behind the other's."""
    first = np.searchsorted(headers.record, rows)
    own = counts[rows]
    ends = np.cumsum(own)
    places: Int64s = np.arange(int(ends[-1])) + np.repeat(first - (ends - own), own)
    return places
