"""payload=ranges: rows say which offsets to copy, and the sink copies them on the executor.

The records never cross the JVM.  Read side: a stream of rows (topic, partition,
from_offset, until_offset), half-open; until_offset null means "and whatever
arrives while the micro-batch lasts".  Write side: each task hands its rows to
the copier of its Python worker process (tolerant_client.mirror.worker).

Options of the read side: kafka.* (source), target.kafka.*, linkTopics (JSON of
mirror.topic_filter.LinkTopics) or subscribePattern (a regular expression), tasks
(default 1), tail (default false), refreshIntervalMs (default 30000), untilMs (with
Trigger.AvailableNow: no record from the first one of that time on; default none).
Options of the write side: kafka.* (target), source.kafka.*, link (default
"default"), offsets (identical, the default, or translated), producerId (for
identical offsets), linkTopics (where topics have other names on the target),
policy (JSON of mirror.losses.MirrorPolicy, default its defaults), tasks (that share the
link's rate, default 1), holdMs (default 0), leaseMs (default 0), report (a file on the driver that gets, after each
micro-batch, link_state.TaskReport as JSON; default none), goesOn (default false).

An error that no repeat cures is not raised by the task, which Spark would repeat,
but by the commit: the other tasks bring their partitions to the end before.
With goesOn it is not raised at all but reported, as what the partition waits for: the
others go on, and the next micro-batch looks at it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from spark_integration.mirroring.link_state import TaskReport
from spark_integration.reading.offsets import NestedOffsets, nested_offsets
from spark_integration.security.kafka_config import kafka_python_config
from tolerant_client.errors import (
    DataLossError,
    LinkPromotedError,
    OffsetMapError,
    OptionError,
    OversizedRecordError,
    TargetDivergedError,
    TolerantClientError,
    UnsupportedSourceError,
)
from tolerant_client.mirror.link.beginning import ends_at
from tolerant_client.mirror.losses import MirrorPolicy
from tolerant_client.mirror.sync import make_topics, plan_link
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.mirror.worker import LinkConfig, copy_ranges, take_measures
from tolerant_client.raw import EARLIEST, LATEST, READ_COMMITTED, RawCluster

_INCURABLE = (
    DataLossError,
    LinkPromotedError,
    OffsetMapError,
    OptionError,
    OversizedRecordError,
    TargetDivergedError,
    UnsupportedSourceError,
)
_NO_TOPICS_S = 1.0


@dataclass
class CopiedRanges(WriterCommitMessage):
    """What one task did, and the error that ended it if no repeat cures it."""

    report: TaskReport = TaskReport()
    error: TolerantClientError | None = None


@dataclass
class RangesTask(InputPartition):
    """The rows of one task."""

    rows: tuple[tuple[str, int, int, int | None], ...]

    def __init__(self, rows: tuple[tuple[str, int, int, int | None], ...]) -> None:
        super().__init__(rows)
        self.rows = rows


class RangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans what there is to copy; with `target.kafka.*` it also creates topics that appear.

    An offset is {"offsets": {topic: {partition: end}}, "trigger": n}.  Where n moves
    on, every partition is planned whose log does not end at 0: in tail mode with
    each micro-batch, so that tasks always run, else with the first, since the target
    may have to get as far as a source log that is empty by now.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {key.lower(): value for key, value in options.items()}
        self._configs = (_cluster(lowered, "kafka."), _cluster(lowered, "target.kafka."))
        self._clusters: tuple[RawCluster, RawCluster] | None = None
        topics = _topics(lowered)
        if topics is None:
            raise OptionError("payload=ranges needs subscribePattern, a regular expression over topic names, or linkTopics")
        self._topics = topics
        self._tasks = _number(lowered, "tasks", 1)
        if self._tasks < 1:
            raise OptionError(f"tasks must be at least 1, not {self._tasks}")
        self._is_tail = lowered.get("tail", "false").lower() == "true"
        self._refresh_s = _number(lowered, "refreshIntervalMs", 30_000) / 1000
        self._until_ms = _number(lowered, "untilMs", 0) if "untilms" in lowered else None
        self._refreshed_at = float("-inf")
        self._partitions: list[TopicPartition] = []
        self._last: NestedOffsets | None = None  # where Trigger.AvailableNow ends

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clusters": None}  # executors get the reader for `read` alone

    def initialOffset(self) -> dict[str, Any]:
        self._refresh()
        return {"offsets": self._list(EARLIEST), "trigger": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        ends = self._ends()
        if self._until_ms is not None:
            source, _ = self._connected()
            places = {TopicPartition(topic, int(n)): end for topic, found in ends.items() for n, end in found.items()}
            ends = nested_offsets(source.run(ends_at, source, places, self._until_ms))
        self._last = ends

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends = self._last if self._last is not None else self._ends()
        if not ends and self._is_tail:
            time.sleep(_NO_TOPICS_S)  # topics may appear; until then no task slows the micro-batches down
        return {"offsets": ends, "trigger": start["trigger"] + 1 if self._is_tail else 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        is_every = end["trigger"] > start["trigger"]
        rows = [
            (topic, int(index), start["offsets"].get(topic, {}).get(index, 0), None if self._is_tail else until)
            for topic, ends in end["offsets"].items()
            for index, until in ends.items()
            if self._is_tail or until > (0 if is_every else start["offsets"].get(topic, {}).get(index, 0))
        ]
        size = {row: end["offsets"][row[0]][str(row[1])] - row[2] for row in rows}
        return [RangesTask(tuple(rows)) for rows in spread(size, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int | None]]:
        assert isinstance(partition, RangesTask)
        return iter(partition.rows)

    def stop(self) -> None:
        if self._clusters is not None:
            source, target = self._clusters
            target.close()
            source.close()

    def _ends(self) -> NestedOffsets:
        self._refresh()
        return self._list(LATEST)

    def _list(self, which: int) -> NestedOffsets:
        source, _ = self._connected()

        async def ask() -> dict[TopicPartition, int]:
            return await source.list_offsets(dict.fromkeys(self._partitions, which), isolation_level=READ_COMMITTED)

        return nested_offsets(source.run(ask))

    def _connected(self) -> tuple[RawCluster, RawCluster]:
        if self._clusters is None:
            source = RawCluster(self._configs[0], name="source", names=self._topics.names)
            self._clusters = (source, RawCluster(self._configs[1], source.net, name="target"))
        return self._clusters

    def _refresh(self) -> None:
        """Looks for new topics and partitions, and creates them on the target."""
        now = time.monotonic()
        if now - self._refreshed_at >= self._refresh_s:
            source, target = self._connected()
            planned = source.run(plan_link, source, target, self._topics)
            source.run(make_topics, target, planned.topics)
            self._partitions = list(planned.ends)
            self._refreshed_at = now


class RangesStreamWriter(DataSourceStreamWriter):
    """Copies the ranges of its rows from source to target, at the same offsets."""

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {key.lower(): value for key, value in options.items()}
        offsets = lowered.get("offsets", "identical")
        if offsets not in ("identical", "translated"):
            raise OptionError(f"offsets must be identical or translated, not {offsets!r}")
        if offsets == "identical" and "producerid" not in lowered:
            raise OptionError("payload=ranges needs producerId, the link's producer id (tolerant_client.mirror.sync.prepare_link)")
        topics = _topics(lowered) or LinkTopics()
        self._link = LinkConfig(
            _cluster(lowered, "source.kafka."),
            _cluster(lowered, "kafka."),
            _number(lowered, "producerId", -1),
            link=lowered.get("link", "default"),
            policy=MirrorPolicy.from_json(lowered.get("policy", "{}")),
            is_translated=offsets == "translated",
            names=topics.names,
            shares=max(1, _number(lowered, "tasks", 1)),
        )
        self._hold_ms = _number(lowered, "holdMs", 0)
        self._lease_ms = _number(lowered, "leaseMs", 0)
        self._report = Path(lowered["report"]) if lowered.get("report") else None
        self._goes_on = lowered.get("goeson", "false").lower() == "true"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        until = {TopicPartition(row.topic, row.partition): row.until_offset for row in iterator}
        if not until:
            return CopiedRanges()
        hold_until = time.monotonic() + self._hold_ms / 1000
        try:
            copied = copy_ranges(self._link, until, hold_ms=self._hold_ms, lease_ms=self._lease_ms)
        except _INCURABLE as error:
            if not self._goes_on or isinstance(error, LinkPromotedError):
                return CopiedRanges(error=error)
            time.sleep(max(0.0, hold_until - time.monotonic()))
            return CopiedRanges(TaskReport(paused={named(until, error): _text(error)}).measured(take_measures(self._link)))
        # Where all are paused the copier is done at once; Spark is not to plan one micro-batch after another then.
        time.sleep(max(0.0, hold_until - time.monotonic()))
        done = copied.values()
        report = TaskReport(
            troubles=sum(p.troubles for p in done),
            losses=sum(p.losses for p in done),
            filled=sum(p.filled for p in done),
            paused={partition: _text(p.error) for partition, p in copied.items() if p.is_paused},
            acked={partition: p.acked for partition, p in copied.items()},
        )
        return CopiedRanges(report.measured(take_measures(self._link)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Adds to the report, and raises the first error that no repeat cures.

        Spark calls this on the driver, in a process of its own: hence the file.
        """
        done = [message for message in messages if isinstance(message, CopiedRanges)]
        if self._report is not None:
            told = read_report(self._report).plus([message.report for message in done], int(time.time() * 1000))
            write_report(self._report, told)
        for message in done:
            if message.error is not None:
                raise message.error

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to undo: a repeated task goes on from the target's log."""


