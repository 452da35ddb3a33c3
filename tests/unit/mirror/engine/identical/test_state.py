"""Where a link resumes, decided from both logs (M2 to M4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolerant_client.cluster.admin.transactions import ProducerEntry
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.divergence import is_copy
from tolerant_client.mirror.engine.identical.next_sequence import next_append
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, read_header, restamp

PRODUCER = 7
OWN = {PRODUCER}


def header(base_offset: int, count: int = 10, **options: int) -> BatchHeader:
    return read_header(encode_batch([Record(0, 1, None, b"x")] * count, base_offset=base_offset, **options))


def entry(producer_id: int, last_sequence: int, last_timestamp: int = 0, coordinator_epoch: int = -1) -> ProducerEntry:
    return ProducerEntry(producer_id, 0, last_sequence, last_timestamp, coordinator_epoch)


def test_empty_log_starts_at_zero_as_the_links_producer() -> None:
    assert next_append(0, None, (), PRODUCER, OWN) == AppendState(0, PRODUCER, 0, 0)


def test_last_batch_gives_producer_epoch_and_sequence() -> None:
    last = header(40, producer_id=PRODUCER, producer_epoch=0, base_sequence=40)
    assert next_append(50, last, (), PRODUCER, OWN) == AppendState(50, PRODUCER, 0, 50, last_ms=1)


def test_former_producer_id_of_the_link_goes_on_where_it_wrote_last() -> None:
    last = header(40, producer_id=3, producer_epoch=2, base_sequence=5)
    assert next_append(50, last, (), PRODUCER, {3, *OWN}) == AppendState(50, 3, 2, 15, last_ms=1)


def test_the_link_never_writes_on_under_the_producer_id_of_another_one_that_wrote_the_same_records() -> None:
    last = header(40, producer_id=3, producer_epoch=2, base_sequence=5)
    assert next_append(50, last, (), PRODUCER, OWN) == AppendState(50, PRODUCER, 0, 50)
    assert next_append(50, last, [entry(3, 14), entry(PRODUCER, 39, 5)], PRODUCER, OWN) == AppendState(
        50, PRODUCER, 0, 40, last_ms=5
    )


def test_sequence_after_the_largest_is_zero() -> None:
    last = header(40, producer_id=PRODUCER, producer_epoch=0, base_sequence=2**31 - 10)
    assert next_append(50, last, (), PRODUCER, OWN).next_sequence == 0
    assert next_append(50, None, [entry(PRODUCER, 2**31 - 1)], PRODUCER, OWN).next_sequence == 0


def test_log_without_records_gets_the_sequence_that_every_writer_derives() -> None:
    assert next_append(2**31 + 5, None, (), PRODUCER, OWN) == AppendState(2**31 + 5, PRODUCER, 0, 5)


@pytest.mark.parametrize("filling", [{"is_control": True}, {"is_transactional": True}])
def test_batch_that_fills_a_gap_says_no_sequence_but_the_broker_remembers_it(filling: dict[str, bool]) -> None:
    last = read_header(
        encode_batch([Record(0, 1, b"\0\0\0\0", b"")], base_offset=49, producer_id=99, producer_epoch=4, **filling)
    )
    entries = [entry(99, 8, 10, coordinator_epoch=0), entry(PRODUCER, 41, 6)]
    assert next_append(50, last, entries, PRODUCER, OWN) == AppendState(50, PRODUCER, 0, 42, last_ms=6)
    assert next_append(50, last, entries[:1], PRODUCER, OWN) == AppendState(50, PRODUCER, 0, 50)


def test_older_producer_id_of_the_link_is_taken_from_what_the_broker_remembers() -> None:
    entries = [
        entry(3, 41, last_timestamp=20),
        entry(2, 7, last_timestamp=10),
        entry(99, 8, 30, coordinator_epoch=0),
        entry(5, -1, 40),
    ]
    assert next_append(50, None, entries, PRODUCER, {2, 3, *OWN}) == AppendState(50, 3, 0, 42, last_ms=20)
    assert next_append(50, None, entries, PRODUCER, OWN) == AppendState(50, PRODUCER, 0, 50), "others wrote"


# -- two headers alone prove that records are equal ----------------------------

records = st.lists(
    st.builds(Record, st.just(0), st.just(5), st.none(), st.binary(max_size=40)), min_size=1, max_size=20
)
stamps = st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))


@given(records, st.integers(0, 4), stamps, stamps)
def test_stamped_copy_is_recognised_by_its_header(
    given: list[Record], codec: int, ours: tuple[int, int, int], first: tuple[int, int, int]
) -> None:
    original = bytearray(encode_batch(given, base_offset=9, codec=codec))
    restamp(original, *first, base_offset=9)
    copied = bytearray(original)
    restamp(copied, *ours, base_offset=9)
    assert is_copy(read_header(copied), read_header(original))


@given(records, st.integers(0, 10**6), stamps)
def test_batch_of_the_same_shape_with_one_other_bit_is_no_copy(
    given: list[Record], place: int, stamp: tuple[int, int, int]
) -> None:
    original = bytearray(encode_batch(given, base_offset=9))
    changed = bytearray(original)
    changed[61 + place // 8 % (len(changed) - 61)] ^= 1 << place % 8
    restamp(changed, *stamp, base_offset=9)
    assert not is_copy(read_header(changed), read_header(original))


def test_batch_elsewhere_or_of_another_size_is_no_copy() -> None:
    assert not is_copy(header(10), header(11))
    assert not is_copy(header(10), header(10, 9))


def test_headers_prove_nothing_of_a_batch_that_the_target_recompressed() -> None:
    assert not is_copy(header(10, codec=1), header(10))
