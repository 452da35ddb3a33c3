"""payload=ranges without Spark running: how rows are dealt, and what wrong options say."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from spark_integration.mirroring.link_state import TaskReport
from spark_integration.mirroring.mirror_job import original_error
from spark_integration.mirroring.ranges import RangesStreamReader, RangesStreamWriter, spread
from tolerant_client.errors import OptionError, TargetDivergedError, TolerantClientError

Row = tuple[str, int, int, int | None]
rows: st.SearchStrategy[dict[Row, int]] = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.just(0), st.none() | st.integers(0, 9)),
    st.integers(0, 10**9),
    max_size=60,
)

READ = {
    "kafka.bootstrap.servers": "a:1",
    "target.kafka.bootstrap.servers": "b:1",
    "subscribePattern": "orders.*",
}
WRITE = {"kafka.bootstrap.servers": "b:1", "source.kafka.bootstrap.servers": "a:1", "producerId": "7"}


@given(rows, st.integers(1, 70))
def test_every_row_is_dealt_once_and_no_task_is_empty(size: dict[Row, int], tasks: int) -> None:
    dealt = spread(size, tasks)
    assert sorted((row for task in dealt for row in task), key=str) == sorted(size, key=str)
    assert len(dealt) == min(tasks, len(size))
    assert all(dealt)


@given(rows, st.integers(1, 8))
def test_no_task_has_more_than_its_share_and_one_largest_row(size: dict[Row, int], tasks: int) -> None:
    loads = [sum(size[row] + 1 for row in task) for task in spread(size, tasks)]
    if loads:
        assert max(loads) <= sum(loads) / len(loads) + max(size.values()) + 1


@given(rows, st.integers(1, 8))
def test_dealing_is_the_same_each_time(size: dict[Row, int], tasks: int) -> None:
    assert spread(size, tasks) == spread(dict(reversed(size.items())), tasks)


def reader(**changes: str) -> RangesStreamReader:
    return RangesStreamReader({**READ, **changes})


def offset(end: int, trigger: int = 0) -> dict[str, Any]:
    return {"offsets": {"orders": {"0": end, "1": end}}, "trigger": trigger}


def test_only_partitions_with_something_new_are_planned() -> None:
    end = {"offsets": {"orders": {"0": 10, "1": 5}, "new": {"0": 3}}, "trigger": 0}
    start = {"offsets": {"orders": {"0": 5, "1": 5}}, "trigger": 0}
    (task,) = reader().partitions(start, end)
    assert list(reader().read(task)) == [("orders", 0, 5, 10), ("new", 0, 0, 3)]


def test_tail_mode_plans_all_partitions_without_an_end() -> None:
    (task,) = reader(tail="true").partitions(offset(5), offset(5, 1))
    assert sorted(reader().read(task)) == [("orders", 0, 5, None), ("orders", 1, 5, None)]


def test_reader_travels_to_executors_without_connections() -> None:
    travelled = pickle.loads(pickle.dumps(reader(tasks="3")))
    (task, other) = travelled.partitions(offset(0), offset(5))
    assert [*travelled.read(task), *travelled.read(other)] == [("orders", 0, 0, 5), ("orders", 1, 0, 5)]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("subscribePattern", "payload=ranges needs subscribePattern"),
        ("kafka.bootstrap.servers", "payload=ranges needs kafka.bootstrap.servers"),
        ("target.kafka.bootstrap.servers", "payload=ranges needs target.kafka.bootstrap.servers"),
    ],
)
def test_missing_read_option_is_named(missing: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RangesStreamReader({key: value for key, value in READ.items() if key != missing})


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("producerId", "payload=ranges needs producerId"),
        ("kafka.bootstrap.servers", "payload=ranges needs kafka.bootstrap.servers"),
        ("source.kafka.bootstrap.servers", "payload=ranges needs source.kafka.bootstrap.servers"),
    ],
)
def test_missing_write_option_is_named(missing: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RangesStreamWriter({key: value for key, value in WRITE.items() if key != missing})


@pytest.mark.parametrize("value", ["x", "", "1.5"])
def test_option_that_is_no_number_is_named(value: str) -> None:
    with pytest.raises(OptionError, match="tasks must be a whole number"):
        reader(tasks=value)
    with pytest.raises(OptionError, match="holdMs must be a whole number"):
        RangesStreamWriter({**WRITE, "holdMs": value})


@pytest.mark.parametrize("tasks", ["0", "-1"])
def test_less_than_one_task_is_refused(tasks: str) -> None:
    with pytest.raises(OptionError, match="tasks must be at least 1"):
        reader(tasks=tasks)


def test_task_without_rows_copies_nothing() -> None:
    message = RangesStreamWriter(WRITE).write(iter([]))
    assert message is not None
    assert vars(message)["report"] == TaskReport()


def test_error_of_a_task_comes_back_as_it_was() -> None:
    text = (
        "Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n'
        "tolerant_client.errors.TargetDivergedError: TargetDivergedError: The target log of orders-0 has a foreign batch\n"
        "\tat org.apache.spark.Something\n"
    )
    error = original_error(text)
    assert type(error) is TargetDivergedError
    assert "The target log of orders-0 has a foreign batch" in str(error)


def test_error_that_is_not_ours_is_quoted_by_its_last_line() -> None:
    error = original_error("Traceback\njava.lang.OutOfMemoryError: Java heap space\n\tat x")
    assert type(error) is TolerantClientError
    assert "java.lang.OutOfMemoryError: Java heap space" in str(error)


