"""Runs of decoded batches that a consumer returns row by row, as ConsumerRecord fields or as Arrow.

Laws:
- A piece is decoded once and never changes, except for `position`, the next row to
  return; only its PartitionRecords moves it.
- A piece ends with the state that kafka-python's consumer has after its last row:
  `end_epoch`, `end_offset` and the error to raise there.
- Few rows, and batches in Doubt, are decoded record by record, with the same
  result: header keys that are not UTF-8 are decoded with replacement characters, as Java does.
- Only a bounded number of rows become Python objects before they are returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tolerant_client.errors import RecordBatchError
from tolerant_client.records.arrow import PlainRow, columns_to_arrow, in_lists, plain_rows, rows_to_batch
from tolerant_client.records.batch_columns import BatchColumns, Sections, batch_header, iter_columns
from tolerant_client.records.record_batch import LOG_OVERHEAD, BatchHeader
from tolerant_client.records.record_fields import Int32s
from tolerant_client.records.record_sets import NO_TIMESTAMP_TYPE, message_columns
from tolerant_client.records.varint_columns import Doubt, Int64s

# Up to this many rows numpy's cost per call is higher than that of the plain decoder.
_FEW_ROWS: Final = 16
_BLOCK_ROWS: Final = 64  # what is read at once for calls that ask for fewer rows...
_BLOCK_BYTES: Final = 1 << 18  # ...unless they have more bytes
_PLAIN_AT_ONCE: Final = 1024  # rows of a piece that is decoded record by record...
_PLAIN_BYTES: Final = 1 << 18  # ...and their bytes: objects may take fifty times as many
_HEADERS_AT_ONCE: Final = 1 << 16
_CRC_BEFORE_KEY: Final = (10, 18)  # by magic: bytes from the CRC of a message to the start of its key

Column = Any  # a list with one item for each row, or repeat() of the one item that all rows have


class Rows(NamedTuple):
    """The fields of ConsumerRecord after topic and partition, in their order, not yet deserialized."""

    leader_epochs: Column
    offsets: list[int]
    timestamps: Column
    timestamp_types: Column
    keys: Column
    values: Column
    headers: list[list[tuple[str, bytes | None]]]
    checksums: Column
    key_sizes: Column
    value_sizes: Column
    header_sizes: Column


class Piece:
    """Some rows in the order of their offsets; `position` is the next row to return."""

    __slots__ = ("_arrow", "_block", "end_epoch", "end_offset", "error", "position", "rows")

    def __init__(
        self,
        rows: int,
        end_epoch: int | None = None,
        end_offset: int | None = None,
        error: RecordBatchError | None = None,
    ) -> None:
        self.rows = rows
        self.position = 0
        self.end_epoch = end_epoch
        self.end_offset = end_offset
        self.error = error
        self._arrow: tuple[pa.Schema, Any] | None = None
        self._block: tuple[range, Sequence[Column]] = range(0), ()  # the last rows that were read, and their columns

    def read(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop`, at least one, as Python objects; a few are cut from a block, since each call of numpy costs much."""
        if stop - start >= _BLOCK_ROWS:
            return self._read(start, stop)
        rows, columns = self._block
        if not rows.start <= start < stop <= rows.stop:
            ends = (min(start + count, self.rows) for count in (_BLOCK_ROWS, _FEW_ROWS))
            end = next((end for end in ends if end >= stop and self.size(start, end) <= _BLOCK_BYTES), stop)
            rows, columns = self._block = range(start, end), self._read(start, end)
        part = slice(start - rows.start, stop - rows.start)
        return Rows(*(column[part] if isinstance(column, list) else column for column in columns))

    def _read(self, start: int, stop: int) -> Rows:
        raise NotImplementedError

    def arrow(self, topic: str, partition: int, schema: pa.Schema) -> Any:
        """All rows as one Arrow batch, made once; raises RecordBatchError for a timestamp that overflows microseconds."""
        if self._arrow is None or self._arrow[0] is not schema:
            self._arrow = schema, self._to_arrow(topic, partition, schema)
        return self._arrow[1]

    def _to_arrow(self, topic: str, partition: int, schema: pa.Schema) -> Any:
        raise NotImplementedError

    def last(self, stop: int) -> tuple[int, int]:
        """(offset, leader epoch) of the row before `stop`."""
        raise NotImplementedError

    def size(self, start: int, stop: int) -> int:
        """The bytes of rows `start` to `stop`, as kafka-python counts them."""
        raise NotImplementedError

    def find(self, offset: int) -> int:
        """The first row with this offset or a higher one."""
        raise NotImplementedError


