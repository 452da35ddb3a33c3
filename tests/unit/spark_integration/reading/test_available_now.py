"""The promises of Trigger.AvailableNow, each broken once."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from spark_integration.reading.available_now import check_end
from tolerant_client.errors import DataLossError

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_what_was_seen_first_and_is_still_there_may_be_read() -> None:
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
def test_a_broken_promise_is_named(
    end: dict[TopicPartition, int],
    prefetched: dict[TopicPartition, int],
    latest: dict[TopicPartition, int],
    condition: str,
) -> None:
    with pytest.raises(DataLossError, match=condition):
        check_end(end, prefetched, latest)
