"""Record batches to Arrow: the columns of Spark's Kafka source, decoded with numpy.

Laws:
- The result equals decode_records, record by record.  The plain decoder reads every
  batch that looks damaged, so both paths raise the same RecordBatchError.
- No Python object is made per record, except one integer for each record while
  records of varying lengths are found; none is kept.
- Memory is bounded: iter_arrow holds at most `target_bytes` of decompressed
  records plus one batch, and a batch is bounded by codecs.decompress; the columns
  of a large batch are made in slices (batch_columns.iter_columns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tolerant_client.errors import RecordBatchError
from tolerant_client.records.batch_columns import HEADER, BatchColumns, iter_columns, join_sections
from tolerant_client.records.record_batch import HEADER_SIZE, BatchHeader, Record, decode_section, records_section
from tolerant_client.records.record_fields import MAX_HEADERS, Fields, HeaderFields, Int32s
from tolerant_client.records.record_sets import decode_unfolded, message_columns, unfold
from tolerant_client.records.varint_columns import Doubt, Int64s

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS))
LEADER_EPOCH: Final = pa.field("leaderEpoch", pa.int32())
# Every column that a caller can request; a schema may have any of these fields, in any order.
ALL_COLUMNS: Final = SCHEMA_WITH_HEADERS.append(LEADER_EPOCH)

TARGET_BYTES: Final = 8 * 1024 * 1024
HEADER_BYTES: Final = 64  # memory per header while its column is built, besides its name and its value

_HEADERS_AT_ONCE: Final = 1 << 18  # bounds the memory that gathering takes besides its result
_RECORDS_AT_ONCE: Final = 1 << 14  # records held as Python objects...
_RECORD_BYTES_AT_ONCE: Final = 1 << 20  # ...and their bytes: a small header object takes fifty times its encoded size
_MAX_MICROS_MS: Final = (2**63 - 1) // 1000


def iter_arrow(
    batches: Iterable[tuple[BatchHeader, memoryview]],
    topic: str,
    partition: int,
    from_offset: int,
    until_offset: int,
    schema: pa.Schema = SCHEMA,
    *,
    target_bytes: int = TARGET_BYTES,
    most_headers: int = MAX_HEADERS,
) -> Iterator[pa.RecordBatch]:
    """The records of `batches` within [from_offset, until_offset), in pieces of bounded size.

    Control batches are skipped.  Empty pieces are not yielded.  If `schema` has headers, a record with more than
    `most_headers` raises RecordBatchError after the records before it are yielded; each header takes up to HEADER_BYTES
    of memory meanwhile.
    """
    for sections in _joinable(batches, from_offset, until_offset, target_bytes):
        begin = from_offset
        try:
            for columns in _columns(sections, "headers" in schema.names, begin, most_headers):
                offsets = columns.offsets
                kept = np.flatnonzero((offsets >= begin) & (offsets < until_offset))
                if len(kept):
                    yield columns_to_arrow(columns, kept, topic, partition, schema)
                    begin = int(offsets[kept[-1]]) + 1
        except Doubt:
            # The plain decoder reads the rows that the fast path did not yield; an error that it raises is the caller's.
            found = (row for each in sections for row in plain_rows(*each, begin, most_headers))
            rows = (row for row in found if begin <= row.record.offset < until_offset)
            for some in in_lists(rows, _RECORDS_AT_ONCE, _RECORD_BYTES_AT_ONCE):
                yield rows_to_batch(some, topic, partition, schema)


def _joinable(
    batches: Iterable[tuple[BatchHeader, memoryview]], from_offset: int, until_offset: int, target_bytes: int
) -> Iterator[list[tuple[BatchHeader, memoryview, memoryview]]]:
    """Groups of batches of one format with data in that range, each with its records decompressed.

    A group has at most `target_bytes` of decompressed records, or one batch.
    """
    sections: list[tuple[BatchHeader, memoryview, memoryview]] = []
    size = 0
    for header, batch in batches:
        if (
            header.is_control
            or not header.record_count
            or header.next_offset <= from_offset
            or header.base_offset >= until_offset
        ):
            continue
        section = unfold(header, batch) if header.magic < 2 else records_section(header, batch)
        if sections and (size + len(section) > target_bytes or header.magic != sections[0][0].magic):
            yield sections
            sections, size = [], 0
        sections.append((header, batch, section))
        size += len(section)
    if sections:
        yield sections


def _columns(
    sections: Sequence[tuple[BatchHeader, memoryview, memoryview]],
    include_headers: bool,
    from_offset: int,
    most_headers: int,
) -> Iterator[BatchColumns]:
    if sections[0][0].magic < 2:
        yield message_columns([(header, section) for header, _, section in sections])
        return
    headers = np.frombuffer(b"".join(batch[:HEADER_SIZE] for _, batch, _ in sections), HEADER)
    joined = join_sections(headers, [section for _, _, section in sections])
    yield from iter_columns(joined, include_headers, from_offset=from_offset, most_headers=most_headers)


def columns_to_arrow(
    columns: BatchColumns, kept: Int64s, topic: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """The rows `kept` (ascending) as the fields of `schema`; if it has headers, `columns` must have been read with them."""
    is_whole = len(kept) == len(columns.offsets)
    buffer = pa.py_buffer(columns.joined)
    fields, epochs = columns.fields, columns.headers["partition_leader_epoch"]

    def rows(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if is_whole else values[kept]

    arrays: dict[str, Callable[[], Any]] = {
        "key": lambda: gather(buffer, fields.key_start, fields.key_length, kept),
        "value": lambda: gather(buffer, fields.value_start, fields.value_length, kept),
        "offset": lambda: pa.array(rows(columns.offsets)),
        "timestamp": lambda: timestamps_to_arrow(rows(columns.offsets), rows(columns.timestamps)),
        "timestampType": lambda: pa.array(rows(columns.types)),
        "headers": lambda: _header_column(buffer, fields, kept),
        "leaderEpoch": lambda: pa.array(rows(np.repeat(epochs.astype(np.int32), columns.counts))),
    }
    return _batch(arrays, topic, partition, len(kept), schema)


def _batch(
    arrays: dict[str, Callable[[], Any]], topic: str, partition: int, rows: int, schema: pa.Schema
) -> pa.RecordBatch:
    """A batch with the fields of `schema`: those in `arrays`, and topic and partition, which are the same in all rows."""
    arrays["topic"] = lambda: pa.repeat(pa.scalar(topic, pa.string()), rows)
    arrays["partition"] = lambda: pa.array(np.full(rows, partition, np.int32))
    if unknown := [name for name in schema.names if name not in arrays]:
        raise ValueError(f"unknown column {unknown[0]!r}; the known columns are {', '.join(ALL_COLUMNS.names)}")
    return pa.RecordBatch.from_arrays([arrays[name]() for name in schema.names], schema=schema)


def timestamps_to_arrow(offsets: Int64s, timestamps: Int64s) -> Any:
    """Milliseconds as TIMESTAMP; raises RecordBatchError with the offset if one does not fit into int64 microseconds."""
    if len(timestamps) and (timestamps.max() > _MAX_MICROS_MS or timestamps.min() < -_MAX_MICROS_MS):
        beyond = (timestamps > _MAX_MICROS_MS) | (timestamps < -_MAX_MICROS_MS)
        offset = int(offsets[int(beyond.argmax())])
        raise RecordBatchError(f"the timestamp of the record at offset {offset} does not fit into microseconds", offset)
    return pa.array(timestamps * 1000).view(TIMESTAMP)


def gather(buffer: Any, start: Int64s | Int32s, length: Int64s | Int32s, kept: Int64s) -> Any:
    """A binary column of the pieces at `start`, for the rows `kept`.

    The section cut at every start and end is a binary array whose even
    elements are the pieces: Arrow copies those in native code.
    """
    if not len(length) or length.max() < 0:
        return pa.nulls(len(kept), pa.binary())
    nulls = length < 0 if length.min() < 0 else None
    cuts = np.empty((len(start), 2), np.int32)
    cuts[:, 0] = start
    cuts[:, 1] = start + (length if nulls is None else np.maximum(length, 0))
    pieces = pa.Array.from_buffers(pa.binary(), 2 * len(start) - 1, [None, pa.py_buffer(cuts), buffer])
    rows = pa.array(kept * 2, mask=None if nulls is None else nulls[kept])
    return pieces.take(rows)


def _header_column(buffer: Any, fields: Fields, kept: Int64s) -> Any:
    headers, counts = fields.headers, fields.header_count
    assert headers is not None
    chosen = np.zeros(len(counts), np.bool_)
    chosen[kept] = True
    offsets = np.zeros(len(kept) + 1, np.int32)
    np.cumsum(counts[kept], out=offsets[1:])
    keys, values = [], []
    for first in range(0, len(headers.record), _HEADERS_AT_ONCE):
        part = HeaderFields(*(column[first : first + _HEADERS_AT_ONCE] for column in headers))
        rows = np.flatnonzero(chosen[part.record])
        if len(rows):
            keys.append(_header_names(gather(buffer, part.key_start, part.key_length, rows)))
            values.append(gather(buffer, part.value_start, part.value_length, rows))
    return _list_column(offsets, keys, values)


def _header_names(keys: Any) -> Any:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Java's String(bytes, UTF_8) replaces bytes that are not UTF-8, and so does Spark's own source.
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def _list_column(offsets: npt.NDArray[np.int32], keys: Sequence[Any], values: Sequence[Any]) -> Any:
    """Lists of headers; list n ends at offsets[n + 1] of the concatenated names and values."""
    names = pa.concat_arrays([pa.array([], pa.string()), *keys])
    entries = pa.StructArray.from_arrays(
        [names, pa.concat_arrays([pa.array([], pa.binary()), *values])], fields=list(HEADERS.value_type)
    )
    # A record without headers is null here, as in Spark's own source (KafkaRecordToRowConverter.scala).
    return pa.ListArray.from_arrays(
        pa.array(offsets), entries, type=HEADERS, mask=pa.array(offsets[1:] == offsets[:-1])
    )


class PlainRow(NamedTuple):
    """A record from the plain decoder."""

    record: Record
    kind: int  # of its timestamp; NO_TIMESTAMP_TYPE in v0
    epoch: int
    size: int
    checksum: int | None = None  # of a message of v0 or v1


def plain_rows(
    header: BatchHeader, batch: memoryview, section: memoryview, from_offset: int, most_headers: int = MAX_HEADERS
) -> Iterator[PlainRow]:
    """The records of one batch, or of one set of messages; `section` holds them decompressed.

    The records of a batch below `from_offset` come without their headers.  Raises RecordBatchError.
    """
    epoch = header.partition_leader_epoch
    if header.magic < 2:
        for record, kind, message in decode_unfolded(header, batch, section):
            yield PlainRow(record, kind, epoch, message.end - message.start, message.crc)
    else:
        for record, size in decode_section(header, section, from_offset, most_headers):
            yield PlainRow(record, int(header.has_log_append_time), epoch, size)


def in_lists(rows: Iterator[PlainRow], most: int, most_bytes: int) -> Iterator[list[PlainRow]]:
    """The rows in lists of at most `most` rows and about `most_bytes`; the rows before an error are yielded first."""
    found: list[PlainRow] = []
    size = 0
    try:
        for row in rows:
            found.append(row)
            size += row.size
            if len(found) >= most or size >= most_bytes:
                yield found
                found, size = [], 0
    except RecordBatchError:
        if found:
            yield found
        raise
    if found:
        yield found


def rows_to_batch(rows: Sequence[PlainRow], topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """At least one record, already a Python object, as a batch with the fields of `schema`."""
    records, types, epochs, *_ = zip(*rows)
    offsets = np.array([record.offset for record in records], np.int64)

    arrays: dict[str, Callable[[], Any]] = {
        "key": lambda: pa.array([record.key for record in records], pa.binary()),
        "value": lambda: pa.array([record.value for record in records], pa.binary()),
        "offset": lambda: pa.array(offsets),
        "timestamp": lambda: timestamps_to_arrow(offsets, np.array([r.timestamp for r in records], np.int64)),
        "timestampType": lambda: pa.array(types, pa.int32()),
        "headers": lambda: _record_headers(records),
        "leaderEpoch": lambda: pa.array(epochs, pa.int32()),
    }
    return _batch(arrays, topic, partition, len(records), schema)


def _record_headers(records: Sequence[Record]) -> Any:
    pairs = [pair for record in records for pair in record.headers]
    keys = [key.encode("utf-8", "surrogateescape") for key, _ in pairs]
    ends = np.zeros(len(records) + 1, np.int32)
    np.cumsum([len(record.headers) for record in records], out=ends[1:])
    values = pa.array([value for _, value in pairs], pa.binary())
    return _list_column(ends, [_header_names(pa.array(keys, pa.binary()))], [values])
