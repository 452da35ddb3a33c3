"""PartitionRecords gives field for field what kafka-python's own does, whatever the log looks like."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.serializer import Deserializer
from kafka.structs import TopicPartition

from tolerant_client.records import arrow
from tolerant_client.records.batch_columns import read_run
from tolerant_client.records.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.records.stretches import survey
from tolerant_client.stock import consumer_records
from tolerant_client.stock.consumer_records import PartitionRecords

TP = TopicPartition("orders", 3)
T0 = 1_700_000_000_000
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
COMMIT, ABORT = 1, 0


@dataclass(frozen=True)
class Aborted:
    """The fields of kafka-python's AbortedTransaction that are read."""

    producer_id: int
    first_offset: int


class Recorder(Deserializer):  # type: ignore[misc]
    """Keeps what it was called with; refuses what starts with `poison`."""

    def __init__(self, poison: bytes | None = None) -> None:
        self.calls: list[Any] = []
        self._poison = poison

    def deserialize(self, topic: str, headers: Any, data: Any) -> Any:
        self.calls.append((topic, list(headers), data))
        if self._poison is not None and data is not None and data.startswith(self._poison):
            raise ValueError("poison")
        return ("seen", data)


def both(data: bytes, from_offset: int = 0, **options: Any) -> tuple[Any, Any]:
    """(stock, ours) on the same bytes."""
    stock = Fetcher.PartitionRecords(from_offset, TP, MemoryRecords(data), **options)
    return stock, PartitionRecords(from_offset, TP, MemoryRecords(memoryview(data)), **options)


def state(part: Any) -> tuple[Any, ...]:
    return part.next_fetch_offset, part.leader_epoch, bool(part), part.records_read, part.bytes_read


def assert_same(stock: Any, ours: Any, steps: Sequence[int | None]) -> list[Any]:
    """Takes from both in the same steps, and the rest at the end; returns the records."""
    found: list[Any] = []
    for n in [*steps, None, None]:
        if not stock:
            break
        expected, records = stock.take(n), ours.take(n)
        assert records == expected
        for mine, theirs in zip(records, expected):
            assert type(mine) is ConsumerRecord
            assert list(map(type, mine)) == list(map(type, theirs))
        assert state(ours) == state(stock)
        found += records
    assert not ours
    assert ours.take(5) == []
    return found


def marker(offset: int, kind: int, producer_id: int, epoch: int = 4) -> bytes:
    record = Record(0, T0, struct.pack(">hh", 0, kind), b"\0" * 6)
    return encode_batch(
        [record], base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=-1,
        partition_leader_epoch=epoch, is_transactional=True, is_control=True,
    )  # fmt: skip


def legacy(magic: int, codec: int, offset: int, count: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 20, offset=offset)
    for n in range(count):
        builder.append(timestamp=T0 + n, key=None if n % 3 else b"k%d" % n, value=b"old %d" % n)
    builder.close()
    data = bytearray(builder.buffer())
    if codec:
        struct.pack_into(">q", data, 0, offset + count - 1)  # where a broker puts a compressed set
    return bytes(data)


one_record = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(T0 - 10**6, T0 + 10**6) | st.sampled_from([-1, 0]),
    key=st.none() | st.binary(max_size=70),
    value=st.none() | st.binary(max_size=200) | st.integers(0, 9000).map(bytes),
    headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3).map(tuple),
)
run = st.tuples(one_record, st.integers(1, 60)).map(lambda pair: [pair[0]] * pair[1])


