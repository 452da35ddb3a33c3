"""Hostile input of a producer, a broker or a topic's writer costs time and memory in proportion, and ends as documented."""

from __future__ import annotations

import gzip
import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import OptionError, RecordBatchError
from tolerant_client.mirror.batches.divergence import LogSlice, tail_records
from tolerant_client.mirror.batches.rewrite import rewrite
from tolerant_client.mirror.state.control_record import decode_control
from tolerant_client.mirror.state.ledger import UNREADABLE, decode_row
from tolerant_client.mirror.state.mm2_positions import decode_position
from tolerant_client.mirror.state.offset_map import RowKey
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify.log_columns import iter_rows, read_batches, unfold_batch
from tolerant_client.mirror.verify.log_comparison import LogComparison
from tolerant_client.records import arrow, batch_columns, codecs, varint_columns
from tolerant_client.records.batch_columns import HEADER, iter_columns
from tolerant_client.records.record_batch import Record, encode_batch, iter_batches, read_header
from tolerant_client.records.record_fields import MAX_HEADERS
from tolerant_client.records.record_sets import iter_record_sets
from tolerant_client.records.varint_columns import Doubt
from tolerant_client.stock.consumer_records import PartitionRecords

TP = TopicPartition("orders", 0)
T0 = 1_700_000_000_000


