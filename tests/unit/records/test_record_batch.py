"""Record batches: exact in both directions, equal to kafka-python's byte for byte, with every field checked."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from tolerant_client.errors import RecordBatchError
from tolerant_client.records import record_batch
from tolerant_client.records.record_batch import (
    TRANSACTIONAL_BIT,
    Record,
    control_type,
    decode_records,
    encode_batch,
    iter_batches,
    read_header,
    restamp,
)

T0 = 1_700_000_000_000

headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
records = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(T0 - 10**6, T0 + 10**6) | st.integers(0, 2**60),
        key=st.none() | st.binary(max_size=70),
        value=st.none() | st.binary(max_size=300),
        headers=headers,
    ),
    min_size=1,
    max_size=100,
)
codec_ids = st.integers(0, 4)


def numbered(given: list[Record], base_offset: int = 0) -> list[Record]:
    return [record._replace(offset=base_offset + i) for i, record in enumerate(given)]


def one_batch(**options: Any) -> bytearray:
    sample = [Record(0, T0 + i, b"key", b"value %d" % i, (("h", b"x"),)) for i in range(3)]
    return bytearray(encode_batch(sample, **{"base_offset": 7, **options}))


def with_crc(batch: bytearray) -> memoryview:
    """The batch as a hostile peer would send it: invalid, with a correct CRC."""
    checksum = record_batch.crc32c.crc32c(bytes(batch[21:]))
    struct.pack_into(">I", batch, 17, checksum)
    return memoryview(batch)


@given(given=records, codec=codec_ids, base_offset=st.integers(0, 2**62))
def test_records_come_back_as_they_were(given: list[Record], codec: int, base_offset: int) -> None:
    batch = memoryview(encode_batch(given, base_offset=base_offset, codec=codec))
    assert list(decode_records(batch)) == numbered(given, base_offset)


@given(given=records, codec=st.sampled_from([0, 1]))
def test_kafka_python_reads_the_same_records(given: list[Record], codec: int) -> None:
    theirs = DefaultRecordBatch(encode_batch(given, codec=codec))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == [
        tuple(r) for r in numbered(given)
    ]


@given(given=records)
def test_kafka_python_builds_the_same_bytes(given: list[Record]) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for number, record in enumerate(given):
        builder.append(number, record.timestamp, record.key, record.value, list(record.headers))
    theirs = bytes(builder.build())
    assert encode_batch(given, partition_leader_epoch=0) == theirs


@given(given=records, codec=st.sampled_from([0, 1]))
def test_what_kafka_python_builds_is_read(given: list[Record], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for number, record in enumerate(given):
        builder.append(number, record.timestamp, record.key, record.value, list(record.headers))
    ((header, batch),) = iter_batches(memoryview(bytes(builder.build())))
    # kafka-python does not compress a batch if that would not make it smaller.
    assert header.codec in (0, codec) and header.record_count == len(given)
    assert list(decode_records(batch)) == numbered(given)


def test_header_keys_that_are_no_utf8_are_kept() -> None:
    key = b"\xff\xfe key".decode("utf-8", "surrogateescape")
    batch = encode_batch([Record(0, T0, None, None, ((key, None),))])
    assert b"\xff\xfe key" in batch
    (record,) = decode_records(memoryview(batch))
    assert record.headers == ((key, None),)


def test_compaction_leaves_holes_that_offsets_show() -> None:
    sample = [Record(0, T0, b"a", b"1"), Record(0, T0, b"b", b"2")]
    batch = memoryview(encode_batch(sample, base_offset=10, offsets=[11, 15], last_offset_delta=9))
    ((header, view),) = iter_batches(batch)
    assert (header.last_offset, header.next_offset) == (19, 20)
    assert [record.offset for record in decode_records(view)] == [11, 15]


def test_a_batch_that_compaction_emptied_is_read() -> None:
    batch = memoryview(encode_batch([], base_offset=10, last_offset_delta=4))
    ((header, view),) = iter_batches(batch)
    assert (header.record_count, header.next_offset) == (0, 15)
    assert list(decode_records(view)) == []


def test_log_append_time_is_every_records_time() -> None:
    batch = memoryview(one_batch(log_append_time=T0 + 99))
    assert read_header(batch).has_log_append_time
    assert {record.timestamp for record in decode_records(batch)} == {T0 + 99}


@pytest.mark.parametrize("kind", [0, 1])
def test_a_control_batch_says_abort_or_commit(kind: int) -> None:
    marker = Record(0, T0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    batch = memoryview(encode_batch([marker], is_control=True, is_transactional=True))
    header = read_header(batch)
    assert header.is_control and header.is_transactional
    assert control_type(batch) == kind


@given(cut=st.integers(0, 300))
def test_a_partial_batch_at_the_end_is_not_yielded(cut: int) -> None:
    batch = bytes(one_batch())
    records = memoryview(batch + batch[: min(cut, len(batch) - 1)])
    assert [bytes(view) for _, view in iter_batches(records)] == [batch]


def test_views_share_the_buffer() -> None:
    buffer = memoryview(one_batch() + one_batch(codec=4, base_offset=10))
    views = [view for _, view in iter_batches(buffer)]
    assert len(views) == 2
    assert all(view.obj is buffer.obj for view in views)


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (8, struct.pack(">i", 48), "length 48"),
        (8, struct.pack(">i", -1), "length -1"),
        (0, struct.pack(">q", -1), "negative base offset"),
        (16, b"\x01", "magic 1"),
        (23, struct.pack(">i", -1), "last offset delta -1"),
        (23, struct.pack(">i", 1), "3 records in 2 offsets"),
        (57, struct.pack(">i", -1), "record count -1"),
    ],
)
def test_a_header_that_cannot_be_is_refused(position: int, value: bytes, reason: str) -> None:
    batch = one_batch()
    batch[position : position + len(value)] = value
    with pytest.raises(RecordBatchError, match=reason) as caught:
        list(iter_batches(with_crc(batch)))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.offset) == (str(caught.value), caught.value.offset)


def test_offsets_beyond_64_bits_are_refused() -> None:
    batch = one_batch()
    batch[0:8] = struct.pack(">q", 2**63 - 2)
    with pytest.raises(RecordBatchError, match="last offset delta"):
        list(iter_batches(memoryview(batch)))


@pytest.mark.parametrize("magic", [0, 1])
def test_the_magic_of_an_old_short_message_is_named(magic: int) -> None:
    message = struct.pack(">qiIbbii", 5, 14, 0, magic, 0, -1, -1)
    with pytest.raises(RecordBatchError, match=f"magic {magic}"):
        list(iter_batches(memoryview(message)))


@given(bit=st.integers(0, 10_000))
def test_every_flipped_bit_under_the_crc_is_found(bit: int) -> None:
    batch = one_batch()
    position = 17 + bit % (len(batch) - 17)
    batch[position] ^= 1 << bit % 8
    with pytest.raises(RecordBatchError):
        list(iter_batches(memoryview(batch)))


def test_the_crc_can_be_left_unchecked() -> None:
    batch = one_batch()
    batch[17] ^= 1
    with pytest.raises(RecordBatchError, match=r"CRC mismatch.*base offset 7"):
        list(iter_batches(memoryview(batch)))
    assert len(list(iter_batches(memoryview(batch), verify_crc=False))) == 1


@given(given=records, codec=codec_ids)
def test_a_restamped_batch_differs_in_its_producer_only(given: list[Record], codec: int) -> None:
    source = encode_batch(given, base_offset=50, codec=codec, producer_id=3, base_sequence=9, is_transactional=True)
    copy = bytearray(source)
    restamp(memoryview(copy), 77, 0, 123)
    ((header, view),) = iter_batches(memoryview(copy))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 0, 123)
    assert (header.base_offset, header.partition_leader_epoch) == (0, -1)
    assert not header.is_transactional
    assert copy[61:] == source[61:]
    before = read_header(source)
    assert header.attributes | TRANSACTIONAL_BIT == before.attributes
    assert (header.last_offset_delta, header.record_count) == (before.last_offset_delta, before.record_count)
    assert (header.base_timestamp, header.max_timestamp) == (before.base_timestamp, before.max_timestamp)
    assert list(decode_records(view)) == numbered(given)


def test_restamp_can_put_a_batch_into_a_transaction() -> None:
    copy = one_batch()
    restamp(copy, 1, 2, 3, 4, 5, is_transactional=True)
    header = read_header(copy)
    assert header.is_transactional
    assert (header.base_offset, header.partition_leader_epoch) == (4, 5)


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), codec=codec_ids)
def test_damaged_records_raise_nothing_but_record_batch_error(position: int, byte: int, codec: int) -> None:
    batch = one_batch(codec=codec)
    batch[61 + position % (len(batch) - 61)] = byte
    try:
        list(decode_records(memoryview(batch)))
    except RecordBatchError as error:
        assert b"value" not in str(error).encode()


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (b"", "record cut short"),
        (b"\x80\x80\x80\x80\x80\x80", "bad varint"),
        (b"\x80\x80\x80\x80\x10", "bad varint"),
        (b"\x01", "record length beyond"),
        (b"\x40\x00", "record length beyond"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", "header count"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "header count"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", "field length -2"),
        (b"\x0c\x00\x00\x00\x40\x01\x00", "record cut short"),
        (b"\x0c\x00\x00\x02\x01\x01\x00", "offset delta 1 out of order"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "length does not match"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "1 bytes left over"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "header without a key"),
    ],
)
def test_records_that_do_not_add_up_are_refused(section: bytes, reason: str) -> None:
    batch = bytearray(encode_batch([Record(0, T0, None, None)]))[:61] + section
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(RecordBatchError, match=reason):
        list(decode_records(with_crc(batch)))


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch.codecs, "MAX_DECOMPRESSED_BYTES", 1_000_000)
    bomb = encode_batch([Record(0, T0, None, bytes(2_000_000))], codec=4)
    with pytest.raises(RecordBatchError, match="decompresses to more than 1000000 bytes"):
        list(decode_records(memoryview(bomb)))


def test_an_empty_batch_needs_its_last_offset() -> None:
    with pytest.raises(ValueError, match="last_offset_delta"):
        encode_batch([])