class ColumnsPiece(Piece):
    """Rows decoded with numpy."""

    __slots__ = ("_blob", "_blob_start", "_columns", "_epochs", "_names", "_sizes")

    def __init__(self, columns: BatchColumns) -> None:
        super().__init__(len(columns.offsets))
        self._columns = columns
        epochs = columns.headers["partition_leader_epoch"].astype(np.int64)
        self._epochs: Int64s | int = (
            int(epochs[0]) if epochs.min() == epochs.max() else np.repeat(epochs, columns.counts)
        )
        self._sizes = np.cumsum(columns.fields.length)
        joined = columns.joined
        self._blob: bytes | None = joined if isinstance(joined, bytes) else None  # else `joined` from _blob_start on
        self._blob_start = 0
        self._names = _Names()

    def _read(self, start: int, stop: int) -> Rows:
        columns, part = self._columns, slice(start, stop)
        fields = columns.fields
        if self._blob is None:
            self._blob_start = int(fields.key_start[0])
            self._blob = bytes(columns.joined[self._blob_start : int(fields.end[-1])])
        types = columns.types[part]
        has_one_type = bool((types == types[0]).all())
        keys, key_sizes = self._cut(fields.key_start[part], fields.key_length[part])
        values, value_sizes = self._cut(fields.value_start[part], fields.value_length[part])
        headers, header_sizes = self._headers(start, stop)
        return Rows(
            repeat(self._epochs) if isinstance(self._epochs, int) else self._epochs[part].tolist(),
            columns.offsets[part].tolist(),
            columns.timestamps[part].tolist(),
            repeat(int(types[0])) if has_one_type else types.tolist(),
            keys,
            values,
            headers,
            repeat(None),
            key_sizes,
            value_sizes,
            header_sizes,
        )

    def _to_arrow(self, topic: str, partition: int, schema: pa.Schema) -> Any:
        return columns_to_arrow(self._columns, np.arange(self.rows), topic, partition, schema)

    def last(self, stop: int) -> tuple[int, int]:
        epochs = self._epochs
        return int(self._columns.offsets[stop - 1]), epochs if isinstance(epochs, int) else int(epochs[stop - 1])

    def size(self, start: int, stop: int) -> int:
        return int(self._sizes[stop - 1]) - (int(self._sizes[start - 1]) if start else 0) if stop > start else 0

    def find(self, offset: int) -> int:
        return int(np.searchsorted(self._columns.offsets, offset))

    def _cut(self, start: Int64s | Int32s, length: Int64s | Int32s) -> tuple[Column, Column]:
        assert self._blob is not None
        return _cut(self._blob, start - self._blob_start if self._blob_start else start, length)

    def _headers(self, start: int, stop: int) -> tuple[list[list[tuple[str, bytes | None]]], Column]:
        columns = self._columns
        found = columns.fields.headers
        counts = columns.fields.header_count[start:stop]
        if found is None or not counts.any():
            return [[] for _ in range(stop - start)], repeat(-1)
        first, last = map(int, np.searchsorted(found.record, (start, stop)))
        pairs: list[tuple[str, bytes | None]] = []
        shared: dict[tuple[bytes, bytes | None], tuple[str, bytes | None]] = {}
        for at in range(first, last, _HEADERS_AT_ONCE):
            part = slice(at, min(at + _HEADERS_AT_ONCE, last))
            keys, _ = self._cut(found.key_start[part], found.key_length[part])
            values, _ = self._cut(found.value_start[part], found.value_length[part])
            named = zip(map(self._names.__getitem__, keys), values)
            # Most of millions of headers of a few bytes are equal.
            pairs += map(shared.setdefault, *itertools.tee(named)) if last - first > _HEADERS_AT_ONCE else named
        ends = np.cumsum(counts)
        bounds = ends.tolist()
        headers = [pairs[a:b] for a, b in zip([0, *bounds], bounds)]
        sizes = np.zeros(len(pairs) + 1, np.int64)
        part = slice(first, last)
        np.cumsum(found.key_length[part] + np.maximum(found.value_length[part], 0), out=sizes[1:])
        total = sizes[ends] - sizes[ends - counts]
        return headers, np.where(counts > 0, total, -1).tolist()


class MessagesPiece(ColumnsPiece):
    """Messages of v0 or v1, each with a checksum of its own; messages of v0 have no timestamps."""

    __slots__ = ("_magic",)

    def __init__(self, columns: BatchColumns, magic: int) -> None:
        super().__init__(columns)
        self._magic = magic
        self._sizes += LOG_OVERHEAD * np.arange(1, self.rows + 1)

    def _read(self, start: int, stop: int) -> Rows:
        rows = super()._read(start, stop)
        at = self._columns.fields.key_start[start:stop] - _CRC_BEFORE_KEY[self._magic]
        checksums = [int.from_bytes(self._columns.joined[place : place + 4], "big") for place in at.tolist()]
        if not self._magic:
            rows = rows._replace(timestamps=repeat(None), timestamp_types=repeat(None))
        return rows._replace(checksums=checksums)


class _Names(dict[bytes, str]):
    """Decoded header keys: a cache, since few keys occur again and again."""

    def __missing__(self, key: bytes) -> str:
        name = self[key] = key.decode("utf-8", "replace")
        return name


