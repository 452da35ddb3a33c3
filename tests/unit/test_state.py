"""Where a link goes on, decided from both logs (M2 to M4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from tolerant_client.errors import DataLossError, TargetDivergedError, UnsupportedSourceError
from tolerant_client.mirror.partition import AppendState
from tolerant_client.mirror.state import is_copy, next_append
from tolerant_client.record_batch import BatchHeader, Record, encode_batch, read_header, restamp

TP = TopicPartition("orders", 3)
PRODUCER = 7


def header(base_offset: int, count: int = 10, **options: int) -> BatchHeader:
    return read_header(encode_batch([Record(0, 1, None, b"x")] * count, base_offset=base_offset, **options))


def test_empty_log_starts_at_zero_as_the_links_producer() -> None:
    assert next_append(TP, 0, 50, 0, None, PRODUCER) == AppendState(0, PRODUCER, 0, 0)


def test_last_batch_gives_producer_epoch_and_sequence() -> None:
    last = header(40, producer_id=PRODUCER, producer_epoch=0, base_sequence=40)
    assert next_append(TP, 0, 100, 50, last, PRODUCER) == AppendState(50, PRODUCER, 0, 50)


def test_producer_of_the_log_wins_over_the_one_that_was_given() -> None:
    last = header(40, producer_id=3, producer_epoch=2, base_sequence=5)
    assert next_append(TP, 0, 100, 50, last, PRODUCER) == AppendState(50, 3, 2, 15)


def test_sequence_after_the_largest_is_zero() -> None:
    last = header(40, producer_id=PRODUCER, producer_epoch=0, base_sequence=2**31 - 10)
    assert next_append(TP, 0, 100, 50, last, PRODUCER).next_sequence == 0


def test_log_without_records_gets_the_sequence_that_every_writer_derives() -> None:
    assert next_append(TP, 0, 2**32, 2**31 + 5, None, PRODUCER) == AppendState(2**31 + 5, PRODUCER, 0, 5)


def test_log_that_has_all_is_continued_at_its_end() -> None:
    last = header(40, producer_id=PRODUCER, producer_epoch=0, base_sequence=40)
    assert next_append(TP, 45, 50, 50, last, PRODUCER).log_end == 50


def test_source_that_starts_late_is_refused_for_an_empty_target() -> None:
    with pytest.raises(UnsupportedSourceError, match="orders-3 starts at offset 12"):
        next_append(TP, 12, 50, 0, None, PRODUCER)


def test_retention_that_overtook_the_mirror_is_a_loss() -> None:
    with pytest.raises(DataLossError, match="orders-3 no longer has offsets 30 to 40"):
        next_append(TP, 40, 50, 30, header(20), PRODUCER)


def test_target_that_is_longer_than_the_source_has_diverged() -> None:
    with pytest.raises(TargetDivergedError, match="orders-3 ends at offset 51, beyond the source's end 50"):
        next_append(TP, 0, 50, 51, header(41), PRODUCER)


# -- equal records are seen from two headers alone ----------------------------

records = st.lists(st.builds(Record, st.just(0), st.just(5), st.none(), st.binary(max_size=40)), min_size=1, max_size=20)
stamps = st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))


@given(records, st.integers(0, 4), stamps, stamps)
def test_stamped_copy_is_recognised_by_its_header(given: list[Record], codec: int, ours: tuple[int, int, int], first: tuple[int, int, int]) -> None:
    original = bytearray(encode_batch(given, base_offset=9, codec=codec))
    restamp(original, *first, base_offset=9)
    copied = bytearray(original)
    restamp(copied, *ours, base_offset=9)
    assert is_copy(read_header(copied), read_header(original))


@given(records, st.integers(0, 10**6), stamps)
def test_batch_of_the_same_shape_with_one_other_bit_is_no_copy(given: list[Record], place: int, stamp: tuple[int, int, int]) -> None:
    original = bytearray(encode_batch(given, base_offset=9))
    changed = bytearray(original)
    changed[61 + place // 8 % (len(changed) - 61)] ^= 1 << place % 8
    restamp(changed, *stamp, base_offset=9)
    assert not is_copy(read_header(changed), read_header(original))


def test_batch_elsewhere_or_of_another_size_is_no_copy() -> None:
    assert not is_copy(header(10), header(11))
    assert not is_copy(header(10), header(10, 9))


def test_batch_that_the_target_recompressed_is_taken_by_its_offsets_and_times() -> None:
    assert is_copy(header(10, codec=1), header(10))
