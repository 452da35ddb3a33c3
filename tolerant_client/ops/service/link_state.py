"""The known state of a running link: immutable samples, and the reports of its tasks.  Pure: no I/O, no clock, no Spark.

Laws:
- An unknown number is None, never 0.
- Topics have their names on the target.  Offsets are half-open, times ms since 1970, rates per second, ages seconds.
- `position` is how far a partition is copied, in source offsets: with identical offsets the target's log end,
  with translated offsets the position in the last report.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.copy_metrics import LATENCY_BOUNDS_MS, Copied, Measured, Span, spans_together
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.health import (
    DELETED_ON_SOURCE,
    DELETED_ON_TARGET,
    PARTITION_DELETED_ON_SOURCE,
    utc,
)
from tolerant_client.mirror.state.ledger import lost_offsets
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.open_transactions import Held

_GONE = (DELETED_ON_SOURCE, PARTITION_DELETED_ON_SOURCE)
_NO_LATENCIES = (0,) * (len(LATENCY_BOUNDS_MS) + 1)
OTHERS = "(others)"  # not a legal topic name


@dataclass(frozen=True)
class TaskReport:
    """What tasks have done; commit messages carry it to the driver, a file carries it to the mirror's process.

    `troubles` counts positions that were read again from the target's log, `losses` the ledger rows after which a
    partition resumed, `filled` the offsets in gaps.  `losses` and `filled` count micro-batches only, not the time in
    which Spark plans the next one.
    `remedies` are the ends of the reasons of `blocked` that say what to do, as far as they are known.
    `acked` says for each partition how far it is copied, in source offsets.  `latencies` is a histogram over
    LATENCY_BOUNDS_MS.  `paused` is what an operator has paused, `blocked` what needs a person and why, `waiting` what does
    not move although tasks keep trying; these three and `acked` are as of `time_ms`.  `made_again` says when
    target topics were created again that had been copied to and then deleted.  `latest` is what the last micro-batch
    copied, `throttles` its responses' throttle times in ms (Measured), `repeats` how many micro-batches in a row ended with an
    error that a retry may cure.  All other fields are
    sums since the start of the query.
    """

    time_ms: int = 0
    records: int = 0
    bytes: int = 0
    troubles: int = 0
    losses: Mapping[TopicPartition, int] = field(default_factory=dict)
    filled: int = 0
    paused: Mapping[TopicPartition, str] = field(default_factory=dict)
    blocked: Mapping[TopicPartition, str] = field(default_factory=dict)
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    acked: Mapping[TopicPartition, int] = field(default_factory=dict)
    copied: Mapping[TopicPartition, Copied] = field(default_factory=dict)
    latest: Mapping[TopicPartition, Copied] = field(default_factory=dict)
    latencies: tuple[int, ...] = _NO_LATENCIES
    recoveries: Mapping[str, int] = field(default_factory=dict)
    made_again: Mapping[str, int] = field(default_factory=dict)
    remedies: Mapping[TopicPartition, str] = field(default_factory=dict)
    repeats: int = 0
    throttles: Mapping[str, Span] = field(default_factory=dict)

    @property
    def is_repeating(self) -> bool:
        """Whether the last micro-batch ended with an error that a retry may cure: the next one is the retry."""
        return self.repeats > 0

    def besides(self, earlier: TaskReport, only: Collection[TopicPartition] | None = None) -> TaskReport:
        """This report with what an earlier one says to be paused or blocked besides, each with the remedy of its own reason.

        What its last micro-batch copied is neither any more.  Without `only` that holds for all partitions.
        """
        seen = {p for p, done in self.latest.items() if done.records}

        def kept(told: Mapping[TopicPartition, str], but: Collection[TopicPartition] = ()) -> dict[TopicPartition, str]:
            return {p: w for p, w in told.items() if p not in seen and p not in but and (only is None or p in only)}

        return replace(
            self,
            paused={**kept(earlier.paused), **self.paused},
            blocked={**kept(earlier.blocked), **self.blocked},
            remedies={**kept(earlier.remedies, self.blocked), **self.remedies},
        )

    def measured(self, found: Measured) -> TaskReport:
        """This report with its process's own measurements, which include the records and bytes between two micro-batches."""
        return replace(
            self,
            records=sum(done.records for done in found.copied.values()),
            bytes=sum(done.bytes for done in found.copied.values()),
            copied=found.copied,
            latencies=found.latencies,
            recoveries=found.recoveries,
            throttles=found.throttles,
        )

    def plus(self, later: Iterable[TaskReport], time_ms: int) -> TaskReport:
        """The report after one more micro-batch, whose tasks reported `later`."""
        tasks = list(later)
        latest = added({}, *(task.copied for task in tasks))
        recoveries = Counter(self.recoveries)
        latencies = list(self.latencies)
        for task in tasks:
            latencies = [before + more for before, more in zip(latencies, task.latencies)]
            recoveries.update(task.recoveries)
        return TaskReport(
            time_ms,
            self.records + sum(task.records for task in tasks),
            self.bytes + sum(task.bytes for task in tasks),
            self.troubles + sum(task.troubles for task in tasks),
            dict(sum((Counter(task.losses) for task in tasks), Counter(self.losses))),
            self.filled + sum(task.filled for task in tasks),
            {p: reason for task in tasks for p, reason in task.paused.items()},
            {p: reason for task in tasks for p, reason in task.blocked.items()},
            {p: wait for task in tasks for p, wait in task.waiting.items()},
            {**self.acked, **{p: acked for task in tasks for p, acked in task.acked.items()}},
            added(self.copied, latest),
            latest,
            tuple(latencies),
            dict(recoveries),
            {**self.made_again, **{topic: at for task in tasks for topic, at in task.made_again.items()}},
            {p: remedy for task in tasks for p, remedy in task.remedies.items()},
            self.repeats + 1 if any(task.repeats for task in tasks) else 0,
            spans_together(task.throttles for task in tasks),
        )


