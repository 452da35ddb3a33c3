"""Runs of decoded batches that a consumer gives out row by row, as ConsumerRecord fields or as Arrow.

Laws:
- A piece is decoded once and never changes; how far it has been given out is
  `position`, and nobody but its PartitionRecords moves it.
- A piece ends with what kafka-python's consumer knows behind its last row:
  `end_epoch`, `end_offset` and the error to raise there.
- What the columns doubt is decoded by kafka-python's own record classes, from
  records that were decompressed within the bounds of codecs.decompress.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch

from tolerant_client.arrow import columns_to_arrow, records_to_batch
from tolerant_client.batch_columns import BatchColumns, Sections, read_columns
from tolerant_client.record_batch import CODEC_MASK, Record
from tolerant_client.record_fields import Doubt, Int64s

# Below this many rows numpy's price for each call is more than a record decoded alone costs.
_FEW_ROWS: Final = 16

Column = Any  # a list with one item for each row, or repeat() of the one item that all rows have


class Rows(NamedTuple):
    """Fields of ConsumerRecord, before deserializers."""

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
    """Some rows in the order of their offsets; `position` is the next one to give out."""

    __slots__ = ("end_epoch", "end_offset", "error", "position", "rows")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.position = 0
        self.end_epoch: int | None = None
        self.end_offset: int | None = None
        self.error: Exception | None = None

    def read(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop`, at least one, as Python objects; raises Doubt when only `plainly` can read them."""
        raise NotImplementedError

    def arrow(self, topic: str, partition: int, schema: pa.Schema) -> Any:
        """All rows as one Arrow batch; made once.  Raises RecordBatchError for a timestamp beyond microseconds."""
        raise NotImplementedError

    def last(self, stop: int) -> tuple[int, int]:
        """(offset, leader epoch) of the row before `stop`."""
        raise NotImplementedError

    def size(self, start: int, stop: int) -> int:
        """Bytes of records, as kafka-python counts them."""
        raise NotImplementedError

    def find(self, offset: int) -> int:
        """The first row with this offset or a higher one."""
        raise NotImplementedError

    def plainly(self) -> Piece:
        """The same piece, decoded record by record."""
        raise NotImplementedError


class ColumnsPiece(Piece):
    """Rows that numpy found."""

    __slots__ = ("_arrow", "_blob", "_columns", "_epochs", "_names", "_sections", "_sizes")

    def __init__(self, columns: BatchColumns, sections: Sections) -> None:
        super().__init__(len(columns.offsets))
        self._columns = columns
        epochs = sections.headers["partition_leader_epoch"].astype(np.int64)
        self._epochs: Int64s | int = (
            int(epochs[0]) if epochs.min() == epochs.max() else np.repeat(epochs, columns.counts)
        )
        self._sizes = np.cumsum(columns.fields.length)
        joined = columns.joined
        self._blob: bytes | None = joined if isinstance(joined, bytes) else None
        self._sections = sections
        self._names = _Names()
        self._arrow: tuple[pa.Schema, Any] | None = None

    def read(self, start: int, stop: int) -> Rows:
        columns, part = self._columns, slice(start, stop)
        fields = columns.fields
        if self._blob is None:
            self._blob = bytes(columns.joined)
        types = columns.types[part]
        has_one_type = bool((types == types[0]).all())
        keys, key_sizes = _cut(self._blob, fields.key_start[part], fields.key_length[part])
        values, value_sizes = _cut(self._blob, fields.value_start[part], fields.value_length[part])
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

    def arrow(self, topic: str, partition: int, schema: pa.Schema) -> Any:
        if self._arrow is None or self._arrow[0] is not schema:
            everything = np.arange(self.rows)
            self._arrow = (
                schema,
                columns_to_arrow(self._columns, everything, topic, partition, schema),
            )
        return self._arrow[1]

    def last(self, stop: int) -> tuple[int, int]:
        epochs = self._epochs
        return int(self._columns.offsets[stop - 1]), epochs if isinstance(epochs, int) else int(epochs[stop - 1])

    def size(self, start: int, stop: int) -> int:
        return int(self._sizes[stop - 1]) - (int(self._sizes[start - 1]) if start else 0) if stop > start else 0

    def find(self, offset: int) -> int:
        return int(np.searchsorted(self._columns.offsets, offset))

    def _headers(self, start: int, stop: int) -> tuple[list[list[tuple[str, bytes | None]]], Column]:
        columns = self._columns
        found = columns.fields.headers
        counts = columns.fields.header_count[start:stop]
        if found is None or not counts.any():
            return [[] for _ in range(stop - start)], repeat(-1)
        assert self._blob is not None
        first, last = np.searchsorted(found.record, (start, stop))
        part = slice(int(first), int(last))
        keys, _ = _cut(self._blob, found.key_start[part], found.key_length[part])
        values, _ = _cut(self._blob, found.value_start[part], found.value_length[part])
        try:
            pairs = list(zip(map(self._names.__getitem__, keys), values))
        except UnicodeDecodeError:
            raise Doubt from None
        ends = np.cumsum(counts)
        bounds = ends.tolist()
        headers = [pairs[a:b] for a, b in zip([0, *bounds], bounds)]
        sizes = np.zeros(len(pairs) + 1, np.int64)
        np.cumsum(found.key_length[part] + np.maximum(found.value_length[part], 0), out=sizes[1:])
        total = sizes[ends] - sizes[ends - counts]
        return headers, np.where(counts > 0, total, -1).tolist()

    def plainly(self) -> Piece:
        piece = _read_plainly(self._sections)
        piece.position = self.position
        if piece.error is None:
            piece.end_epoch, piece.end_offset, piece.error = self.end_epoch, self.end_offset, self.error
        return piece


