"""Which of a producer's records are among the copies of a link."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tolerant_client.mirror.standby.copied_records import CLOCKS_MS, SearchAtOffsets, SearchInOrder, least_ms
from tolerant_client.records.codecs import GZIP
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.stock.sought_batches import Sought

NOW = 1_764_000_000_000


def records(*values: bytes | None, at: int = NOW, key: bytes | None = None) -> list[Record]:
    return [Record(n, at, key, value, ()) for n, value in enumerate(values)]


def found(
    log: Sequence[bytes], *batches: Sequence[Record], has_append_times: bool = False, end: int = 1_000
) -> list[int]:
    """The offsets that a search finds in a log that comes in one response for each of its batches."""
    search, offset = SearchInOrder(Sought(batches, 0, NOW if has_append_times else None)), 0
    for batch in log:
        offset = search.read(memoryview(batch), offset, end)
    assert search.is_over == (len(search.found) == len(batches))
    return search.found


A, B, C = b"a", b"b", b"c"


@pytest.mark.parametrize(
    ("log", "offset"),
    [
        ([encode_batch(records(A, B, C), base_offset=5)], [5]),
        ([encode_batch(records(A, A, B, C), base_offset=5)], [6]),
        ([encode_batch(records(A, A, B, C), base_offset=5, codec=GZIP)], [6]),
        ([encode_batch(records(A, B), base_offset=5), encode_batch(records(C), base_offset=7)], [5]),
        ([encode_batch(records(A, B), base_offset=5), encode_batch(records(C), base_offset=8)], []),
        ([encode_batch(records(A, B), base_offset=5)], []),
        ([encode_batch(records(A, B, C, at=NOW + 1), base_offset=5)], []),
        ([encode_batch(records(A, B, C, key=b"k"), base_offset=5)], []),
        ([encode_batch(records(A, None, C), base_offset=5)], []),
        ([encode_batch(records(A, B, C), base_offset=5, is_control=True)], []),
    ],
)
def test_a_batch_is_there_if_all_its_records_follow_one_another(log: Sequence[bytes], offset: list[int]) -> None:
    assert found(log, records(A, B, C)) == offset


def test_later_batches_are_looked_for_after_earlier_ones() -> None:
    log = [encode_batch(records(B, A, B, A, B), base_offset=10)]
    assert found(log, records(A), records(B)) == [11, 12]
    assert found(log, records(A), records(A), records(A)) == [11, 13]
    assert found(log, records(C), records(B)) == []


def test_nothing_counts_that_others_have_written_after_the_copies() -> None:
    log = [encode_batch(records(A, B, C), base_offset=5)]
    assert found(log, records(A, B, C), end=7) == [] and found(log, records(A, B, C), end=8) == [5]


@pytest.mark.parametrize(
    ("append_ms", "is_found"), [(NOW - CLOCKS_MS, True), (NOW - CLOCKS_MS - 1, False), (NOW, True)]
)
def test_where_brokers_give_times_a_copy_is_not_older_than_the_send(append_ms: int, is_found: bool) -> None:
    log = [encode_batch(records(A, at=append_ms), base_offset=5)]
    sought = records(A, at=NOW + 5_000)
    assert bool(found(log, sought, has_append_times=True)) == is_found
    assert not found(log, sought)


def test_a_response_that_is_read_again_after_a_failure_counts_once() -> None:
    search = SearchInOrder(Sought([records(A), records(A)], 0))
    log = memoryview(encode_batch(records(A), base_offset=5))
    assert [search.read(log, 5, 100) for _ in range(2)] == [6, 6] and search.found == [5]


def test_the_time_from_which_on_a_log_is_read() -> None:
    batches = [records(A, at=NOW - 90_000), records(B)]
    assert least_ms(Sought(batches, -1)) == NOW - 90_000
    assert least_ms(Sought([records(A)], -1, NOW)) == NOW - CLOCKS_MS
    assert least_ms(Sought([records(A, at=-1)], -1)) == -1


@pytest.mark.parametrize("at", [-86_400_000, -1, 0])
def test_records_from_before_1970_are_found(at: int) -> None:
    log = encode_batch(records(A, at=at), base_offset=5)
    assert found([log], records(A, at=at)) == [5]
    search = SearchAtOffsets(Sought([records(A, at=at)], 5, places=[5]))
    search.read(memoryview(log), 5, 100)
    assert search.found == [5]


def test_with_places_each_batch_is_at_its_own_offset_or_not_there() -> None:
    batches = [records(A, B), records(C), records(A)]
    search = SearchAtOffsets(Sought(batches, 10, places=[10, 12, 14]))
    log = encode_batch(records(A, B, B, C), base_offset=10) + encode_batch(records(A, A), base_offset=14)
    for _ in range(2):  # the second time after a failure
        assert search.read(memoryview(log), 10, 15) == 16
    assert search.found == [10, 14] and search.is_over
