"""What the mirror's tasks report to the driver, and the driver to the operator; no broker, no Spark running."""

from __future__ import annotations

import pickle
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition

from spark_integration.mirror import stream_ranges
from spark_integration.mirror.mirror_job import original_error
from spark_integration.mirror.stream_ranges import RangesMessage, RangesStreamReader, RangesStreamWriter
from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.errors import (
    ClusterUnreachableError,
    DataLossError,
    LinkPausedError,
    LinkPromotedError,
    OffsetMapError,
    OversizedRecordError,
    PartitionRefusedError,
    RecoveryExhaustedError,
    SourceTruncatedError,
    TargetDivergedError,
    TolerantClientError,
)
from tolerant_client.mirror.engine.copy_metrics import Copied, Measured
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.life.lens import SourceEnds
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.server import StatusServer
from tolerant_client.ops.monitoring.watch import LinkWatch
from tolerant_client.ops.service import local_job, ranges
from tolerant_client.ops.service.link_state import LeftOut, Phase, TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.ranges import CopiedRanges
from tolerant_client.ops.service.standing import FORGOTTEN_MS, Away, Standing, carried
from tolerant_client.ops.service.task_reports import ReportFile, RunReport

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
PROPERTIES = {"bootstrap.servers": "127.0.0.1:1"}
ONCE = MirrorSettings({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, "orders", once=True)
WRITE = MirrorJob(ONCE, 7).options
MEASURED = Measured({FIRST: Copied(10, 100)}, (1,) + (0,) * 14, {"lost": 1})
GONE = DataLossError("orders-0: offsets 5 to 9 are gone")


class Row(NamedTuple):
    topic: str
    partition: int
    until_offset: int | None


def progress(paused: TolerantClientError | None = None, stopped: TolerantClientError | None = None) -> Progress:
    return Progress(10, 10, 100, 0, 0, 0, paused is not None, paused or stopped)


def write(monkeypatch: pytest.MonkeyPatch, outcome: Any, settings: MirrorSettings = ONCE) -> CopiedRanges:
    """The message that the driver gets from a task whose copier returns or raises `outcome`."""

    def copy_ranges(*_: object, **__: object) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(ranges, "copy_ranges", copy_ranges)
    monkeypatch.setattr(ranges, "take_measures", lambda link: MEASURED)
    message = RangesStreamWriter(MirrorJob(settings, 7).options).write(
        iter([SimpleNamespace(ranges=[Row("orders", 0, 10), Row("orders", 1, 10)])])
    )
    travelled = pickle.loads(pickle.dumps(message))
    assert isinstance(travelled, RangesMessage)
    return travelled.copied


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
    message = write(monkeypatch, {FIRST: progress(), SECOND: progress(stopped=error)})
    assert message.report.blocked == {} and message.report.records == 10  # what the others did is told
    with pytest.raises(type(error)) as raised:
        RangesStreamWriter(WRITE).commit([RangesMessage(CopiedRanges()), None, RangesMessage(message)], 0)
    assert str(raised.value) == str(error)
    text = f"Traceback\ntolerant_client.errors.{type(error).__name__}: {error}\n\tat java"
    assert type(original_error(text)) is type(error)


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("error", [TolerantClientError("lost"), ClusterUnreachableError("away")])
def test_what_a_retry_may_cure_is_repeated_by_the_next_micro_batches_and_raised_by_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: TolerantClientError, goes_on: bool
) -> None:
    settings = replace(ONCE, goes_on=goes_on)
    writer = RangesStreamWriter(MirrorJob(settings, 7, str(tmp_path)).options)
    reader = RangesStreamReader(MirrorJob(settings, 7, str(tmp_path)).options)
    pauses: list[float] = []
    offset = reader.latestOffset({"trigger": 0}, None)  # type: ignore[arg-type]  # it takes no limit
    monkeypatch.setattr(stream_ranges, "time", SimpleNamespace(sleep=pauses.append))
    for outcome in (error, {FIRST: progress(), SECOND: progress(stopped=error)}):
        failed = RangesMessage(write(monkeypatch, outcome, settings))
        for _ in range(9):
            writer.commit([failed, RangesMessage(CopiedRanges())], 0)
            assert reader.latestOffset(offset, None) == {"trigger": 2}  # type: ignore[arg-type]
        with pytest.raises(type(error), match=str(error)):
            writer.commit([failed], 0)
        assert pauses == [1, 2, 3, 3, 3, 3, 3, 3, 3]
        pauses.clear()
        writer.commit([RangesMessage(CopiedRanges())], 0)
        assert pauses == []
        assert reader.latestOffset(offset, None) == offset  # type: ignore[arg-type]


