"""The records of batches as columns: read with numpy, and one by one where numpy gives up (Doubt).

Law: no record is yielded twice; errors are those that decode_section or decode_unfolded raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tolerant_client.records.arrow import PlainRow, in_lists, plain_rows
from tolerant_client.records.batch_columns import (
    HEADER,
    SLICE_BYTES,
    BatchColumns,
    Sections,
    batch_header,
    iter_columns,
)
from tolerant_client.records.record_batch import BatchHeader, Record, encode_headers
from tolerant_client.records.record_fields import Fields
from tolerant_client.records.record_sets import message_columns
from tolerant_client.records.varint_columns import Doubt, Int64s

_PLAIN_AT_ONCE: Final = 1 << 14  # records decoded one by one...
_PLAIN_BYTES: Final = 1 << 20  # ...and their bytes


def batch_rows(sections: Sections, slice_bytes: int = SLICE_BYTES) -> Iterator[BatchColumns]:
    """The records of v2 batches in slices of columns, without their headers.  Raises RecordBatchError."""
    given = -1  # the last offset that was yielded
    try:
        for columns in iter_columns(sections, False, slice_bytes=slice_bytes):
            yield columns
            given = int(columns.offsets[-1])
    except Doubt:
        view, bounds = memoryview(sections.joined), zip(sections.starts.tolist(), sections.ends.tolist())
        batches = zip(map(batch_header, sections.headers), (view[a:b] for a, b in bounds))
        rows = (row for header, part in batches for row in plain_rows(header, part, part, given + 1))
        yield from _plainly(row for row in rows if row.record.offset > given)


def message_rows(
    headers: Sequence[BatchHeader], views: Sequence[memoryview], sections: Sequence[memoryview]
) -> Iterator[BatchColumns]:
    """The records of message sets of one older magic; sections[n] is what views[n] unfolds to.  Raises RecordBatchError."""
    try:
        yield message_columns(list(zip(headers, sections)))
    except Doubt:
        yield from _plainly(row for one in zip(headers, views, sections) for row in plain_rows(*one, 0))


def _plainly(rows: Iterator[PlainRow]) -> Iterator[BatchColumns]:
    for some in in_lists(rows, _PLAIN_AT_ONCE, _PLAIN_BYTES):
        yield _plain_columns([row.record for row in some])


def _plain_columns(records: Sequence[Record]) -> BatchColumns:
    """Records that numpy did not read, laid out in a buffer that columns can point into."""
    joined = bytearray()

    def place(data: bytes | None) -> tuple[int, int]:
        start = len(joined)
        joined.extend(data or b"")
        return start, -1 if data is None else len(data)

    keys, values, ends = [], [], []
    for record in records:
        keys.append(place(record.key))
        values.append(place(record.value))
        ends.append(sum(place(encode_headers(record.headers))))

    def columns(places: list[tuple[int, int]]) -> tuple[Int64s, Int64s]:
        both = np.array(places, np.int64).reshape(-1, 2)
        return both[:, 0].copy(), both[:, 1].copy()

    counts = np.array([len(record.headers) for record in records], np.int64)
    zeros = np.zeros(len(records), np.int64)
    fields = Fields(zeros, zeros, zeros, *columns(keys), *columns(values), counts, np.array(ends, np.int64), None)
    offsets = np.array([record.offset for record in records], np.int64)
    timestamps = np.array([record.timestamp for record in records], np.int64)
    return BatchColumns(
        bytes(joined), np.empty(0, HEADER), fields, zeros[:0], offsets, timestamps, zeros.astype(np.int32)
    )
