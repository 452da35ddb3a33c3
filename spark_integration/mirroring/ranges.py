"""payload=ranges: rows say which partitions to copy, and the sink copies them on the executor.

The records never cross the JVM.  Read side: a stream with one row for each task, whose one column `ranges` has
(topic, partition, until_offset), exclusive; until_offset null means "and whatever arrives while the micro-batch lasts".
All rows are read in one Spark partition: repartitioned to as many partitions as there are tasks, each gets one.  Write
side: each task hands its ranges to the copier of its Python worker process (tolerant_client.mirror.worker).

Options of the read side: kafka.* (source), target.kafka.*, linkTopics (JSON of
mirror.topic_filter.LinkTopics) or subscribePattern (a regular expression), tasks
(default 1), tail (default false: Trigger.AvailableNow copies up to the ends of its start), refreshIntervalMs (default
30000), untilMs (with Trigger.AvailableNow: no record from the first one of that time on; default none), waiting (a file
on the driver that gets, when that changes, what cannot be copied now and why, as the `paused` of a
link_state.TaskReport; default none).
Options of the write side: kafka.* (target), source.kafka.*, link (default
"default"), offsets (identical, the default, or translated), producerId (for
identical offsets), linkTopics (where topics have other names on the target),
policy (JSON of mirror.losses.MirrorPolicy, default its defaults), run (the same for all tasks of one
mirror), bytesPerSecond (of the link, unless its operator
says another rate; default none), tasks (that share the link's rate, default 1), holdMs (default 0), leaseMs (default 0),
report (a file on the driver that gets, after each micro-batch, link_state.TaskReport as JSON; default none), goesOn
(default false).

Laws:
- A partition keeps its task from micro-batch to micro-batch.  Where Spark gives that task to another Python worker, the
  one hands the partition over to the other (link/claims.py).
- What is wrong with one topic or partition is told of it alone; the others go on, and it is looked at again.
- An error that no repeat cures is not raised by the task, which Spark would repeat, but by the commit: the other tasks
  bring their partitions to the end before.  With goesOn it is not raised at all but reported, as what the partition waits
  for, and the next micro-batch looks at it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from spark_integration.mirroring.link_events import sentence
from spark_integration.mirroring.link_state import TaskReport
from spark_integration.mirroring.ranges_scope import Scope
from spark_integration.security.kafka_config import kafka_python_config
from tolerant_client.errors import (
    DataLossError,
    LinkPromotedError,
    OffsetMapError,
    OptionError,
    OversizedRecordError,
    TargetClaimedError,
    TargetDivergedError,
    TolerantClientError,
    UnsupportedSourceError,
)
from tolerant_client.mirror.led_offsets import list_led_offsets, stable_ends
from tolerant_client.mirror.link.beginning import ends_at
from tolerant_client.mirror.link.claims import Waiting
from tolerant_client.mirror.losses import MirrorPolicy
from tolerant_client.mirror.sync import grow_link
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.mirror.worker import LinkConfig, copy_ranges, take_measures
from tolerant_client.raw import EARLIEST, RawCluster

_INCURABLE = (
    DataLossError,
    LinkPromotedError,
    OffsetMapError,
    OptionError,
    OversizedRecordError,
    TargetClaimedError,
    TargetDivergedError,
    UnsupportedSourceError,
)
_NO_TOPICS_S = 1.0
_LOOK_S = 30.0  # between two looks at the leaders


@dataclass
class CopiedRanges(WriterCommitMessage):
    """What one task did, and the error that ended it if no repeat cures it."""

    report: TaskReport = TaskReport()
    error: TolerantClientError | None = None


Range = tuple[str, int, int | None]  # topic, partition, until_offset


@dataclass
class RangesTask(InputPartition):
    """The ranges of every task."""

    rows: tuple[tuple[Range, ...], ...]

    def __init__(self, rows: tuple[tuple[Range, ...], ...]) -> None:
        super().__init__(rows)
        self.rows = rows


class RangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans what there is to copy; with `target.kafka.*` it also creates topics that appear.

    An offset is {"trigger": n}, the number of the micro-batch.  What each one copies is known here alone: a query of
    ranges is never started from a checkpoint, and thousands of offsets need not be written down for each micro-batch.
    In tail mode n moves on each time, so that tasks always run, else once.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {key.lower(): value for key, value in options.items()}
        self._configs = (_cluster(lowered, "kafka."), _cluster(lowered, "target.kafka."))
        self._clusters: tuple[RawCluster, RawCluster] | None = None
        topics = _topics(lowered)
        if topics is None:
            raise OptionError("payload=ranges needs subscribePattern, a regular expression over topic names, or linkTopics")
        self._topics = topics
        self._link, self._is_identical = lowered.get("link", "default"), _is_identical(lowered)
        self._tasks = _number(lowered, "tasks", 1)
        if self._tasks < 1:
            raise OptionError(f"tasks must be at least 1, not {self._tasks}")
        self._is_tail = lowered.get("tail", "false").lower() == "true"
        self._refresh_s = _number(lowered, "refreshIntervalMs", 30_000) / 1000
        self._until_ms = _number(lowered, "untilMs", 0) if "untilms" in lowered else None
        self._told = ReportFile(Path(lowered["waiting"])) if lowered.get("waiting") else None
        self._refreshed_at = self._looked_at = float("-inf")
        self._scope = Scope()
        self._made_again: dict[str, int] = {}
        self._task_of: Mapping[TopicPartition, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # executors get the reader for `read` alone, once for each micro-batch

    def initialOffset(self) -> dict[str, Any]:
        if not self._has_planned:  # else Trigger.AvailableNow has, and its ends are final
            self._refresh()
        return {"trigger": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._refresh()
        if self._until_ms is not None:
            source, _ = self._connected()
            self._scope = replace(self._scope, ends=source.run(ends_at, source, self._scope.ends, self._until_ms))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not self._is_tail:
            return {"trigger": 1}
        self._refresh()
        if not self._scope.ends:
            time.sleep(_NO_TOPICS_S)  # topics may appear; until then no task slows the micro-batches down
        return {"trigger": start["trigger"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        sizes: dict[Range, int] = {
            (*p, None if self._is_tail else until): self._scope.gained.get(p, 0)
            for p, until in self._scope.ends.items()
            if self._is_tail or until > 0  # also a log that is empty by now: the target has to get as far
        }
        self._task_of = dealt(sizes, self._tasks, self._task_of)
        rows = [tuple(r for r in sizes if self._task_of[TopicPartition(*r[:2])] == task) for task in range(self._tasks)]
        return [RangesTask(tuple(ranges for ranges in rows if ranges))] if sizes else []

    def read(self, partition: InputPartition) -> Iterator[tuple[list[Range]]]:
        assert isinstance(partition, RangesTask)
        return ((list(ranges),) for ranges in partition.rows)

    def stop(self) -> None:
        if self._clusters is not None:
            source, target = self._clusters
            target.close()
            source.close()

    def _connected(self) -> tuple[RawCluster, RawCluster]:
        if self._clusters is None:
            source = RawCluster(self._configs[0], name="source", names=self._topics.names)
            self._clusters = (source, RawCluster(self._configs[1], source.net, name="target"))
        return self._clusters

    def _refresh(self) -> None:
        """Looks for new topics and partitions, and creates them on the target; in between for leaders only."""
        now = time.monotonic()
        if now - self._refreshed_at >= self._refresh_s:
            self._take(self._planned())
            self._refreshed_at = self._looked_at = now
        elif now - self._looked_at >= _LOOK_S:
            source, _ = self._connected()
            self._take(self._scope.after_look(source.run(stable_ends, source, self._scope.led)))
            self._looked_at = now

    @property
    def _has_planned(self) -> bool:
        return self._refreshed_at > float("-inf")

    def _planned(self) -> Scope:
        source, target = self._connected()
        topics = self._topics if not self._has_planned else replace(self._topics, waits_for_topics=True)
        known = {p.topic for p in (*self._scope.ends, *self._scope.leaderless)}
        grow = partial(grow_link, is_identical=self._is_identical)
        planned = source.run(grow, source, target, topics, self._link, known)
        self._made_again |= dict.fromkeys(self._scope.made_again(planned), int(time.time() * 1000))
        copies = source.run(target.partitions, self._scope.lacking(planned))
        starts: Mapping[TopicPartition, int] = {}
        if not self._has_planned and self._tasks > 1:
            starts = source.run(list_led_offsets, source, dict.fromkeys(planned.ends, EARLIEST)).offsets
        return self._scope.after_plan(planned, copies, starts)

    def _take(self, scope: Scope) -> None:
        is_told = (scope.blocked, scope.leaderless) == (self._scope.blocked, self._scope.leaderless)
        if self._told is not None and not (is_told and self._told.read().made_again == self._made_again):
            now_ms, known = int(time.time() * 1000), self._told.read().waiting
            waiting = {p: Waiting(why, known[p].since_ms if p in known else now_ms) for p, why in scope.leaderless.items()}
            self._told.write(TaskReport(blocked=scope.blocked, waiting=waiting, made_again=self._made_again))
        self._scope = scope


class RangesStreamWriter(DataSourceStreamWriter):
    """Copies the ranges of its rows from source to target, at the same offsets."""

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {key.lower(): value for key, value in options.items()}
        is_identical = _is_identical(lowered)
        if is_identical and "producerid" not in lowered:
            raise OptionError("payload=ranges needs producerId, the link's producer id (tolerant_client.mirror.sync.prepare_link)")
        topics = _topics(lowered) or LinkTopics()
        self._link = LinkConfig(
            _cluster(lowered, "source.kafka."),
            _cluster(lowered, "kafka."),
            _number(lowered, "producerId", -1),
            link=lowered.get("link", "default"),
            policy=MirrorPolicy.from_json(lowered.get("policy", "{}")),
            is_translated=not is_identical,
            names=topics.names,
            bytes_per_s=_number(lowered, "bytesPerSecond", 0) or None,
            run=lowered.get("run", ""),
            shares=max(1, _number(lowered, "tasks", 1)),
        )
        self._hold_ms = _number(lowered, "holdMs", 0)
        self._lease_ms = _number(lowered, "leaseMs", 0)
        self._report = ReportFile(Path(lowered["report"])) if lowered.get("report") else None
        self._goes_on = lowered.get("goeson", "false").lower() == "true"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        until = {TopicPartition(r.topic, r.partition): r.until_offset for row in iterator for r in row.ranges}
        if not until:
            return CopiedRanges()
        hold_until = time.monotonic() + self._hold_ms / 1000
        try:
            copied = copy_ranges(self._link, until, hold_ms=self._hold_ms, lease_ms=self._lease_ms)
        except _INCURABLE as error:  # of the task as a whole
            if not self._goes_on or isinstance(error, LinkPromotedError):
                return CopiedRanges(error=error)
            time.sleep(max(0.0, hold_until - time.monotonic()))
            return CopiedRanges(TaskReport(blocked=dict.fromkeys(until, sentence(error))).measured(take_measures(self._link)))
        stopped = {p: why for p, done in copied.items() if (why := done.stopped_by) is not None}
        final = [why for why in stopped.values() if isinstance(why, LinkPromotedError if self._goes_on else _INCURABLE)]
        if not final:
            for why in stopped.values():
                if not isinstance(why, _INCURABLE):
                    raise why
            # Where all are paused the copier is done at once; Spark is not to plan one micro-batch after another then.
            time.sleep(max(0.0, hold_until - time.monotonic()))
        stopped_now = {} if final else stopped
        blocked = {p: why for p, done in copied.items() if done.is_paused and (why := done.blocked_by) is not None}
        paused = {p: why for p, done in copied.items() if (why := done.paused_by) is not None}
        report = TaskReport(
            troubles=sum(done.troubles for done in copied.values()),
            losses=sum(done.losses for done in copied.values()),
            filled=sum(done.filled for done in copied.values()),
            paused={p: sentence(why) for p, why in paused.items()},
            blocked={p: sentence(why) for p, why in {**blocked, **stopped_now}.items()},
            waiting={p: done.wait for p, done in copied.items() if done.wait is not None},
            acked={p: done.acked for p, done in copied.items() if done.is_placed},
        )
        return CopiedRanges(report.measured(take_measures(self._link)), final[0] if final else None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Adds to the report, and raises the first error that no repeat cures.

        Spark calls this on the driver, in a process of its own: hence the file.
        """
        done = [message for message in messages if isinstance(message, CopiedRanges)]
        if self._report is not None:
            self._report.write(self._report.read().plus([message.report for message in done], int(time.time() * 1000)))
        for message in done:
            if message.error is not None:
                raise message.error

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to undo: a repeated task goes on from the target's log."""


