"""Rewritten batches: the same records at the same offsets, in batches that a broker accepts."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from support.legacy_sets import message_set
from tolerant_client.errors import OversizedRecordError, RecordBatchError
from tolerant_client.mirror.batches.gaps import FILLER, Gap, is_filler
from tolerant_client.mirror.batches.rewrite import LARGEST_HOLE, SMALL_BATCH_BYTES, coalesce, must_rewrite, rewrite
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import (
    BatchHeader,
    Record,
    decode_records,
    encode_batch,
    iter_batches,
    restamp,
)
from tolerant_client.records.record_sets import decode_messages, iter_record_sets

T0 = 1_700_000_000_000
MIB = 1 << 20

Batch = tuple[BatchHeader, memoryview]


def batches_of(*encoded: bytes) -> list[Batch]:
    return list(iter_record_sets(memoryview(bytearray(b"".join(encoded)))))


def expected(batches: Sequence[Batch], start: int, until: int) -> list[Record]:
    """The plain decoders' view, which must be reproduced."""
    records: list[Record] = []
    for header, view in batches:
        if header.is_control:
            continue
        if header.magic < 2:
            records += [record for record, _ in decode_messages(header, view)]
        else:
            records += decode_records(view)
    return [record for record in records if start <= record.offset < until]


def appended(items: Sequence[Batch | Gap], start: int, until: int, limit: int = MIB) -> tuple[list[Record], list[Gap]]:
    """A log's records after the items were appended, with a broker's checks: each batch is sound and continues the one before."""
    records: list[Record] = []
    gaps: list[Gap] = []
    position = start
    for item in items:
        if isinstance(item, Gap):
            assert item.from_offset == position < item.until_offset
            gaps.append(item)
            position = item.until_offset
            continue
        header, view = item
        assert header.base_offset == position
        assert header.record_count == header.last_offset_delta + 1
        assert header.size == len(view) <= limit
        assert not header.attributes & ~7
        restamp(view, 7, 0, position, position)
        ((found, _),) = iter_batches(view)
        assert found.next_offset == header.next_offset
        decoded = list(decode_records(view))
        assert [record.offset for record in decoded] == list(range(position, header.next_offset))
        assert found.max_timestamp == max(record.timestamp for record in decoded)
        names = "".join(name for record in decoded for name, _ in record.headers)
        if header.codec in (codecs.NONE, codecs.GZIP) and names.isprintable():
            assert by_kafka_python(view) == [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in decoded]
        records += decoded
        position = header.next_offset
    assert position == until
    return records, gaps


def by_kafka_python(view: memoryview) -> list[Any]:
    """kafka-python's own decoder; it takes header keys for UTF-8."""
    batch = DefaultRecordBatch(bytes(view))
    assert batch.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


def check(batches: Sequence[Batch], start: int, *, limit: int = MIB, **given: Any) -> list[Batch | Gap]:
    """Rewrites, with filler and without, and compares the result with the plain decoders'."""
    until = given.get("until") or batches[-1][0].next_offset
    wanted = expected(batches, start, until)
    for fill_holes in (False, True):
        items = rewrite(batches, start, fill_holes=fill_holes, is_compacted=False, max_batch_bytes=limit, **given)
        records, gaps = appended(items, start, until, limit)
        assert [record for record in records if not is_filler(record)] == wanted
        if not fill_holes:
            assert len(records) == len(wanted)
    return items


payloads = st.none() | st.binary(max_size=40) | st.sampled_from([63, 64, 65, 8191, 8192]).map(bytes)
header_keys = st.text(max_size=4) | st.binary(max_size=4).map(lambda key: key.decode("utf-8", "surrogateescape"))
headers = st.just(()) | st.lists(st.tuples(header_keys, payloads), max_size=4).map(tuple)
timestamps = st.integers(T0 - 100, T0 + 100) | st.sampled_from([-1, 0, 1 - T0, 2**63 - 1, -(2**63)])
one_record = st.builds(Record, st.just(0), timestamps, payloads, payloads, headers)


