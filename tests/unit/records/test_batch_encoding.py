"""Record batches from Arrow columns: byte for byte those of encode_batch, within their limit."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.encoding import encode_batches
from tolerant_client.records import codecs
from tolerant_client.records.batch_encoding import EncodedBatch, encode_groups, row_without_header_key
from tolerant_client.records.record_batch import (
    HEADER_SIZE,
    Record,
    decode_records,
    encode_batch,
    iter_batches,
    read_header,
    restamp,
)

T0 = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGE_HEADERS = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))

# The lengths at which a varint takes one byte more, and some between.
lengths = st.sampled_from([0, 1, 63, 64, 65, 8191, 8192]) | st.integers(0, 300)
payloads = st.none() | lengths.map(bytes) | st.binary(max_size=80)
one_record = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(T0 - 100, T0 + 100) | st.sampled_from([-1, 0, T0 * 2, 2**62]),
    key=payloads,
    value=payloads,
    headers=st.just(())
    | st.lists(st.tuples(st.text(max_size=8), payloads), max_size=4).map(tuple)
    | st.integers(60, 70).map(lambda count: (("many", None),) * count),
)
runs = st.tuples(one_record, st.integers(1, 70)).map(lambda pair: [pair[0]] * pair[1])
some_records = st.lists(runs | one_record.map(lambda record: [record]), min_size=1, max_size=10).map(
    lambda runs: [record for run in runs for record in run]
)


def column(values: Sequence[Any], kind: Any, before: int = 0, after: int = 0) -> Any:
    """The values as a column, which is a slice if there are rows before or after it."""
    other = next((value for value in values if value is not None), None)
    array = pa.array([other] * before + list(values) + [other] * after, kind)
    return array.slice(before, len(values))


def columns(records: Sequence[Record], large: Sequence[bool] = (False,) * 3, before: int = 0, after: int = 0) -> Any:
    """Keys, values, headers and timestamps."""
    headers = [[{"key": key, "value": value} for key, value in record.headers] or None for record in records]
    return (
        column([record.key for record in records], pa.large_binary() if large[0] else pa.binary(), before, after),
        column([record.value for record in records], pa.large_binary() if large[1] else pa.binary(), before, after),
        column(headers, LARGE_HEADERS if large[2] else HEADERS, before, after),
        np.array([record.timestamp for record in records], np.int64),
    )


def stamped(batches: Iterator[EncodedBatch]) -> list[EncodedBatch]:
    found = list(batches)
    for batch in found:
        restamp(batch.data, -1, -1, -1)
    return found


def decoded(batches: Sequence[EncodedBatch]) -> list[Record]:
    """All records, without their offsets; each batch must be valid."""
    records: list[Record] = []
    for batch in batches:
        ((header, view),) = iter_batches(batch.data)
        assert header.record_count == batch.record_count
        found = list(decode_records(view))
        assert [record.offset for record in found] == list(range(batch.record_count))
        records += [record._replace(offset=0) for record in found]
    return records


@settings(deadline=None, max_examples=150)
@given(
    records=some_records,
    large=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    outside=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    limit=st.sampled_from([1, 100, 500, 5000, 1 << 20]),
)
def test_batches_are_those_of_encode_batch(
    records: list[Record], large: tuple[bool, bool, bool], outside: tuple[int, int], limit: int
) -> None:
    batches = stamped(encode_batches(*columns(records, large, *outside), max_batch_bytes=limit))
    row = 0
    for batch in batches:
        assert batch.first_row == row
        assert batch.data == encode_batch(records[row : row + batch.record_count])
        assert len(batch.data) == batch.uncompressed_size
        assert len(batch.data) <= limit or batch.record_count == 1
        row += batch.record_count
    assert row == len(records)


@settings(deadline=None)
@given(
    records=some_records,
    codec=st.integers(0, 4),
    limit=st.sampled_from([1, 500, 1 << 20]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_groups_never_share_a_batch_and_every_codec_gives_the_records_back(
    records: list[Record], codec: int, limit: int, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    counts = np.diff(edges)
    found = list(encode_groups(*columns(records), counts, codec=codec, max_batch_bytes=limit))
    for group, count in enumerate(counts):
        batches = stamped(batch for number, batch in found if number == group)
        assert decoded(batches) == records[edges[group] : edges[group] + count]
        assert all(len(batch.data) <= limit or batch.record_count == 1 for batch in batches)
    assert [number for number, _ in found] == sorted(number for number, _ in found)


@given(keys=st.lists(st.none() | st.text(max_size=40), min_size=1, max_size=50), is_large=st.booleans())
def test_strings_are_written_as_utf_8_and_one_timestamp_serves_all(keys: list[str | None], is_large: bool) -> None:
    strings = column(keys, pa.large_string() if is_large else pa.string(), 1, 1)
    batches = stamped(encode_batches(strings, strings, None, T0))
    encoded = [None if key is None else key.encode() for key in keys]
    assert decoded(batches) == [Record(0, T0, key, key) for key in encoded]


def test_without_keys_and_headers_records_have_none() -> None:
    batches = stamped(encode_batches(None, pa.array([b"a", None, b""]), None, T0))
    assert decoded(batches) == [Record(0, T0, None, value) for value in (b"a", None, b"")]


def test_no_rows_are_no_batches() -> None:
    assert list(encode_batches(None, pa.array([], pa.binary()), None, T0)) == []
    assert list(encode_groups(None, pa.array([], pa.binary()), None, T0, [0, 0])) == []


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**21])
def test_lengths_of_four_bytes(size: int) -> None:
    records = [Record(0, T0, b"k", b"v" * size), Record(0, T0, b"k" * size, None, (("h", b"h" * size),))]
    batches = stamped(encode_batches(*columns(records), max_batch_bytes=2**30))
    assert [bytes(batch.data) for batch in batches] == [encode_batch(records)]


def test_offset_deltas_of_three_bytes() -> None:
    values = pa.array([b"x"] * 20_000)
    (batch,) = stamped(encode_batches(None, values, None, T0))
    assert decoded([batch]) == [Record(0, T0, None, b"x")] * 20_000


def test_what_lies_under_a_null_is_not_written() -> None:
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], HEADERS.value_type)
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries, mask=pa.array([True, False]))
    mask = np.packbits([0, 1], bitorder="little")
    offsets = np.array([0, 6, 9], np.int32)
    values = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(mask), pa.py_buffer(offsets), pa.py_buffer(b"hiddenyes")]
    )
    batches = stamped(encode_batches(None, values, hidden, T0))
    assert decoded(batches) == [Record(0, T0, None, None), Record(0, T0, None, b"yes", (("b", b"2"),))]


def test_batches_are_filled_before_another_is_begun() -> None:
    values = pa.array([b"x" * 100] * 10_000)
    batches = list(encode_batches(None, values, None, T0, max_batch_bytes=20_000))
    assert all(19_500 < len(batch.data) <= 20_000 for batch in batches[:-1])


def test_timestamps_far_apart_do_not_fill_a_batch_beyond_its_limit() -> None:
    values = pa.array([b"x"] * 2000)
    timestamps = np.array([0, 2**62] * 1000)
    batches = list(encode_batches(None, values, None, timestamps, max_batch_bytes=5000))
    assert all(2500 < len(batch.data) <= 5000 for batch in batches[:-1])


def test_many_windows_are_joined_without_a_seam() -> None:
    generator = random.Random(1)
    records = [Record(0, T0 + row, b"%d" % row, generator.randbytes(generator.randrange(4000))) for row in range(9000)]
    batches = stamped(encode_batches(*columns(records), max_batch_bytes=100_000))
    assert len(batches) > 100
    assert decoded(batches) == records


def test_a_record_beyond_the_limit_comes_alone_and_is_named() -> None:
    values = pa.array([b"a", b"b" * 1000, b"c", b"d"])
    batches = list(encode_batches(None, values, None, T0, max_batch_bytes=200))
    assert [(batch.first_row, batch.record_count) for batch in batches] == [(0, 1), (1, 1), (2, 2)]
    assert batches[1].uncompressed_size > 200


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_a_codec_makes_larger_is_left_as_it_is(codec: int) -> None:
    noise = pa.array([random.Random(0).randbytes(3000)])
    (batch,) = stamped(encode_batches(None, noise, None, T0, codec=codec))
    assert read_header(batch.data).codec == codecs.NONE
    assert decoded([batch])[0].value == noise[0].as_py()


@pytest.mark.parametrize("codec", range(1, 5))
def test_the_uncompressed_size_is_told_beside_a_compressed_batch(codec: int) -> None:
    values = pa.array([b"the same again " * 10] * 1000)
    (plain,) = encode_batches(None, values, None, T0)
    (packed,) = stamped(encode_batches(None, values, None, T0, codec=codec))
    assert read_header(packed.data).codec == codec
    assert packed.uncompressed_size == len(plain.data) > 5 * len(packed.data)


@pytest.mark.parametrize(("codec", "fast", "small"), [(codecs.GZIP, 1, 9), (codecs.LZ4, 1, 12), (codecs.ZSTD, 1, 19)])
def test_a_higher_level_packs_closer(codec: int, fast: int, small: int) -> None:
    generator = random.Random(0)
    words = [generator.randbytes(6).hex().encode() for _ in range(200)]
    values = pa.array([b" ".join(generator.choices(words, k=8)) for _ in range(2000)])
    sizes = []
    for level in (fast, small):
        (batch,) = stamped(encode_batches(None, values, None, T0, codec=codec, level=level))
        assert [record.value for record in decoded([batch])] == values.to_pylist()
        sizes.append(len(batch.data))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_gets_its_producer_in_place(codec: int) -> None:
    (batch,) = encode_batches(None, pa.array([b"a" * 999, b"b"]), None, T0, codec=codec)
    assert read_header(batch.data).codec == codec
    assert read_header(batch.data).crc == 0
    restamp(batch.data, 77, 3, 500, is_transactional=True)
    ((header, _),) = iter_batches(batch.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 500)
    assert header.is_transactional


def test_stamping_one_batch_leaves_its_neighbours_alone() -> None:
    values = pa.array([b"%0100d" % row for row in range(100)])
    batches = list(encode_batches(None, values, None, T0, max_batch_bytes=HEADER_SIZE + 1000))
    before = [bytes(batch.data) for batch in batches]
    restamp(batches[1].data, 1, 1, 1)
    assert [bytes(batch.data) == old for batch, old in zip(batches, before, strict=True)] == [
        row != 1 for row in range(len(batches))
    ]


def test_a_header_without_a_key_is_refused_by_row() -> None:
    rows = [None, [], [{"key": "a", "value": None}], [{"key": "b", "value": b""}, {"key": None, "value": b"x"}]]
    headers = column(rows, HEADERS, 1, 0)
    assert row_without_header_key(headers) == 3
    assert row_without_header_key(headers[:3]) is None
    assert row_without_header_key(pa.array([[{"key": "a", "value": b""}], [None]], HEADERS)) == 1
    with pytest.raises(ValueError, match="row 3 has a header without a key"):
        list(encode_batches(None, pa.array([b""] * 4), headers, T0))


def test_a_record_that_no_batch_can_hold_is_refused_by_row() -> None:
    untouched = pa.py_buffer(np.zeros(5 + 2**31, np.uint8))  # takes no memory until it is written or read
    offsets = np.array([0, 5, 5 + 2**31], np.int64)
    values = pa.Array.from_buffers(pa.large_binary(), 2, [None, pa.py_buffer(offsets), untouched])
    with pytest.raises(ValueError, match="record of row 1 takes 21474836"):
        list(encode_batches(None, values, None, T0))


def test_columns_of_different_lengths_are_refused() -> None:
    values = pa.array([b"a", b"b"])
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        list(encode_batches(values[:1], values, None, T0))
    with pytest.raises(ValueError, match="3 timestamps for 2 values"):
        list(encode_batches(None, values, None, np.zeros(3, np.int64)))
    with pytest.raises(ValueError, match="groups have 3 rows, but the columns have 2"):
        list(encode_groups(None, values, None, T0, [1, 2]))


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(codecs.CodecError, match="unknown codec 5"):
        list(encode_batches(None, pa.array([b"a"]), None, T0, codec=5))


def calls(work: Callable[[], object]) -> int:
    """The number of functions, Python's and native ones, that the call takes."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_python_does_nothing_for_each_record() -> None:
    few, many = (
        columns([Record(0, T0, b"key", b"value" * 30, (("h", b"1"), ("i", None)))] * rows) for rows in (100, 3000)
    )
    assert calls(lambda: list(encode_batches(*few))) >= calls(lambda: list(encode_batches(*many))) - 20