def dealt(
    sizes: Mapping[Range, int], tasks: int, before: Mapping[TopicPartition, int] = {}
) -> dict[TopicPartition, int]:
    """The task of each partition: the one that it had before, or else, the largest first, that which has least.  Pure."""
    found = {p: before[p] for r in sizes if (p := TopicPartition(*r[:2])) in before}
    load = [0] * tasks
    for r, size in sizes.items():
        if (p := TopicPartition(*r[:2])) in found:
            load[found[p]] += size + 1
    for r in sorted(sizes, key=lambda r: (-sizes[r], r[:2])):
        if (p := TopicPartition(*r[:2])) not in found:
            found[p] = load.index(min(load))
            load[found[p]] += sizes[r] + 1
    return found


class ReportFile:
    """A TaskReport in a file, by which processes of one host tell each other; read again only when it was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._report = TaskReport()

    def read(self) -> TaskReport:
        """What was written last; an empty report before that."""
        try:
            stat = self._path.stat()
            if (seen := (stat.st_ino, stat.st_mtime_ns)) != self._seen:
                self._report, self._seen = TaskReport.from_json(self._path.read_text()), seen
        except FileNotFoundError:
            pass
        return self._report

    def write(self, report: TaskReport) -> None:
        """Replaces the file at once: a reader finds the whole of it, or that of the micro-batch before."""
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text(report.to_json())
        beside.replace(self._path)


def _topics(lowered: Mapping[str, str]) -> LinkTopics | None:
    if text := lowered.get("linktopics"):
        return LinkTopics.from_json(text)
    pattern = lowered.get("subscribepattern")
    return LinkTopics.of(pattern) if pattern else None


def _is_identical(lowered: Mapping[str, str]) -> bool:
    offsets = lowered.get("offsets", "identical")
    if offsets not in ("identical", "translated"):
        raise OptionError(f"offsets must be identical or translated, not {offsets!r}")
    return offsets == "identical"


def _cluster(lowered: Mapping[str, str], prefix: str) -> dict[str, Any]:
    java = {key.removeprefix(prefix): value for key, value in lowered.items() if key.startswith(prefix)}
    if not java.get("bootstrap.servers"):
        raise OptionError(f"payload=ranges needs {prefix}bootstrap.servers")
    return kafka_python_config(java)


def _number(lowered: Mapping[str, str], name: str, default: int) -> int:
    text = lowered.get(name.lower(), str(default))
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not {text!r}") from None