@pytest.mark.parametrize("once", [False, True])
def test_a_copy_up_to_the_ends_of_its_start_leaves_what_has_outlasted_the_patience(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, once: bool
) -> None:
    """Ten times the patience would be 20 minutes for a partition without a leader; a mirror that runs on tries again."""
    lost = RecoveryExhaustedError("orders-1: no progress for 120 s at offset 10", ["NotLeader"])
    settings = replace(ONCE, once=once, hold_ms=0)
    writer = RangesStreamWriter(MirrorJob(settings, 7, str(tmp_path)).options)
    found = write(monkeypatch, {FIRST: progress(), SECOND: progress(stopped=lost)}, settings)
    assert writer.settle([found]) == (None if once else (lost, 1))
    told = RunReport(tmp_path).read()
    assert {p: wait.reason for p, wait in told.waiting.items()} == (
        {SECOND: "no progress for 120 s at offset 10; NotLeader"} if once else {}
    )
    assert told.acked == {FIRST: 10, SECOND: 10} and told.is_repeating != once


@pytest.mark.parametrize("is_whole_task", [False, True])
def test_what_is_paused_or_blocked_stays_so_while_another_partition_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_whole_task: bool
) -> None:
    """Groups and configurations of a partition that is forgotten to be blocked would be synced."""
    settings = replace(ONCE, goes_on=True)
    writer = RangesStreamWriter(MirrorJob(settings, 7, str(tmp_path)).options)
    monkeypatch.setattr(stream_ranges, "time", SimpleNamespace(sleep=lambda seconds: None))
    diverged, lost = TargetDivergedError("orders-0 has records of others"), TolerantClientError("no progress")
    found: dict[TopicPartition, Progress] = {
        FIRST: progress(stopped=diverged),
        SECOND: progress(LinkPausedError("by an operator")),
    }
    writer.commit([RangesMessage(write(monkeypatch, found, settings))], 0)
    for _ in range(3):
        outcome = lost if is_whole_task else {**found, SECOND: progress(stopped=lost)}
        writer.commit([RangesMessage(write(monkeypatch, outcome, settings))], 0)
        report = RunReport(tmp_path).read()
        assert report.repeats and report.blocked.keys() == {FIRST} and report.paused.keys() == {SECOND}
    writer.commit([RangesMessage(write(monkeypatch, {FIRST: progress(), SECOND: progress()}, settings))], 0)
    report = RunReport(tmp_path).read()
    assert not report.blocked and not report.paused


@pytest.mark.parametrize("has_spark", [False, True])
def test_what_is_copied_again_and_again_is_planned_again_since_that_may_be_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_spark: bool
) -> None:
    """A topic that the target has lost, for example: the planner creates it."""
    job, told = MirrorJob(replace(ONCE, once=False), 7, str(tmp_path)), list[str]()
    RunReport(tmp_path).done.write(TaskReport(repeats=3))
    if has_spark:
        reader = RangesStreamReader(job.options)
        monkeypatch.setattr(reader, "look", lambda: told.append("planned"))
        assert reader.latestOffset({"trigger": 4}, None) == {"trigger": 5}  # type: ignore[arg-type]
    else:
        batches: Any = local_job._Batches(job)
        batches.stopped = SimpleNamespace(wait=lambda seconds: None, is_set=lambda: bool(told))
        batches._planner = SimpleNamespace(
            begin=lambda is_final: None, tasks=lambda: [], look=lambda: told.append("planned"), stop=lambda: None
        )
        batches._copier = SimpleNamespace(settle=lambda done: ranges.Repeat(GONE, 1))
        batches.run()
        assert batches.error is None
    assert told == ["planned"]


