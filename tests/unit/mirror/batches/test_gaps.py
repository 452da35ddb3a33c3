"""Filler records and markers: what they are, how large, and that nothing else is taken for them."""

from __future__ import annotations

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.gaps import (
    FILLER,
    Gap,
    GapFill,
    choose_way,
    filler_batches,
    filler_time,
    is_filler,
    is_filler_batch,
    is_filler_marker,
    marker_producer,
)
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    decode_records,
    encode_batch,
    iter_batches,
    read_header,
    records_section,
    restamp,
)

NOW = 1_700_000_000_000
MIB = 1 << 20


def fill(
    gap: Gap, *, is_compacted: bool = False, max_batch_bytes: int = MIB, **options: int
) -> list[tuple[BatchHeader, memoryview]]:
    given = {"timestamp_ms": NOW, **options}
    return list(filler_batches(gap, is_compacted=is_compacted, max_batch_bytes=max_batch_bytes, **given))


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 8191, 8192, 8193, 12_000])
def test_filler_is_byte_for_byte_what_the_plain_encoder_writes(count: int, is_compacted: bool) -> None:
    key = FILLER.encode() if is_compacted else None
    records = [Record(n, NOW, key, None, ((FILLER, None),)) for n in range(count)]
    ((header, batch),) = fill(Gap(1000, 1000 + count), is_compacted=is_compacted)
    assert records_section(header, batch) == encode_batch(records)[HEADER_SIZE:]


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("count", [1, 2, 100, 12_000])
def test_a_batch_of_filler_is_told_from_every_other(count: int, is_compacted: bool) -> None:
    ((header, batch),) = fill(Gap(1000, 1000 + count), is_compacted=is_compacted)
    assert is_filler_batch(header, batch)
    named = ((FILLER, None),)
    for codec in (codecs.NONE, codecs.GZIP):
        for record in (
            Record(0, NOW, b"k", b"v", ()),
            Record(0, NOW, None, b"v", named),
            Record(0, NOW, b"k", None, named),
        ):
            other = encode_batch([record] * count, offsets=range(count), codec=codec)
            assert not is_filler_batch(read_header(other), memoryview(other))


def test_a_batch_that_cannot_be_unpacked_is_no_filler() -> None:
    other = bytearray(encode_batch([Record(0, NOW, None, b"v" * 100, ())], codec=codecs.GZIP))
    other[HEADER_SIZE : HEADER_SIZE + 4] = b"\0" * 4
    assert not is_filler_batch(read_header(other), memoryview(other))


@pytest.mark.parametrize("codec", range(5))
def test_filler_batches_lie_side_by_side_and_are_whole_once_stamped(codec: int) -> None:
    log = bytearray()
    sequence = 7
    for header, batch in fill(Gap(5, 100_005), codec=codec):
        restamp(batch, 4711, 0, sequence, header.base_offset)
        sequence += header.record_count
        log += batch
    assert sequence == 100_007
    position = 5
    for header, batch in iter_batches(memoryview(log)):
        assert (header.base_offset, header.record_count) == (position, header.last_offset_delta + 1)
        assert (header.producer_id, header.is_transactional, header.is_control) == (4711, False, False)
        assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW)
        for record in decode_records(batch):
            assert (record.offset, record.timestamp, is_filler(record)) == (position, NOW, True)
            position += 1
    assert position == 100_005


@pytest.mark.parametrize("is_compacted", [False, True])
def test_no_batch_is_too_large_even_if_the_broker_stores_it_uncompressed(is_compacted: bool) -> None:
    for limit in (300, 301, 1789, 1790, 4000, 300_000, MIB, 50 * MIB):
        batches = list(
            filler_batches(
                Gap(0, 45_000),
                is_compacted=is_compacted,
                max_batch_bytes=limit,
                timestamp_ms=NOW,
                codec=codecs.ZSTD,
            )
        )
        sizes = [HEADER_SIZE + len(records_section(header, batch)) for header, batch in batches]
        one_more = max(sizes) // batches[0][0].record_count + 4
        assert max(sizes) <= min(limit, MIB) < max(sizes) + one_more or len(batches) == 1
        assert all(header.size == len(batch) <= limit for header, batch in batches)
        if limit < 200:
            assert len(batches) == 50_000


