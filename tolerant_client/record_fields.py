"""Finds the records and fields of decompressed batches with numpy; nothing is copied.

How the records of a batch are found although each length leads to the next:
if the record at p takes s bytes and the length prefix at p + s has the same
bytes, the record there takes s bytes too, and so on by induction.  A run of
records of one size is therefore checked in one numpy comparison; between runs
a scalar loop reads nothing but the length prefixes.

Whatever does not add up raises Doubt: the caller then decodes record by record.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

_RUN_MIN: Final = 8
_RUN_WINDOW: Final = 64
_SCALAR_STRETCH: Final = 64
_MAX_HEADER_ROUNDS: Final = 64

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Doubt(Exception):
    """The fast path met something odd; decode_records says what."""


class Fields(NamedTuple):
    """Where the fields of a row of records lie; a length of -1 is null."""

    timestamp_delta: Int64s
    offset_delta: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s
    header_count: Int64s
    headers: HeaderFields | None


class HeaderFields(NamedTuple):
    """The headers of all records, in order; `record` is the row that each belongs to."""

    record: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s


def find_ends(
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
                raise Doubt
    except IndexError:
        raise Doubt from None
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

    Signs are ignored here: read_fields reads the lengths again and compares.
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
                        raise Doubt
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
            raise Doubt
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
            raise Doubt
        more = more[byte >= 0x80]
        shift += 7
    signed = (values >> np.uint64(1)).view(np.int64)
    if bool((values & np.uint64(1)).any()):
        signed = signed ^ -(values & np.uint64(1)).view(np.int64)
    return signed, positions


def read_fields(data: Bytes, ends: Int64s, include_headers: bool) -> Fields:
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1]
    length, position = _varints(data, starts)
    if not np.array_equal(position + length, ends) or bool((length < 0).any()):
        raise Doubt
    timestamp_delta, position = _varints(data, position + 1, 10)
    offset_delta, position = _varints(data, position)
    key_length, key_start, position = _data_fields(data, position, ends)
    value_length, value_start, position = _data_fields(data, position, ends)
    header_count, position = _varints(data, position)
    headers = None
    if include_headers or header_count.any():
        headers, position = _read_headers(data, position, ends, header_count)
    if not np.array_equal(position, ends):
        raise Doubt
    return Fields(
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
        raise Doubt
    position = start + np.maximum(length, 0)
    if bool((position > ends).any()):
        raise Doubt
    return length, start, position


def _read_headers(
    data: Bytes, position: Int64s, ends: Int64s, counts: Int64s
) -> tuple[HeaderFields, Int64s]:
    """All headers: in round j the j-th header of every record that has one."""
    most = int(counts.max())
    if most > _MAX_HEADER_ROUNDS or bool((counts < 0).any()):
        raise Doubt
    position = position.copy()
    rounds = []
    for number in range(most):
        record = np.flatnonzero(counts > number)
        limit = ends[record]
        key_length, key_start, after = _data_fields(data, position[record], limit)
        value_length, value_start, after = _data_fields(data, after, limit)
        if bool((key_length < 0).any()):
            raise Doubt
        position[record] = after
        rounds.append((record, key_start, key_length, value_start, value_length))
    if not rounds:
        none = np.empty(0, np.int64)
        return HeaderFields(none, none, none, none, none), position
    columns = [np.concatenate(column) for column in zip(*rounds, strict=True)]
    order = np.argsort(columns[1], kind="stable")
    return HeaderFields(*(column[order] for column in columns)), position