class Phase(str, enum.Enum):
    """The phase of a link's query; FAILED is final, a link that is RESTARTING tries again by itself."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class PartitionState(PartitionLag):
    """One partition with the target's log end and its copy rate."""

    target_end: int | None = None
    offsets_per_s: float = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        if not self.offsets_per_s:
            return 0.0
        return None if self.bytes_per_offset is None else self.offsets_per_s * self.bytes_per_offset


class TopicState(NamedTuple):
    """All partitions of a topic together: ends, lags in offsets and bytes and rates are sums, ages and latencies maxima.

    A sum leaves out unknown values, and is None if all are unknown.  Of the partitions that are `behind`, `aged` have a
    known age.  `paused` are paused by an operator, `blocked` need a person, `waiting` resume by themselves.
    """

    topic: str
    partitions: int
    source_end: int | None
    target_end: int | None
    lag_offsets: int | None
    lag_bytes: float | None
    lag_seconds: float | None
    offsets_per_s: float
    bytes_per_s: float | None
    records: int
    bytes: int
    age: Span
    latency: Span
    paused: int
    behind: int
    aged: int
    blocked: int
    waiting: int
    uncommitted: int


class GroupState(NamedTuple):
    """A consumer group's offset of one topic partition, as the last synchronisation wrote it to the target.

    `latency` is the time from reading it on the source to committing it on the target; `note` says what holds it back.
    """

    group: str
    topic: str
    partition: int
    offset: int
    latency: Span = Span()
    note: str = ""


class DutyState(NamedTuple):
    """A periodic duty: when its last round ended (0: no round yet), what went wrong in it or "", and its interval."""

    time_ms: int = 0
    problem: str = ""
    interval_s: float = 0.0


class LeftOut(NamedTuple):
    """Partitions of a cluster without a leader that responds: how many, and why the first of them is left out."""

    partitions: int
    why: str


