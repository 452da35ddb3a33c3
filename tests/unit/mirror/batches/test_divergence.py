"""What two slices of log show of each other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from support.legacy_sets import message_set
from support.one_log import OneLog
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.batches.divergence import LogSlice, first_difference, tail_records
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.logs.bisection import agreement_start, first_difference_of_logs
from tolerant_client.mirror.logs.reading import read_slices
from tolerant_client.records.record_batch import Record, decode_records, encode_batch, read_header
from tolerant_client.records.record_sets import iter_record_sets

TP = TopicPartition("orders", 0)
FILL = Record(0, 0, None, None, ((FILLER, None),))


def record(offset: int, value: bytes = b"x") -> Record:
    return Record(offset, 5, None, value)


KINDS = {
    "record": LogSlice(1, {0: record(0)}),
    "other record": LogSlice(1, {0: record(0, b"y")}),
    "filler": LogSlice(1, {0: FILL}),
    "vacant": LogSlice(1, {}, [range(0, 1)]),
    "hole": LogSlice(1),
}
DIFFERENT = {
    ("record", "other record"),
    ("record", "filler"),
    ("record", "vacant"),
    ("vacant", "record"),
    ("vacant", "other record"),
}
# Everything in the source's log, even another mirror's filler, must be in the target's.
DIFFERENT |= {("other record", "record"), ("other record", "filler"), ("other record", "vacant")}
DIFFERENT |= {("filler", "record"), ("filler", "other record"), ("filler", "vacant")}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS, KINDS)))
def test_every_pair_of_what_two_logs_can_have_at_an_offset(source: str, target: str) -> None:
    expected = 0 if (source, target) in DIFFERENT else None
    assert first_difference(KINDS[source], KINDS[target]) == expected


def test_lowest_difference_that_nobody_has_accepted_counts() -> None:
    source = LogSlice(4, {n: record(n) for n in range(4)})
    target = LogSlice(4, {n: record(n, b"y") for n in range(4)})
    assert first_difference(source, target) == 0
    assert first_difference(source, target, [range(0, 2)]) == 2
    assert first_difference(source, target, [range(0, 2), range(2, 9)]) is None


def test_nothing_is_said_of_what_could_not_be_read() -> None:
    target = LogSlice(4, {n: record(n, b"y") for n in range(4)})
    assert first_difference(LogSlice(0), target) is None
    assert first_difference(LogSlice(2, {n: record(n) for n in range(2)}), LogSlice(0)) is None


@given(st.integers(1, 50), st.integers(0, 60), st.integers(0, 4))
def test_records_of_a_batch_from_an_offset_on_are_its_own(count: int, skipped: int, codec: int) -> None:
    given = [Record(100 + n, 5 + n, b"k" * n, b"v" * (n * 7 % 200), (("h", b"%d" % n),)) for n in range(count)]
    batch = memoryview(encode_batch(given, base_offset=100, codec=codec))
    found = list(tail_records(read_header(batch), batch, 100 + min(skipped, count)))
    assert found == list(decode_records(batch))[min(skipped, count) :]


def test_records_of_a_batch_with_holes_are_read_whole() -> None:
    batch = memoryview(encode_batch([record(3), record(7)], base_offset=3, offsets=[3, 7]))
    assert [r.offset for r in tail_records(read_header(batch), batch, 5)] == [3, 7]


def test_legacy_messages_are_read_with_their_times() -> None:
    records = memoryview(message_set(1, 0, [(b"k", b"v"), (None, None)], 0, 9))
    ((header, view),) = iter_record_sets(records)
    assert list(tail_records(header, view, 0)) == [Record(0, 9, b"k", b"v"), Record(1, 10, None, None)]


def response(*batches: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> FetchedPartition:
    return FetchedPartition(TP, 0, 100, 100, 0, aborted, memoryview(b"".join(batches)))


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    key = b"\0\0" + kind.to_bytes(2, "big")
    return encode_batch(
        [Record(0, 0, key, b"\0\0\0\0\0\0")],
        base_offset=offset,
        producer_id=producer_id,
        is_transactional=True,
        is_control=True,
    )


def test_aborted_data_and_markers_are_vacant_and_holes_are_nothing() -> None:
    batches = [
        encode_batch([record(0)], base_offset=0),
        encode_batch([record(1), record(2)], base_offset=1, producer_id=7, is_transactional=True),
        encode_batch([record(3)], base_offset=3, producer_id=8, is_transactional=True),
        marker(4, 7, 0),
        encode_batch([record(5)], base_offset=5, producer_id=7, is_transactional=True),
        marker(6, 8, 1),
        encode_batch([record(9)], base_offset=9),
    ]
    found = LogSlice(0)
    found.extend(response(*batches, aborted=((7, 1),)), 50)
    assert sorted(found.records) == [0, 3, 5, 9]
    assert [offset for span in found.vacant for offset in span] == [1, 2, 4, 6]
    assert found.until == 10


def test_records_with_their_brokers_times_are_known() -> None:
    found = LogSlice(1)
    stamped = encode_batch([record(n) for n in range(3)], log_append_time=99)
    found.extend(response(stamped, encode_batch([record(3)], base_offset=3)), 50)
    assert [(offset, found.is_stamped(offset)) for offset in found.records] == [(1, True), (2, True), (3, False)]


def test_slice_keeps_to_its_range() -> None:
    found = LogSlice(2)
    found.extend(response(encode_batch([record(n) for n in range(4)]), encode_batch([record(4)], base_offset=4)), 3)
    assert (sorted(found.records), found.until) == ([2], 3)
    found = LogSlice(2)
    found.extend(response(encode_batch([record(9)], base_offset=9)), 6)
    assert (found.records, found.until) == ({}, 6)


# -- whole logs ---------------------------------------------------------------


def log_of(values: Iterable[bytes], per_batch: int = 7, size: int = 0) -> list[bytes]:
    numbered = list(enumerate(values))
    return [
        encode_batch([Record(0, n, None, v + b"." * size) for n, v in numbered[at : at + per_batch]], base_offset=at)
        for at in range(0, len(numbered), per_batch)
    ]


def slice_of(log: OneLog, start: int, until: int, *, is_committed: bool = True) -> LogSlice:
    return asyncio.run(read_slices(cast(Cluster, log), {TP: (start, until)}, is_committed=is_committed))[TP]


def test_range_is_read_over_as_many_fetches_as_it_takes_and_ends_where_the_log_does() -> None:
    log = OneLog(log_of([b"%d" % n for n in range(40)], size=100_000))
    found = slice_of(log, 3, 38)
    assert sorted(found.records) == list(range(3, 38)) and found.until == 38
    assert log.fetches > 1
    found = slice_of(log, 30, 90)
    assert sorted(found.records) == list(range(30, 40)) and found.until == 40


def test_batch_that_is_larger_than_a_fetch_is_read_with_a_larger_one() -> None:
    log = OneLog(log_of([b"x"] * 3, per_batch=3, size=3_000_000))
    assert sorted(slice_of(log, 0, 3).records) == [0, 1, 2]


def test_what_is_not_stable_or_gone_is_left_open() -> None:
    log = OneLog(log_of([b"x"] * 21), stable=14)
    assert slice_of(log, 10, 21).until == 14
    assert slice_of(log, 10, 21, is_committed=False).until == 21
    assert slice_of(OneLog(log_of([b"x"] * 21), start=15), 10, 21).until == 10


@given(st.integers(1, 900), st.data())
def test_bisection_finds_where_logs_begin_to_differ(length: int, data: st.DataObject) -> None:
    differs_from = data.draw(st.integers(0, length))
    source = OneLog(log_of([b"a"] * length, per_batch=data.draw(st.integers(1, 60))))
    target = OneLog(
        log_of([b"a"] * differs_from + [b"b"] * (length - differs_from), per_batch=data.draw(st.integers(1, 60)))
    )
    found = asyncio.run(first_difference_of_logs(cast(Cluster, source), cast(Cluster, target), TP, 0, length))
    assert found == (differs_from if differs_from < length else None)


@given(st.integers(1, 2000), st.data())
def test_bisection_finds_from_where_on_logs_agree(length: int, data: st.DataObject) -> None:
    agrees_from = data.draw(st.integers(0, length))
    source = OneLog(log_of([b"a"] * length, per_batch=data.draw(st.integers(1, 60))))
    target = OneLog(
        log_of([b"b"] * agrees_from + [b"a"] * (length - agrees_from), per_batch=data.draw(st.integers(1, 60)))
    )
    found = asyncio.run(agreement_start(cast(Cluster, source), cast(Cluster, target), TP, 0, length))
    assert found == agrees_from


@pytest.mark.parametrize("gap", [(110, 600), (200, 900), (101, 990)])
def test_bisection_finds_a_difference_before_a_long_gap(gap: tuple[int, int]) -> None:
    def with_gap(log: list[bytes]) -> OneLog:
        return OneLog(b for b in log if not gap[0] <= read_header(b).base_offset < gap[1])

    source = with_gap(log_of([b"a"] * 1000, per_batch=1))
    target = with_gap(log_of([b"a"] * 100 + [b"b"] * 900, per_batch=1))
    found = asyncio.run(first_difference_of_logs(cast(Cluster, source), cast(Cluster, target), TP, 0, 1000))
    assert found == 100


def test_difference_that_is_accepted_is_not_found() -> None:
    source, target = OneLog(log_of([b"a"] * 500)), OneLog(log_of([b"a"] * 200 + [b"b"] * 300))
    arguments = (cast(Cluster, source), cast(Cluster, target), TP, 0, 500)
    assert asyncio.run(first_difference_of_logs(*arguments, [range(200, 500)])) is None
    assert asyncio.run(first_difference_of_logs(*arguments, [range(200, 450)])) == 450