def test_what_was_copied_again_is_neither_paused_nor_blocked_any_more() -> None:
    before = TaskReport(paused={FIRST: "by an operator"}, blocked={SECOND: "foreign"}, remedies={SECOND: "delete it"})
    now = TaskReport(latest={FIRST: Copied(3, 30), SECOND: Copied()}).besides(before)
    assert (now.paused, now.blocked, now.remedies) == ({}, before.blocked, before.remedies)
    now = TaskReport(latest={SECOND: Copied(1, 9)}).besides(before)
    assert (now.paused, now.blocked, now.remedies) == (before.paused, {}, {})


def test_a_repeat_lasts_long_enough_to_find_again_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else health flaps between blocked and healthy, and the tenth repeat never comes."""
    held: list[int] = []

    def copy_ranges(*_: object, hold_ms: int, lease_ms: int) -> Any:
        held.append(hold_ms)
        return {FIRST: progress(stopped=None if len(held) == 2 else RecoveryExhaustedError("refused"))}

    monkeypatch.setattr(ranges, "copy_ranges", copy_ranges)
    monkeypatch.setattr(ranges, "take_measures", lambda link: MEASURED)
    monkeypatch.setattr(ranges, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None, time=time.time))
    copier = ranges.RangesCopier(MirrorJob(replace(ONCE, once=False, hold_ms=1_000), 7, str(tmp_path)))
    for _ in range(3):
        copier.settle([copier.copy({FIRST: None})])
    assert held == [1_000, 5_000, 1_000]


def test_errors_that_are_not_ours_are_left_to_spark_to_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="socket"):
        write(monkeypatch, OSError("socket"))


@pytest.mark.parametrize("has_spark", [False, True])
def test_a_mirror_names_what_is_refused_while_it_still_tries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_spark: bool
) -> None:
    refused = PartitionRefusedError("orders-1: append was refused").advising("grant Write on topic orders")
    told: list[dict[TopicPartition, str]] = []
    attempts = iter([SECOND, FIRST, None])  # each attempt may be over before it has found both

    def copy_ranges(*_: object, **__: object) -> Any:
        at = next(attempts)
        return {p: progress(stopped=refused if p == at else None) for p in (FIRST, SECOND)}

    def wait(seconds: float) -> None:
        told.append(dict(RunReport(tmp_path).read().blocked))

    monkeypatch.setattr(ranges, "copy_ranges", copy_ranges)
    monkeypatch.setattr(ranges, "take_measures", lambda link: MEASURED)
    job = MirrorJob(ONCE, 7, str(tmp_path))
    if has_spark:
        monkeypatch.setattr(stream_ranges, "time", SimpleNamespace(sleep=wait))
        for _ in range(3):
            writer = RangesStreamWriter(job.options)
            writer.commit(
                [writer.write(iter([SimpleNamespace(ranges=[Row("orders", 0, 10), Row("orders", 1, 10)])]))], 0
            )
    else:
        batches: Any = local_job._Batches(job)
        batches.stopped = SimpleNamespace(wait=wait, is_set=lambda: False)
        batches._planner = SimpleNamespace(
            begin=lambda is_final: None,
            tasks=lambda: [(("orders", 0, 10), ("orders", 1, 10))],
            stop=lambda: None,
        )
        batches.run()
        assert batches.error is None
    why = "orders-1: append was refused; grant Write on topic orders"
    assert told == [{SECOND: why}, {FIRST: why, SECOND: why}]
    assert RunReport(tmp_path).read().blocked == {}


def test_a_link_that_goes_on_names_each_stopped_partition_with_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    diverged = TargetDivergedError("orders-1: foreign").advising("Stop that writer")
    stopped = {FIRST: progress(stopped=GONE), SECOND: progress(stopped=diverged)}
    message = write(monkeypatch, stopped, replace(ONCE, goes_on=True))
    assert message.error is None
    assert message.report.blocked == {
        FIRST: "orders-0: offsets 5 to 9 are gone",
        SECOND: "orders-1: foreign. Stop that writer",
    }
    assert message.report.remedies == {FIRST: "", SECOND: "Stop that writer"} and message.report.records == 10
    assert TaskReport().plus([message.report], 1).remedies == message.report.remedies


def test_an_error_of_a_whole_task_is_told_of_all_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    message = write(monkeypatch, OffsetMapError("the map is gone"), replace(ONCE, goes_on=True))
    assert message.report.blocked == {FIRST: "the map is gone", SECOND: "the map is gone"}


def test_a_promoted_link_ends_also_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    promoted = LinkPromotedError("promoted")
    for outcome in (promoted, {FIRST: progress(stopped=GONE), SECOND: progress(stopped=promoted)}):
        assert isinstance(write(monkeypatch, outcome, replace(ONCE, goes_on=True)).error, LinkPromotedError)


def test_partitions_that_the_reader_leaves_out_are_in_the_report_of_the_query(tmp_path: Path) -> None:
    report = RunReport(tmp_path)
    tasks, waiting = report.done, report.waiting
    assert report.read() == TaskReport()
    leaderless = {FIRST: Waiting("it has no leader", 5)}
    waiting.write(TaskReport(blocked={SECOND: "refused"}, waiting=leaderless))
    assert report.read() == TaskReport(blocked={SECOND: "refused"}, waiting=leaderless)
    tasks.write(TaskReport(7, 3, blocked={FIRST: "gone"}))
    assert report.read() == TaskReport(7, 3, blocked={FIRST: "gone", SECOND: "refused"}, waiting=leaderless)
    waiting.write(TaskReport())
    assert report.read() == TaskReport(7, 3, blocked={FIRST: "gone"})


def test_what_does_not_move_is_paused_blocked_or_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = progress()._replace(wait=Waiting("append answered NotEnoughReplicasError", 5))
    told = write(monkeypatch, {FIRST: progress(LinkPausedError("by an operator")), SECOND: waits}).report
    assert told.paused == {FIRST: "by an operator"}
    assert (told.blocked, told.waiting) == ({}, {SECOND: Waiting("append answered NotEnoughReplicasError", 5)})


def test_what_stands_still_is_news_once_and_again_when_it_moves() -> None:
    standing, at = Standing(), {FIRST: 1, SECOND: 1}
    quiet = TaskReport(acked=at)
    waits = replace(quiet, waiting={FIRST: Waiting("no replicas", 5), SECOND: Waiting("no replicas", 6)})
    assert standing.news(quiet, at, 0) == []
    assert standing.news(waits, at, 1) == ["waiting: orders-0 and 1 more of its partitions: no replicas"]
    assert standing.news(waits, at, 2) == []
    assert standing.news(quiet, {FIRST: 2, SECOND: 2}, 3) == ["copying again: orders-0 and 1 more partition"]
    assert standing.news(waits, at, 4) == ["waiting: orders-0 and 1 more of its partitions: no replicas"]
    assert standing.news(replace(waits, blocked={FIRST: "foreign"}), at, 5) == ["blocked: orders-0: foreign"]


def test_a_partition_that_a_new_task_has_taken_over_does_not_move_before_it_was_copied_further() -> None:
    standing, at = Standing(), {FIRST: 1}
    waits = TaskReport(acked=at, waiting={FIRST: Waiting("no replicas", 5)})
    assert len(standing.news(waits, at, 0)) == 1
    for now_ms in range(0, 200_000, 10_000):  # each task says so as soon as it has waited for 10 s
        assert standing.news(TaskReport(acked=at), at, now_ms) == standing.news(waits, at, now_ms + 5_000) == []
    assert standing.news(TaskReport(acked=at), at, 190_000) == [] and standing.waits(FIRST)
    assert standing.news(TaskReport(), {FIRST: 2}, 200_000) == ["copying again: orders-0"]
    unplaced = TaskReport(waiting={FIRST: Waiting("no leader", 5)})
    assert standing.news(unplaced, {}, 200_000) == ["waiting: orders-0: no leader"]
    assert standing.news(TaskReport(acked=at), at, 210_000) == []  # where it stands is known now, no more
    assert standing.news(TaskReport(), {FIRST: 2}, 220_000) == ["copying again: orders-0"]
    assert standing.news(waits, at, 230_000) and standing.news(TaskReport(), at, 230_000 + FORGOTTEN_MS + 1) == []
    assert standing.news(waits, at, 900_000) == ["waiting: orders-0: no replicas"]


@pytest.mark.parametrize("kind", ["blocked", "paused"])
def test_what_was_blocked_or_paused_is_told_once_to_be_copied_again(kind: str) -> None:
    standing, stands = Standing(), TaskReport(acked={FIRST: 4}, **{kind: {FIRST: "orders-0: too large"}})
    assert standing.news(stands, {FIRST: 4}, 0) == [f"{kind}: orders-0: too large"]
    assert standing.news(TaskReport(), {FIRST: 4}, 1) == []  # a new task that has not looked yet
    assert standing.news(stands, {FIRST: 4}, 2) == [f"{kind}: orders-0: too large"]
    free = TaskReport(acked={FIRST: 5})
    assert standing.news(free, {FIRST: 5}, 3) == ["copying again: orders-0"]
    assert standing.news(free, {FIRST: 6}, 4) == [] and not standing.waits(FIRST)
    refused = TaskReport(**{kind: {FIRST: "Link X copies into it"}})
    assert standing.news(refused, {FIRST: 9}, 5) == [f"{kind}: orders-0: Link X copies into it"]
    assert standing.news(TaskReport(), {FIRST: 10}, 6) == []  # another link has written
    assert standing.news(TaskReport(acked={FIRST: 0}), {FIRST: 10}, 7) == ["copying again: orders-0"]


def test_what_was_blocked_and_waits_then_is_told_to_wait_and_once_to_be_copied_again() -> None:
    standing, at = Standing(), {FIRST: 4}
    standing.news(TaskReport(blocked={FIRST: "too large"}), at, 0)
    waits = TaskReport(waiting={FIRST: Waiting("no replicas", 5)})
    assert standing.news(waits, at, 1) == ["waiting: orders-0: no replicas"]
    assert standing.news(TaskReport(), {FIRST: 5}, 2) == ["copying again: orders-0"]


def test_a_target_topic_that_was_made_again_is_told_each_time(tmp_path: Path) -> None:
    standing, report = Standing(), RunReport(tmp_path)
    rounds: list[tuple[dict[str, int], int]] = [({}, 0), ({"orders": 5}, 1), ({"orders": 5}, 0), ({"orders": 9}, 1)]
    for made, lines in rounds:
        report.waiting.write(TaskReport(made_again=made))
        found = report.read()
        assert found.made_again == found.plus([], 1).made_again == made
        told = standing.news(found, {}, 10)
        assert len(told) == lines and all("created again: topic orders was deleted" in text for text in told)
    assert standing.news(TaskReport(), {}, 11) == []


def test_a_cluster_that_gets_worse_is_told_anew_and_nothing_is_over_while_nobody_looks() -> None:
    """1. One partition has no usable leader: reported.  2. The broker of many freezes.  3. The cluster does.  4. All is well."""
    away, one, many = Away(), {"source": LeftOut(1, "a-0: no leader")}, {"source": LeftOut(300, "a-0: no leader")}
    assert away.news({}, one, 0) == []
    assert away.news({}, one, 6_000) == [
        "unknown: the source has partitions that cannot be checked: 1 of them, a-0: no leader"
    ]
    assert away.news({}, one, 7_000) == []
    assert away.news({}, many, 8_000) == [
        "unknown: the source has partitions that cannot be checked: 300 of them, a-0: no leader"
    ]
    assert away.news({}, one, 9_000) == []
    assert len(away.news({}, many, 10_000)) == 1, "the broker has frozen again"
    assert away.news({"source": "no response"}, {}, 11_000) == [
        "unknown: the source cluster does not respond: no response"
    ]
    assert away.news({"source": "no response"}, {}, 20_000) == []
    assert away.news({}, {}, 21_000) == ["over: the source cluster does not respond"]
    assert away.news({}, one, 22_000) == []


def test_what_waits_has_waited_since_it_stands_however_many_tasks_have_had_it() -> None:
    before, at = {FIRST: Waiting("no replicas", 5), SECOND: Waiting("no replicas", 6)}, {FIRST: 1, SECOND: 1}
    now = TaskReport(acked={FIRST: 1, SECOND: 2}, waiting={p: Waiting("no leader", 50) for p in before})
    assert carried(before, now, at) == {FIRST: Waiting("no leader", 5), SECOND: Waiting("no leader", 50)}
    assert carried({}, now, {}) == now.waiting


def test_a_report_is_read_again_only_when_it_was_replaced(tmp_path: Path) -> None:
    file = ReportFile(tmp_path / "report")
    file.write(TaskReport(1))
    first = file.read()
    assert file.read() is first
    file.write(TaskReport(2))
    assert file.read() == TaskReport(2)


def test_blocked_partitions_reach_the_report_with_their_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = RunReport(tmp_path).done
    assert report.read().blocked == {}
    message = write(monkeypatch, {FIRST: progress(GONE), SECOND: progress()})
    writer = RangesStreamWriter(MirrorJob(ONCE, 7, str(tmp_path)).options)
    writer.commit([RangesMessage(message), RangesMessage(CopiedRanges())], 0)
    assert report.read().blocked == {FIRST: "orders-0: offsets 5 to 9 are gone"}
    writer.commit([RangesMessage(CopiedRanges())], 1)
    assert report.read().blocked == {}


def test_what_is_blocked_stays_so_until_the_next_copier_has_read_its_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under a quota of the source that takes longer than a micro-batch."""
    report = RunReport(tmp_path).done
    writer = RangesStreamWriter(MirrorJob(ONCE, 7, str(tmp_path)).options)
    unread = progress()._replace(is_placed=False, acked=-1, records=0, bytes=0)
    waits = unread._replace(wait=Waiting("no leader", 5))
    for batch, (now, is_blocked) in enumerate(
        [(progress(GONE), True), (unread, True), (unread, True), (waits, False), (unread, False)]
        + [(progress(GONE), True), (progress(), False), (unread, False)]
    ):
        message = write(monkeypatch, {FIRST: unread, SECOND: now})
        writer.commit([RangesMessage(message), RangesMessage(CopiedRanges())], batch)
        assert set(report.read().blocked) == ({SECOND} if is_blocked else set()), batch