@st.composite
def logs(draw: Any) -> tuple[bytes, bytes, int, list[Aborted]]:
    """(fetched bytes, the same uncompressed, log end, aborted transactions) of every kind of batch."""
    data, plain, offset = b"", b"", draw(st.integers(0, 300))
    aborted: list[Aborted] = []
    epoch = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 7))):
        epoch += draw(st.integers(0, 1))
        kind = draw(st.sampled_from(["batch", "batch", "holes", "stamped", "committed", "aborted", "empty"]))
        records = [r for part in draw(st.lists(run, min_size=1, max_size=4)) for r in part]
        options: dict[str, Any] = {"base_offset": offset, "partition_leader_epoch": epoch}
        last = len(records) - 1
        if kind == "holes":
            steps = draw(st.lists(st.integers(1, 3), min_size=len(records), max_size=len(records)))
            options["offsets"] = [offset + sum(steps[:n]) for n in range(len(records))]
            last = options["offsets"][-1] - offset + draw(st.integers(0, 3))
            options["last_offset_delta"] = last
        elif kind == "stamped":
            options["log_append_time"] = T0 + 5
        elif kind == "empty":
            records, last = [], draw(st.integers(0, 5))
            options["last_offset_delta"] = last
        elif kind in ("committed", "aborted"):
            options |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        codec = draw(st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD])) if records else NONE
        data += encode_batch(records, codec=codec, **options)
        plain += encode_batch(records, **options)
        if kind in ("committed", "aborted"):
            if kind == "aborted":
                aborted.append(Aborted(7, offset))
            end = marker(offset + last + 1, ABORT if kind == "aborted" else COMMIT, 7, epoch)
            data, plain, last = data + end, plain + end, last + 1
        offset += last + 1
    cut = draw(st.integers(0, 40))
    if cut:
        tail = encode_batch([Record(0, T0, None, b"cut" * 30)], base_offset=offset)[: 100 - cut]
        data, plain = data + tail, plain + tail
    return data, plain, offset, aborted


@settings(deadline=None, max_examples=120)
@given(
    log=logs(),
    steps=st.lists(st.integers(1, 150), max_size=12),
    isolation=st.sampled_from([COMMITTED, UNCOMMITTED]),
    skip=st.integers(0, 60),
    check_crcs=st.booleans(),
    with_deserializers=st.booleans(),
    piece_bytes=st.sampled_from([1, 3000, 1 << 20]),
)
def test_every_field_and_every_step_is_the_one_of_kafka_python(
    log: tuple[bytes, bytes, int, list[Aborted]],
    steps: list[int],
    isolation: Any,
    skip: int,
    check_crcs: bool,
    with_deserializers: bool,
    piece_bytes: int,
) -> None:
    data, plain, end, aborted = log
    start = max(0, min(end - 1, struct.unpack_from(">q", data)[0] + skip))
    options: dict[str, Any] = {
        "isolation_level": isolation, "aborted_transactions": aborted, "check_crcs": check_crcs
    }  # fmt: skip
    pairs = [(Recorder(), Recorder()), (Recorder(), Recorder())] if with_deserializers else [(None, None)] * 2
    stock = Fetcher.PartitionRecords(start, TP, MemoryRecords(plain), *pairs[0], **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_records, "PIECE_BYTES", piece_bytes)
        ours = PartitionRecords(start, TP, MemoryRecords(data), *pairs[1], **options)
        records = assert_same(stock, ours, steps)
    assert ours.next_fetch_offset == end
    if with_deserializers and records:
        for theirs, mine in zip(pairs[0], pairs[1]):
            assert mine is not None and theirs is not None
            assert mine.calls == theirs.calls[-len(records) :]  # stock also deserializes what it skips
    behind = survey(memoryview(data))[1]
    assert behind is not None and behind[0] == end


