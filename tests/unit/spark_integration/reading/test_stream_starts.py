"""A stream's first micro-batch, called as Spark calls a Python source, on a scripted cluster."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from kafka.errors import CoordinatorNotAvailableError
from kafka.structs import TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_integration.reading import stream_reader
from spark_integration.reading.offsets import NestedOffsets, OffsetRange, began_at, flat_offsets, topic_ids
from spark_integration.reading.options import parse_read_options
from spark_integration.reading.reader import RangePartition
from spark_integration.reading.schema import chosen_columns, full_schema
from spark_integration.reading.stream_reader import KafkaStreamReader
from spark_integration.source import TolerantKafkaDataSource
from support.log_ends import Logs
from tolerant_client.errors import DataLossError, OptionError

A0, A1, A2, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 2), TopicPartition("b", 0)
EARLIEST = {"startingOffsets": "earliest"}


class Run:
    """One run of a query; a new one knows only what the checkpoint says."""

    def __init__(self, cluster: Logs, **given: str) -> None:
        if "subscribePattern" not in given:
            given.setdefault("subscribe", "a")
        options = parse_read_options({"kafka.bootstrap.servers": "h:1", **given}, is_stream=True)
        self.reader = KafkaStreamReader(options, chosen_columns(full_schema(options), options))
        self.reader._cluster = cast(Any, cluster)

    def initial(self) -> NestedOffsets:
        return written(self.reader.initialOffset())

    def end(self, start: NestedOffsets) -> NestedOffsets:
        return written(self.reader.latestOffset(start, ReadAllAvailable()))

    def ranges(self, start: NestedOffsets, end: NestedOffsets) -> list[OffsetRange]:
        return [cast(RangePartition, part).range for part in self.reader.partitions(start, end)]

    def again(self, end: NestedOffsets) -> list[OffsetRange]:
        """Batch 0 in a restart: Spark asks where the query begins, and plans."""
        return self.ranges(self.initial(), end)


def written(offset: Any) -> NestedOffsets:
    return cast(NestedOffsets, json.loads(json.dumps(offset)))


def planned(cluster: Logs, **given: str) -> NestedOffsets:
    """The end of a first micro-batch that was planned and not committed."""
    run = Run(cluster, **given)
    return run.end(run.initial())


def test_offsets_that_are_for_display_hold_up_no_batch_while_their_coordinator_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def commit(_: Any, group: str, __: Any) -> None:
        asked.append(group)
        raise CoordinatorNotAvailableError(group)

    monkeypatch.setattr(stream_reader, "commit_group_offsets", commit)
    run = Run(Logs({A0: (0, 5)}), **{"commitOffsets": "true", "kafka.group.id": "g"}, **EARLIEST)
    for _ in range(3):
        run.reader.commit(run.end(run.initial()))
    assert len(asked) == 1


def test_a_new_stream_begins_once_while_its_topic_grows() -> None:
    class Growing(Logs):
        async def list_offsets(self, *args: Any, **named: Any) -> dict[TopicPartition, int]:
            self.logs[A0] = (0, self.logs[A0][1] + 1)
            return await super().list_offsets(*args, **named)

    run = Run(Growing({A0: (0, 9)}))
    end = run.end(run.initial())
    assert run.ranges(run.initial(), end) == [OffsetRange("a", 0, 11, 12)]
    later = run.end(end)
    assert run.ranges(end, later) == [OffsetRange("a", 0, 12, 13)]
    assert began_at(later) is None


def test_a_first_batch_without_records_is_repeated_without_those_that_came_since() -> None:
    cluster = Logs({A0: (0, 10)})
    end = planned(cluster)
    cluster.logs[A0] = (0, 16)
    run = Run(cluster)
    assert run.again(end) == []
    assert run.ranges(end, run.end(end)) == [OffsetRange("a", 0, 10, 16)]


def test_an_idle_stream_stays_at_the_end_of_its_first_batch() -> None:
    cluster = Logs({A0: (0, 10)})
    end = planned(cluster)
    assert Run(cluster).end(end) == end


@pytest.mark.parametrize("start", ["earliest", '{"a":{"0":0,"1":-2}}'])
def test_a_first_batch_is_repeated_as_it_was_after_partitions_were_added(start: str) -> None:
    cluster = Logs({A0: (0, 10), A1: (0, 20)})
    end = planned(cluster, startingOffsets=start)
    cluster.logs |= {A2: (0, 3)}
    run = Run(cluster, startingOffsets=start)
    assert run.again(end) == [OffsetRange("a", 0, 0, 10), OffsetRange("a", 1, 0, 20)]
    assert run.ranges(end, run.end(end)) == [OffsetRange("a", 2, 0, 3)]


def test_a_first_batch_is_repeated_as_it_was_after_a_topic_was_added() -> None:
    cluster = Logs({A0: (0, 10), B0: (0, 5)})
    end = planned(cluster, **EARLIEST)
    run = Run(cluster, **EARLIEST, subscribe="a,b")
    assert run.again(end) == [OffsetRange("a", 0, 0, 10)]
    assert run.ranges(end, run.end(end)) == [OffsetRange("b", 0, 0, 5)]


def test_what_was_deleted_of_a_first_batch_before_its_repeat_is_not_left_out_without_a_word() -> None:
    """Its task finds that the log starts later, as in any micro-batch."""
    cluster = Logs({A0: (0, 10)})
    end = planned(cluster, **EARLIEST)
    cluster.logs[A0] = (7, 10)
    assert Run(cluster, **EARLIEST).again(end) == [OffsetRange("a", 0, 0, 10)]


def test_a_topic_that_was_made_anew_before_the_repeat_is_data_loss() -> None:
    cluster = Logs({A0: (0, 10)})
    cluster.topic_ids = {"a": "old"}
    end = planned(cluster, **EARLIEST)
    assert (topic_ids(end), flat_offsets(end)) == ({"a": "old"}, {A0: 10})
    cluster.topic_ids = {"a": "new"}
    with pytest.raises(DataLossError, match="created again"):
        Run(cluster, **EARLIEST).again(end)
    run = Run(cluster, **EARLIEST, failOnDataLoss="false")
    assert run.again(end) == []
    assert run.ranges(end, run.end(end)) == [OffsetRange("a", 0, 0, 10, "new")]


def test_a_pattern_that_matched_nothing_begins_with_what_comes() -> None:
    cluster = Logs({})
    run = Run(cluster, subscribePattern="a")
    end = run.end(run.initial())
    assert flat_offsets(end) == {}
    cluster.logs[A0] = (0, 4)
    assert run.ranges(run.initial(), end) == []
    assert run.ranges(end, run.end(end)) == [OffsetRange("a", 0, 0, 4)]


def test_a_first_batch_that_names_no_start_begins_where_the_options_say_now() -> None:
    """As written by earlier versions and by Spark's own source."""
    cluster = Logs({A0: (3, 10)})
    assert Run(cluster, **EARLIEST).again({"a": {"0": 8}}) == [OffsetRange("a", 0, 3, 8)]


def test_a_stream_whose_options_are_refused_says_so_when_spark_first_asks() -> None:
    """If streamReader raised it, Spark would end with an UnboundLocalError of its own."""
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "endingTimestamp": "5"}
    source = TolerantKafkaDataSource(options)
    reader = source.streamReader(cast(Any, source.schema()))
    for ask in (reader.initialOffset, cast(Any, reader).latestOffset):
        with pytest.raises(OptionError, match="endingTimestamp is not valid in a streaming query"):
            ask()