class _Names(dict[bytes, str]):
    """Header keys: few, and they come again and again."""

    def __missing__(self, key: bytes) -> str:
        name = self[key] = key.decode("utf-8")
        return name


class RecordsPiece(Piece):
    """Rows that kafka-python's record classes decoded."""

    __slots__ = ("_arrow", "_epochs", "_records")

    def __init__(self, records: list[Any], epochs: list[int], error: Exception | None = None) -> None:
        super().__init__(len(records))
        self._records = records
        self._epochs = epochs
        self._arrow: tuple[pa.Schema, Any] | None = None
        self.error = error

    def read(self, start: int, stop: int) -> Rows:
        records = self._records[start:stop]
        keys = [record.key for record in records]
        values = [record.value for record in records]
        headers = [list(record.headers) for record in records]
        return Rows(
            self._epochs[start:stop],
            [record.offset for record in records],
            [record.timestamp for record in records],
            [record.timestamp_type for record in records],
            keys,
            values,
            headers,
            [record.checksum for record in records],
            [-1 if key is None else len(key) for key in keys],
            [-1 if value is None else len(value) for value in values],
            [_header_size(pairs) for pairs in headers],
        )

    def arrow(self, topic: str, partition: int, schema: pa.Schema) -> Any:
        if self._arrow is None or self._arrow[0] is not schema:
            # Format v0 has no timestamps: -1 and type -1, as in Spark's source and Java's TimestampType.
            rows = [
                Record(
                    record.offset,
                    -1 if record.timestamp is None else record.timestamp,
                    record.key,
                    record.value,
                    tuple(record.headers),
                )
                for record in self._records
            ]
            types = [-1 if record.timestamp_type is None else record.timestamp_type for record in self._records]
            self._arrow = schema, records_to_batch(rows, types, self._epochs, topic, partition, schema)
        return self._arrow[1]

    def last(self, stop: int) -> tuple[int, int]:
        return self._records[stop - 1].offset, self._epochs[stop - 1]

    def size(self, start: int, stop: int) -> int:
        return sum(record.size_in_bytes for record in self._records[start:stop])

    def find(self, offset: int) -> int:
        for place, record in enumerate(self._records):
            if record.offset >= offset:
                return place
        return self.rows


def read_piece(sections: Sections) -> Piece:
    """The rows of batches of message format v2; an error in them is the piece's."""
    if sections.headers["record_count"].sum() > _FEW_ROWS:
        try:
            return ColumnsPiece(read_columns(sections, include_headers=True), sections)
        except Doubt:
            pass
    return _read_plainly(sections)


def _read_plainly(sections: Sections) -> RecordsPiece:
    headers, joined, starts, ends = sections
    plain = headers.copy()  # as if the batches had never been compressed
    plain["attributes"] &= ~CODEC_MASK
    batches = (header.tobytes() + joined[start:end] for header, start, end in zip(plain, starts, ends))
    return read_records(zip(map(DefaultRecordBatch, batches), headers["partition_leader_epoch"].tolist()))


def read_records(batches: Iterable[tuple[Any, int]], check_crcs: bool = False) -> RecordsPiece:
    """The rows of kafka-python's batches, each with its leader epoch, up to the first error."""
    records: list[Any] = []
    epochs: list[int] = []
    error: Exception | None = None
    try:
        for batch, epoch in batches:
            for record in batch:
                if check_crcs and not record.validate_crc():
                    raise CorruptRecordError(f"record at offset {record.offset} failed crc check")
                records.append(record)
                epochs.append(epoch)
    except Exception as failure:
        error = failure
    return RecordsPiece(records, epochs, error)


def _cut(blob: bytes, start: Int64s, length: Int64s) -> tuple[Column, Column]:
    """The bytes objects at `start` (None for a length of -1) and their lengths."""
    if not len(length):
        return [], []
    lowest, highest = int(length.min()), int(length.max())
    if highest <= 0 and lowest == highest:
        return repeat(None if highest < 0 else b"", len(length)), repeat(highest)
    if lowest == highest:
        # An item at every byte of the blob: numpy copies those asked for, several times as fast as slicing does.
        items = np.ndarray((len(blob) - lowest + 1,), f"V{lowest}", blob, 0, (1,))
        return items[start].tolist(), repeat(lowest)
    sizes = length.tolist()
    if lowest < 0:
        return [None if size < 0 else blob[at : at + size] for at, size in zip(start.tolist(), sizes)], sizes
    return [blob[a:b] for a, b in zip(start.tolist(), (start + length).tolist())], sizes


def _header_size(pairs: list[tuple[str, bytes | None]]) -> int:
    if not pairs:
        return -1
    return sum(len(key.encode("utf-8")) + (0 if value is None else len(value)) for key, value in pairs)