@settings(deadline=None, max_examples=40)
@given(log=logs(), steps=st.lists(st.tuples(st.integers(1, 150), st.sampled_from("pah")), max_size=12))
def test_records_and_arrow_taken_in_turn_are_all_records_once(
    log: tuple[bytes, bytes, int, list[Aborted]], steps: list[tuple[int, str]]
) -> None:
    data, plain, _, aborted = log
    start = struct.unpack_from(">q", data)[0]
    options = {"isolation_level": COMMITTED, "aborted_transactions": aborted}
    stock = Fetcher.PartitionRecords(start, TP, MemoryRecords(plain), **options)
    ours = PartitionRecords(start, TP, MemoryRecords(data), **options)
    expected = [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in stock.take(None)]
    found: list[Any] = []
    for n, how in [*steps, (10**6, "a"), (1, "p")]:
        before = len(found)
        if how == "p":
            found += [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value) for r in ours.take(n)]
        else:
            batches, _ = ours.take_arrow(n, 1 << 30, arrow.SCHEMA_WITH_HEADERS if how == "h" else arrow.SCHEMA)
            for batch in batches:
                assert batch.schema == (arrow.SCHEMA_WITH_HEADERS if how == "h" else arrow.SCHEMA)
                for row in batch.to_pylist():
                    assert (row["topic"], row["partition"]) == TP
                    stamp = batch.schema.field("timestamp").type
                    assert str(stamp) == "timestamp[us, tz=UTC]"
                    millis = round(row["timestamp"].timestamp() * 1000)
                    found.append((row["offset"], millis, row["timestampType"], row["key"], row["value"]))
        assert len(found) - before <= n
    assert found == expected
    assert ours.next_fetch_offset == stock.next_fetch_offset


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_old_message_formats_are_read_as_kafka_python_reads_them(magic: int, codec: int) -> None:
    new = [Record(0, T0, b"k", b"new %d" % n) for n in range(40)]
    old = legacy(magic, codec, 10, 25)
    data = old + encode_batch(new, base_offset=35, partition_leader_epoch=2)
    stock, ours = both(data, 12)
    assert len(assert_same(stock, ours, [1, 7, 9, 20])) == 63
    batches, _ = both(old, 12)[1].take_arrow(100, 1 << 30, arrow.SCHEMA_WITH_HEADERS)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(12, 35))
    assert {row["timestampType"] for row in rows} == ({-1} if magic == 0 else {0})
    assert survey(memoryview(old))[1] is None


@pytest.mark.parametrize("check_crcs", [True, False])
@pytest.mark.parametrize("count", [3, 200])
def test_a_flipped_byte_is_corrupt_after_the_records_before_it_and_never_hangs(check_crcs: bool, count: int) -> None:
    records = [Record(0, T0, None, b"v%d" % n) for n in range(count)]
    good = encode_batch(records, partition_leader_epoch=1)
    bad = bytearray(encode_batch(records, base_offset=count))
    bad[61] ^= 0x40  # the first record's length
    stock, ours = both(good + bad, check_crcs=check_crcs)
    assert ours.take(None) == stock.take(None)
    assert (ours.next_fetch_offset, ours.records_read) == (count, count)
    assert (stock.next_fetch_offset, stock.records_read) == (count, count)
    with pytest.raises(CorruptRecordError):
        stock.take(None)
    with pytest.raises(CorruptRecordError, match="orders|record"):
        ours.take(None)
    assert not ours  # stock's object stays "not drained" here, and its consumer polls it for ever
    assert ours.take(1) == []


def test_a_damaged_compressed_batch_is_corrupt_and_named() -> None:
    bad = bytearray(encode_batch([Record(0, T0, None, b"v" * 50)] * 100, codec=LZ4, base_offset=70))
    bad[80] ^= 0xFF
    _, ours = both(bytes(bad), 70, check_crcs=False)
    with pytest.raises(CorruptRecordError, match="orders.*lz4.*70"):
        ours.take(10)


def test_a_record_that_a_deserializer_refuses_is_raised_after_those_before_it() -> None:
    records = [Record(0, T0, b"k", b"poison" if n == 30 else b"v%d" % n) for n in range(60)]
    data = encode_batch(records)
    stock, ours = both(data, value_deserializer=Recorder(b"poison"))
    for _ in range(3):
        assert ours.take(10) == stock.take(10)
    for part in (stock, ours):
        with pytest.raises(ValueError, match="poison"):
            part.take(10)
    assert ours.next_fetch_offset == stock.next_fetch_offset == 30
    again = both(data, 31, value_deserializer=Recorder(b"poison"))[1]
    assert [record.offset for record in again.take(None)] == list(range(31, 60))
    _, whole = both(data, value_deserializer=Recorder(b"poison"))
    assert len(whole.take(None)) == 30
    with pytest.raises(ValueError, match="poison"):
        whole.take(None)
    assert not whole