def test_a_topic_without_room_for_one_record_is_refused() -> None:
    with pytest.raises(OptionError, match=r"max.message.bytes 80 .*too small"):
        next(filler_batches(Gap(0, 1), is_compacted=False, max_batch_bytes=80, timestamp_ms=NOW))


def test_a_million_filler_records_take_less_than_a_megabyte() -> None:
    assert sum(header.size for header, _ in fill(Gap(0, 1_000_000), codec=codecs.ZSTD)) < 800_000
    assert sum(header.size for header, _ in fill(Gap(0, 1_000_000))) < 2_200_000


def test_every_batch_is_a_copy_of_its_own() -> None:
    first, second = (batch for _, batch in fill(Gap(0, 2 * 40_000), max_batch_bytes=MIB)[:2])
    first[:] = bytes(len(first))
    (_, again), *_ = fill(Gap(0, 2 * 40_000))
    assert any(second) and any(again)


def test_an_empty_gap_has_no_batches() -> None:
    assert fill(Gap(7, 7)) == []


@pytest.mark.parametrize(
    ("neighbours", "expected"),
    [([NOW - 5], NOW - 5), ([-1, NOW - 7], NOW - 7), ([-1, -1], NOW), ([], NOW), ([NOW + 10], NOW), ([0, 5], 0)],
)
def test_filler_is_as_old_as_the_data_beside_it(neighbours: list[int], expected: int) -> None:
    assert filler_time(neighbours, NOW) == expected


def test_filler_without_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="timestamp -1"):
        fill(Gap(0, 1), timestamp_ms=-1)


FILLER_HEADERS = ((FILLER, None),)


@pytest.mark.parametrize(
    "record",
    [
        Record(0, NOW, None, None),
        Record(0, NOW, FILLER.encode(), None),
        Record(0, NOW, None, b"value", FILLER_HEADERS),
        Record(0, NOW, None, b"", FILLER_HEADERS),
        Record(0, NOW, b"key", None, FILLER_HEADERS),
        Record(0, NOW, None, None, (("other", None),)),
        Record(0, NOW, None, None, (*FILLER_HEADERS, ("other", b"1"))),
    ],
)
def test_no_other_record_is_taken_for_filler(record: Record) -> None:
    assert not is_filler(record)


@pytest.mark.parametrize("offset", [0, 1, 32_767, 32_768, 65_535, 2**31, 2**40 + 5, 2**60])
def test_a_marker_carries_its_offset(offset: int) -> None:
    producer_id, epoch = marker_producer(offset)
    assert 2**62 <= producer_id < 2**63 and 0 <= epoch < 2**15
    assert (producer_id - 2**62) << 15 | epoch == offset
    later, same = marker_producer(offset, 3)
    assert producer_id < later < 2**63 and same == epoch and later != marker_producer(2**60, 2)[0]


def test_later_markers_of_one_producer_have_higher_epochs() -> None:
    # By this the broker refuses late repeats.
    tokens = [marker_producer(offset) for offset in range(32_700, 65_600)]
    assert tokens == sorted(set(tokens))


MARKER = BatchHeader(5, 78, 0, 2, 0, 0x30, 0, NOW, NOW, *marker_producer(5), -1, 1)


@pytest.mark.parametrize(("producer_id", "epoch"), [(0, 0), (2**62 - 1, 3), (-1, -1), (2**62, -1)])
def test_markers_of_others_are_no_filler(producer_id: int, epoch: int) -> None:
    assert not is_filler_marker(MARKER._replace(producer_id=producer_id, producer_epoch=epoch))


def test_only_control_batches_are_filler_markers() -> None:
    assert is_filler_marker(MARKER)
    assert not is_filler_marker(MARKER._replace(attributes=0))
    assert not is_filler_marker(MARKER._replace(producer_id=4711))


def test_auto_means_records_for_compacted_topics_and_is_left_to_the_brokers_otherwise() -> None:
    assert choose_way(GapFill.AUTO, is_compacted=True) is GapFill.RECORDS
    assert choose_way(GapFill.AUTO, is_compacted=False) is GapFill.AUTO
    for fill in (GapFill.TRANSACTIONS, GapFill.MARKERS, GapFill.RECORDS):
        assert {choose_way(fill, is_compacted=c) for c in (False, True)} == {fill}
