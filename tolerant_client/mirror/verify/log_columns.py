"""The batches of a fetch, and their records as columns, for a comparison of two logs.

Laws:
- Only checked batches are passed on: their checksums, header fields and ascending offsets are right.
- Control batches and the batches of aborted transactions are left out: they have no committed record.
- No Python object is made per record, except for records that numpy leaves to decode_section.
- Record headers are compared as bytes, and decoded only if these differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tolerant_client.errors import RecordBatchError
from tolerant_client.mirror.batches.columns import batch_rows, message_rows
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.records.arrow import gather
from tolerant_client.records.batch_columns import (
    HEADER,
    SLICE_HEADERS,
    SLICE_ROWS,
    BatchColumns,
    Headers,
    batch_header,
    join_sections,
    read_run,
    spans,
)
from tolerant_client.records.read_committed import AbortedTransactions
from tolerant_client.records.record_batch import (
    CONTROL_BIT,
    LOG_OVERHEAD,
    BatchHeader,
    encode_headers,
    records_section,
)
from tolerant_client.records.record_fields import read_headers
from tolerant_client.records.record_sets import iter_record_sets, unfold
from tolerant_client.records.stretches import survey
from tolerant_client.records.varint_columns import Doubt, Int64s

_FILLER_KEY: Final = FILLER.encode()
_FILLER_HEADER: Final = encode_headers([(FILLER, None)])[:-1]  # without the length of its value

Mask = npt.NDArray[np.bool_]


class Batches(NamedTuple):
    """Batches of one log in order; views[n] has the bytes of headers[n], whose magic is 0, 1 or 2."""

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

    def followed_by(self, other: Batches) -> Batches:
        if not self.views:
            return other
        return Batches(np.concatenate((self.headers, other.headers)), self.views + other.views)


NO_BATCHES: Final = Batches(np.empty(0, HEADER), [])


def read_batches(records: memoryview, position: int, aborted: Iterable[tuple[int, int]] = ()) -> tuple[Batches, int]:
    """The batches from `position` on that may have committed records, and the offset after the last whole batch.

    `aborted` are the (producer id, first offset) pairs of the same response.
    The first damaged batch and those after it are left for the next fetch.
    Raises RecordBatchError if no batch is left.
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
    if named := tuple(aborted):
        transactions = AbortedTransactions(named)
        batches = zip(map(batch_header, found.headers), found.views)
        counts &= [not transactions.cover(header, view) for header, view in batches]
    return found.chosen(counts), end


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
        run, distrust = read_run(cast("bytes", records), stretch.starts, stretch.end)  # it takes any buffer
        bounds = zip(run.starts.tolist(), run.ends.tolist())
        found = found.followed_by(Batches(run.headers, [records[a:b] for (a, b), _ in zip(bounds, run.headers)]))
        if distrust is not None:
            return found, distrust
    return found, None


def _legacy(sets: Sequence[tuple[BatchHeader, memoryview]]) -> Batches:
    rows = [(h.base_offset, h.size - LOG_OVERHEAD, *h[2:]) for h, _ in sets]
    # iter_record_sets gives -1 for fields that v0 and v1 lack; the crc column is unsigned.
    return Batches(np.array(rows, HEADER) if rows else np.empty(0, HEADER), [view for _, view in sets])


def unfold_batch(row: np.void, view: memoryview) -> memoryview:
    """The records of one batch, decompressed; raises RecordBatchError if that fails."""
    header = batch_header(row)
    return unfold(header, view) if header.magic < 2 else records_section(header, view)


def iter_rows(batches: Batches, sections: Sequence[memoryview]) -> Iterator[BatchColumns]:
    """The records, in slices, of batches that are all v2 or all of one older magic; record headers are not read.

    sections[n] has the unfolded records of views[n].  Raises RecordBatchError.
    """
    if batches.headers["magic"][0] < 2:
        return message_rows([batch_header(row) for row in batches.headers], batches.views, sections)
    return batch_rows(join_sections(batches.headers, sections))


def key_column(columns: BatchColumns, rows: Int64s) -> pa.Array:
    """The keys of `rows`, null for a record without one."""
    return gather(pa.py_buffer(columns.joined), columns.fields.key_start, columns.fields.key_length, rows)


def is_filler(columns: BatchColumns, rows: Int64s) -> Mask:
    """Which of `rows` are filler records of the mirror, as gaps.is_filler decides for one."""
    fields, size = columns.fields, len(_FILLER_HEADER)
    found: Mask = (fields.header_count[rows] == 1) & (fields.value_length[rows] < 0)
    found &= np.isin(fields.key_length[rows], (-1, len(_FILLER_KEY)))
    start = fields.header_start()
    found &= (fields.end - start)[rows] > size
    if len(places := np.flatnonzero(found)):
        chosen = rows[places]
        buffer = pa.py_buffer(columns.joined)
        names = gather(buffer, start[chosen], np.full(len(chosen), size), np.arange(len(chosen)))
        keys = pc.fill_null(key_column(columns, chosen), _FILLER_KEY)
        is_named = pc.and_(pc.equal(names, _FILLER_HEADER), pc.equal(keys, _FILLER_KEY))
        found[places] = is_named.to_numpy(zero_copy_only=False)
    return found


def differing(source: BatchColumns, target: BatchColumns, rows: tuple[Int64s, Int64s]) -> dict[str, Mask]:
    """By field, where row n of rows[0] on the source differs from row n of rows[1] on the target; equal fields are absent."""
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
    starts = [side.fields.header_start() for side in sides]
    raw = [gather(b, at, side.fields.end - at, kept) for b, at, side, kept in zip(buffers, starts, sides, rows)]
    others = _unequal(*raw)
    if others is None:
        return None
    # Equal headers may have longer varints, and a format without headers equals one with none.
    doubtful = np.flatnonzero(others & ~mask & (counts[0] > 0))
    for first, stop in spans(counts[0][doubtful], SLICE_HEADERS, SLICE_ROWS) if len(doubtful) else ():
        some = doubtful[first:stop]
        owners = np.repeat(some, counts[0][some])
        pairs = [_header_columns(side, buffer, kept[some]) for side, buffer, kept in zip(sides, buffers, rows)]
        for one, other in zip(*pairs):
            if (unequal := _unequal(one, other)) is not None:
                mask[owners[unequal]] = True
    return mask


def _header_columns(columns: BatchColumns, buffer: pa.Buffer, rows: Int64s) -> tuple[pa.Array, pa.Array]:
    """The keys and the values of all headers of `rows`.  Raises RecordBatchError for a record with too many."""
    fields = columns.fields.rows(rows)
    try:
        found = read_headers(np.frombuffer(columns.joined, np.uint8), fields, True)
    except Doubt:
        offset = int(columns.offsets[rows[int(fields.header_count.argmax())]])
        raise RecordBatchError(
            f"the headers of the record at offset {offset} differ in their bytes, and are too many to decode",
            offset,
        ) from None
    assert found is not None  # read_headers was asked for headers
    everything = np.arange(len(found.record))
    return (
        gather(buffer, found.key_start, found.key_length, everything),
        gather(buffer, found.value_start, found.value_length, everything),
    )