def message(offset: int, magic: int, attributes: int, value: bytes | None, size: int | None = None) -> bytes:
    """One message of v0 or v1 with a correct checksum; `size` may be wrong."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", T0) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", -1 if value is None else len(value)) + (value or b"")
    return struct.pack(">qiI", offset, len(body) + 4 if size is None else size, zlib.crc32(body)) + body


def taken(data: bytes, check_crcs: bool = True) -> list[Any]:
    """All records that a consumer gets from a fetch; raises only CorruptRecordError."""
    part = PartitionRecords(0, TP, MemoryRecords(memoryview(data)), check_crcs=check_crcs)
    found: list[Any] = []
    while records := part.take(500):
        found += records
    return found


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [-12, -1, 0, 13])
def test_a_set_whose_messages_have_impossible_sizes_ends_at_once(magic: int, size: int) -> None:
    """kafka-python reads the message of size -12 for ever, until no memory is left."""
    inner = message(0, magic, 0, b"v", size)
    with pytest.raises(CorruptRecordError, match="orders.*size"):
        taken(message(0, magic, codecs.GZIP, gzip.compress(inner)))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_set_that_decompresses_to_more_than_the_bound_is_refused(magic: int) -> None:
    bomb = gzip.compress(b"\0" * (codecs.RATIO_FLOOR + 1))
    with pytest.raises(CorruptRecordError, match="decompresses to more than"):
        taken(message(0, magic, codecs.GZIP, bomb))


def test_messages_before_a_damaged_one_are_read() -> None:
    good = [message(n, 1, 0, b"v%d" % n) for n in range(40)]
    bad = bytearray(message(40, 1, 0, b"v40"))
    bad[-1] ^= 1
    data = b"".join(good) + bytes(bad)
    part = PartitionRecords(0, TP, MemoryRecords(memoryview(data)))
    assert [record.value for record in part.take(None)] == [b"v%d" % n for n in range(40)]
    with pytest.raises(CorruptRecordError, match="CRC mismatch"):
        part.take(None)
    headers = []
    with pytest.raises(RecordBatchError):
        for header, _ in iter_record_sets(memoryview(data)):
            headers.append(header)
    assert [header.record_count for header in headers] == [40]


def with_section(section: bytes, count: int, codec: int = codecs.ZSTD) -> bytes:
    """A batch with this records section."""
    batch = bytearray(encode_batch([Record(0, T0, None, None)]))[:61] + codecs.compress(codec, section)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def varint(value: int) -> bytes:
    code, found = value << 1 ^ value >> 63, bytearray()
    while code >= 0x80:
        found.append(code & 0x7F | 0x80)
        code >>= 7
    return bytes([*found, code])


def record_with(headers: bytes, count: int) -> bytes:
    body = b"\0\0\0\1\1" + varint(count) + headers
    return varint(len(body)) + body


def crowded(count: int) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    """Headers with keys and values of every length, also with varints that are longer than necessary."""
    chance, data, pairs = random.Random(count), bytearray(), []
    for _ in range(count):
        key = bytes(chance.choices(b"ab", k=chance.choice([0, 1, 1, 3, 80])))
        value = chance.choice([None, b"", b"x", b"y" * 70, b"z" * 9000 if chance.random() < 0.01 else b""])
        pairs.append((key.decode(), value))
        length = varint(len(key))
        data += (
            length if chance.random() < 0.8 else bytes([length[0] | 0x80, 0x80, 0]) if len(length) == 1 else length
        ) + key
        data += varint(-1) if value is None else varint(len(value)) + value
    return bytes(data), pairs


@pytest.mark.parametrize("count", [1, 64, 65, 1025, 30_000])
def test_very_many_headers_are_read_without_decoding_record_by_record(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers, pairs = crowded(count)
    section = record_with(headers, count) * 1
    batch = with_section(section, 1)

    def refused(*_: object) -> Iterator[Any]:
        raise AssertionError("record by record")

    with monkeypatch.context() as patch:
        patch.setattr(arrow, "decode_section", refused)
        (piece,) = arrow.iter_arrow(iter_batches(memoryview(batch)), "orders", 0, 0, 1, arrow.SCHEMA_WITH_HEADERS)
    assert [(h["key"], h["value"]) for h in piece.to_pylist()[0]["headers"]] == pairs
    assert taken(batch)[0].headers == pairs


def three_records(crowd: int) -> bytes:
    """The second one of them has `crowd` headers."""
    bodies = [
        b"\0\0" + varint(n) + b"\1\2" + b"%d" % n + varint(crowd * (n == 1)) + b"\0\1" * crowd * (n == 1)
        for n in range(3)
    ]
    return with_section(b"".join(varint(len(body)) + body for body in bodies), 3)


def test_a_record_with_more_headers_than_are_read_is_named_and_those_behind_it_can_be_read() -> None:
    batch = three_records(MAX_HEADERS + 1)
    assert len(batch) < 500
    part = PartitionRecords(0, TP, MemoryRecords(memoryview(batch)))
    assert [record.value for record in part.take(None)] == [b"0"]
    with pytest.raises(CorruptRecordError, match=r"orders.*offset 1 has 262145 headers.*continue at offset 2 \(seek"):
        part.take(None)
    behind = PartitionRecords(2, TP, MemoryRecords(memoryview(batch)))
    assert [record.value for record in behind.take(None)] == [b"2"]

    def in_columns(from_offset: int, schema: pa.Schema) -> list[bytes]:
        pieces = arrow.iter_arrow(iter_batches(memoryview(batch)), "orders", 0, from_offset, 3, schema)
        return [value for piece in pieces for value in piece.column("value").to_pylist()]

    with pytest.raises(RecordBatchError, match="continue at offset 2"):
        in_columns(0, arrow.SCHEMA_WITH_HEADERS)
    assert in_columns(2, arrow.SCHEMA_WITH_HEADERS) == [b"2"]
    assert in_columns(0, arrow.SCHEMA) == [b"0", b"1", b"2"]


def test_as_many_headers_are_read_as_are_asked_for_and_a_record_with_more_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = three_records(MAX_HEADERS + 1)

    def read(most: int) -> list[int]:
        pieces = arrow.iter_arrow(
            iter_batches(memoryview(batch)), "orders", 0, 0, 3, arrow.SCHEMA_WITH_HEADERS, most_headers=most
        )
        return [len(headers or ()) for piece in pieces for headers in piece.column("headers").to_pylist()]

    with pytest.raises(RecordBatchError, match=f"at most {MAX_HEADERS} are read .* a larger maxBytesInFlight"):
        read(MAX_HEADERS)
    assert read(MAX_HEADERS + 1) == [0, MAX_HEADERS + 1, 0]

    def doubt(*_: object, **__: object) -> Iterator[Any]:
        raise Doubt

    monkeypatch.setattr(arrow, "iter_columns", doubt)
    assert read(MAX_HEADERS + 1) == [0, MAX_HEADERS + 1, 0]


def test_many_records_before_the_one_with_too_many_headers_are_given_out() -> None:
    good = [record_at(n, b"", 0) for n in range(100)]
    batch = with_section(b"".join(good) + record_at(100, b"\0\1" * (MAX_HEADERS + 1), MAX_HEADERS + 1), 101)
    part = PartitionRecords(0, TP, MemoryRecords(memoryview(batch)))
    assert [record.offset for record in part.take(None)] == list(range(100))
    with pytest.raises(CorruptRecordError, match="continue at offset 101"):
        part.take(None)


def record_at(delta: int, headers: bytes, count: int) -> bytes:
    body = b"\0\0" + varint(delta) + b"\1\1" + varint(count) + headers
    return varint(len(body)) + body


@pytest.mark.parametrize("header", [b"\0\1", b"\0\0"])
def test_a_rewritten_record_keeps_its_headers_however_many_and_verify_finds_it_the_same(header: bytes) -> None:
    section = record_with(header * 400_000, 400_000)
    batch = with_section(section, 1, codecs.NONE)  # decompressing would reserve its bound
    other = bytearray(batch)
    struct.pack_into(">q", other, 35, T0 + 1)  # another max timestamp, so that verify has to decode the batch
    struct.pack_into(">I", other, 17, crc32c.crc32c(bytes(other[21:])))
    log = LogComparison(0, 1)
    peaks = []
    tracemalloc.start()
    ((_, data),) = rewrite(list(iter_batches(memoryview(batch))), 0, fill_holes=False, is_compacted=False,
                           max_batch_bytes=1 << 20)  # fmt: skip
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.reset_peak()
    for side, each in enumerate((batch, bytes(other))):
        log.add(side, *read_batches(memoryview(each), 0))
    log.compare()
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert bytes(data[61:]) == section
    assert log.difference is None and log.records == 1
    assert max(peaks) < 16 * len(section)  # windows of 64 KB take most of it, whatever the size


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.ZSTD])
def test_headers_and_rows_that_are_columns_at_once_are_bounded(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(str(n), b"%d" % n) for n in range(50)]
    records = [Record(0, T0 + n, b"k", b"%d" % n, tuple(pairs[: n % 50])) for n in range(700)]
    data = encode_batch(records, codec=codec)
    expected = taken(data)
    whole = list(arrow.iter_arrow(iter_batches(memoryview(data)), "orders", 0, 0, 700, arrow.SCHEMA_WITH_HEADERS))
    monkeypatch.setattr(batch_columns, "SLICE_HEADERS", 120)
    monkeypatch.setattr(batch_columns, "SLICE_ROWS", 33)
    slices = list(arrow.iter_arrow(iter_batches(memoryview(data)), "orders", 0, 0, 700, arrow.SCHEMA_WITH_HEADERS))
    assert len(whole) == 1 and pa.Table.from_batches(slices).to_pylist() == whole[0].to_pylist()
    assert max(part.num_rows for part in slices) <= 33
    assert max(sum(map(len, filter(None, part.column("headers").to_pylist()))) for part in slices) < 120 + 50
    assert taken(data) == expected and [record.headers for record in expected[:50]] == [pairs[:n] for n in range(50)]


def test_a_batch_that_decompresses_to_much_is_decoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(0, T0 + n, b"k%d" % n, b"v" * (n % 50), (("h", b"%d" % n),) * (n % 3)) for n in range(3000)]
    data = b"".join(encode_batch(records[a : a + 1000], base_offset=a, codec=codecs.LZ4) for a in (0, 1000, 2000))
    views = list(iter_batches(memoryview(data)))
    unfolded = [codecs.decompress(codecs.LZ4, view[61:]) for _, view in views]
    sections = batch_columns.join_sections(np.frombuffer(b"".join(view[:61] for _, view in views), HEADER), unfolded)
    (whole,) = iter_columns(sections, True)
    slices = list(iter_columns(sections, True, slice_bytes=10_000))
    assert len(slices) > 8 and max(len(part.offsets) for part in slices) < 1000
    assert np.array_equal(np.concatenate([part.offsets for part in slices]), whole.offsets)
    assert np.array_equal(np.concatenate([part.timestamps for part in slices]), whole.timestamps)
    assert all(part.counts.sum() == len(part.offsets) and len(part.counts) == len(part.headers) for part in slices)
    expected = taken(data)
    monkeypatch.setattr(iter_columns, "__kwdefaults__", {**iter_columns.__kwdefaults__, "slice_bytes": 10_000})
    assert taken(data) == expected and [record.key for record in expected] == [record.key for record in records]
    pieces = list(arrow.iter_arrow(iter_batches(memoryview(data)), "orders", 0, 5, 2995, arrow.SCHEMA_WITH_HEADERS))
    assert len(pieces) > 8
    assert [row["offset"] for row in pa.Table.from_batches(pieces).to_pylist()] == list(range(5, 2995))


def test_damage_behind_the_first_slice_is_raised_after_the_records_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iter_columns, "__kwdefaults__", {**iter_columns.__kwdefaults__, "slice_bytes": 2_000})
    section = b"".join(
        varint(len(body)) + body
        for n in range(1000)
        for body in [b"\0\0" + varint(5 if n == 900 else n) + b"\1" + varint(10) + b"v" * 10 + b"\0"]
    )
    part = PartitionRecords(0, TP, MemoryRecords(memoryview(with_section(section, 1000))))
    assert [record.offset for record in part.take(None)] == list(range(900))
    with pytest.raises(CorruptRecordError, match="offset delta 5 out of order"):
        part.take(None)
    with pytest.raises(RecordBatchError, match="offset delta 5 out of order"):
        rewrite(list(iter_batches(memoryview(with_section(section, 1000)))), 0, fill_holes=False, is_compacted=False,
                max_batch_bytes=1 << 20)  # fmt: skip


def test_verify_reads_older_messages_beside_aborted_transactions() -> None:
    old = message(29, 1, codecs.GZIP, gzip.compress(b"".join(message(n, 1, 0, b"v%d" % n) for n in range(30))))
    options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    aborted = encode_batch([Record(0, T0, None, b"gone")], base_offset=30, base_sequence=0, **options)
    marker = encode_batch(
        [Record(0, T0, struct.pack(">hh", 0, 0), b"\0" * 6)], base_offset=31, is_control=True, **options
    )
    batches, end = read_batches(memoryview(old + aborted + marker), 0, [(7, 30)])
    assert end == 32 and batches.headers["base_offset"].tolist() == [0]
    (rows,) = iter_rows(batches, [unfold_batch(row, view) for row, view in zip(batches.headers, batches.views)])
    assert rows.offsets.tolist() == list(range(30))


def test_a_run_of_messages_over_many_offsets_fits_into_headers() -> None:
    data = message(0, 1, 0, b"a") + message(2**40, 1, 0, b"b")
    batches, end = read_batches(memoryview(data), 0)
    assert end == 2**40 + 1 and batches.headers["base_offset"].tolist() == [0, 2**40]


def test_the_offsets_that_a_control_batch_claims_cost_nothing() -> None:
    """Before, 78 bytes with ten million offsets took 607 MB."""
    marker = encode_batch(
        [Record(0, T0, struct.pack(">hh", 0, 1), b"\0" * 6)], last_offset_delta=2**31 - 2, is_control=True,
        is_transactional=True, producer_id=7, producer_epoch=0,
    )  # fmt: skip
    found = LogSlice(0)
    found.extend(FetchedPartition(TP, 0, 2**31, 2**31, 0, [], memoryview(marker)), 2**31)
    assert found.vacant == [range(0, 2**31 - 1)] and found.until == 2**31 - 1
    assert found.is_vacant(10**9) and not found.is_vacant(2**31 - 1)


def test_the_end_of_a_damaged_batch_is_a_record_batch_error() -> None:
    batch = bytearray(encode_batch([Record(0, T0, None, b"v" * 50)] * 3))
    batch[61] = 0x7E
    with pytest.raises(RecordBatchError):
        list(tail_records(read_header(batch), memoryview(batch), 2))


NESTED, INFINITE = b"[" * 200_000, b'{"version": 1, "time_ms": 1e999, "bytes_per_s": 1e999}'


def filtered(data: bytes) -> object:
    return LinkTopics.from_json(data.decode())


@pytest.mark.parametrize("data", [NESTED, INFINITE])
@pytest.mark.parametrize(
    "decode, error", [(decode_control, OptionError), (RowKey.decode, ValueError), (filtered, OptionError)]
)
def test_json_that_no_mirror_writes_is_refused_as_documented(
    decode: Callable[[bytes], object], error: type[Exception], data: bytes
) -> None:
    with pytest.raises(error):
        decode(data)


def test_a_ledger_row_and_a_place_that_are_none_are_left_out() -> None:
    fields = {name: "x" for name in ("link", "topic", "reason", "detail")}
    numbers = '"time_ms": 1e999, "partition": 0, "from_offset": 0, "until_offset": 0'
    for value in (NESTED, (json.dumps(fields)[:-1] + ", " + numbers + "}").encode()):
        assert decode_row(Record(5, T0, None, value)).reason == UNREADABLE
    assert decode_position(NESTED, b"{}") is None
    assert decode_position(b'["c", {"cluster": "A", "topic": "t", "partition": 1e999}]', b'{"offset": 1}') is None


def test_whatever_bytes_come_the_consumer_says_corrupt_or_reads_them() -> None:
    """A small, seeded part of a longer run that was made by hand."""
    chance = random.Random(20261123)
    seeds = [
        encode_batch([Record(0, T0 + n, b"k", b"v" * n, (("h", b"1"),)) for n in range(count)], codec=codec)
        for count in (3, 40)
        for codec in (codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD)
    ]
    inner = [b"".join(message(n, magic, 0, b"v%d" % n) for n in range(30)) for magic in (0, 1)]
    seeds += [
        message(29, magic, codec, codecs.compress(codec, inner[magic])) for magic in (0, 1) for codec in (1, 2, 3)
    ]
    seeds += inner
    outcomes = {"read": 0, "corrupt": 0}
    for _ in range(1500):
        data = bytearray(chance.choice(seeds) + chance.choice([b"", chance.choice(seeds)]))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        if chance.random() < 0.2:
            data = data[: chance.randrange(len(data))]
        for records in (taken, in_arrow):
            try:
                records(bytes(data), chance.random() < 0.3)
                outcomes["read"] += 1
            except CorruptRecordError:
                outcomes["corrupt"] += 1
    assert min(outcomes.values()) > 300, outcomes


def in_arrow(data: bytes, check_crcs: bool) -> None:
    part = PartitionRecords(0, TP, MemoryRecords(memoryview(data)), check_crcs=check_crcs)
    while part.take_arrow(10_000, 1 << 30, arrow.SCHEMA_WITH_HEADERS)[0]:
        pass


def test_lenient_varints_are_those_of_the_strict_reader() -> None:
    chance = random.Random(7)
    data = np.frombuffer(bytes(chance.choices([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF, 0x0F], k=4000)) + b"\0" * 5, np.uint8)
    places = np.arange(4000)
    values, ends = varint_columns.any_varints_at(data, places)
    for place, value, end in zip(places.tolist(), values.tolist(), ends.tolist()):
        try:
            expected, after = varint_columns.varints_at(data, np.array([place]))
        except Doubt:
            assert value < -1
        else:
            assert (value, end) == (int(expected[0]), int(after[0]))
