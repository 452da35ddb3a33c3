"""Which partitions a mirror copies in each micro-batch, in which task, and the results; without Spark.

Laws:
- A partition keeps its task from micro-batch to micro-batch.  If Spark gives that task to another Python worker, the
  old worker hands the partition over to the new one (mirror/state/claims.py).
- An error of one topic or partition is reported for it alone; the others continue, and it is checked again.
- A task raises no error of ours: Spark would retry it in a new process, and nobody would hear of it meanwhile.  One that
  no retry cures is raised when the micro-batch is settled, after the other tasks have finished their partitions.
  With `goes_on` only LinkPromotedError is raised; any other is reported as the reason why the partition is blocked, and
  the next micro-batch tries again.
- What a retry may cure is reported, too, and the next micro-batch is the retry, after a pause; the last of several that
  failed in a row raises it.
- A copy up to the ends of its start (`once`) does not retry a partition that has moved nowhere for the copier's patience: it
  is reported as waiting, such as for a leader or a coordinator that was lost meanwhile, and the copy ends without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from msgspec import structs

from tolerant_client.cluster.admin.offsets import list_led_offsets, stable_ends
from tolerant_client.cluster.admin.topics import lacking
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.errors import (
    ClusterUnreachableError,
    DataLossError,
    LinkPromotedError,
    OffsetMapError,
    OptionError,
    OversizedRecordError,
    PartitionRefusedError,
    RecoveryExhaustedError,
    TargetClaimedError,
    TargetDivergedError,
    TolerantClientError,
    UnsupportedSourceError,
)
from tolerant_client.mirror.batches.appendable import NO_PRODUCER
from tolerant_client.mirror.engine.moves_watch import MovesWatch
from tolerant_client.mirror.engine.planned_link import grow_link
from tolerant_client.mirror.engine.preflight import RefusalFacts, refusal_facts, unled_copies
from tolerant_client.mirror.engine.process_copier import LinkConfig, copy_ranges, held_partitions, take_measures
from tolerant_client.mirror.engine.time_range import ends_at
from tolerant_client.mirror.life.mirrors import BOUND_S, within_bound
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import bare
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import NO_MAP, mapped_topics
from tolerant_client.ops.service.clusters import connected
from tolerant_client.ops.service.link_events import sentence
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob
from tolerant_client.ops.service.ranges_scope import Scope
from tolerant_client.ops.service.task_reports import RunReport
from tolerant_client.security.kafka_config import kafka_python_config

_log = logging.getLogger(__name__)

INCURABLE = (
    DataLossError,
    LinkPromotedError,
    OffsetMapError,
    OptionError,
    OversizedRecordError,
    PartitionRefusedError,
    TargetClaimedError,
    TargetDivergedError,
    UnsupportedSourceError,
)
# Without a service that tells what is blocked, a refusal that may pass is tried again, but not for ever.
INCURABLE_ALONE = tuple(kind for kind in INCURABLE if kind is not PartitionRefusedError)
_ATTEMPTS = 10  # to copy a micro-batch; each resumes from the target's log
_LONGEST_PAUSE_S = 3  # a stop waits for it
# A refusal is believed after several tries: a shorter micro-batch would look healthy in between.
_LEAST_REPEAT_MS = 5_000
_T = TypeVar("_T")
_NO_TOPICS_S = 1.0
_LOOK_S = 30.0  # between two checks of the leaders, and of what the target lacks
_CHECK_S = 10.0  # between two checks of the reasons for which topics are refused


@dataclass
class CopiedRanges:
    """What one task did, and what ended it: an `error` that no retry cures, or else a `curable` one.

    Of `unread` partitions it has not found out yet how they stand.
    """

    report: TaskReport = TaskReport()
    error: TolerantClientError | None = None
    curable: TolerantClientError | None = None
    unread: frozenset[TopicPartition] = frozenset()


class Repeat(NamedTuple):
    """The next micro-batch is to repeat the last one because of this error, after a pause in seconds."""

    error: TolerantClientError
    pause_s: int


Range = tuple[str, int, int | None]  # topic, partition, until_offset


class RangesPlanner:
    """Plans what to copy, and creates new topics on the target."""

    def __init__(self, job: MirrorJob) -> None:
        self._settings = settings = job.settings
        self._generation = job.generation
        self._clusters: tuple[Cluster, Cluster] | None = None
        self._tasks = max(1, settings.tasks)
        self._refresh_s = float("inf") if settings.refresh_s is None else settings.refresh_s
        self._report = None if job.folder is None else RunReport(Path(job.folder))
        self._refreshed_at = self._looked_at = self._checked_at = float("-inf")
        self._refusals: RefusalFacts | None = None
        self._moves: MovesWatch | None = None
        self._scope, self._control, self._mapped = Scope(), LinkControl(), NO_MAP
        self._made_again: dict[str, int] = {}
        self._task_of: Mapping[TopicPartition, int] = {}

    @property
    def is_tail(self) -> bool:
        """Whether the mirror also copies what arrives, beyond the log ends at the start."""
        return not self._settings.once

    def begin(self, *, is_final: bool = False) -> None:
        """Plans for the first time; with `is_final` again, up to the log ends as they are now, or as of `until_ms`."""
        if is_final or not self._has_planned:
            self._refresh()
        if is_final and (until_ms := self._settings.until_ms) is not None:
            source, _ = self._connected()
            self._scope = replace(self._scope, ends=source.run(ends_at, source, self._scope.ends, until_ms))

    @property
    def is_repeating(self) -> bool:
        """Whether the next micro-batch repeats the last one; in tail mode it is planned again, since that may be the cure."""
        return self._report is not None and self._report.done.read().is_repeating

    def look(self) -> None:
        """Plans again, as often as is due; without any topic it waits a moment.

        Raises LinkPromotedError for a link that was promoted, also if its source is gone: that is what ends its mirror.
        """
        try:
            self._refresh()
        except ClusterUnreachableError:
            self._require_not_promoted()
            raise
        if not self._scope.ends:
            time.sleep(_NO_TOPICS_S)  # topics may appear; until then no task limits the rate of micro-batches

    def tasks(self) -> tuple[tuple[Range, ...], ...]:
        """The ranges of each task that has any; an empty log is a range, too: what it loses from then on is a loss (M7)."""
        ends = self._scope.ends
        self._task_of = dealt({p: self._scope.gained.get(p, 0) for p in ends}, self._tasks, self._task_of)
        rows: list[list[Range]] = [[] for _ in range(self._tasks)]
        for p, until in ends.items():
            rows[self._task_of[p]].append((*p, None if self.is_tail else until))
        return tuple(tuple(ranges) for ranges in rows if ranges)

    def stop(self) -> None:
        if self._clusters is not None:
            source, target = self._clusters
            target.close()
            source.close()

    def _connected(self) -> tuple[Cluster, Cluster]:
        if self._clusters is None:
            settings = self._settings
            self._clusters = connected(
                settings.source, settings.target, settings.names, file_options=settings.file_options
            )
        return self._clusters

    def _refresh(self) -> None:
        """Discovers new topics and partitions and creates them on the target; between two such plans it checks leaders only.

        A topic that a cluster lacks, and a refused topic that may be free now, cause a plan at once.  After each but the first it writes
        down the promotions to the source that have come since (moves.py).
        """
        now, is_start = time.monotonic(), not self._has_planned
        is_due = now - self._looked_at >= _LOOK_S
        if now - self._refreshed_at >= self._refresh_s or self._may_be_free(now) or is_due and self._lacks_topics():
            self._take(self._planned())
            self._refreshed_at = now
        elif is_due:
            source, target = self._connected()
            led = source.run(stable_ends, source, self._scope.led)
            map_of = None if self._settings.is_identical else self._settings.link
            away = self._within_bound(target, partial(unled_copies, map_of=map_of), target, led.offsets.keys())
            self._take(self._scope.after_look(led.without(away or {})))
        else:
            return
        self._looked_at = now
        if self._settings.is_identical and not is_start:
            self._learn_moves()

    def _learn_moves(self) -> None:
        source, target = self._connected()
        self._moves = self._moves or MovesWatch(source, target, self._settings.link, self._control.generation)
        self._within_bound(source, self._moves.write, {p.topic for p in self._scope.led})

    def _require_not_promoted(self) -> None:
        _, target = self._connected()
        link = self._settings.link
        if (control := self._within_bound(target, read_control, target, link, self._generation)) is not None:
            control.require_not_promoted(link, target)

    def _may_be_free(self, now: float) -> bool:
        """Whether the facts that caused the refusal of topics have changed since the last check."""
        if self._refresh_s == float("inf") or now - self._checked_at < _CHECK_S:
            return False
        self._checked_at = now
        if not (refused := {p.topic for p in self._scope.refused}):
            return False
        before, (_, target) = self._refusals, self._connected()
        if (facts := self._within_bound(target, refusal_facts, target, refused)) is None:
            return False
        self._refusals = facts
        return facts != before

    def _lacks_topics(self) -> bool:
        """Whether somebody has deleted a copied topic, or the copy of one that the source no longer has."""
        if self._refresh_s == float("inf"):
            return False
        source, target = self._connected()
        copied, left = {p.topic for p in self._scope.ends}, {p.topic for p in self._scope.gone}
        asked = ((target, copied | left), (source, copied))
        return any(self._within_bound(cluster, lacking, cluster, topics) for cluster, topics in asked)

    def _within_bound(self, cluster: Cluster, ask: Callable[..., Awaitable[_T]], *args: Any) -> _T | None:
        """What `ask` returns; None if this cluster does not respond soon: the copier waits for it, and reports that."""
        source, _ = self._connected()
        try:
            return source.run(within_bound, cluster, ask, *args)
        except KafkaError:
            return None

    @property
    def _has_planned(self) -> bool:
        return self._refreshed_at > float("-inf")

    def _planned(self) -> Scope:
        source, target = self._connected()
        topics, link = self._settings.link_topics, self._settings.link
        if self._has_planned:
            topics = structs.replace(topics, waits_for_topics=True)
        known = {p.topic for p in (*self._scope.ends, *self._scope.leaderless)}
        grow = partial(grow_link, is_identical=self._settings.is_identical)
        if not self._has_planned:
            self._control = source.run(read_control, target, link, self._generation)
            self._control.require_not_promoted(link, target)
            self._mapped = source.run(partial(mapped_topics, within_s=BOUND_S), target, link, self._control)
        mapped = self._mapped._replace(partitions=frozenset({*self._mapped.partitions, *self._scope.ends}))
        planned = source.run(grow, source, target, topics, link, known, self._control, mapped)
        self._made_again |= dict.fromkeys(self._scope.made_again(planned), int(time.time() * 1000))
        copies = source.run(target.partitions, self._scope.lacking(planned))
        starts: Mapping[TopicPartition, int] = {}
        if not self._has_planned and self._tasks > 1:
            starts = source.run(list_led_offsets, source, dict.fromkeys(planned.ends, EARLIEST)).offsets
        return self._scope.after_plan(planned, copies, starts)

    def _take(self, scope: Scope) -> None:
        is_told = (scope.blocked, scope.leaderless) == (self._scope.blocked, self._scope.leaderless)
        told = None if self._report is None else self._report.waiting
        if told is not None and not (is_told and told.read().made_again == self._made_again):
            now_ms, known = int(time.time() * 1000), told.read().waiting
            waiting = {
                p: Waiting(why, known[p].since_ms if p in known else now_ms) for p, why in scope.leaderless.items()
            }
            told.write(TaskReport(blocked=scope.blocked, waiting=waiting, made_again=self._made_again))
        self._scope = scope


class RangesCopier:
    """Copies ranges from source to target; raises OptionError for a job of identical offsets without a producer id."""

    def __init__(self, job: MirrorJob) -> None:
        settings = job.settings
        if settings.is_identical and job.producer_id == NO_PRODUCER:
            raise OptionError(
                "payload=ranges is for mirrors: start one with tolerant-kafka mirror (identical offsets need its producer id)"
            )
        self._link = LinkConfig(
            kafka_python_config(settings.source),
            kafka_python_config(settings.target),
            job.producer_id,
            link=settings.link,
            policy=settings.policy,
            is_translated=not settings.is_identical,
            names=settings.names,
            bytes_per_s=settings.bytes_per_s or None,
            run=settings.run,
            shares=max(1, settings.tasks),
            file_options=settings.file_options,
            generation=job.generation,
        )
        self._is_tail = not settings.once
        self._hold_ms, self._lease_ms = (0, 0) if settings.once else (settings.hold_ms, settings.lease_ms)
        self._report = None if job.folder is None else RunReport(Path(job.folder)).done
        self._goes_on = settings.goes_on

    def copy(self, until: Mapping[TopicPartition, int | None]) -> CopiedRanges:
        """Copies partitions at least up to these offsets, for the time of one micro-batch."""
        hold_ms = self._hold_ms
        if hold_ms and self._report is not None and self._report.read().is_repeating:
            hold_ms = max(hold_ms, _LEAST_REPEAT_MS)
        hold_until = time.monotonic() + hold_ms / 1000
        done = self._copied(until, hold_ms)
        if until and done.error is None and done.curable is None:
            # If all partitions are paused the copier returns at once; without the wait Spark would plan without a pause.
            time.sleep(max(0.0, hold_until - time.monotonic()))
        return done

    def held(self) -> set[TopicPartition]:
        """Partitions that were neither handed over to another process of the run nor stopped."""
        return held_partitions(self._link)

    def _copied(self, until: Mapping[TopicPartition, int | None], hold_ms: int) -> CopiedRanges:
        if not until:
            return CopiedRanges()
        try:
            copied = copy_ranges(self._link, until, hold_ms=hold_ms, lease_ms=self._lease_ms)
        except INCURABLE as error:  # concerns the whole task
            if not self._goes_on or isinstance(error, LinkPromotedError):
                return CopiedRanges(error=error)
            report = TaskReport(
                blocked=dict.fromkeys(until, sentence(error)), remedies=dict.fromkeys(until, error.remedy)
            )
            return CopiedRanges(report.measured(take_measures(self._link)))
        except TolerantClientError as error:
            return CopiedRanges(TaskReport(repeats=1), curable=error)
        stopped = {p: why for p, done in copied.items() if (why := done.stopped_by) is not None}
        incurable = INCURABLE if self._goes_on else INCURABLE_ALONE
        final = [why for why in stopped.values() if isinstance(why, LinkPromotedError if self._goes_on else incurable)]
        left = {p: why for p, why in stopped.items() if not self._is_tail and isinstance(why, RecoveryExhaustedError)}
        again = (why for p, why in stopped.items() if p not in left and not isinstance(why, incurable))
        curable = None if final else next(again, None)
        stopped_now = {} if final else {p: why for p, why in stopped.items() if isinstance(why, INCURABLE)}
        blocked = {p: why for p, done in copied.items() if done.is_paused and (why := done.blocked_by) is not None}
        paused = {p: why for p, done in copied.items() if (why := done.paused_by) is not None}
        now_ms = int(time.time() * 1000)
        report = TaskReport(
            troubles=sum(done.troubles for done in copied.values()),
            losses={p: done.losses for p, done in copied.items() if done.losses},
            filled=sum(done.filled for done in copied.values()),
            paused={p: sentence(why) for p, why in paused.items()},
            blocked={p: sentence(why) for p, why in {**blocked, **stopped_now}.items()},
            remedies={p: why.remedy for p, why in {**blocked, **stopped_now}.items()},
            waiting={
                **{p: done.wait for p, done in copied.items() if done.wait is not None},
                **{p: Waiting(bare(f"{p.topic}-{p.partition}", sentence(why)), now_ms) for p, why in left.items()},
            },
            acked={p: done.acked for p, done in copied.items() if done.is_placed},
            repeats=int(curable is not None),
        )
        unread = frozenset(p for p, done in copied.items() if not done.is_placed and done.error is done.wait is None)
        return CopiedRanges(report.measured(take_measures(self._link)), final[0] if final else None, curable, unread)

    def settle(self, done: Sequence[CopiedRanges]) -> Repeat | None:
        """Adds the results of all tasks of a micro-batch to the report, and says whether it is to be repeated.

        Raises the first error that no retry cures, or that none of several has cured.
        """
        before = TaskReport() if self._report is None else self._report.read()
        now = before.plus([each.report for each in done], int(time.time() * 1000))
        read = {p for each in done for p in each.report.acked}
        unread = {p for each in done for p in each.unread} - read
        # An attempt may have been over before it found all that is paused or blocked.
        now = now.besides(before, None if now.is_repeating else unread)
        if self._report is not None:
            self._report.write(now)
        for each in done:
            if each.error is not None:
                raise each.error
        error = next((each.curable for each in done if each.curable is not None), None)
        if error is None:
            return None
        if now.repeats >= _ATTEMPTS:
            raise error
        _log.info("the micro-batch is repeated: %s", error)
        return Repeat(error, min(now.repeats, _LONGEST_PAUSE_S))


def dealt(
    sizes: Mapping[TopicPartition, int], tasks: int, before: Mapping[TopicPartition, int] = {}
) -> dict[TopicPartition, int]:
    """The task of each partition: the one it had, or else, largest partition first, the task with the least load.  Pure."""
    found = {p: before[p] for p in sizes if p in before}
    load = [0] * tasks
    for p, task in found.items():
        load[task] += sizes[p] + 1
    for p in sorted(sizes.keys() - found.keys(), key=lambda p: (-sizes[p], p)):
        found[p] = load.index(min(load))
        load[found[p]] += sizes[p] + 1
    return found