class RecordsPiece(Piece):
    """Rows from the plain decoder."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[PlainRow]) -> None:
        super().__init__(len(rows))
        self._rows = rows

    def _read(self, start: int, stop: int) -> Rows:
        rows = self._rows[start:stop]
        keys = [row.record.key for row in rows]
        values = [row.record.value for row in rows]
        headers = [[_shown(pair) for pair in row.record.headers] for row in rows]
        is_timed = [row.kind != NO_TIMESTAMP_TYPE for row in rows]
        return Rows(
            [row.epoch for row in rows],
            [row.record.offset for row in rows],
            [row.record.timestamp if timed else None for row, timed in zip(rows, is_timed)],
            [row.kind if timed else None for row, timed in zip(rows, is_timed)],
            keys,
            values,
            headers,
            [row.checksum for row in rows],
            [-1 if key is None else len(key) for key in keys],
            [-1 if value is None else len(value) for value in values],
            [_header_size(row.record.headers) for row in rows],
        )

    def _to_arrow(self, topic: str, partition: int, schema: pa.Schema) -> Any:
        return rows_to_batch(self._rows, topic, partition, schema)

    def last(self, stop: int) -> tuple[int, int]:
        row = self._rows[stop - 1]
        return row.record.offset, row.epoch

    def size(self, start: int, stop: int) -> int:
        return sum(row.size for row in self._rows[start:stop])

    def find(self, offset: int) -> int:
        for place, row in enumerate(self._rows):
            if row.record.offset >= offset:
                return place
        return self.rows


def read_pieces(sections: Sections, from_offset: int) -> Iterator[Piece]:
    """The rows of batches of message format v2; rows below `from_offset` come without headers.

    An error in the batches is the error of the last piece.
    """
    given = -1  # the last offset
    if sections.headers["record_count"].sum() > _FEW_ROWS:
        try:
            for columns in iter_columns(sections, include_headers=True, from_offset=from_offset):
                yield ColumnsPiece(columns)
                given = int(columns.offsets[-1])
            return
        except Doubt:
            pass
    from_offset = max(from_offset, given + 1)
    view, bounds = memoryview(sections.joined), zip(sections.starts.tolist(), sections.ends.tolist())
    batches = zip(map(batch_header, sections.headers), (view[start:end] for start, end in bounds))
    rows = (row for header, section in batches for row in plain_rows(header, section, section, from_offset))
    yield from _plain_pieces(row for row in rows if row.record.offset > given)


def read_messages(sets: Sequence[tuple[BatchHeader, memoryview, memoryview]], leader_epoch: int) -> Iterator[Piece]:
    """As read_pieces, for sets of one older message format: (header, set, its messages from `unfold`)."""
    if sum(header.record_count for header, _, _ in sets) > _FEW_ROWS:
        try:
            columns = message_columns([(header, section) for header, _, section in sets])
        except Doubt:
            pass
        else:
            columns.headers["partition_leader_epoch"] = leader_epoch
            yield MessagesPiece(columns, sets[0][0].magic)
            return
    known = ((header._replace(partition_leader_epoch=leader_epoch), view, section) for header, view, section in sets)
    yield from _plain_pieces(row for each in known for row in plain_rows(*each, 0))


def _plain_pieces(rows: Iterator[PlainRow]) -> Iterator[Piece]:
    try:
        yield from map(RecordsPiece, in_lists(rows, _PLAIN_AT_ONCE, _PLAIN_BYTES))
    except RecordBatchError as error:
        yield Piece(0, error=error)


def _cut(blob: bytes, start: Int64s | Int32s, length: Int64s | Int32s) -> tuple[Column, Column]:
    """The bytes objects at `start` (None for a length of -1) and their lengths."""
    if not len(length):
        return [], []
    lowest, highest = int(length.min()), int(length.max())
    if highest <= 0 and lowest == highest:
        return repeat(None if highest < 0 else b"", len(length)), repeat(highest)
    if lowest == highest:
        # One item begins at every byte of the blob: numpy copies the chosen ones several times as fast as slicing does.
        items = np.ndarray((len(blob) - lowest + 1,), f"V{lowest}", blob, 0, (1,))
        return items[start].tolist(), repeat(lowest)
    sizes = length.tolist()
    if lowest < 0:
        return [None if size < 0 else blob[at : at + size] for at, size in zip(start.tolist(), sizes)], sizes
    return [blob[a:b] for a, b in zip(start.tolist(), (start + length).tolist())], sizes


def _shown(pair: tuple[str, bytes | None]) -> tuple[str, bytes | None]:
    """The header with replacement characters for key bytes that are not UTF-8, which Record keeps as surrogates."""
    name, value = pair
    return pair if name.isascii() else (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), value)


def _header_size(pairs: Iterable[tuple[str, bytes | None]]) -> int:
    sizes = [len(key.encode("utf-8", "surrogateescape")) + len(value or b"") for key, value in pairs]
    return sum(sizes) if sizes else -1