def spread(
    size: Mapping[tuple[str, int, int, int | None], int], tasks: int
) -> list[list[tuple[str, int, int, int | None]]]:
    """Deals rows to at most `tasks` tasks, the largest first, each to the task that has least.  Pure."""
    dealt: list[list[tuple[str, int, int, int | None]]] = [[] for _ in range(min(tasks, len(size)))]
    load = [0] * len(dealt)
    for row in sorted(size, key=lambda r: (-size[r], r[:3], r[3] is None, r[3])):
        least = load.index(min(load))
        dealt[least].append(row)
        load[least] += size[row] + 1
    return dealt


def named(partitions: Iterable[TopicPartition], error: TolerantClientError) -> TopicPartition:
    """The partition that an error speaks of; the first one if it names none."""
    return max(sorted(partitions), key=lambda p: len(f"{p.topic}-{p.partition}") if f"{p.topic}-{p.partition}" in str(error) else 0)


def write_report(path: Path, report: TaskReport) -> None:
    """Replaces the file at once: a reader finds the whole of it, or that of the micro-batch before."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(report.to_json())
    beside.replace(path)


def read_report(path: Path) -> TaskReport:
    """What the query has told up to the last micro-batch; an empty report before the first one has ended."""
    try:
        return TaskReport.from_json(path.read_text())
    except FileNotFoundError:
        return TaskReport()


def _text(error: TolerantClientError | None) -> str:
    return str(error).removeprefix(f"{type(error).__name__}: ")


def _topics(lowered: Mapping[str, str]) -> LinkTopics | None:
    if text := lowered.get("linktopics"):
        return LinkTopics.from_json(text)
    pattern = lowered.get("subscribepattern")
    return LinkTopics.of(pattern) if pattern else None


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