def test_blocked_partitions_are_told_even_if_another_one_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = RunReport(tmp_path).done
    foreign = {FIRST: progress(stopped=TargetDivergedError("foreign"))}
    messages = [write(monkeypatch, {SECOND: progress(GONE)}), write(monkeypatch, foreign)]
    with pytest.raises(TargetDivergedError):
        RangesStreamWriter(MirrorJob(ONCE, 7, str(tmp_path)).options).commit(
            [RangesMessage(message) for message in messages], 0
        )
    assert list(report.read().blocked) == [SECOND]


def test_task_of_nothing_but_paused_partitions_lasts_as_long_as_its_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(ranges.time, "sleep", slept.append)
    write(monkeypatch, {FIRST: progress(GONE)}, replace(ONCE, once=False))
    assert slept == [pytest.approx(10, abs=1)]


# -- from the driver to the operator ------------------------------------------


class Target:
    """The clusters of a watch that does not ask the source; `ends` are the target's log ends."""

    def __init__(self, ends: Mapping[TopicPartition, int], failure: Exception | None) -> None:
        self._ends = ends
        self._failure = failure

    def target_ends(self, partitions: object) -> LedOffsets:
        return LedOffsets(dict(self._ends), {})

    def source_ends(self, partitions: object) -> SourceEnds:
        return SourceEnds({FIRST: 10, SECOND: 10}, {FIRST: 10, SECOND: 10}, {})

    def control(self) -> LinkControl:
        return LinkControl()

    def oldest_ms(self, positions: object) -> dict[TopicPartition, int]:
        return {}

    def bytes_per_offset(self, partitions: object, ends: object) -> dict[TopicPartition, float]:
        return {}

    def ledger(self) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return []

    def close(self) -> None:
        pass