@dataclass(frozen=True)
class LinkState:
    """A link as of `time_ms`; 0 before the first sample.

    `query` is its Spark query.  `problem` is the reason for the last restart or for the end.
    `asked` are the clusters ("source", "target") that the last sample asked, `unreachable` says why some of them did not
    respond, `refused` are those of `unreachable` that refuse our login, so that a person is needed, `blind` says why no
    sample could be taken at all, `leaderless` which partitions had no leader that responds.
    `deleted` says since when the target lacks partitions that the link had begun, `left_behind` which the source lacks, in the
    words of their health, `absent` those that neither cluster has: they are in none of the other fields until one has them again.
    `recent` is what was copied in about the last minute, by partition.
    `still` says since when partitions have not moved although they could, `held` which of them have open transactions on
    the source.  `control` is the operator's orders as last read, `control_problem` why they could not be read
    since, `own_rate` the limit that the mirror was started with, bytes/s.
    `ledger` and `groups` are None until they are read; `addresses` are the clusters' bootstrap servers.  Without Spark there are no
    tasks.
    """

    link: str
    time_ms: int = 0
    started_ms: int = 0
    source: str = "source"  # the clusters' names
    target: str = "target"
    offsets: str = "identical"
    phase: Phase = Phase.STARTING
    problem: str = ""
    restarts: int = 0
    unreachable: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    blind: str = ""
    asked: frozenset[str] = frozenset()
    leaderless: Mapping[str, LeftOut] = field(default_factory=dict)
    deleted: Mapping[TopicPartition, int] = field(default_factory=dict)
    left_behind: Mapping[TopicPartition, str] = field(default_factory=dict)
    absent: frozenset[TopicPartition] = frozenset()
    partitions: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    report: TaskReport = TaskReport()
    recent: Mapping[TopicPartition, Copied] = field(default_factory=dict)
    still: Mapping[TopicPartition, int] = field(default_factory=dict)
    held: tuple[Held, ...] = ()
    ledger: tuple[LedgerRow, ...] | None = None
    groups: tuple[GroupState, ...] | None = None
    duties: Mapping[str, DutyState] = field(default_factory=dict)
    control: LinkControl = LinkControl()
    control_problem: str = ""
    own_rate: int | None = None
    query: str = ""
    addresses: tuple[str, str] = ("", "")
    has_spark: bool = True

    @cached_property
    def blocked(self) -> Mapping[TopicPartition, str]:
        """Partitions that need a person, and why: as the tasks say, or because the source lacks them."""
        told = {**self.left_behind, **self.report.blocked}
        seen_to = {p for p, why in told.items() if why in _GONE and self.control.pauses(p)}
        return {p: why for p, why in told.items() if p not in self.absent and p not in seen_to}

    @cached_property
    def waiting(self) -> Mapping[TopicPartition, Waiting]:
        """Partitions that do not move and resume by themselves: because a task says so, or because no sample saw them move.

        A task that took a partition over knows only its own time: the wait counts from the sample that first saw it stand.
        """
        limit = self.control.limit_words(self.own_rate)
        why = (
            f"{'no task has' if self.has_spark else 'its copier has not'} said why{limit}"
            if self.report.time_ms
            else "no task has begun yet: Spark is still starting them"
            if self.has_spark
            else "its copier has reported nothing yet: it does so whenever a part of the copy is done"
        )
        still = {
            p: Waiting(f"it is at offset {known.position:,}, and {why}", since_ms)
            for p, since_ms in self.still.items()
            if (known := self.partitions.get(p)) is not None and known.position is not None
        }
        said = {
            p: wait._replace(since_ms=min(wait.since_ms, self.still.get(p, wait.since_ms)))
            for p, wait in self.report.waiting.items()
        }
        deleted = {p: Waiting(DELETED_ON_TARGET, since_ms) for p, since_ms in self.deleted.items()}
        stopped = self.blocked.keys() | self.report.paused.keys() | self.absent
        return {
            p: wait
            for p, wait in {**still, **said, **deleted}.items()
            if p not in stopped and not self.control.pauses(p)
        }

    def has_begun(self, partition: TopicPartition) -> bool:
        """Whether the link is known to have copied into this partition of the target."""
        known = self.partitions.get(partition)
        begun = self.control.begun.keys() | self.control.copied.keys() | self.report.acked.keys()
        return partition in begun or known is not None and known.position is not None

    def reason_of(self, partition: TopicPartition) -> str:
        """Why a partition does not move; "" if no reason is known."""
        if self.control.pauses(partition):
            return "paused by an operator"
        if partition in self.blocked:
            return f"blocked: {self.blocked[partition]}"
        wait = self.waiting.get(partition)
        if wait is not None:
            return f"waiting since {utc(wait.since_ms)}: {wait.reason}"
        return next((f"waiting: {held}" for held in self.held if held.partition == partition), "")

    @property
    def throttle_bytes(self) -> int | None:
        """The limit in force, bytes/s; None without one."""
        return self.control.rate(self.own_rate)

    @property
    def throttle_from(self) -> str:
        """Who set the limit: "operator", or "start" (the file or command that started the mirror); "" without one."""
        if self.throttle_bytes is None:
            return ""
        return "start" if self.control.bytes_per_s is None else "operator"

    @cached_property
    def topics(self) -> Mapping[str, TopicState]:
        """The partitions' states by topic."""
        members: dict[str, list[TopicPartition]] = {}
        for partition in self.partitions:
            members.setdefault(partition.topic, []).append(partition)
        return {topic: together(topic, map(self._row, partitions)) for topic, partitions in sorted(members.items())}

    def most(self, limit: int) -> list[TopicState]:
        """The `limit` topics with the greatest lag; if there are more, the others follow as one row, OTHERS."""
        topics = sorted(self.topics.values(), key=lambda t: (-(t.lag_offsets or 0), -t.offsets_per_s, t.topic))
        if len(topics) <= limit:
            return topics
        return [*topics[:limit], together(OTHERS, topics[limit:])]

    @cached_property
    def every(self) -> TopicState:
        """All topics together."""
        return together("", self.topics.values())

    def _row(self, partition: TopicPartition) -> TopicState:
        known = self.partitions[partition]
        copied, recent = self.report.copied.get(partition, Copied()), self.recent.get(partition, Copied())
        return TopicState(
            partition.topic,
            1,
            known.source_end,
            known.target_end,
            known.lag_offsets,
            known.lag_bytes,
            known.lag_seconds(self.time_ms),
            known.offsets_per_s,
            known.bytes_per_s,
            copied.records,
            copied.bytes,
            recent.age,
            recent.latency,
            int(self.control.pauses(partition)),
            int(bool(known.lag_offsets)),
            int(bool(known.lag_offsets) and known.oldest_ms is not None),
            int(partition in self.blocked),
            int(partition in self.waiting),
            known.open_offsets,
        )

    @cached_property
    def lost(self) -> Mapping[tuple[str, str], int]:
        """Offsets that are lost according to the ledger, by (topic, reason)."""
        return lost_offsets(self.ledger or ())