def test_a_two_argument_deserializer_is_called_as_kafka_python_calls_it() -> None:
    class Old:
        def deserialize(self, topic: str, data: Any) -> Any:
            return topic, data

    data = encode_batch([Record(0, T0, b"k", b"v")] * 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        stock, ours = both(data, key_deserializer=Old())
        assert assert_same(stock, ours, [3])[0].key == ("orders", b"k")


@pytest.mark.parametrize("sizes", [(10, 12, 8), (10, 8, 12), (10, 10, 9, 11) * 20, (10,) * 70 + (9, 11)])
def test_a_batch_that_only_looks_as_if_its_records_had_one_size_is_read_all_the_same(sizes: tuple[int, ...]) -> None:
    even = encode_batch([Record(0, T0, None, b"e" * 10)] * 30)
    uneven = encode_batch([Record(0, T0, None, b"u" * size) for size in sizes], base_offset=30)
    longer = encode_batch([Record(0, T0, b"k", b"x" * n) for n in range(90)], base_offset=30 + len(sizes), codec=LZ4)
    stock, _ = both(even + uneven)
    _, ours = both(even + uneven + longer)
    found = ours.take(30 + len(sizes))
    assert found == stock.take(None)
    assert [record.value for record in found[30:]] == [b"u" * size for size in sizes]
    assert [record.value for record in ours.take(None)] == [b"x" * n for n in range(90)]


def test_records_of_a_fetch_that_is_not_compressed_are_read_in_place() -> None:
    data = b"".join(encode_batch([Record(0, T0, None, b"v" * 100)] * 30, base_offset=30 * n) for n in range(3))
    run, error = read_run(data, [0, len(data) // 3, len(data) // 3 * 2], len(data))
    assert error is None
    sections = run.sections([(0, None), (2, None)])
    assert sections.joined is data
    assert bytes(data[sections.starts[1] : sections.ends[1]]) == data[-len(data) // 3 + 61 :]


def test_rows_share_no_list_of_headers() -> None:
    _, ours = both(encode_batch([Record(0, T0, None, b"v", (("h", b"1"),))] * 40 + [Record(0, T0, None, b"v")] * 40))
    records = ours.take(None)
    assert len({id(record.headers) for record in records}) == 80
    records[0].headers.append(("mine", b""))
    assert records[1].headers == [("h", b"1")]


@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_a_header_key_that_is_no_utf8_is_replaced_as_java_does(count: int) -> None:
    """kafka-python refuses the record for ever, and any producer can send it."""
    data = encode_batch([Record(0, T0, None, b"v", (("h\udcff\u00fc", b"1"),))] * count)
    records = both(data)[1].take(None)
    assert len(records) == count and records[-1].headers == [("h\ufffd\u00fc", b"1")]
    assert records[-1].serialized_header_size == len(b"h\xff\xc3\xbc1")
    batches, _ = both(data)[1].take_arrow(100, 1 << 30, arrow.SCHEMA_WITH_HEADERS)
    assert batches[-1].to_pylist()[-1]["headers"] == [{"key": "h\ufffd\u00fc", "value": b"1"}]


def test_a_fetch_is_decoded_in_pieces_and_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [Record(0, T0, None, b"v" * 1000)] * 100
    data = b"".join(encode_batch(batch, base_offset=100 * n) for n in range(50))
    sizes: list[int] = []
    read_pieces = consumer_records.read_pieces

    def weighed(sections: Any, from_offset: int) -> Any:
        sizes.append(int((sections.ends - sections.starts).sum()))
        return read_pieces(sections, from_offset)

    monkeypatch.setattr(consumer_records, "read_pieces", weighed)
    _, ours = both(data)
    assert len(ours.take(150)) == 150
    assert len(sizes) == 1 and sizes[0] <= consumer_records.PIECE_BYTES
    batches, size = ours.take_arrow(10**6, 2_000_000, arrow.SCHEMA)
    assert 2_000_000 <= size <= 2_000_000 + consumer_records.PIECE_BYTES + 100_000
    assert len(sizes) == 3 and sum(batch.num_rows for batch in batches) < 4000


def test_what_is_no_batch_and_what_is_not_whole_yet() -> None:
    stock, ours = both(b"")
    assert ours.take(1) == stock.take(1) == []
    assert state(ours) == state(stock)
    cut = encode_batch([Record(0, T0, None, b"v")])[:-1]
    stock, ours = both(cut)
    assert ours.take(1) == stock.take(1) == []
    for data in (struct.pack(">qi", 0, 3) + b"abc", struct.pack(">qi", 0, -5) + b"\0" * 40):
        stock, ours = both(data)
        for part in (stock, ours):
            with pytest.raises(CorruptRecordError):
                part.take(1)