class Watch(LinkWatch):
    """A watch of two partitions with ends 10 and 10; `target` are the target's log ends."""

    def __init__(
        self, target: Mapping[TopicPartition, int], *, board: Board | None = None, failure: Exception | None = None
    ) -> None:
        settings = MirrorSettings(PROPERTIES, PROPERTIES, "orders", once=True)
        super().__init__(settings, {FIRST: 10, SECOND: 10}, is_shown=False, board=board)
        self._open = partial(Target, target, failure)  # type: ignore[assignment]


def test_a_partition_that_is_ahead_does_not_hide_one_that_is_behind() -> None:
    with Watch({FIRST: 4, SECOND: 100}) as watch:
        pass
    assert watch.behind == [FIRST]
    with Watch({FIRST: 10, SECOND: 100}) as watch:
        pass
    assert watch.behind == []


def test_pause_is_printed_when_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    with Watch({FIRST: 4, SECOND: 10}) as watch:
        both = {FIRST: "both", SECOND: "both"}
        more = {FIRST: "why", SECOND: "too [bold]"}
        for paused in ({}, {FIRST: "why"}, {FIRST: "why"}, more, {}, {FIRST: "again"}, {}, both):
            watch.tell(TaskReport(paused=paused))
    assert capsys.readouterr().err.splitlines() == [
        "tolerant-kafka: paused: orders-0: why",
        "tolerant-kafka: paused: orders-1: too [bold]",
        "tolerant-kafka: paused: orders-0: again",
        "tolerant-kafka: paused: orders-0 and 1 more of its partitions: both",
    ]


def test_metrics_count_blocked_partitions_by_topic() -> None:
    board = Board()
    with StatusServer(board, "127.0.0.1:0") as server, Watch({FIRST: 4, SECOND: 10}, board=board) as watch:

        def counted() -> str:
            watch.tell_phase(Phase.RUNNING)  # shows what is known
            with urllib.request.urlopen(f"{server.url}metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            return next(str(line) for line in lines if line.startswith("tolerant_mirror_blocked_partitions{"))

        watch.tell(TaskReport(1, blocked={FIRST: "why", SECOND: "why"}))
        assert counted() == 'tolerant_mirror_blocked_partitions{link="default",topic="orders"} 2.0'
        watch.tell(TaskReport(2))
        assert counted() == 'tolerant_mirror_blocked_partitions{link="default",topic="orders"} 0.0'


def test_error_of_the_mirror_is_shown_rather_than_that_of_its_ledger() -> None:
    with pytest.raises(DataLossError):
        with Watch({FIRST: 10, SECOND: 10}, failure=ClusterUnreachableError("gone")):
            raise GONE