def together(name: str, rows: Iterable[TopicState]) -> TopicState:
    """Several topics, or partitions, as one row."""
    known = list(rows)
    columns = {column: [getattr(row, column) for row in known] for column in TopicState._fields[1:]}
    return TopicState(name, **{column: _COMBINED.get(column, sum)(values) for column, values in columns.items()})


def added(
    before: Mapping[TopicPartition, Copied], *later: Mapping[TopicPartition, Copied]
) -> dict[TopicPartition, Copied]:
    """The sum of `before` and `later`, by partition."""
    found = dict(before)
    for copies in later:
        for partition, done in copies.items():
            known = found.get(partition)
            found[partition] = done if known is None else known.plus(done)
    return found


def total(values: Iterable[Any]) -> Any:
    """The sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def greatest(values: Iterable[Any]) -> Any:
    """The greatest of the known values; None if none is known."""
    return max((value for value in values if value is not None), default=None)


def _together_spans(values: Iterable[Span]) -> Span:
    found = Span()
    for value in values:
        found = found.plus(value)
    return found


# How the columns of TopicState are combined that are not plain sums.
_COMBINED: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    **dict.fromkeys(("source_end", "target_end", "lag_offsets", "lag_bytes", "bytes_per_s"), total),
    "lag_seconds": greatest,
    **dict.fromkeys(("age", "latency"), _together_spans),
}
