"""What tasks of the mirror tell the driver, and what the driver tells the operator; no broker, no Spark running."""

from __future__ import annotations

import pickle
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition

from spark_integration.mirroring import ranges
from spark_integration.mirroring.link_state import TaskReport
from spark_integration.mirroring.mirror_job import original_error
from spark_integration.mirroring.ranges import CopiedRanges, RangesStreamReader, RangesStreamWriter, read_report
from spark_integration.mirroring.watch import LinkWatch
from tolerant_client.errors import (
    ClusterUnreachableError,
    DataLossError,
    OversizedRecordError,
    RecoveryExhaustedError,
    SourceTruncatedError,
    TargetDivergedError,
    TolerantClientError,
)
from tolerant_client.mirror.limits import Progress
from tolerant_client.mirror.measures import Copied, Measured

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
PROPERTIES = {"bootstrap.servers": "127.0.0.1:1"}
READ = {"kafka.bootstrap.servers": "a:1", "target.kafka.bootstrap.servers": "b:1", "subscribePattern": "orders.*"}
WRITE = {"kafka.bootstrap.servers": "b:1", "source.kafka.bootstrap.servers": "a:1", "producerId": "7"}
MEASURED = Measured({FIRST: Copied(10, 100)}, (1,) + (0,) * 14, {"lost": 1})
GONE = DataLossError("orders-0: offsets 5 to 9 are gone")


class Row(NamedTuple):
    topic: str
    partition: int
    from_offset: int
    until_offset: int | None


def progress(paused: TolerantClientError | None = None) -> Progress:
    return Progress(10, 10, 100, 0, 0, 0, paused is not None, paused)


def write(monkeypatch: pytest.MonkeyPatch, outcome: Any, **options: str) -> CopiedRanges:
    """The message of a task, as it comes to the driver, whose copier returns or raises `outcome`."""

    def copy_ranges(*_: object, **__: object) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(ranges, "copy_ranges", copy_ranges)
    monkeypatch.setattr(ranges, "take_measures", lambda link: MEASURED)
    message = RangesStreamWriter({**WRITE, **options}).write(iter([Row("orders", 0, 0, 10), Row("orders", 1, 0, 10)]))
    copied = pickle.loads(pickle.dumps(message))
    assert isinstance(copied, CopiedRanges)
    return copied


# -- what is planned ----------------------------------------------------------


def test_once_plans_a_log_that_is_empty_but_starts_later_since_the_target_has_to_get_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = RangesStreamReader(READ)
    ends = {"orders": {"0": 40, "1": 0, "2": 50}}
    monkeypatch.setattr(reader, "_ends", lambda: ends)
    start = {"offsets": {"orders": {"0": 40, "1": 0, "2": 30}}, "trigger": 0}
    end = reader.latestOffset(start, None)  # type: ignore[arg-type]
    assert end != start  # or else Spark runs no micro-batch
    (task,) = reader.partitions(start, end)
    assert list(reader.read(task)) == [("orders", 2, 30, 50), ("orders", 0, 40, 40)]
    assert reader.latestOffset(end, None) == end  # type: ignore[arg-type]  # and the next one has nothing to do


