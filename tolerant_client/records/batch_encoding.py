"""Encodes Arrow columns as record batches of message format v2: the inverse of arrow.py.

Laws:
- The records are byte for byte those of record_batch.encode_batch, in the order of the rows.
- No Python object is made per record, key, value or header.
- A batch never exceeds its size limit, unless it holds one record alone; a batch that
  compression would not make smaller stays uncompressed.
- The batches are incomplete: restamp writes the producer and the CRC.

How it works: everything but the payload is a short run of varints before it.  numpy
makes these runs, and one Arrow kernel joins, row by row, the batch header (empty
except in the first row of a batch), the varints, the key, the varint between, the value and the
headers.  The result in memory is one whole batch after another, and each payload was copied once.

The layout is in record_batch.py (KIP-98; org.apache.kafka.common.record.DefaultRecord).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tolerant_client.records import codecs
from tolerant_client.records.batch_columns import HEADER
from tolerant_client.records.record_batch import ATTRIBUTES_OFFSET, HEADER_SIZE, LOG_OVERHEAD
from tolerant_client.records.varint_columns import Int64s, Varints, varint_width, varints

MAX_BATCH_BYTES: Final = 1024 * 1024

_WINDOW_BYTES: Final = 4 * 1024 * 1024  # joined at once: numpy's cost is per call, but data in the cache is faster
_LARGEST: Final = 2**31 - 1 - HEADER_SIZE  # lengths on the wire are int32
_SMALLEST_RECORD: Final = 7  # bytes: length, attributes, two deltas, two null lengths, header count
_NULL: Final = -1
_WIDE_BYTES: Final = 2**30  # columns that are larger get 64-bit offsets
_LENGTH_OFFSET: Final = 8
_LENGTH: Final = struct.Struct(">i")
_ATTRIBUTES: Final = struct.Struct(">h")


class EncodedBatch(NamedTuple):
    """One batch that lacks its producer and its CRC: record_batch.restamp writes both.

    `data` is writable, and shares its memory with other batches.  The records
    are rows first_row to first_row + record_count - 1 of the columns.
    `uncompressed_size` is the size in bytes of the whole batch without a codec.
    """

    data: memoryview
    record_count: int
    first_row: int
    uncompressed_size: int


def encode_groups(
    keys: pa.Array | None,
    values: pa.Array,
    headers: pa.Array | None,
    timestamps: Int64s | int,
    group_rows: Sequence[int] | Int64s,
    *,
    codec: int = codecs.NONE,
    level: int | None = None,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[tuple[int, EncodedBatch]]:
    """Rows sorted by partition as batches of at most `max_batch_bytes` before compression; no batch spans two groups.

    Group g is the next group_rows[g] rows; each batch is yielded with the number of its group.  One call is much
    cheaper than one for each partition when partitions have few rows.

    Keys and values are binary or string, also large; a null value is a tombstone.  Headers are
    list<struct<key: string, value: binary>>, null for none, or binary: encoded as in records, their count first.
    Timestamps are in ms, one for each row or one for all.  Raises ValueError, which names the row, for a header without
    a key and for a record beyond 2 GiB; CodecError for an unknown codec.
    """
    if sum(group_rows) != len(values):
        raise ValueError(f"the groups have {sum(group_rows)} rows, but the columns have {len(values)}")
    if not len(values):
        return
    columns = _columns(keys, values, headers, timestamps)
    room = min(max_batch_bytes - HEADER_SIZE, _LARGEST)
    ends = np.cumsum(_size_bounds(columns, room))
    starts, groups = _cut(ends, group_rows, room)
    first = 0
    while first < len(groups):
        begun = int(ends[starts[first] - 1]) if first else 0
        until = int(np.searchsorted(starts, np.searchsorted(ends, begun + _WINDOW_BYTES, "right"), "right")) - 1
        until = max(until, first + 1)
        for number, (data, row) in enumerate(_join(columns, starts[first : until + 1]), first):
            count = int(starts[number + 1]) - row
            packed = _compress(data, codec, level) if codec else data
            yield groups[number], EncodedBatch(packed, count, row, len(data))
        first = until


def row_without_header_key(headers: pa.Array) -> int | None:
    """The first row with a header that is null or has a null key, which no record can hold; None if there is none."""
    entries = headers.flatten()
    names = entries.field(0)
    if not (entries.null_count or names.null_count):
        return None
    without = pc.or_(entries.is_null(), names.is_null()).to_numpy(zero_copy_only=False)
    ends = np.cumsum(_integers(pc.list_value_length(headers), 0))
    return int(np.searchsorted(ends, int(without.argmax()), "right"))


class _Columns(NamedTuple):
    """The input cast to one Arrow type, with the length of each field; a field that no row has is None."""

    rows: int
    type: Any  # pa.binary() or pa.large_binary()
    keys: Any
    key_length: Varints
    values: Any
    value_length: Varints
    headers: Any  # the encoded headers of a row, without their count, unless they came encoded with it
    header_count: Varints  # zero bytes wide where the headers came encoded with their count
    payload: Int64s  # bytes of key, value and encoded headers
    timestamps: Int64s | int


def _columns(keys: Any, values: Any, headers: Any, timestamps: Int64s | int) -> _Columns:
    rows = len(values)
    for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
        if not (column is None or isinstance(column, (int, np.integer)) or len(column) == rows):
            raise ValueError(f"{len(column)} {name} for {rows} values")
    given = [column for column in (keys, values, headers) if column is not None]
    is_wide = any(_is_wide(column.type) for column in given) or sum(column.nbytes for column in given) > _WIDE_BYTES
    kind = pa.large_binary() if is_wide else pa.binary()
    values = values.cast(kind)
    value_length = _lengths(values)
    payload = np.maximum(value_length, 0)
    key_length = None
    if keys is not None:
        keys = keys.cast(kind)
        key_length = _lengths(keys)
        payload += np.maximum(key_length, 0)
    header_count = Varints(0, 1)
    if headers is not None and pa.types.is_binary(headers.type):
        headers = headers.cast(kind)
        payload += _lengths(headers)
        header_count = Varints(0, 0)
    elif headers is not None:
        counts = _integers(pc.list_value_length(headers), 0)
        if counts.any():
            headers = _encode_headers(headers, counts, kind)
            payload += _lengths(headers)
            header_count = varints(counts)
        else:
            headers = None
    return _Columns(
        rows,
        kind,
        keys,
        Varints(1, 1) if key_length is None else varints(key_length),
        values,
        varints(value_length),
        headers,
        header_count,
        payload,
        int(timestamps) if isinstance(timestamps, (int, np.integer)) else np.asarray(timestamps, np.int64),
    )


def _is_wide(kind: Any) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind))


def _integers(column: Any, null: int) -> Int64s:
    return pc.fill_null(column, null).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _lengths(column: Any) -> Int64s:
    return _integers(pc.binary_length(column), _NULL)


def _encode_headers(headers: Any, counts: Int64s, kind: Any) -> Any:
    """The headers of each row, encoded as in a record, without their count."""
    row = row_without_header_key(headers)
    if row is not None:
        raise ValueError(f"row {row} has a header without a key")
    entries = headers.flatten()
    names, values = entries.field(0).cast(kind), entries.field(1).cast(kind)
    joined = _joined(
        kind,
        _varint_runs(kind, len(entries), [varints(_lengths(names))]),
        names,
        _varint_runs(kind, len(entries), [varints(_lengths(values))]),
        values,
    )
    offset_type = np.int64 if kind == pa.large_binary() else np.int32
    places = np.frombuffer(joined.buffers()[1], offset_type)[: len(entries) + 1]
    offsets = np.zeros(len(counts) + 1, offset_type)
    offsets[1:] = places[np.cumsum(counts)]
    return pa.Array.from_buffers(kind, len(counts), [None, pa.py_buffer(offsets), joined.buffers()[2]])


def _size_bounds(columns: _Columns, room: int) -> Int64s:
    """The most bytes that each record can take, at any position in a batch of `room` bytes."""
    most = min(columns.rows, max(room, 0) // _SMALLEST_RECORD + 1)
    fixed = 1 + varint_width(2 * most)
    if isinstance(columns.timestamps, int):
        fixed += 1
    else:
        fixed += min(varint_width(2 * (int(columns.timestamps.max()) - int(columns.timestamps.min()))), 10)
    sizes = columns.payload + (
        columns.key_length.width + columns.value_length.width + columns.header_count.width + fixed
    )
    sizes += varints(sizes).width
    if int(sizes.max()) > _LARGEST:
        row = int(sizes.argmax())
        raise ValueError(f"the record of row {row} takes {int(sizes[row])} bytes; a batch holds at most {_LARGEST}")
    return sizes


def _cut(ends: Int64s, group_rows: Sequence[int] | Int64s, room: int) -> tuple[Int64s, list[int]]:
    """The first row of each batch, then the end of the last batch; and the group of each batch."""
    starts: list[int] = []
    groups: list[int] = []
    row, begun = 0, 0
    for group, count in enumerate(group_rows):
        until = row + int(count)
        while row < until:
            starts.append(row)
            groups.append(group)
            if int(ends[until - 1]) - begun <= room:
                row = until
            else:
                row = max(int(ends.searchsorted(begun + room, "right")), row + 1)
            begun = int(ends[row - 1])
    starts.append(row)
    return np.array(starts, np.int64), groups


def _join(columns: _Columns, starts: Int64s) -> Iterator[tuple[memoryview, int]]:
    """Whole uncompressed batches, each with its first row; `starts` is a slice of those from _cut."""
    start, stop = int(starts[0]), int(starts[-1])
    heads = starts[:-1] - start
    counts = np.diff(starts)
    kind, rows = columns.type, stop - start
    batches = np.zeros(len(counts), HEADER)
    deltas = varints(np.arange(rows) - np.repeat(heads, counts))
    if isinstance(columns.timestamps, int):
        batches["base_timestamp"] = batches["max_timestamp"] = columns.timestamps
        ages = Varints(0, 1)
    else:
        timestamps = columns.timestamps[start:stop]
        batches["base_timestamp"] = timestamps[heads]
        batches["max_timestamp"] = np.maximum.reduceat(timestamps, heads)
        ages = varints(timestamps - np.repeat(timestamps[heads], counts))
    key_length, value_length = columns.key_length.rows(start, stop), columns.value_length.rows(start, stop)
    header_count = columns.header_count.rows(start, stop)
    lengths = columns.payload[start:stop] + (
        1 + ages.width + deltas.width + key_length.width + value_length.width + header_count.width
    )
    prefix = varints(lengths)
    sizes = np.add.reduceat(lengths + prefix.width, heads) + HEADER_SIZE
    batches["length"] = sizes - LOG_OVERHEAD
    batches["partition_leader_epoch"] = batches["producer_id"] = batches["producer_epoch"] = -1
    batches["base_sequence"] = -1
    batches["magic"] = 2
    batches["last_offset_delta"] = counts - 1
    batches["record_count"] = counts
    ends = np.repeat(np.arange(1, len(counts) + 1) * HEADER_SIZE, counts)
    pieces = [_binary_array(kind, ends, batches)]
    record = [prefix, Varints(0, 1), ages, deltas, key_length]  # after the length: attributes, always 0
    if columns.keys is None:
        pieces.append(_varint_runs(kind, rows, [*record, value_length]))
    else:
        pieces += (_varint_runs(kind, rows, record), columns.keys[start:stop], _varint_runs(kind, rows, [value_length]))
    pieces += (columns.values[start:stop], _varint_runs(kind, rows, [header_count]))
    if columns.headers is not None:
        pieces.append(columns.headers[start:stop])
    data = memoryview(_joined(kind, *pieces).buffers()[2]).cast("B")
    at = 0
    for row, size in zip(starts.tolist(), sizes.tolist(), strict=False):
        yield data[at : at + size], row
        at += size


def _joined(kind: Any, *pieces: Any) -> Any:
    """The pieces of each row, concatenated; null counts as empty."""
    nothing = pa.scalar(b"", kind)
    return pc.binary_join_element_wise(*pieces, nothing, null_handling="replace", null_replacement="")


def _compress(batch: memoryview, codec: int, level: int | None) -> memoryview:
    packed = codecs.compress(codec, batch[HEADER_SIZE:], level)
    if len(packed) >= len(batch) - HEADER_SIZE:
        return batch
    data = bytearray().join((batch[:HEADER_SIZE], packed))
    _LENGTH.pack_into(data, _LENGTH_OFFSET, len(data) - LOG_OVERHEAD)
    _ATTRIBUTES.pack_into(data, ATTRIBUTES_OFFSET, codec)
    return memoryview(data)


def _varint_runs(kind: Any, rows: int, columns: Sequence[Varints]) -> Any:
    """For each row a binary of its varints, concatenated; one scalar if they are the same in all rows.

    `kind` is pa.binary() or pa.large_binary().
    """
    if all(isinstance(column.code, int) and column.width == 1 for column in columns):
        return pa.scalar(bytes(column.code for column in columns), kind)
    widest = [int(np.max(column.width)) for column in columns]
    table = np.empty((rows, sum(widest)), np.uint8)
    is_used = None
    place = 0
    for (code, width), most in zip(columns, widest, strict=True):
        for number in range(most):
            byte = code >> (7 * number)
            if isinstance(width, int):
                table[:, place] = byte | 0x80 if number < width - 1 else byte
            else:
                table[:, place] = byte & 0x7F | (width > number + 1).astype(np.uint64) << 7
                if is_used is None:
                    is_used = np.ones(table.shape, np.bool_)
                is_used[:, place] = width > number
            place += 1
    if is_used is None:
        return _binary_array(kind, np.arange(1, rows + 1) * place, table)
    return _binary_array(kind, np.cumsum(sum(column.width for column in columns)), table[is_used])


def _binary_array(kind: Any, ends: Int64s, data: npt.NDArray[Any]) -> Any:
    """A binary array over `data` whose row n ends at ends[n]."""
    offsets = np.zeros(len(ends) + 1, np.int64 if kind == pa.large_binary() else np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(kind, len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
