"""Finds the records and fields of decompressed batches with numpy; nothing is copied.

Each length prefix gives the position of the next record.  To find the records without
following these lengths one by one, a batch that is as long as its first record times the
record count is assumed to be even; then one comparison checks the lengths of all
batches, and a batch that only looked even is searched again.  In the other batches,
if the record at p takes s bytes and the length prefix at p + s has the same bytes,
the record there takes s bytes too, and so on by induction.  One numpy comparison
therefore checks a run of records of one size; between runs a scalar loop reads only
the length prefixes.

Headers are found in rounds: round n reads header n of all records.  A record with very many
headers is read in windows: the position of the next header is computed for every byte of
the window at once, and then this chain is followed.  So time grows with the bytes, and memory
with the headers, 20 bytes for each.  A caller that wants headers therefore reads those of some
records at a time (batch_columns.iter_columns), and bounds the headers of one record.

Inconsistent data raises Doubt: the caller then decodes record by record.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tolerant_client.records.varint_columns import Bytes, Doubt, Int64s, any_varints_at, varints_at

MAX_HEADERS: Final = 1 << 18  # of one record: as objects they take up to 50 MB

_RUN_MIN: Final = 8
_RUN_WORTH: Final = 256  # with fewer records left no run is searched: a search costs as much as scanning 100
_RUN_WINDOW: Final = 64
_SCALAR_STRETCH: Final = 64
_LONGEST_STRETCH: Final = 4096
_ONE_BYTE_DELTAS: Final = 64
_HEADER_ROUNDS: Final = 64  # records with more headers are read one by one...
_FEW_RECORDS: Final = 16
_MOST_HEADER_ROUNDS: Final = 1024  # ...if there are few such records; else those with more than this many headers
_HEADER_WINDOW: Final = 1 << 16  # bytes of one record's headers that are read together

# What the first byte of a two-byte length adds, the two bytes themselves included.
_LOW_BITS: Final = bytes(((byte & 0x7F) >> 1) + 2 for byte in range(256))

Int32s = npt.NDArray[np.int32]


class Places(NamedTuple):
    """The positions of records: `body` is after the length prefix, `length` bytes before `end`."""

    body: Int64s
    length: Int64s
    end: Int64s


class Fields(NamedTuple):
    """The positions of the fields of records, one row each; a length of -1 is null."""

    length: Int64s  # of the record, without its length prefix
    timestamp_delta: Int64s
    offset_delta: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s
    header_count: Int64s
    end: Int64s  # of the record
    headers: HeaderFields | None

    def header_start(self) -> Int64s:
        """The position of the header count, which the headers follow."""
        return self.value_start + np.maximum(self.value_length, 0)

    def rows(self, which: slice | Int64s) -> Fields:
        """The rows `which`, without their headers."""
        return Fields._make([*(column[which] for column in self[:-1]), None])


class HeaderFields(NamedTuple):
    """The headers of all records, in order; `record` is the row that each belongs to."""

    record: Int32s
    key_start: Int32s
    key_length: Int32s
    value_start: Int32s
    value_length: Int32s


NO_HEADERS: Final = HeaderFields(*(np.empty(0, np.int32) for _ in range(5)))


def find_records(joined: bytes | memoryview, data: Bytes, counts: Int64s, starts: Int64s, limits: Int64s) -> Places:
    """All records: batch n has counts[n] > 0 records between starts[n] and limits[n]; `data` is `joined` as an array.

    Raises Doubt.
    """
    heads = np.cumsum(counts) - counts  # the first row of each batch
    ends, is_even = _guess_ends(data, counts, starts, limits, heads)
    others = np.flatnonzero(~is_even)
    begins = np.empty_like(ends)
    while True:
        for number in others.tolist():
            head, count = int(heads[number]), int(counts[number])
            _find_ends(joined, data, int(starts[number]), int(limits[number]), ends[head : head + count])
        begins[1:] = ends[:-1]
        begins[heads] = starts
        length, body = varints_at(data, begins)
        wrong = np.flatnonzero(body + length != ends)
        if not wrong.size:
            break
        others = np.unique(np.searchsorted(heads, wrong, "right") - 1)
        if not is_even[others].all():
            raise Doubt
        is_even[others] = False
    if length.min() < 0:
        raise Doubt
    return Places(body, length, ends)


def _guess_ends(
    data: Bytes, counts: Int64s, starts: Int64s, limits: Int64s, heads: Int64s
) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """The ends of records if all have the size of the first in their batch, and the batches where this may be so.

    From the 65th record on an offset delta takes one byte more, and a timestamp delta may take one more.
    """
    length, after = varints_at(data, starts)
    sizes = length + after - starts
    wide = np.maximum(counts - _ONE_BYTE_DELTAS, 0)
    spare = limits - starts - sizes * counts
    growths = spare // np.maximum(wide, 1)
    is_even = (growths * wide == spare) & (growths >= 0) & (growths <= 2) & (length > 0)
    rows = int(counts.sum())
    if not is_even.any():
        return np.empty(rows, np.int64), is_even
    place = np.arange(1, rows + 1) - np.repeat(heads, counts)
    ends = np.repeat(sizes, counts)
    ends *= place
    ends += np.repeat(starts, counts)
    if growths.any():
        place -= _ONE_BYTE_DELTAS
        np.maximum(place, 0, out=place)
        place *= np.repeat(growths, counts)
        ends += place
    return ends, is_even


def _find_ends(joined: bytes | memoryview, data: Bytes, position: int, limit: int, ends: Int64s) -> None:
    """Writes the end of every record of one batch."""
    stretch = _SCALAR_STRETCH  # records to scan until the next search for a run: more after each failure
    done, last = 0, len(ends)
    try:
        while done < last:
            room = last - done
            if room >= _RUN_WORTH:
                run, size = _run(joined, data, position, limit, room)
                if run:
                    ends[done : done + run] = np.arange(1, run + 1) * size + position
                    position += run * size
                    done += run
                if run >= _RUN_MIN:
                    stretch = _SCALAR_STRETCH
                    continue
                room = min(stretch, last - done)
                stretch = min(4 * stretch, _LONGEST_STRETCH)
            found = scan_ends(joined, position, room)
            if found:
                ends[done : done + len(found)] = found
                position = found[-1]
                done += len(found)
    except IndexError:
        raise Doubt from None
    if position != limit:
        raise Doubt


def _run(joined: bytes | memoryview, data: Bytes, position: int, limit: int, most: int) -> tuple[int, int]:
    """The number of records from `position` on that have the size of the first one, and that size."""
    (following,) = scan_ends(joined, position, 1)
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


def scan_ends(joined: bytes | memoryview, position: int, count: int) -> list[int]:
    """The ends of the next `count` records, from their length prefixes alone.

    Signs are ignored: find_records reads the lengths again and compares.  Raises Doubt for a length of over 5 bytes.
    """
    ends: list[int] = []
    append = ends.append
    low_bits = _LOW_BITS
    for _ in range(count):
        byte = joined[position]
        if byte < 0x80:
            position += (byte >> 1) + 1
        else:
            second = joined[position + 1]
            if second < 0x80:
                position += low_bits[byte] + (second << 6)
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


def read_fields(data: Bytes, places: Places) -> Fields:
    """The fields of records from find_records, without their headers.

    No length is below -1.  Only read_headers then proves that all fields are inside their record.
    Raises Doubt.
    """
    timestamp_delta, position = varints_at(data, places.body + 1, 10)
    offset_delta, position = varints_at(data, position)
    key_length, key_start, position = _data_fields(data, position)
    value_length, value_start, position = _data_fields(data, position)
    header_count, position = varints_at(data, position)
    if header_count.min() < 0 or (2 * header_count > places.end - position).any():  # a header takes two bytes
        raise Doubt
    return Fields(
        places.length,
        timestamp_delta,
        offset_delta,
        key_start,
        key_length,
        value_start,
        value_length,
        header_count,
        places.end,
        None,
    )


def _data_fields(data: Bytes, position: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    length, start = varints_at(data, position)
    shortest = length.min()
    if shortest < -1:
        raise Doubt
    return length, start, start + (np.maximum(length, 0) if shortest < 0 else length)


def read_headers(
    data: Bytes, fields: Fields, include_headers: bool, passed: int = 0, *, most: int = MAX_HEADERS
) -> HeaderFields | None:
    """The headers of records, which end with their last header; without `include_headers` they are only checked.

    A check takes no memory.  The headers of the first `passed` records are not checked, and their header_count must
    be 0.  Round j reads the j-th header of every record that has one, except records with very many headers.
    Raises Doubt, with `include_headers` also for a record with more than `most` headers.
    """
    counts, ends = fields.header_count, fields.end
    if include_headers and counts.max(initial=0) > most:
        raise Doubt
    _, position = varints_at(data, fields.header_start())
    position[:passed] = ends[:passed]
    parts: list[HeaderFields] | None = [] if include_headers else None
    crowded = np.flatnonzero(counts > _HEADER_ROUNDS)
    if crowded.size > _FEW_RECORDS:
        crowded = np.flatnonzero(counts > _MOST_HEADER_ROUNDS)
    for row in crowded.tolist():
        position[row] = _follow_headers(data, row, int(position[row]), int(counts[row]), int(ends[row]), parts)
    if crowded.size:
        counts = counts.copy()
        counts[crowded] = 0
    for number in range(int(counts.max())):
        record = np.flatnonzero(counts > number)
        key_length, key_start, after = _data_fields(data, position[record])
        value_length, value_start, after = _data_fields(data, after)
        if key_length.min() < 0:
            raise Doubt
        position[record] = after
        if parts is not None:
            parts.append(HeaderFields._make(_small(record, key_start, key_length, value_start, value_length)))
    if not np.array_equal(position, ends):
        raise Doubt
    if not parts:
        return None if parts is None else NO_HEADERS
    found = HeaderFields(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    if (found.key_start[1:] < found.key_start[:-1]).any():
        order = np.argsort(found.key_start, kind="stable")
        found = HeaderFields(*(column[order] for column in found))
    return found


def _follow_headers(
    data: Bytes, row: int, position: int, count: int, end: int, parts: list[HeaderFields] | None
) -> int:
    """Appends the headers of one record to `parts` unless that is None; returns the position after them."""
    while count:
        places = np.arange(position, min(position + _HEADER_WINDOW, end))
        if not places.size:
            raise Doubt
        key_length, key_start = any_varints_at(data, places)
        value_length, value_start = any_varints_at(data, key_start + np.maximum(key_length, 0))
        following = value_start + np.maximum(value_length, 0)
        following[(key_length < 0) | (value_length < -1) | (following > end)] = -1
        steps = (following - position).tolist()
        chain: list[int] = []
        at, room = 0, len(steps)
        while count and 0 <= at < room:
            chain.append(at)
            at = steps[at]
            count -= 1
        if at < 0:
            raise Doubt
        if parts is not None:
            chosen = np.array(chain, np.int64)
            columns = (column[chosen] for column in (key_start, key_length, value_start, value_length))
            parts.append(HeaderFields._make(_small(np.full(len(chain), row), *columns)))
        position += at
    return position


def _small(*columns: Int64s) -> list[Int32s]:
    """Columns of rows and positions as int32: all are below 2 GiB."""
    return [column.astype(np.int32) for column in columns]
