"""Arrow columns: equal to decode_records, whatever the layout of the records."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tolerant_client.errors import RecordBatchError
from tolerant_client.records import arrow, record_fields
from tolerant_client.records.arrow import SCHEMA_WITH_HEADERS, iter_arrow
from tolerant_client.records.record_batch import Record, decode_records, encode_batch, iter_batches, read_header

T0 = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

one_record = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(T0 - 10**6, T0 + 10**6) | st.sampled_from([-1, 0, T0 * 2]),
    key=st.none() | st.binary(max_size=70),
    value=st.none() | st.binary(max_size=300) | st.integers(0, 20_000).map(bytes),
    headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4).map(tuple),
)
# Repeated records make runs of one size; between the runs the size changes.
run = st.tuples(one_record, st.integers(1, 100)).map(lambda pair: [pair[0]] * pair[1])
batch_of_records = st.lists(run | one_record.map(lambda record: [record]), min_size=1, max_size=12).map(
    lambda runs: [record for part in runs for record in part]
)


def rows(records: Any) -> list[tuple[Any, ...]]:
    return [
        (r.offset, r.timestamp, r.key, r.value, [(shown(key), value) for key, value in r.headers] or None)
        for r in records
    ]


def shown(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


def arrow_rows(piece: Any) -> list[tuple[Any, ...]]:
    return [
        (
            row["offset"],
            (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
            row["key"],
            row["value"],
            row["headers"] and [(header["key"].encode(), header["value"]) for header in row["headers"]],
        )
        for row in piece.to_pylist()
    ]


def in_arrow(batch: memoryview, schema: Any = arrow.SCHEMA) -> Any:
    """All records of one batch, which has at least one, as one piece."""
    (piece,) = iter_arrow([(read_header(batch), batch)], "t", 0, 0, 2**63 - 1, schema)
    return piece


@settings(deadline=None)
@given(
    given=st.lists(st.tuples(batch_of_records, st.integers(0, 4), st.booleans()), min_size=1, max_size=4),
    cut=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    target_bytes=st.sampled_from([1, 1000, 1 << 20]),
)
def test_arrow_equals_decode_records(given: Any, cut: tuple[int, int], target_bytes: int) -> None:
    parts, offset = [], 0
    for records, codec, stamped in given:
        stamp = T0 + 5 if stamped else None
        parts.append(encode_batch(records, base_offset=offset, codec=codec, log_append_time=stamp))
        offset += len(records) + 3
    data = memoryview(b"".join(parts))
    expected = [(read_header(view), record) for _, view in iter_batches(data) for record in decode_records(view)]
    expected = [pair for pair in expected if cut[0] <= pair[1].offset < cut[1]]
    pieces = list(
        iter_arrow(iter_batches(data), "topic", 3, *cut, schema=arrow.SCHEMA_WITH_HEADERS, target_bytes=target_bytes)
    )
    for piece in pieces:
        piece.validate(full=True)
        assert piece.num_rows
    assert [row for piece in pieces for row in arrow_rows(piece)] == rows(r for _, r in expected)
    types = [kind for piece in pieces for kind in piece.column("timestampType").to_pylist()]
    assert types == [int(header.has_log_append_time) for header, _ in expected]
    for whole in iter_arrow(iter_batches(data), "topic", 3, *cut):
        assert whole.schema.equals(arrow.SCHEMA)
        assert set(whole.column("topic").to_pylist()) == {"topic"}
        assert set(whole.column("partition").to_pylist()) == {3}


@settings(deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), count=st.sampled_from([3, 40]))
def test_damage_is_found_by_both_or_by_none(position: int, byte: int, count: int) -> None:
    sample = [Record(0, T0 + i, b"key", b"value %d" % i, (("h", b"x"),) * (i % 3)) for i in range(count)]
    batch = bytearray(encode_batch(sample))
    batch[61 + position % (len(batch) - 61)] = byte
    view = memoryview(batch)
    try:
        expected = rows(decode_records(view))
    except RecordBatchError as error:
        with pytest.raises(RecordBatchError) as caught:
            in_arrow(view, arrow.SCHEMA_WITH_HEADERS)
        assert str(caught.value) == str(error)
    else:
        assert arrow_rows(in_arrow(view, arrow.SCHEMA_WITH_HEADERS)) == expected


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_section_cut_short_is_refused(cut: int) -> None:
    batch = bytearray(encode_batch([Record(0, T0, None, b"0123456789")] * 50))[:-cut]
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(RecordBatchError):
        in_arrow(memoryview(batch))


def test_a_claimed_count_allocates_nothing() -> None:
    batch = bytearray(encode_batch([Record(0, T0, None, b"x")]))
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    with pytest.raises(RecordBatchError):
        in_arrow(memoryview(batch))


def test_control_batches_are_skipped() -> None:
    marker = encode_batch([Record(0, T0, b"\0\0\0\1", b"")], base_offset=1, is_control=True)
    data = encode_batch([Record(0, T0, None, b"x")]) + marker
    assert [piece.num_rows for piece in iter_arrow(iter_batches(memoryview(data)), "t", 0, 0, 9)] == [1]


def test_header_keys_that_are_no_utf8_are_replaced_as_java_does() -> None:
    key = b"\xff!".decode("utf-8", "surrogateescape")
    for count in (1, record_fields._HEADER_ROUNDS + 1):
        view = memoryview(encode_batch([Record(0, T0, None, None, ((key, b"v"),) * count)]))
        (headers,) = in_arrow(view, arrow.SCHEMA_WITH_HEADERS).column("headers").to_pylist()
        assert headers == [{"key": "\ufffd!", "value": b"v"}] * count


def test_very_many_headers_are_read_plainly() -> None:
    sample = [Record(0, T0, b"k", None, tuple((str(i), b"%d" % i) for i in range(500)))] * 2
    view = memoryview(encode_batch(sample))
    piece = in_arrow(view, arrow.SCHEMA_WITH_HEADERS)
    assert arrow_rows(piece) == rows(decode_records(view))


def test_a_timestamp_that_microseconds_cannot_hold_is_refused() -> None:
    view = memoryview(encode_batch([Record(0, 2**60, None, None)], base_offset=4))
    with pytest.raises(RecordBatchError, match="offset 4 does not fit"):
        in_arrow(view)


def test_pieces_stay_near_the_target_size() -> None:
    parts = [encode_batch([Record(0, T0, None, bytes(1000))] * 10, base_offset=i * 10) for i in range(50)]
    pieces = list(iter_arrow(iter_batches(memoryview(b"".join(parts))), "t", 0, 0, 500, target_bytes=30_000))
    assert sum(piece.num_rows for piece in pieces) == 500
    assert max(piece.num_rows for piece in pieces) <= 30


def test_the_records_before_one_with_too_many_headers_are_given_out_first() -> None:
    """Its error names the offset at which to continue: no record before that may be missing."""
    batches = [
        memoryview(
            encode_batch(
                [Record(at, 1, b"k", b"v", (("a", b""),) * (5 if at == 4 else 1)) for at in range(base, base + 3)],
                base_offset=base,
            )
        )
        for base in (0, 3)
    ]
    parts = iter_arrow([(read_header(b), b) for b in batches], "t", 0, 0, 10, SCHEMA_WITH_HEADERS, most_headers=4)
    offsets: list[int] = []
    with pytest.raises(RecordBatchError, match="5"):
        for part in parts:
            offsets += part.column("offset").to_pylist()
    assert offsets == [0, 1, 2, 3]
