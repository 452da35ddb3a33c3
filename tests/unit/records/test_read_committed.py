"""A read_committed consumer skips the data of aborted transactions."""

from __future__ import annotations

import struct
from typing import Any

from tolerant_client.records.read_committed import AbortedTransactions
from tolerant_client.records.record_batch import Record, encode_batch, iter_batches

ABORT, COMMIT = (Record(0, 1, struct.pack(">hh", 0, kind), b"") for kind in (0, 1))


def batch(base_offset: int, count: int = 10, **options: Any) -> bytes:
    return encode_batch([Record(0, 1, None, b"x")] * count, base_offset=base_offset, **options)


def data(base_offset: int, producer_id: int) -> bytes:
    return batch(base_offset, producer_id=producer_id, is_transactional=True)


def marker(base_offset: int, producer_id: int, *records: Record) -> bytes:
    return encode_batch(
        records,
        base_offset=base_offset,
        last_offset_delta=0,
        producer_id=producer_id,
        is_transactional=True,
        is_control=True,
    )


def kept(named: list[tuple[int, int]], *batches: bytes) -> list[int]:
    aborted = AbortedTransactions(named)
    found = iter_batches(memoryview(b"".join(batches)))
    return [header.base_offset for header, view in found if not aborted.cover(header, view)]


def test_aborted_transactions_are_skipped_until_their_marker() -> None:
    batches = data(0, 1), data(10, 2), batch(20), marker(30, 1, ABORT), data(31, 1)
    assert kept([(1, 0)], *batches) == [10, 20, 30, 31]


def test_a_transaction_before_an_aborted_one_is_kept() -> None:
    batches = data(0, 1), marker(10, 1, COMMIT), data(11, 1), marker(21, 1, ABORT)
    assert kept([(1, 11)], *batches) == [0, 10, 21]


def test_a_marker_that_the_cleaner_emptied_ends_its_transaction() -> None:
    """The rest of an aborted transaction in a compacted topic: its marker's batch, without the record."""
    assert kept([(1, 0)], marker(10, 1), data(11, 1)) == [10, 11]
