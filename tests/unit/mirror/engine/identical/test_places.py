"""Whether the link's batches lie where they belong, by their sequences (M2, M3)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.identical import places as places_module
from tolerant_client.mirror.engine.identical.places import Places, is_in_place, read_places
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, read_header

TP = TopicPartition("t", 0)
OURS = 7


def batch(base_offset: int, sequence: int, count: int = 10, producer_id: int = OURS, **options: bool) -> bytes:
    records = [Record(0, 1, None, b"x")] * count
    return encode_batch(
        records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **options
    )


def header(base_offset: int, sequence: int, count: int = 10, producer_id: int = OURS) -> BatchHeader:
    return read_header(batch(base_offset, sequence, count, producer_id))


@pytest.mark.parametrize(
    ("offset", "sequence", "says"),
    [
        (50, 45, True),  # the next one
        (50, 35, False),  # the one before, again
        (50, 50, False),  # at another one's offset
        (53, 45, True),  # after a gap that was filled in transactions
        (53, 48, True),  # after batches that the cleaner removed
        (53, 53, True),  # of a producer that the broker had forgotten
        (53, 60, False),
        (53, 35, False),
    ],
)
def test_sequence_says_whether_a_batch_follows_on_the_one_before_it(offset: int, sequence: int, says: bool) -> None:
    assert is_in_place(header(offset, sequence), header(40, 35)) is says


def test_sequences_wrap() -> None:
    before = header(2**31 - 5, 2**31 - 5)
    assert is_in_place(header(2**31 + 5, 5), before) is True
    assert is_in_place(header(2**31 + 5, 2**31 - 5), before) is False


@pytest.mark.parametrize("before", [None, header(40, 40, producer_id=3)])
def test_first_batch_of_a_producer_says_its_place_only_where_its_sequence_is_its_offset(
    before: BatchHeader | None,
) -> None:
    assert is_in_place(header(50, 50), before) is True
    assert is_in_place(header(50, 0), before) is None


def places(*batches: bytes, first: int, bounds: tuple[int, int] | None = None) -> Places:
    log = OneLog(batches)
    start = next(read_header(b) for b in batches if read_header(b).last_offset >= first)
    return asyncio.run(read_places(cast(Cluster, log), TP, bounds or (0, log.end), start, {OURS}))


def test_batch_that_was_appended_twice_is_out_of_place_wherever_the_source_ends() -> None:
    log = [batch(10 * n, 10 * n) for n in range(5)]
    assert places(*log, first=30) == Places(True)
    assert places(*log, batch(50, 40), first=50) == Places(False, header(50, 40))
    assert places(*log, batch(50, 50), batch(60, 50), first=50).wrong == header(60, 50)
    assert places(*log, batch(50, 50, producer_id=3), first=40).wrong == header(50, 50, producer_id=3)


def test_what_fills_a_gap_in_transactions_is_passed_over() -> None:
    filler = batch(20, 0, 5, producer_id=99, is_transactional=True)
    log = [batch(0, 0, 20), filler, batch(25, 20), batch(35, 30)]
    assert places(*log, first=25) == Places(True)
    assert places(*log, batch(45, 30), first=25).wrong == header(45, 30)


def test_no_more_than_a_bound_of_bytes_is_read_and_the_rest_is_unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(10 * n, 10 * n) for n in range(12)]
    monkeypatch.setattr(places_module, "_MOST_BYTES", 4 * len(log[0]))
    monkeypatch.setattr(places_module, "_READ_BYTES", 2 * len(log[0]))
    assert places(*log, first=30) == Places(False)
    assert places(*log[:7], first=30) == Places(True)
    assert places(*log[:6], batch(60, 50), *log[7:], first=30).wrong == header(60, 50)


def test_what_the_link_did_not_write_says_nothing_of_what_follows() -> None:
    log = [batch(0, 0, 20, producer_id=3), batch(20, 4), batch(30, 14)]
    assert places(*log, first=20, bounds=(20, 40)) == Places(False)
    assert places(*log, first=30, bounds=(20, 40)) == Places(True)
