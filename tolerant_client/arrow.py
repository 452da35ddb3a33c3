"""Record batches to Arrow: the columns of Spark's Kafka source, decoded with numpy.

Laws:
- The result equals decode_records, record by record.  Anything that does not
  add up is given to decode_records, so both raise the same RecordBatchError.
- No Python object is made per record, except where records are found whose
  lengths vary (one integer each) or that have very many headers.
- Memory is bounded: iter_arrow holds at most `target_bytes` of decompressed
  records plus one batch, and a batch is bounded by codecs.decompress.

How the records of a batch are found although each length leads to the next:
if the record at p takes s bytes and the length prefix at p + s has the same
bytes, the record there takes s bytes too, and so on by induction.  A run of
records of one size is therefore checked in one numpy comparison; between runs
a scalar loop reads nothing but the length prefixes.  Many batches are decoded
together, since numpy's cost is per call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tolerant_client import codecs
from tolerant_client.errors import RecordBatchError
from tolerant_client.record_batch import BatchHeader, Record, decode_records, records_section

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

TARGET_BYTES: Final = 8 * 1024 * 1024

_MAX_MICROS_MS: Final = (2**63 - 1) // 1000
_RUN_MIN: Final = 8
_RUN_WINDOW: Final = 64
_SCALAR_STRETCH: Final = 64
_MAX_HEADER_ROUNDS: Final = 64

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class _Doubt(Exception):
    """The fast path met something odd; decode_records says what."""


class _Fields(NamedTuple):
    """Where the fields of a row of records lie; a length of -1 is null."""

    timestamp_delta: Int64s
    offset_delta: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s
    header_count: Int64s
    headers: _HeaderFields | None


class _HeaderFields(NamedTuple):
    """The headers of all records, in order; `record` is the row that each belongs to."""

    record: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s


def batch_to_arrow(
    header: BatchHeader, batch: memoryview, topic: str, partition: int, include_headers: bool = False
) -> pa.RecordBatch:
    """All records of one batch."""
    return records_to_arrow(
        [(header, batch)], topic, partition, 0, 2**63 - 1, include_headers
    )


def iter_arrow(
    batches: Iterable[tuple[BatchHeader, memoryview]],
    topic: str,
    partition: int,
    from_offset: int,
    until_offset: int,
    include_headers: bool = False,
    *,
    target_bytes: int = TARGET_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of `batches` within [from_offset, until_offset), in pieces of bounded size.

    Control batches are skipped.  Empty pieces are not yielded.
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
        section = records_section(header, batch)
        if sections and size + len(section) > target_bytes:
            piece = _decode(sections, topic, partition, from_offset, until_offset, include_headers)
            sections, size = [], 0
            if piece.num_rows:
                yield piece
        sections.append((header, batch, section))
        size += len(section)
    if sections:
        piece = _decode(sections, topic, partition, from_offset, until_offset, include_headers)
        if piece.num_rows:
            yield piece


def records_to_arrow(
    batches: Iterable[tuple[BatchHeader, memoryview]],
    topic: str,
    partition: int,
    from_offset: int,
    until_offset: int,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """As iter_arrow, in one piece: for input that is known to be small."""
    pieces = list(
        iter_arrow(batches, topic, partition, from_offset, until_offset, include_headers)
    )
    if len(pieces) == 1:
        return pieces[0]
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    if not pieces:
        return _empty(schema)
    table = pa.Table.from_batches(pieces, schema).combine_chunks()
    return table.to_batches()[0]


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _decode(
    sections: Sequence[tuple[BatchHeader, memoryview, memoryview]],
    topic: str,
    partition: int,
    from_offset: int,
    until_offset: int,
    include_headers: bool,
) -> pa.RecordBatch:
    headers = [header for header, _, _ in sections]
    joined: bytes | memoryview = (
        sections[0][2] if len(sections) == 1 else b"".join([section for _, _, section in sections])
    )
    counts = np.array([header.record_count for header in headers], np.int64)
    lengths = np.array([len(section) for _, _, section in sections], np.int64)
    try:
        # A record takes at least seven bytes: refuse counts before anything is sized by them.
        if len(joined) >= 2**31 or bool((counts * 7 > lengths).any()):
            raise _Doubt
        data = np.frombuffer(joined, np.uint8)
        ends = _find_ends(joined, data, counts.tolist(), np.cumsum(lengths).tolist())
        fields = _read_fields(data, ends, include_headers)
        offsets, timestamps, types = _offsets_and_timestamps(headers, counts, fields)
        if fields.header_count.any() and fields.headers is None:
            raise _Doubt
    except _Doubt:
        return _decode_plainly(
            sections, topic, partition, from_offset, until_offset, include_headers
        )
    kept = np.flatnonzero((offsets >= from_offset) & (offsets < until_offset))
    if len(kept) != len(offsets):
        offsets, timestamps, types = offsets[kept], timestamps[kept], types[kept]
    _check_micros(offsets, timestamps)
    buffer = pa.py_buffer(joined)
    columns = [
        _gather(buffer, fields.key_start, fields.key_length, kept),
        _gather(buffer, fields.value_start, fields.value_length, kept),
        *_common_columns(topic, partition, offsets, timestamps, types),
    ]
    if include_headers:
        assert fields.headers is not None
        columns.append(_header_column(buffer, fields.headers, fields.header_count, kept))
    return pa.RecordBatch.from_arrays(
        columns, schema=SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    )


def _find_ends(
    joined: bytes | memoryview, data: Bytes, counts: list[int], limits: list[int]
) -> Int64s:
    """The end of every record; ends[i] is where record i + 1 starts."""
    ends = np.empty(sum(counts), np.int64)
    done = position = 0
    try:
        for count, limit in zip(counts, limits, strict=True):
            last = done + count
            stretch = _SCALAR_STRETCH
            while done < last:
                if last - done >= _RUN_MIN:
                    run, size = _run(joined, data, position, limit, last - done)
                    if run:
                        ends[done : done + run] = np.arange(1, run + 1) * size + position
                        position += run * size
                        done += run
                    if run >= _RUN_MIN:
                        stretch = _SCALAR_STRETCH
                        continue
                found = _scan(joined, position, min(stretch, last - done))
                stretch *= 4
                if found:
                    ends[done : done + len(found)] = found
                    position = found[-1]
                    done += len(found)
            if position != limit:
                raise _Doubt
    except IndexError:
        raise _Doubt from None
    return ends


def _run(
    joined: bytes | memoryview, data: Bytes, position: int, limit: int, most: int
) -> tuple[int, int]:
    """How many records from `position` on have the size of the first one, and that size."""
    (following,) = _scan(joined, position, 1)
    size = following - position
    most = min(most, (limit - position) // size)
    width = 1
    while joined[position + width - 1] >= 0x80:
        width += 1
    found, window = 0, _RUN_WINDOW
    while found < most:
        window = min(window, most - found)
        start = position + found * size
        rows = data[start : start + window * size].reshape(window, size)
        differs = rows[:, 0] != joined[position]
        for column in range(1, width):
            differs |= rows[:, column] != joined[position + column]
        first = int(differs.argmax())
        if differs[first]:
            return found + first, size
        found += window
        window *= 16
    return found, size


def _scan(joined: bytes | memoryview, position: int, count: int) -> list[int]:
    """The ends of the next `count` records, from their length prefixes alone.

    Signs are ignored here: _read_fields reads the lengths again and compares.
    """
    ends: list[int] = []
    append = ends.append
    for _ in range(count):
        byte = joined[position]
        if byte < 0x80:
            position += (byte >> 1) + 1
        else:
            second = joined[position + 1]
            if second < 0x80:
                position += ((byte & 0x7F | second << 7) >> 1) + 2
            else:
                value, shift, position = byte & 0x7F, 7, position + 1
                while second >= 0x80:
                    value |= (second & 0x7F) << shift
                    shift += 7
                    position += 1
                    second = joined[position]
                    if shift > 28:
                        raise _Doubt
                position += ((value | second << shift) >> 1) + 1
        append(position)
    return ends


def _varints(data: Bytes, positions: Int64s, widest: int = 5) -> tuple[Int64s, Int64s]:
    """The zigzag varints at `positions`, and the positions after them."""
    byte = data.take(positions, mode="clip")
    values = (byte & 0x7F).astype(np.uint64)
    positions = positions + 1
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while more.size:
        if shift == 7 * widest:
            raise _Doubt
        if more.size == values.size:
            byte = data.take(positions, mode="clip")
            values |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            positions = positions + 1
        else:
            byte = data.take(positions[more], mode="clip")
            values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            positions[more] += 1
        # The last byte may only carry the bits that are left of 32 or 64.
        if shift == 7 * (widest - 1) and bool((byte > (0x0F if widest == 5 else 1)).any()):
            raise _Doubt
        more = more[byte >= 0x80]
        shift += 7
    signed = (values >> np.uint64(1)).view(np.int64)
    if bool((values & np.uint64(1)).any()):
        signed = signed ^ -(values & np.uint64(1)).view(np.int64)
    return signed, positions


def _read_fields(data: Bytes, ends: Int64s, include_headers: bool) -> _Fields:
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1]
    length, position = _varints(data, starts)
    if not np.array_equal(position + length, ends) or bool((length < 0).any()):
        raise _Doubt
    timestamp_delta, position = _varints(data, position + 1, 10)
    offset_delta, position = _varints(data, position)
    key_length, key_start, position = _data_fields(data, position, ends)
    value_length, value_start, position = _data_fields(data, position, ends)
    header_count, position = _varints(data, position)
    headers = None
    if include_headers or header_count.any():
        headers, position = _read_headers(data, position, ends, header_count)
    if not np.array_equal(position, ends):
        raise _Doubt
    return _Fields(
        timestamp_delta,
        offset_delta,
        key_start,
        key_length,
        value_start,
        value_length,
        header_count,
        headers,
    )


def _data_fields(data: Bytes, position: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    length, start = _varints(data, position)
    if bool((length < -1).any()):
        raise _Doubt
    position = start + np.maximum(length, 0)
    if bool((position > ends).any()):
        raise _Doubt
    return length, start, position


def _read_headers(
    data: Bytes, position: Int64s, ends: Int64s, counts: Int64s
) -> tuple[_HeaderFields, Int64s]:
    """All headers: in round j the j-th header of every record that has one."""
    most = int(counts.max())
    if most > _MAX_HEADER_ROUNDS or bool((counts < 0).any()):
        raise _Doubt
    position = position.copy()
    rounds = []
    for number in range(most):
        record = np.flatnonzero(counts > number)
        limit = ends[record]
        key_length, key_start, after = _data_fields(data, position[record], limit)
        value_length, value_start, after = _data_fields(data, after, limit)
        if bool((key_length < 0).any()):
            raise _Doubt
        position[record] = after
        rounds.append((record, key_start, key_length, value_start, value_length))
    if not rounds:
        none = np.empty(0, np.int64)
        return _HeaderFields(none, none, none, none, none), position
    columns = [np.concatenate(column) for column in zip(*rounds, strict=True)]
    order = np.argsort(columns[1], kind="stable")
    return _HeaderFields(*(column[order] for column in columns)), position


def _offsets_and_timestamps(
    headers: Sequence[BatchHeader], counts: Int64s, fields: _Fields
) -> tuple[Int64s, Int64s, npt.NDArray[np.int32]]:
    def each(values: list[int], dtype: Any = np.int64) -> Any:
        column = np.array(values, dtype)
        return column if len(column) == 1 else np.repeat(column, counts)

    delta = fields.offset_delta
    ascends = np.diff(delta) > 0
    ascends[np.cumsum(counts)[:-1] - 1] = True  # from one batch to the next
    if (
        not ascends.all()
        or bool((delta < 0).any())
        or bool((delta > each([header.last_offset_delta for header in headers])).any())
    ):
        raise _Doubt
    offsets = each([header.base_offset for header in headers]) + delta
    base = each([header.base_timestamp for header in headers])
    timestamps = base + fields.timestamp_delta
    is_stamped = [header.has_log_append_time for header in headers]
    wrapped = ((base ^ timestamps) & (fields.timestamp_delta ^ timestamps)) < 0
    if any(is_stamped):
        stamped = np.broadcast_to(each([int(stamp) for stamp in is_stamped]), timestamps.shape) > 0
        stamps = each([header.max_timestamp for header in headers])
        timestamps = np.where(stamped, stamps, timestamps)
        wrapped &= ~stamped
        types = stamped.astype(np.int32)
    else:
        types = np.zeros(len(timestamps), np.int32)
    if wrapped.any():
        raise _Doubt
    return offsets, timestamps, types


def _check_micros(offsets: Int64s, timestamps: Int64s) -> None:
    beyond = (timestamps > _MAX_MICROS_MS) | (timestamps < -_MAX_MICROS_MS)
    if beyond.any():
        offset = int(offsets[int(beyond.argmax())])
        raise RecordBatchError(
            f"the timestamp of the record at offset {offset} does not fit into microseconds", offset
        )


def _common_columns(
    topic: str,
    partition: int,
    offsets: Int64s,
    timestamps: Int64s,
    types: npt.NDArray[np.int32],
) -> list[Any]:
    rows = len(offsets)
    return [
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.array(np.full(rows, partition, np.int32)),
        pa.array(offsets),
        pa.array(timestamps * 1000).view(TIMESTAMP),
        pa.array(types),
    ]


def _gather(buffer: Any, start: Int64s, length: Int64s, kept: Int64s) -> Any:
    """A binary column of the pieces at `start`, for the rows `kept`.

    The section itself, cut at every start and end, is a binary array whose
    even elements are the pieces: Arrow copies those, in native code.
    """
    nulls = length < 0
    if nulls.all():
        return pa.nulls(len(kept), pa.binary())
    cuts = np.empty((len(start), 2), np.int32)
    cuts[:, 0] = start
    cuts[:, 1] = start + np.maximum(length, 0)
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * len(start) - 1, [None, pa.py_buffer(cuts), buffer]
    )
    rows = pa.array(kept * 2, mask=nulls[kept] if nulls.any() else None)
    return pieces.take(rows)


def _header_column(buffer: Any, headers: _HeaderFields, counts: Int64s, kept: Int64s) -> Any:
    chosen = np.zeros(len(counts), np.bool_)
    chosen[kept] = True
    rows = np.flatnonzero(chosen[headers.record])
    offsets = np.zeros(len(kept) + 1, np.int32)
    np.cumsum(counts[kept], out=offsets[1:])
    keys = _gather(buffer, headers.key_start, headers.key_length, rows) if len(rows) else None
    values = _gather(buffer, headers.value_start, headers.value_length, rows) if len(rows) else None
    return _list_column(offsets, keys, values)


def _list_column(offsets: npt.NDArray[np.int32], keys: Any, values: Any) -> Any:
    if keys is None:
        keys, values = pa.array([], pa.binary()), pa.array([], pa.binary())
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Java's String(bytes, UTF_8) replaces what is no UTF-8, and so does Spark's own source.
        names = pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=HEADERS)


def _decode_plainly(
    sections: Sequence[tuple[BatchHeader, memoryview, memoryview]],
    topic: str,
    partition: int,
    from_offset: int,
    until_offset: int,
    include_headers: bool,
) -> pa.RecordBatch:
    """By decode_records: what the fast path leaves, and where it raises, the error to raise."""
    records: list[Record] = []
    types: list[int] = []
    for header, batch, _ in sections:
        found = [
            record
            for record in decode_records(batch, max_bytes=codecs.MAX_DECOMPRESSED_BYTES)
            if from_offset <= record.offset < until_offset
        ]
        records += found
        types += [int(header.has_log_append_time)] * len(found)
    offsets = np.array([record.offset for record in records], np.int64)
    timestamps = np.array([record.timestamp for record in records], np.int64)
    _check_micros(offsets, timestamps)
    columns = [
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        *_common_columns(topic, partition, offsets, timestamps, np.array(types, np.int32)),
    ]
    if include_headers:
        pairs = [pair for record in records for pair in record.headers]
        keys = [key.encode("utf-8", "surrogateescape") for key, _ in pairs]
        ends = np.zeros(len(records) + 1, np.int32)
        np.cumsum([len(record.headers) for record in records], out=ends[1:])
        columns.append(
            _list_column(
                ends,
                pa.array(keys, pa.binary()),
                pa.array([value for _, value in pairs], pa.binary()),
            )
        )
    return pa.RecordBatch.from_arrays(
        columns, schema=SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    )
