"""From options to ranges, on a scripted cluster: losses have the error conditions of Spark's own source."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from kafka.structs import TopicPartition

from spark_integration.reading.offsets import OffsetRange
from spark_integration.reading.options import ReadOptions, parse_read_options
from spark_integration.reading.resolve import (
    find_partitions,
    initial_offsets,
    latest_offsets,
    micro_batch_ranges,
    resolve_ranges,
)
from support.log_ends import Logs
from tolerant_client.errors import DataLossError, OptionError

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def options(is_stream: bool = False, **given: str) -> ReadOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    if not {"assign", "subscribePattern"} & named.keys():
        named.setdefault("subscribe", "a")
    return parse_read_options({"kafka.bootstrap.servers": "h:1", **named}, is_stream=is_stream)


def run(function: Any, cluster: Logs, *args: Any) -> Any:
    return asyncio.run(function(cluster, *args))


def test_a_pattern_is_found_anywhere_in_a_name() -> None:
    cluster = Logs({A0: (0, 1), TopicPartition("xax", 0): (0, 1), B0: (0, 1)})
    assert [p.topic for p in run(find_partitions, cluster, options(subscribePattern="a"))] == ["a", "xax"]
    assert run(find_partitions, cluster, options(subscribePattern="^c")) == []


def test_a_start_that_comes_to_more_than_the_end_is_refused() -> None:
    with pytest.raises(OptionError, match="RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"):
        run(resolve_ranges, Logs({A0: (0, 9)}), options(startingTimestamp="7", endingOffsets='{"a":{"0":3}}'))


def test_read_committed_asks_for_the_last_stable_offset() -> None:
    cluster = Logs({A0: (0, 9)})
    run(latest_offsets, cluster, options(is_stream=True, isolation__level="read_committed"), {})
    assert cluster.isolation_levels == {1}


def test_a_log_that_starts_within_an_open_transaction_has_nothing_to_read_yet() -> None:
    """Kafka 4.2 tells the offset of the batch that was cut there."""
    cluster = Logs({A0: (5, 3)})
    committed = {"isolation__level": "read_committed"}
    assert run(resolve_ranges, cluster, options(**committed)) == []
    start = run(initial_offsets, cluster, options(is_stream=True, startingOffsets="latest", **committed))
    assert start == {A0: 5}


def test_a_new_stream_starts_where_it_was_told() -> None:
    cluster = Logs({A0: (3, 9), A1: (0, 5)})
    assert run(initial_offsets, cluster, options(is_stream=True)) == {A0: 9, A1: 5}
    assert run(initial_offsets, cluster, options(is_stream=True, startingOffsets="earliest")) == {A0: 3, A1: 0}
    mixed = options(is_stream=True, startingOffsets='{"a":{"0":-2,"1":-1}}')
    assert run(initial_offsets, cluster, mixed) == {A0: 3, A1: 5}
    late = options(is_stream=True, startingTimestamp="7", startingOffsetsByTimestampStrategy="latest")
    assert run(initial_offsets, cluster, late) == {A0: 7, A1: 5}


def test_an_end_below_what_is_known_is_asked_for_again() -> None:
    stream = options(is_stream=True, fetchOffset__numRetries="3", fetchOffset__retryIntervalMs="0")
    cluster = Logs({A0: (0, 9)}, lies=[{A0: 2}, {A0: 4}])
    assert run(latest_offsets, cluster, stream, {A0: 5}) == {A0: 9}
    cluster = Logs({A0: (0, 9)}, lies=[{A0: 2}] * 3)
    assert run(latest_offsets, cluster, stream, {A0: 5}) == {A0: 2}  # said three times


def test_what_an_open_transaction_holds_up_is_told_once_for_each_place(caplog: pytest.LogCaptureFixture) -> None:
    class Held(Logs):
        stable = 0

        async def list_offsets(self, asked: Any, isolation_level: int = 0, **_: Any) -> dict[TopicPartition, int]:
            return {p: self.stable if isolation_level else 9 for p in asked}

    cluster, told, stream = (
        Held({A0: (0, 9)}),
        dict[TopicPartition, int](),
        options(is_stream=True, isolation__level="read_committed"),
    )
    for cluster.stable in (3, 3, 3, 4, 4):
        assert run(latest_offsets, cluster, stream, {A0: 7}, told) == {A0: 7}
    assert len([record for record in caplog.records if "nothing is read there" in record.getMessage()]) == 2


def test_a_partition_that_one_answer_lacks_is_looked_for_again() -> None:
    """A broker that has just started may not know a topic yet; counted as deleted, it would be read again from its beginning."""

    class Forgetful(Logs):
        async def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
            self.questions = getattr(self, "questions", 0) + 1
            return {} if self.questions == 1 else await super().partitions(topics)

    stream = options(is_stream=True, subscribePattern="a", fetchOffset__retryIntervalMs="0")
    assert run(latest_offsets, Forgetful({A0: (0, 9)}), stream, {A0: 5}) == {A0: 9}
    stream = options(is_stream=True, subscribe="a", fetchOffset__retryIntervalMs="0")
    assert run(latest_offsets, Forgetful({A0: (0, 9)}), stream, {A0: 5}) == {A0: 9}


def test_a_partition_that_appears_is_read_from_its_beginning() -> None:
    assert run(
        micro_batch_ranges, Logs({A0: (0, 9), A1: (0, 4)}), options(True), {A0: 5}, {A0: 9, A1: 4}, {"a": "id"}
    ) == [
        OffsetRange("a", 0, 5, 9, "id"),
        OffsetRange("a", 1, 0, 4, "id"),
    ]


LOSSES = [
    (
        {A0: (0, 9), A1: (2, 4)},
        {A0: 5},
        {A0: 9, A1: 4},
        {},
        "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
        [(0, 5, 9), (1, 2, 4)],
    ),
    ({A0: (0, 9)}, {A0: 5}, {A0: 9, A1: 4}, {}, "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", [(0, 5, 9)]),
    ({A0: (0, 9)}, {A0: 5, A1: 1}, {A0: 9}, {}, r"PARTITIONS_DELETED\]", [(0, 5, 9)]),
    (
        {A0: (0, 9)},
        {A0: 5, A1: 1},
        {A0: 9},
        {"kafka.group.id": "g"},
        "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT",
        [(0, 5, 9)],
    ),
    ({A0: (0, 3), A1: (0, 4)}, {A0: 5, A1: 1}, {A0: 3, A1: 4}, {}, "PARTITION_OFFSET_CHANGED", [(1, 1, 4)]),
]


@pytest.mark.parametrize(
    ("logs", "start", "end", "given", "condition", "left"), LOSSES, ids=[loss[4] for loss in LOSSES]
)
def test_losses_are_errors_or_left_out(
    logs: dict[TopicPartition, tuple[int, int]],
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    given: dict[str, str],
    condition: str,
    left: list[tuple[int, int, int]],
) -> None:
    with pytest.raises(DataLossError, match=rf"KAFKA_DATA_LOSS\.{condition}.*failOnDataLoss=false"):
        run(micro_batch_ranges, Logs(logs), options(True, **given), start, end, {})
    tolerant = options(True, failOnDataLoss="false", **given)
    assert run(micro_batch_ranges, Logs(logs), tolerant, start, end, {}) == [OffsetRange("a", *one) for one in left]