@st.composite
def v2_batch(draw: st.DrawFn) -> tuple[int, bytes]:
    """A batch at offset 0 (set by the caller), possibly with holes or empty, and how many offsets it takes."""
    records = draw(st.lists(one_record, max_size=6) | one_record.map(lambda record: [record] * 130))
    if records:  # timestamps that no producer's batch could hold
        records = [r for r in records if abs(r.timestamp - records[0].timestamp) < 2**63]
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 70]), min_size=len(records), max_size=len(records)))
    offsets = [sum(steps[: n + 1]) - 1 for n in range(len(steps))]
    width = (offsets[-1] if offsets else 0) + draw(st.sampled_from([0, 0, 3]))
    return width + 1, encode_batch(
        records,
        offsets=offsets,
        last_offset_delta=width,
        codec=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])),
        is_transactional=draw(st.booleans()),
        log_append_time=draw(st.none() | st.just(T0 + 5)),
        producer_id=draw(st.sampled_from([-1, 9])),
    )


@st.composite
def legacy_set(draw: st.DrawFn) -> tuple[int, int, int, list[tuple[bytes | None, bytes | None]]]:
    pairs = draw(st.lists(st.tuples(payloads, payloads), min_size=1, max_size=6))
    return draw(st.integers(0, 1)), draw(st.integers(0, 3)), len(pairs), pairs


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches of all formats in one log, with holes between them."""
    position = draw(st.integers(0, 3))
    found: list[bytes] = []
    for piece in draw(st.lists(v2_batch() | legacy_set(), min_size=1, max_size=8)):
        position += draw(st.sampled_from([0, 0, 0, 1, 100]))
        if len(piece) == 2:
            width, encoded = piece
            found.append(position.to_bytes(8, "big") + encoded[8:])
        else:
            magic, codec, width, pairs = piece
            found.append(message_set(magic, codec, pairs, position, T0 + position))
        position += width
    return batches_of(*found)


@settings(deadline=None, max_examples=40)
@given(batches=logs(), begin=st.floats(0, 1), end=st.floats(0, 1), limit=st.sampled_from([20_000, MIB]))
def test_every_record_comes_out_once_at_its_offset(batches: list[Batch], begin: float, end: float, limit: int) -> None:
    until = batches[-1][0].next_offset
    start = int(begin * (until - 1))
    check(batches, start, limit=limit)
    check(batches, start, limit=limit, until=start + 1 + int(end * (until - start - 1)))


@pytest.mark.parametrize("codec", range(5))
def test_small_batches_become_one_of_their_codec(codec: int) -> None:
    records = [Record(0, T0 + i, b"k%d" % i, b"value " * 20) for i in range(3000)]
    batches = batches_of(*(encode_batch([r], base_offset=i, codec=codec) for i, r in enumerate(records)))
    ((header, _),) = check(batches, 0)
    assert (header.codec, header.record_count) == (codec, 3000)


@pytest.mark.parametrize(
    ("found", "expected"), [((0, 0, 3, 3, 0), 3), ((0, 4), 4), ((0, 0, 0, 0, 2, 1, 1), 1), ((2, 3, 3), 3)]
)
def test_small_neighbours_of_several_codecs_become_one_batch_that_is_compressed(
    found: tuple[int, ...], expected: int
) -> None:
    """Each change of the codec cost a call of its own: 6 s for a response, and the claim lasts 10 s."""
    records = [Record(0, T0 + i, b"k%d" % i, b"value " * 20) for i in range(1000)]
    batches = batches_of(
        *(encode_batch([r], base_offset=i, codec=found[i % len(found)]) for i, r in enumerate(records))
    )
    ((header, _),) = check(batches, 0)
    assert (header.codec, header.record_count) == (expected, 1000)
    joined = coalesce(memoryview(b"".join(view for _, view in batches)), 0, max_batch_bytes=MIB)
    assert joined is not None and [(h.codec, h.record_count) for h, _ in joined.items] == [(expected, 1000)]


def test_a_record_that_fits_in_its_own_codec_alone_keeps_it() -> None:
    """A document that gzip makes smaller than max.message.bytes, and lz4, which its neighbours have, does not."""
    shuffled = random.Random(1)
    document = b"".join(b'{"id": %d},' % shuffled.randrange(10**6) for _ in range(4000))
    sizes = {codec: len(codecs.compress(codec, document)) for codec in (codecs.GZIP, codecs.LZ4)}
    limit = (sizes[codecs.GZIP] + sizes[codecs.LZ4]) // 2
    small = Record(0, T0, b"k", b"value " * 20)
    made = [(small, codecs.LZ4)] * 3 + [(Record(0, T0, b"k", document), codecs.GZIP)] + [(small, codecs.LZ4)] * 2
    for places in ((0, 1, 2, 3, 4, 5), (0, 1, 2, 5, 8, 9)):  # without and with holes around the document
        batches = batches_of(*(encode_batch([r], base_offset=at, codec=c) for (r, c), at in zip(made, places)))
        found = [header for header, _ in check(batches, 0, limit=limit)]
        assert [header.base_offset for header in found if header.codec == codecs.GZIP] == [places[3]] and len(
            found
        ) <= 5
    with pytest.raises(OversizedRecordError) as told:
        check(batches, 0, limit=sizes[codecs.GZIP] // 2)
    assert told.value.offset == places[3]


def test_batches_hold_at_most_what_the_target_takes() -> None:
    records = [Record(0, T0 + i, None, b"%05d" % i + bytes(i % 700)) for i in range(1500)]
    batches = batches_of(encode_batch(records, codec=codecs.GZIP))
    for limit in (900, 5000, 100_000, 64 * MIB):
        items = check(batches, 0, limit=min(limit, MIB) if limit > MIB else limit)
        assert len(items) >= min(500_000 // limit, 2)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_filler_is_that_of_gaps(is_compacted: bool) -> None:
    records = [Record(0, T0 + 9, b"a", None), Record(0, T0 + 3, b"b", None), Record(0, T0, b"c", None)]
    batches = batches_of(encode_batch(records, base_offset=7, offsets=[9, 12, 14], last_offset_delta=9))
    items = rewrite(batches, 7, fill_holes=True, is_compacted=is_compacted, max_batch_bytes=MIB)
    found, _ = appended(items, 7, 17)
    filler = [record for record in found if is_filler(record)]
    assert [record.offset for record in filler] == [7, 8, 10, 11, 13, 15, 16]
    assert {record.key for record in filler} == {FILLER.encode() if is_compacted else None}
    # No later than what is before it, so that no search by time ends there; if nothing is, the first record's time.
    assert {record.timestamp for record in filler} == {T0 + 9}


def test_a_log_of_nothing_but_empty_batches_is_a_hole() -> None:
    batches = batches_of(
        *(encode_batch([], base_offset=offset, last_offset_delta=delta) for offset, delta in ((3, 4), (8, 0)))
    )
    assert check(batches, 1)
    assert rewrite(batches, 5, fill_holes=False, is_compacted=True, max_batch_bytes=MIB) == [Gap(5, 9)]


def test_control_batches_are_holes() -> None:
    marker = encode_batch([Record(0, T0, b"\0\0\0\1", bytes(6))], base_offset=5, is_control=True, is_transactional=True)
    data = encode_batch([Record(0, T0, None, b"x")] * 5, is_transactional=True)
    assert rewrite(batches_of(data, marker), 0, fill_holes=False, is_compacted=True, max_batch_bytes=MIB)[1] == Gap(
        5, 6
    )


def test_long_holes_are_left_as_gaps() -> None:
    far = LARGEST_HOLE + 1
    batches = batches_of(
        encode_batch([Record(0, T0, None, b"x")] * 2, offsets=[0, far + 1], last_offset_delta=2 * far + 10)
    )
    items = rewrite(batches, 0, fill_holes=True, is_compacted=True, max_batch_bytes=MIB)
    assert appended(items, 0, 2 * far + 11)[1] == [Gap(1, far + 1), Gap(far + 2, 2 * far + 11)]


def test_filler_of_one_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * LARGEST_HOLE
    monkeypatch.setattr("tolerant_client.mirror.batches.rewrite.MOST_FILLER", most)
    step, count = LARGEST_HOLE + 1, 5
    batches = batches_of(*(encode_batch([Record(0, T0, None, b"x")], base_offset=i * step) for i in range(count)))
    records, gaps = appended(
        rewrite(batches, 0, fill_holes=True, is_compacted=True, max_batch_bytes=MIB), 0, (count - 1) * step + 1
    )
    assert len(records) - count == most
    assert gaps[0].from_offset == 2 * step + 1


def test_times_that_one_batch_cannot_hold_end_it() -> None:
    times = [0, -(2**63), 2**63 - 1, -1, 2**63 - 1, -(2**63)]
    batches = batches_of(*(encode_batch([Record(0, time, None, b"")], base_offset=i) for i, time in enumerate(times)))
    assert len(check(batches, 0)) > 1


def test_log_append_time_becomes_the_create_time() -> None:
    batches = batches_of(encode_batch([Record(0, T0 + i, None, b"x") for i in range(3)], log_append_time=T0 + 99))
    ((header, view),) = check(batches, 0)
    assert not header.has_log_append_time
    assert [record.timestamp for record in decode_records(view)] == [T0 + 99] * 3


def test_more_headers_than_the_fast_path_takes() -> None:
    records = [Record(0, T0, None, b"x", (("a", None),) * count) for count in (0, 65, 3)]
    check(batches_of(encode_batch(records), encode_batch(records, base_offset=3, codec=codecs.ZSTD)), 1)


def test_a_record_that_does_not_fit_is_named_and_what_lies_before_it_can_be_had() -> None:
    values = [b"small", b"x" * 5000, b"small"]
    batches = batches_of(encode_batch([Record(0, T0, None, value) for value in values], base_offset=40))
    arguments: dict[str, Any] = dict(fill_holes=True, is_compacted=False, max_batch_bytes=1000)
    with pytest.raises(
        OversizedRecordError, match=r"offset 41 takes a batch of 50\d\d bytes, .* is 1000.*\(--on-oversized continue;"
    ) as caught:
        rewrite(batches, 40, **arguments)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.offset, error.limit, str(error)) == (41, 1000, str(caught.value))
    assert error.remedy.startswith("raise it, or let") and error.remedy.endswith(
        "(--on-oversized continue; in a file tolerant.on.oversized = continue)"
    )
    assert error.at("orders-0").remedy == error.remedy and str(error).endswith(f"; {error.remedy}")
    assert error.size > 5000
    assert rewrite(batches, 40, **{**arguments, "max_batch_bytes": error.size})
    with pytest.raises(OversizedRecordError):
        rewrite(batches, 40, **{**arguments, "max_batch_bytes": error.size - 1})
    before = rewrite(batches, 40, until=error.offset, **arguments)
    behind = rewrite(batches, error.offset + 1, **arguments)
    assert [item[0].base_offset for items in (before, behind) for item in items if not isinstance(item, Gap)] == [
        40,
        42,
    ]


def test_what_compression_makes_small_enough_fits() -> None:
    batches = batches_of(
        encode_batch([Record(0, T0, None, bytes(3 * MIB)), Record(0, T0, None, b"")], codec=codecs.LZ4)
    )
    assert len(check(batches, 0)) == 2


@pytest.mark.parametrize("damage", ["records", "order"])
def test_damage_is_named_and_nothing_comes_out(damage: str) -> None:
    good = encode_batch([Record(0, T0, b"k", b"v")] * 3, base_offset=3)
    if damage == "records":
        other = bytearray(encode_batch([Record(0, T0, b"k", b"v")] * 3, base_offset=6))
        other[-5] ^= 0x40  # as if the CRC had been computed after it
        restamp(other, -1, -1, -1, 6)
    else:
        other = bytearray(good)
    batches = [batches_of(bytes(encoded))[0] for encoded in (good, other)]
    with pytest.raises(RecordBatchError):
        rewrite(batches, 3, fill_holes=True, is_compacted=False, max_batch_bytes=MIB)


def test_only_batches_that_a_broker_takes_at_their_offset_are_copied_as_they_are() -> None:
    def must(encoded: bytes, start: int = 0, limit: int = MIB) -> bool:
        return must_rewrite(batches_of(encoded)[0][0], start=start, max_batch_bytes=limit)

    two = [Record(0, T0, None, b"x")] * 2
    assert not must(encode_batch(two, codec=codecs.LZ4, is_transactional=True))
    assert must(encode_batch(two), start=1)
    assert must(encode_batch(two), limit=60)
    assert must(encode_batch(two, last_offset_delta=2))
    assert must(encode_batch([], last_offset_delta=0))
    assert must(encode_batch(two, log_append_time=T0))
    assert must(message_set(1, codecs.NONE, [(None, b"x")], 0, T0))
    horizon = bytearray(encode_batch(two))
    horizon[22] |= 0x40  # KIP-534
    restamp(horizon, -1, -1, -1)
    assert must(bytes(horizon))
    check(batches_of(bytes(horizon)), 0)


one_small = st.tuples(st.lists(one_record, min_size=1, max_size=3), st.sampled_from([0, 0, 0, 3, 4]))


def joined(*encoded: bytes) -> memoryview:
    return memoryview(b"".join(encoded))


@settings(deadline=None, max_examples=30)
@given(
    batches=st.lists(one_small, max_size=12), start=st.integers(0, 5), cut=st.integers(0, 200), end=st.integers(0, 50)
)
def test_small_batches_at_the_beginning_are_coalesced_as_rewrite_would(
    batches: list[tuple[list[Record], int]], start: int, cut: int, end: int
) -> None:
    encoded, position = [], start
    for records, codec in batches:
        records = [r for r in records if abs(r.timestamp - records[0].timestamp) < 2**63]
        encoded.append(encode_batch(records, base_offset=position, codec=codec))
        position += len(records)
    log = joined(*encoded)
    whole = list(iter_batches(log))
    log = log[: max(len(log) - cut, 0)]
    for until in (None, start + end):
        there = list(iter_batches(log))
        there = list(
            takewhile(lambda b: b[0].size < SMALL_BATCH_BYTES and (until is None or b[0].base_offset < until), there)
        )
        done = coalesce(log, start, until=until, max_batch_bytes=MIB)
        if len(there) < 2:
            assert done is None
            continue
        assert done is not None
        assert done.last == there[-1][0]
        assert log[done.size :] == b"".join(view for _, view in whole[len(there) :])[: len(log) - done.size]
        records, _ = appended(done.items, start, done.last.next_offset)
        assert records == expected(there, start, done.last.next_offset)


def small(offset: int, **given: Any) -> bytes:
    return encode_batch([Record(0, T0, b"k", b"v")] * 2, base_offset=offset, **given)


@pytest.mark.parametrize(
    "other",
    [
        small(8),  # a hole before it
        small(4),  # once more
        small(6, is_transactional=True),
        small(6, last_offset_delta=2),
        small(6, log_append_time=T0),
        encode_batch([], base_offset=6, last_offset_delta=0),
        encode_batch([], base_offset=6, last_offset_delta=-1),
        encode_batch([Record(0, T0, b"\0\0\0\1", bytes(6))], base_offset=6, is_control=True, is_transactional=True),
        encode_batch([Record(0, T0, None, bytes(SMALL_BATCH_BYTES))], base_offset=6),
        message_set(1, codecs.NONE, [(None, b"x" * 50)], 6, T0),
        small(6)[:-1] + b"!",  # damaged
        small(6)[:-9],  # cut
    ],
    ids="hole repeat transactional widowed stamped empty impossible control large legacy damaged cut".split(),
)
def test_coalescing_ends_before_what_it_must_not_judge(other: bytes) -> None:
    log = joined(small(0), small(2), small(4), other, small(8))
    done = coalesce(log, 0, max_batch_bytes=MIB)
    assert done is not None
    assert (done.last.base_offset, done.size) == (4, 3 * len(small(0)))
    assert appended(done.items, 0, 6)[0] == [Record(n, T0, b"k", b"v") for n in range(6)]
    assert coalesce(joined(small(0), other), 0, max_batch_bytes=MIB) is None
    assert coalesce(joined(other, small(8), small(10)), 0, max_batch_bytes=MIB) is None
    assert coalesce(log, 1, max_batch_bytes=MIB) is None
    assert coalesce(log, 0, max_batch_bytes=1000) is None
