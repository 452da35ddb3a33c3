"""What goes into a micro-batch: the figures are those of Spark's own source for the same offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from spark_integration.reading.admission import Admission, check_end, share_out
from spark_integration.reading.options import TriggerLimits
from tolerant_client.errors import DataLossError

A, B, C = (TopicPartition("t", n) for n in range(3))


def test_a_limit_is_shared_out_in_proportion() -> None:
    assert share_out(10, {A: 0, B: 100}, {A: 30, B: 110}) == {A: 7, B: 102}


def test_a_small_partition_is_not_starved() -> None:
    assert share_out(10, {A: 0, B: 0}, {A: 10_000, B: 1}) == {A: 9, B: 1}


def test_what_is_empty_or_unknown_keeps_its_end() -> None:
    assert share_out(10, {A: 5, B: 0}, {A: 5, B: 4, C: 9}) == {A: 5, B: 4, C: 9}
    assert share_out(10, {A: 7}, {A: 5}) == {A: 5}


@given(
    limit=st.integers(1, 10**6),
    starts=st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
    sizes=st.lists(st.integers(0, 10**7), min_size=8, max_size=8),
)
def test_shares_lie_in_the_log_move_on_and_keep_to_the_limit(limit: int, starts: list[int], sizes: list[int]) -> None:
    start = {TopicPartition("t", n): offset for n, offset in enumerate(starts)}
    end = {partition: offset + sizes[partition.partition] for partition, offset in start.items()}
    shared = share_out(limit, start, end)
    assert all(start[p] <= shared[p] <= end[p] for p in start)
    assert all(shared[p] > start[p] for p in start if end[p] > start[p] and limit >= len(starts) * sum(sizes))
    read = sum(shared[p] - start[p] for p in start)
    assert read <= limit + len(starts)  # less than one offset of each partition is rounded up
    assert read > 0 or start == end


def test_without_limits_a_batch_takes_everything() -> None:
    assert Admission(TriggerLimits()).end({A: 1}, {A: 9, B: 5}, {B: 0}, 0.0) == {A: 9, B: 5}


def test_new_partitions_are_measured_from_their_first_offset() -> None:
    assert Admission(TriggerLimits(max_offsets=10)).end({A: 0}, {A: 10, B: 1010}, {B: 1000}, 0.0) == {A: 5, B: 1005}


def test_a_batch_waits_for_enough_records_or_long_enough() -> None:
    admission = Admission(TriggerLimits(min_offsets=10, max_delay_ms=1000))
    assert admission.end({A: 0}, {A: 1}, {}, 5000.0) == {A: 1}  # the first one does not wait
    assert admission.end({A: 1}, {A: 5}, {}, 5500.0) == {A: 1}
    assert admission.end({A: 1}, {A: 11}, {}, 5600.0) == {A: 11}
    assert admission.end({A: 11}, {A: 12}, {}, 6500.0) == {A: 11}
    assert admission.end({A: 11}, {A: 12}, {}, 6600.0) == {A: 12}


def test_both_limits_hold_together() -> None:
    admission = Admission(TriggerLimits(max_offsets=4, min_offsets=3, max_delay_ms=1000))
    assert admission.end({A: 0}, {A: 9}, {}, 0.0) == {A: 4}
    assert admission.end({A: 4}, {A: 6}, {}, 10.0) == {A: 4}
    assert admission.end({A: 4}, {A: 9}, {}, 20.0) == {A: 8}


def test_with_available_now_what_was_seen_first_and_is_still_there_may_be_read() -> None:
    check_end({A: 5, B: 7}, {A: 5, B: 9}, {A: 50, B: 9})


@pytest.mark.parametrize(
    ("end", "prefetched", "latest", "condition"),
    [
        ({A: 1}, {A: 1, B: 1}, {A: 1, B: 1}, "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED"),
        ({A: 2}, {A: 1}, {A: 2}, "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED"),
        ({A: 1, B: 1}, {A: 1, B: 1}, {A: 1}, "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW"),
        (
            {A: 5},
            {A: 5},
            {A: 4},
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
        ),
    ],
)
def test_a_broken_promise_of_available_now_is_named(
    end: dict[TopicPartition, int],
    prefetched: dict[TopicPartition, int],
    latest: dict[TopicPartition, int],
    condition: str,
) -> None:
    with pytest.raises(DataLossError, match=condition):
        check_end(end, prefetched, latest)
