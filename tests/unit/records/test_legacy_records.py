"""Messages of v0 and v1: decoded as kafka-python decodes them, from bytes of real brokers, with every field checked."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from support.legacy_sets import CORPUS, CORPUS_TIME, message, message_set, wrapper
from support.tree import SUPPORT
from tolerant_client.errors import RecordBatchError
from tolerant_client.records import codecs, record_sets
from tolerant_client.records.arrow import ALL_COLUMNS, iter_arrow
from tolerant_client.records.record_batch import BatchHeader, Record, decode_records, encode_batch, iter_batches
from tolerant_client.records.record_sets import decode_messages, iter_record_sets, unfold

T0 = 1_500_000_000_000
FILES = sorted((SUPPORT / "corpus").glob("*.bin"))
NO_TIME = (-1, -1)

Row = tuple[int, int, int, bytes | None, bytes | None]  # offset, timestamp, its type, key, value

fields = st.none() | st.binary(max_size=60)
pairs = st.lists(st.tuples(fields, fields), min_size=1, max_size=40)
codec_ids = st.sampled_from([codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4])


def plainly(sets: Iterable[tuple[BatchHeader, memoryview]]) -> list[Row]:
    found: list[Row] = []
    for header, view in sets:
        rows: Iterable[tuple[Record, int]]
        if header.magic < 2:
            rows = decode_messages(header, view)
        else:
            rows = ((record, int(header.has_log_append_time)) for record in decode_records(view))
        found += [(r.offset, r.timestamp, kind, r.key, r.value) for r, kind in rows]
    return found


def in_columns(
    sets: Iterable[tuple[BatchHeader, memoryview]], start: int = 0, until: int = 2**63 - 1, **options: Any
) -> list[Row]:
    names = ["offset", "timestamp", "timestampType", "key", "value"]
    pieces = iter_arrow(sets, "topic", 3, start, until, pa.schema([ALL_COLUMNS.field(n) for n in names]), **options)
    rows: list[Row] = []
    for piece in pieces:
        columns = [piece.column(0), piece.column(1).view(pa.int64()), *piece.columns[2:]]
        offsets, micros, types, keys, values = (column.to_pylist() for column in columns)
        rows += zip(offsets, [t // 1000 for t in micros], types, keys, values, strict=True)
    return rows


def read(data: bytes, **options: Any) -> list[Row]:
    """The rows from both decoders, which must agree."""
    sets = list(iter_record_sets(memoryview(data), **options))
    rows = plainly(sets)
    assert in_columns(sets) == rows
    return rows


def expected(
    magic: int, given: Iterable[tuple[bytes | None, bytes | None]], base: int, first_time: int = T0
) -> list[Row]:
    return [
        (base + i, *((first_time + i, 0) if magic else NO_TIME), key, value) for i, (key, value) in enumerate(given)
    ]


# -- bytes of real brokers ------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sets_captured_from_real_brokers_are_read(path: Path) -> None:
    rows = read(path.read_bytes())
    assert [(offset, key, value) for offset, _, _, key, value in rows] == [
        (i, *CORPUS[i % 4]) for i in range(2 * len(CORPUS))
    ]
    times = [(timestamp, kind) for _, timestamp, kind, _, _ in rows]
    if path.name.startswith("v0"):
        assert times == [NO_TIME] * 8
    elif "log-append-time" in path.name:
        # One timestamp for each produced set.
        assert [len(list(same)) for _, same in itertools.groupby(times)] == [4, 4]
        assert all(timestamp > CORPUS_TIME + 100 and kind == 1 for timestamp, kind in times)
    else:
        assert times == [(CORPUS_TIME + 7 * (i % 4), 0) for i in range(8)]


def test_the_samples_hold_every_codec_in_both_formats() -> None:
    names = {path.stem for path in FILES}
    assert {f"v0-{codec}-kafka-0.9.0.1" for codec in ("none", "gzip", "snappy", "lz4")} <= names
    assert {f"v1-{codec}-kafka-0.10.2.2" for codec in ("none", "gzip", "snappy", "lz4")} <= names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_headers_of_real_sets_say_what_is_in_them(path: Path) -> None:
    data = path.read_bytes()
    sets = list(iter_record_sets(memoryview(data)))
    assert b"".join(view for _, view in sets) == data
    for header, view in sets:
        rows = plainly([(header, view)])
        times = [row[1] for row in rows]
        assert (header.base_offset, header.last_offset, header.record_count) == (rows[0][0], rows[-1][0], len(rows))
        assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))
        assert header.size == len(view)
        assert (header.producer_id, header.partition_leader_epoch) == (-1, -1)
        assert not header.is_control and not header.is_transactional


# -- round trips ----------------------------------------------------------------


@given(given=pairs, magic=st.integers(0, 1), codec=codec_ids, base=st.integers(0, 2**62))
def test_messages_come_back_as_they_were(
    given: list[tuple[bytes | None, bytes | None]], magic: int, codec: int, base: int
) -> None:
    assert read(message_set(magic, codec, given, base, T0)) == expected(magic, given, base)


@given(
    sets=st.lists(st.tuples(pairs, st.integers(0, 1), st.sampled_from([codecs.NONE, codecs.GZIP])), max_size=5),
    cut=st.tuples(st.integers(0, 60), st.integers(0, 120)),
)
def test_kafka_python_reads_the_same(
    sets: list[tuple[list[tuple[bytes | None, bytes | None]], int, int]], cut: tuple[int, int]
) -> None:
    data, base = b"", 5
    for given, magic, codec in sets:
        data += message_set(magic, codec, given, base, T0 + base)
        base += len(given)
    theirs: list[Row] = []
    reader = MemoryRecords(data)
    while reader.has_next():
        for record in reader.next_batch():
            time = NO_TIME if record.timestamp is None else (record.timestamp, record.timestamp_type)
            theirs.append((record.offset, *time, record.key, record.value))
    assert read(data) == theirs
    some = in_columns(iter_record_sets(memoryview(data)), *cut, target_bytes=300)
    assert some == [row for row in theirs if cut[0] <= row[0] < cut[1]]


@given(given=pairs, codec=codec_ids, base=st.integers(3, 2**40), data=st.data())
def test_holes_left_by_compaction_keep_their_offsets(
    given: list[tuple[bytes | None, bytes | None]], codec: int, base: int, data: st.DataObject
) -> None:
    steps = data.draw(st.lists(st.integers(1, 9), min_size=len(given), max_size=len(given)))
    deltas = [sum(steps[:i]) for i in range(len(given))]
    for magic in (0, 1):
        first = base if not codec or not magic else 3  # compaction may have taken the first ones
        inner = b"".join(message(magic, first + d, T0, *pair) for d, pair in zip(deltas, given, strict=True))
        stored = wrapper(magic, codec, inner, base + deltas[-1], T0) if codec else inner
        assert [row[0] for row in read(stored)] == [base + d for d in deltas]
        header = next(iter_record_sets(memoryview(stored)))[0]
        assert (header.base_offset, header.next_offset) == (base, base + deltas[-1] + 1)


def test_log_append_time_of_a_set_is_that_of_all_its_messages() -> None:
    inner = b"".join(message(1, i, T0 + i, None, b"x") for i in range(3))
    stamped = wrapper(1, codecs.GZIP, inner, 12, T0 + 500, is_stamped=True)
    assert [row[:3] for row in read(stamped)] == [(10 + i, T0 + 500, 1) for i in range(3)]
    alone = message(1, 13, T0 + 600, None, b"x", attributes=8) + message(1, 14, T0 + 700, None, b"x", attributes=8)
    assert [row[:3] for row in read(stamped + alone)][3:] == [(13, T0 + 600, 1), (14, T0 + 700, 1)]


def test_sets_with_and_without_a_stamp_are_told_apart_in_one_piece() -> None:
    inner = b"".join(message(1, i, T0 + i, None, b"x") for i in range(2))
    data = b"".join(
        [
            wrapper(1, codecs.GZIP, inner, 1, T0 + 500, is_stamped=True),
            wrapper(1, codecs.SNAPPY, inner, 3, T0 + 1),
            message(1, 4, T0 + 4, None, b"x"),
            message(1, 5, T0 + 5, None, b"x", attributes=8),
        ]
    )
    assert [(row[1] - T0, row[2]) for row in read(data)] == [(500, 1), (500, 1), (0, 0), (1, 0), (4, 0), (5, 1)]


def test_a_log_of_three_formats_is_read_through() -> None:
    given = [(b"k%d" % i, b"v" * i) for i in range(6)]
    records = [Record(0, T0 + i, *pair) for i, pair in enumerate(given)]
    data, rows = b"", []
    for number, (magic, codec) in enumerate(itertools.product((0, 1, 2, 1, 2), (codecs.NONE, codecs.LZ4))):
        base = 6 * number
        if magic < 2:
            data += message_set(magic, codec, given, base, T0)
        else:
            data += encode_batch(records, base_offset=base, codec=codec)
        rows += expected(magic, given, base)
    assert read(data) == rows
    assert [header.magic for header, _ in iter_record_sets(memoryview(data))] == [0, 0, 1, 1, 2, 2, 1, 1, 2, 2]
    assert in_columns(iter_record_sets(memoryview(data)), 3, 57) == rows[3:57]


def test_messages_of_v0_in_a_set_of_v1_have_no_time_as_in_java() -> None:
    inner = message(0, 0, -1, None, b"old") + message(1, 1, T0 + 1, None, b"new")
    assert read(wrapper(1, codecs.GZIP, inner, 8, T0 + 9, is_stamped=True)) == [
        (7, -1, -1, None, b"old"),
        (8, T0 + 9, 1, None, b"new"),
    ]


def test_columns_that_only_newer_formats_have_are_empty() -> None:
    data = memoryview(message_set(0, codecs.NONE, CORPUS, 0, T0))
    (piece,) = iter_arrow(iter_record_sets(data), "t", 0, 0, 9, ALL_COLUMNS)
    assert piece.column("leaderEpoch").to_pylist() == [-1] * 4
    assert piece.column("headers").to_pylist() in ([[]] * 4, [None] * 4)


def test_messages_before_the_position_are_left_out_of_a_run_but_not_of_a_compressed_set() -> None:
    run, packed = (message_set(1, codec, CORPUS, 10, T0) for codec in (codecs.NONE, codecs.GZIP))
    assert [row[0] for row in read(run, from_offset=12)] == [12, 13]
    assert read(run, from_offset=14) == []
    assert [row[0] for row in read(packed, from_offset=12)] == [10, 11, 12, 13]


def test_long_runs_are_cut_so_that_pieces_stay_small() -> None:
    data = memoryview(message_set(1, codecs.NONE, [(None, bytes(1000))] * 4000, 0, T0))
    sizes = [header.size for header, _ in iter_record_sets(data)]
    assert sum(sizes) == len(data)
    assert max(sizes) <= (1 << 20) + 1100  # and one message
    pieces = list(iter_arrow(iter_record_sets(data), "t", 0, 0, 2**62, target_bytes=1 << 20))
    assert max(piece.nbytes for piece in pieces) < 3 << 20
    assert sum(piece.num_rows for piece in pieces) == 4000


# -- invalid input -----------------------------------------------------------------


def sample(magic: int, codec: int) -> bytes:
    return message_set(magic, codec, CORPUS, 100, T0) + message_set(magic, codec, CORPUS, 104, T0)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
def test_what_is_cut_short_is_left_out(magic: int, codec: int) -> None:
    data = sample(magic, codec)
    rows = read(data)
    for length in range(len(data)):
        some = read(data[:length])
        assert some == rows[: len(some)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
def test_every_flipped_bit_that_a_checksum_covers_is_noticed(magic: int, codec: int) -> None:
    data = message_set(magic, codec, CORPUS[:1], 100, T0)
    for at, bit in itertools.product(range(12, len(data)), range(8)):
        wrong = bytearray(data)
        wrong[at] ^= 1 << bit
        # With the magic of a v2 batch the message becomes a partial batch, or one with a wrong header.
        if at == 16 and wrong[at] > 1 and len(data) < 61:
            wrong += bytes(61)
        with pytest.raises(RecordBatchError):
            read(bytes(wrong))


hostile = st.sampled_from([path.read_bytes() for path in FILES]) | st.builds(
    message_set, st.integers(0, 1), codec_ids, pairs, st.integers(0, 9), st.just(T0)
)


@settings(max_examples=300)
@given(
    data=hostile,
    more=st.binary(max_size=30),
    edits=st.lists(st.tuples(st.integers(0, 2**20), st.binary(max_size=4))),
)
def test_hostile_bytes_raise_nothing_but_record_batch_errors(
    data: bytes, more: bytes, edits: list[tuple[int, bytes]]
) -> None:
    spoiled = bytearray(data + more)
    for at, piece in edits:
        at %= len(spoiled)
        spoiled[at : at + len(piece)] = piece
    for verify_crc in (True, False):
        try:
            sets = list(iter_record_sets(memoryview(bytes(spoiled)), verify_crc=verify_crc))
            rows = plainly(sets)
        except RecordBatchError as error:
            assert not isinstance(error.__cause__, (IndexError, struct.error))
        else:
            if all(abs(row[1]) < 2**53 for row in rows):
                assert in_columns(sets) == rows


@given(body=st.binary(max_size=80), magic=st.integers(0, 1), codec=st.integers(1, 7))
def test_hostile_content_of_compressed_sets_raises_nothing_but_record_batch_errors(
    body: bytes, magic: int, codec: int
) -> None:
    value = codecs.compress(codec, body) if codec <= codecs.LZ4 else body
    for content in (value, body):
        with pytest.raises(RecordBatchError):
            read(message(magic, 5, T0, None, content, attributes=codec))


INNER = message(1, 0, T0, None, b"x")
INNERS = [b"".join(message(magic, i, T0, None, b"x") for i in range(10)) for magic in (0, 1)]
SET = [wrapper(magic, codecs.GZIP, INNERS[magic], 9) for magic in (0, 1)]
V2 = encode_batch([Record(0, T0, None, b"x")], base_offset=9)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wrapper(1, codecs.GZIP, b"", 5), "0 bytes that are not a message in a compressed set"),
        (wrapper(1, codecs.GZIP, INNER + b"abc", 5), "3 bytes that are not a message in a compressed set"),
        (wrapper(1, codecs.GZIP, INNER[:-1], 5), "34 bytes that are not a message in a compressed set"),
        (wrapper(1, codecs.GZIP, wrapper(1, codecs.GZIP, INNER, 0), 5), "compressed message in a compressed set"),
        (wrapper(1, codecs.GZIP, INNER + INNER, 5), "out of order in a compressed set"),
        (wrapper(1, codecs.GZIP, message(1, 7, T0, None, b"x"), 5), "ends at offset 7, after its own offset"),
        (wrapper(0, codecs.GZIP, message(0, 7, T0, None, b"x"), 5), "ends at offset 7, after its own offset"),
        (
            wrapper(1, codecs.GZIP, INNER[:-1] + b"y", 5),
            r"CRC mismatch \([0-9a-f]{8} computed\) in a message in a compressed set",
        ),
        (message(1, 5, T0, None, None, attributes=1), "compressed set without a value"),
        (message(1, 5, T0, None, b"x", attributes=1), "damaged gzip data"),
        (message(0, 5, T0, None, b"x", attributes=3), "damaged lz4 data"),
        (wrapper(1, codecs.ZSTD, INNER, 5), "message of format v1 with codec zstd"),
        (message(1, 5, T0, None, b"x", attributes=6), "with codec unknown codec 6"),
        (message(0, -1, T0, None, b"x"), "offset out of order"),
        (message(0, 2**63 - 1, T0, None, b"x"), "offset out of order"),
        (message(1, 5, T0, None, b"x") * 2, "offset out of order"),
        (SET[0] + wrapper(0, codecs.GZIP, INNERS[0], 12), "set that begins before the last one ended .*base offset 0"),
        (SET[1] + wrapper(1, codecs.GZIP, INNERS[1], 12), "set that begins before the last one ended .*base offset 3"),
        (SET[1] + V2, "set that begins before the last one ended .*base offset 9"),
        (V2 + V2, "set that begins before the last one ended .*base offset 9"),
        (V2 + message(1, 9, T0, None, b"x"), "set that begins before the last one ended .*base offset 9"),
        (struct.pack(">qiIBBii", 5, 13, 0, 0, 0, -1, -1), "message of format v0 with size 13"),
        (struct.pack(">qiIBBii", 5, -1, 0, 1, 0, -1, -1), "message of format v1 with size -1"),
        (struct.pack(">qiIBBii", 5, 14, 0, 3, 0, -1, -1), "magic 3"),
    ],
)
def test_sets_that_do_not_add_up_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(RecordBatchError, match=reason):
        list(iter_record_sets(memoryview(data)))


def with_lengths(key: int, value: int) -> bytes:
    """A message with a correct checksum and wrong lengths."""
    data = bytearray(message(1, 5, T0, b"abcd", b"efgh"))
    struct.pack_into(">i", data, 26, key)
    struct.pack_into(">i", data, 34, value)
    struct.pack_into(">I", data, 12, record_sets.zlib.crc32(data[16:]))
    return bytes(data)


@pytest.mark.parametrize(("key", "value"), [(-2, 4), (5, 4), (40, 4), (2**31 - 1, 4), (4, 3), (4, 5), (4, -2), (4, -1)])
def test_lengths_that_do_not_add_up_are_refused_by_both_paths(key: int, value: int) -> None:
    good = message_set(1, codecs.NONE, CORPUS, 0, T0)
    sets = list(iter_record_sets(memoryview(good + with_lengths(key, value))))
    for path in (plainly, in_columns):
        with pytest.raises(RecordBatchError, match=r"message .*\(base offset 5\)"):
            path(sets)


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = message(1, 0, T0, None, bytes(100_000))
    for codec in (codecs.GZIP, codecs.SNAPPY, codecs.LZ4):
        bomb = memoryview(wrapper(1, codec, inner, 5))
        with monkeypatch.context() as patch:
            patch.setattr(codecs, "MAX_DECOMPRESSED_BYTES", len(inner) - 1)
            with pytest.raises(RecordBatchError, match=r"decompresses to .*\(base offset 5\)"):
                list(iter_record_sets(bomb))
        ((header, view),) = iter_record_sets(bomb)
        assert len(unfold(header, view)) == len(inner)
        with monkeypatch.context() as patch:
            patch.setattr(codecs, "MAX_DECOMPRESSED_BYTES", len(inner) - 1)
            with pytest.raises(RecordBatchError, match=r"decompresses to .*\(base offset 5\)"):
                unfold(header, view)


def test_a_damaged_v2_batch_among_old_sets_is_named_as_always() -> None:
    batch = bytearray(encode_batch([Record(0, T0, None, b"x")], base_offset=4))
    batch[-1] ^= 1
    data = message_set(1, codecs.NONE, CORPUS, 0, T0) + batch + message_set(1, codecs.NONE, CORPUS, 5, T0)
    sets = iter_record_sets(memoryview(data))
    assert next(sets)[0].next_offset == 4
    with pytest.raises(RecordBatchError, match=r"CRC mismatch in a record batch .*\(base offset 4\)"):
        next(sets)


def test_the_mirror_s_reader_of_batches_still_refuses_old_sets_by_name() -> None:
    with pytest.raises(RecordBatchError, match="magic 1, expected 2"):
        list(iter_batches(memoryview(message_set(1, codecs.GZIP, [(None, bytes(99))] * 9, 0, T0))))


# -- the LZ4 frames of v0 -----------------------------------------------------------


def test_lz4_frames_that_tell_their_content_size_are_mended_too() -> None:
    inner = message(0, 5, T0, None, b"content size")
    # Flags: version 1, independent blocks, content size; blocks of 64 KB; a wrong checksum; one uncompressed block.
    frame = b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", len(inner)) + b"\x00"
    frame += struct.pack("<I", len(inner) | 1 << 31) + inner + struct.pack("<I", 0)
    assert read(message(0, 5, T0, None, frame, attributes=codecs.LZ4)) == [(5, -1, -1, None, b"content size")]
    with pytest.raises(RecordBatchError, match="damaged lz4 data"):
        read(message(1, 5, T0, None, frame, attributes=codecs.LZ4))