# -- from tasks to the driver -------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        GONE,
        SourceTruncatedError("the source was truncated"),
        TargetDivergedError("a foreign batch"),
        OversizedRecordError("too large", 7, 2000, 1000),
    ],
)
def test_error_that_no_repeat_cures_is_raised_once_by_the_commit(
    monkeypatch: pytest.MonkeyPatch, error: TolerantClientError
) -> None:
    message = write(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        RangesStreamWriter(WRITE).commit([CopiedRanges(), None, message], 0)
    assert str(raised.value) == str(error)
    text = f"Traceback\ntolerant_client.errors.{type(error).__name__}: {error}\n\tat java"
    assert type(original_error(text)) is type(error)


@pytest.mark.parametrize("error", [RecoveryExhaustedError("lost"), ClusterUnreachableError("away"), OSError("socket")])
def test_other_errors_are_left_to_spark_to_repeat(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(type(error)):
        write(monkeypatch, error)


def test_paused_partitions_reach_the_report_with_their_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = tmp_path / "paused.json"
    assert read_report(report).paused == {}
    message = write(monkeypatch, {FIRST: progress(GONE), SECOND: progress()})
    writer = RangesStreamWriter({**WRITE, "report": str(report)})
    writer.commit([message, CopiedRanges()], 0)
    assert read_report(report).paused == {FIRST: "orders-0: offsets 5 to 9 are gone"}
    writer.commit([CopiedRanges()], 1)
    assert read_report(report).paused == {}


def test_paused_partitions_are_told_even_if_another_one_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = tmp_path / "paused.json"
    messages = [write(monkeypatch, {SECOND: progress(GONE)}), write(monkeypatch, TargetDivergedError("foreign"))]
    with pytest.raises(TargetDivergedError):
        RangesStreamWriter({**WRITE, "report": str(report)}).commit(list(messages), 0)
    assert list(read_report(report).paused) == [SECOND]


def test_task_of_nothing_but_paused_partitions_lasts_as_long_as_its_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(ranges.time, "sleep", slept.append)
    write(monkeypatch, {FIRST: progress(GONE)}, holdMs="10000")
    assert slept == [pytest.approx(10, abs=1)]


# -- from the driver to the operator ------------------------------------------


class Watch(LinkWatch):
    """A watch of two partitions with ends 10 and 10; `target` says how far the target has come."""

    def __init__(self, target: Mapping[TopicPartition, int], *, metrics: str | None = None) -> None:
        super().__init__(
            PROPERTIES, PROPERTIES, {FIRST: 10, SECOND: 10}, "default", is_once=True, is_shown=False, metrics=metrics
        )
        self.target = target
        self.failure: Exception | None = None

    def _read(self, cluster: Any) -> dict[TopicPartition, int]:
        return dict(self.target)

    def _quietly(self, read: Any, *arguments: Any) -> Any:
        return None

    def _read_ledger(self) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        return []


def test_a_partition_that_is_ahead_does_not_hide_one_that_is_behind() -> None:
    with Watch({FIRST: 4, SECOND: 100}) as watch:
        pass
    assert watch.behind == [FIRST]
    with Watch({FIRST: 10, SECOND: 100}) as watch:
        pass
    assert watch.behind == []


def test_pause_is_printed_when_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    with Watch({FIRST: 4, SECOND: 10}) as watch:
        for paused in ({}, {FIRST: "why"}, {FIRST: "why"}, {FIRST: "why", SECOND: "too [bold]"}, {}, {FIRST: "again"}):
            watch.tell(TaskReport(paused=paused))
    assert capsys.readouterr().err.splitlines() == [
        "tolerant-kafka: paused: orders-0: why",
        "tolerant-kafka: paused: orders-1: too [bold]",
        "tolerant-kafka: paused: orders-0: again",
    ]


def test_metrics_count_paused_partitions_by_topic() -> None:
    with Watch({FIRST: 4, SECOND: 10}, metrics="127.0.0.1:0") as watch:

        def counted() -> str:
            watch._look()
            with urllib.request.urlopen(f"{watch.url}metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            return next(str(line) for line in lines if line.startswith("tolerant_mirror_paused_partitions{"))

        watch.tell(TaskReport(1, paused={FIRST: "why", SECOND: "why"}))
        assert counted() == 'tolerant_mirror_paused_partitions{link="default",topic="orders"} 2.0'
        watch.tell(TaskReport(2))
        assert counted() == 'tolerant_mirror_paused_partitions{link="default",topic="orders"} 0.0'


def test_ledger_that_cannot_be_read_at_the_end_is_an_error() -> None:
    with pytest.raises(TolerantClientError, match="Copying has ended, but .* gone;"):
        with Watch({FIRST: 10, SECOND: 10}) as watch:
            watch.failure = ClusterUnreachableError("gone")


def test_error_of_the_mirror_is_shown_rather_than_that_of_its_ledger() -> None:
    with pytest.raises(DataLossError):
        with Watch({FIRST: 10, SECOND: 10}) as watch:
            watch.failure = ClusterUnreachableError("gone")
            raise GONE
