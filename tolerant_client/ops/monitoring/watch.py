"""Watches a link from outside: progress bars, and samples of its state.

Laws:
- What does not move is reported on the terminal, whether or not a board or bars are shown.
- The watch never delays the mirror: its thread owns the clients and does all their waiting.  Its start waits for nothing,
  its end for END_S; a thread that a dead cluster holds longer is abandoned, with its clients.
- No progress is forgotten: if a cluster does not tell how far the copies are, the tasks' reports do.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from kafka.structs import TopicPartition
from rich.console import Console

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.errors import TolerantClientError, text_of
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.copy_metrics import Copied
from tolerant_client.mirror.life.lens import SourceEnds
from tolerant_client.mirror.state.control_topic import UNKNOWN_ORDERS
from tolerant_client.mirror.state.health import by_reason, waiting_reasons
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.open_transactions import is_held_long
from tolerant_client.ops.monitoring.bars import LinkBars
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.link_clusters import LinkClusters, asked_of, leave_out, not_responding
from tolerant_client.ops.monitoring.link_sample import LinkSample
from tolerant_client.ops.monitoring.partition_watch import PartitionWatch, deletions
from tolerant_client.ops.monitoring.state_topics_watch import StateTopics, StateTopicsWatch
from tolerant_client.ops.service.link_events import sentence
from tolerant_client.ops.service.link_state import DutyState, LeftOut, LinkState, PartitionState, Phase, TaskReport
from tolerant_client.ops.service.standing import Away, Standing

if TYPE_CHECKING:
    from tolerant_client.ops.service.mirror_settings import MirrorSettings

_log = logging.getLogger(__name__)

END_S = 1.5  # for the last sample
_LOSSES_S = 10.0  # for the last sample of a mirror that ended by itself and has had losses
_INTERVAL_S = 0.5
_SHARE = 30  # a sample that takes n seconds of processor time is followed by a pause of 30 n, but at most:
_LONGEST_S = 30.0
_UNSEEN_S = 5.0  # between two samples if only what does not move is shown
# Spark starts slowly on a busy machine: until then a partition that no task has begun is not reported.
_START_MS = 120_000
_ABSENT_INTERVAL_S = 10.0  # each check of what neither cluster has refreshes Metadata


class _Seen(NamedTuple):
    """The log ends that the clusters told in one sample, or None; the rest is in LinkState's fields."""

    target: LedOffsets | None
    source: SourceEnds | None
    asked: frozenset[str]
    unreachable: dict[str, str]
    refused: frozenset[str]


class LinkWatch:
    """Reads the log ends of a link's partitions up to twice a second, and gives samples to a board.

    `ends` are the source's last stable offsets at the start; they are the goal if the link is copied `once`, otherwise
    the current ones are.  A StatusServer shows the `board` at `url`; the caller owns both.
    `names` are the clusters' names, `duties` the intervals of the link's periodic duties in seconds.
    `say` gets what does not move, one sentence per call, from several threads; by default it is printed.
    `target_ends` is where the target's logs ended before anything was copied: what they gain is counted from there, as the first
    sample may be late.  Topics that are in the reports but not in `ends` are watched, too.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        ends: Mapping[TopicPartition, int],
        target_ends: Mapping[TopicPartition, int] = {},
        *,
        is_shown: bool,
        board: Board | None = None,
        url: str = "",
        names: tuple[str, str] = ("source", "target"),
        console: Console | None = None,
        duties: Mapping[str, float] = {},
        say: Callable[[str], None] | None = None,
    ) -> None:
        source, target, link = settings.source, settings.target, settings.link
        self._open = functools.partial(LinkClusters, source, target, link, settings.names)
        self._ends = ends
        self._begins = target_ends
        self._goals: Counter[str] = Counter()
        for partition, end in ends.items():
            self._goals[partition.topic] += end
        self._is_once = settings.once
        self._is_identical = settings.is_identical
        self._board = board
        self._url = url
        self._bars = LinkBars(is_once=settings.once, is_shown=is_shown, console=console)
        self._say = say or (lambda text: self._bars.print(f"tolerant-kafka: {text}"))
        self._stop = threading.Event()
        self._stop_by = float("inf")
        self._thread = threading.Thread(target=self._run, name=f"tolerant-kafka-watch-{link}", daemon=True)
        now_ms = _now_ms()
        self.sample = LinkSample(
            LinkState(
                link,
                now_ms,
                now_ms,
                *names,
                offsets=settings.offsets,
                query=f"tolerant-mirror-{link}",
                partitions={p: PartitionState(p, stable_end=end, source_end=end) for p, end in ends.items()},
                duties={duty: DutyState(interval_s=interval_s) for duty, interval_s in duties.items()},
                own_rate=settings.bytes_per_s,
                addresses=(source.get("bootstrap.servers", ""), target.get("bootstrap.servers", "")),
                has_spark=settings.tasks > 0,
            )
        )
        self._first: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}
        self._partitions = PartitionWatch(is_identical=self._is_identical)
        self._standing_told = Standing()
        self._told_still: set[TopicPartition] = set()
        self._told_held: set[TopicPartition] = set()
        self._away = Away()
        self._absent_at = float("-inf")
        self._state_topics = StateTopicsWatch()
        self._problem = "it was not asked"  # why the last sample is incomplete

    @property
    def state(self) -> LinkState:
        """The current state."""
        return self.sample.state

    @property
    def standing(self) -> TaskReport:
        """The last report, with what is paused, blocked or waiting."""
        return self.state.report

    @property
    def losses(self) -> list[LedgerRow]:
        """The link's ledger rows since the start, or after which it resumed."""
        return self._state_topics.losses

    @property
    def copied(self) -> int:
        """Offsets that the target's logs have gained since the start."""
        copied = self.state.report.copied
        gained = 0
        for partition, end in self._target_ends().items():
            first = self._first.get(partition)
            gained += copied.get(partition, Copied()).records if first is None else end - first
        return gained

    @property
    def behind(self) -> list[TopicPartition]:
        """Partitions that are not copied up to the source's log ends of the start."""
        reached = self.reached
        return [partition for partition, end in self._ends.items() if reached.get(partition, 0) < end]

    @property
    def reached(self) -> Mapping[TopicPartition, int]:
        """How far partitions are copied, in source offsets; unknown ones are absent."""
        return self._target_ends() if self._is_identical else self.state.report.acked

    def _target_ends(self) -> dict[TopicPartition, int]:
        """The target's log ends as the target reported them or, with identical offsets, the tasks did."""
        acked = self.state.report.acked if self._is_identical else {}
        return {p: max(self._last.get(p, 0), acked.get(p, 0)) for p in {**self._last, **acked}}

    # -- reports from others --------------------------------------------------

    def tell(self, report: TaskReport) -> None:
        """Takes the report of the running query's tasks, and prints what newly does not move."""
        self._bars.start()  # Spark has started: earlier output of its JVM would have disturbed the bars
        self.sample.tell_report(report)
        for text in self._standing_told.news(report, self.reached, _now_ms()):
            self._say(text)

    def tell_phase(self, phase: Phase, problem: str = "") -> None:
        """Takes the query's phase, and shows it at once."""
        self.sample.tell_phase(phase, problem)
        self._show()

    # -- life cycle -----------------------------------------------------------

    def __enter__(self) -> LinkWatch:
        if self._bars.is_shown:
            self._bars.print("Starting the mirror" + (f"; status page: {self._url}" if self._url else ""))
        self._thread.start()
        return self

    def stop(self) -> None:
        """Asks the thread to end, without waiting."""
        if not self._stop.is_set():
            self._stop_by = time.monotonic() + END_S
            self._stop.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises TolerantClientError if there were losses and the target does not tell which."""
        self.stop()
        self._thread.join(max(0.0, self._stop_by - time.monotonic()))
        if self._is_once and error is None and self._owes_losses:
            self._thread.join(_LOSSES_S)
        if error is not None:
            self.tell_phase(Phase.FAILED, sentence(error))
        elif self.state.phase is not Phase.FAILED:
            self.tell_phase(Phase.STOPPED, self.state.problem)
        problem = "they did not respond in time" if self._thread.is_alive() else self._problem
        if problem and error is None:  # otherwise the mirror's own error is the one to show
            text = f"the clusters did not tell how far the copies are: {problem}; the numbers are the tasks' own"
            self._bars.print(f"tolerant-kafka: {text}")
        if problem and error is not None and self._owes_losses:
            text = f"the losses before are in the target's ledger, which could not be read: {problem}; see tolerant-kafka status"
            self._bars.print(f"tolerant-kafka: loss: {text}")
        self._bars.stop()
        if problem and error is None and self._owes_losses:
            raise TolerantClientError(
                f"Copying has ended, but the target did not tell what its ledger says was lost: {problem};"
                " start the mirror again"
            )

    @property
    def _owes_losses(self) -> bool:
        return sum(self.state.report.losses.values()) > len(self.losses)

    # -- sampling -------------------------------------------------------------

    def _run(self) -> None:
        clusters: LinkClusters | None = None
        pause_s = 0.0
        try:
            while not self._stop.wait(pause_s):
                started = time.thread_time()
                try:
                    clusters = clusters or self._open()
                    self.look(clusters)
                except Exception as error:
                    self._cannot_look(error)
                least_s = _INTERVAL_S if self._is_seen or not self._last else _UNSEEN_S
                pause_s = min(max(least_s, _SHARE * (time.thread_time() - started)), _LONGEST_S)
            try:
                clusters = clusters or self._open()
                self.look_last(clusters)
            except Exception as error:
                self._problem = sentence(error)
        finally:
            if clusters is not None:
                clusters.close()

    @property
    def _is_seen(self) -> bool:
        return self._board is not None or self._bars.is_shown

    def look(self, clusters: LinkClusters) -> None:
        """Takes one sample; what could not be read stays as it was, and the cluster is recorded as unreachable."""
        seen = self._ask_ends(clusters)
        before = self.state
        found = deletions(clusters, before, seen.target, seen.source, is_identical=self._is_identical, now_ms=_now_ms())
        leaderless: dict[str, LeftOut] = {}
        left_out = set(found.absent)
        told = {*before.report.blocked, *found.deleted, *found.left_behind, *found.absent}
        for name, ends in (("target", seen.target), ("source", seen.source)):
            left_out |= leave_out(leaderless, name, ends.left_out, told) if ends is not None else set()
        now, now_ms = time.monotonic(), _now_ms()
        topics = StateTopics(before.ledger, before.control, before.control_problem)
        if self._board is not None and "target" not in seen.unreachable:
            topics = self._state_topics.read(clusters, before, now)
        may_ask = self._board is not None and not seen.unreachable
        there = {p: end for p, end in self._last.items() if p not in found.deleted}  # a copy that is gone has no end
        # The reports of tasks may have changed the state meanwhile.
        states = self._partitions.states(clusters, self.state, seen.source, there, left_out, now, may_ask=may_ask)
        has_source = "source" in seen.asked and "source" not in seen.unreachable
        held = self._partitions.held(clusters, states, before.held, now, now_ms, may_ask=has_source)
        goals = self._ends if self._is_once else {}
        still = before.still if seen.unreachable else self._partitions.still(states, goals, left_out, now_ms)
        back = {p: PartitionState(p) for p in before.absent - found.absent}
        own = states.keys() - self.state.blocked.keys()  # another link may copy into a topic that is refused to us
        moves = any(states[p].offsets_per_s for p in own)  # the first micro-batch may be long
        self.sample.change(
            lambda state: replace(
                state,
                time_ms=now_ms,
                partitions={
                    p: one for p, one in {**back, **state.partitions, **states}.items() if p not in found.absent
                },
                asked=seen.asked,
                unreachable=seen.unreachable,
                refused=seen.refused,
                blind="",
                leaderless=leaderless,
                **found._asdict(),
                still=still,
                held=held,
                **topics._asdict(),
                phase=Phase.RUNNING if state.phase is Phase.STARTING and moves else state.phase,
            )
        )
        if topics.control_problem and topics.control_problem != before.control_problem:
            self._say(f"unknown: {UNKNOWN_ORDERS}: {topics.control_problem}")
        for text in self._away.news(seen.unreachable, leaderless, now_ms, seen.refused):
            self._say(text)
        self._tell_still()
        self._show()

    def _ask_ends(self, clusters: LinkClusters) -> _Seen:
        """Asks the clusters for the log ends; a watch that nobody sees asks the source only if something does not move."""
        state = self.state
        away: dict[str, Exception] = {}
        partitions = list(state.partitions)
        if time.monotonic() - self._absent_at >= _ABSENT_INTERVAL_S:
            self._absent_at = time.monotonic()
            partitions += state.absent
        target = asked_of(away, "target", clusters.target_ends, partitions)
        if target is not None:
            self._took(target.offsets)
            self._state_topics.read_former(clusters)
        asked = {"target"}
        source: SourceEnds | None = None
        if self._board is not None or not self._is_once or state.still or "source" in state.unreachable:
            asked.add("source")
            source = asked_of(away, "source", clusters.source_ends, partitions)
        return _Seen(target, source, frozenset(asked), *not_responding(away))

    def _tell_still(self) -> None:
        """Reports once, on the terminal, what does not move without a task's report, and the transactions that hold it back."""
        state = self.state
        is_begun = state.phase is not Phase.STARTING or state.time_ms - state.started_ms > _START_MS
        still = {
            p for p in state.still if is_begun and p not in state.report.waiting and not self._standing_told.waits(p)
        }
        waits = {p: wait for p, wait in state.waiting.items() if p in still}
        held = {one.partition: str(one) for one in state.held if is_held_long(one, state.time_ms)}
        new = waiting_reasons({p: wait for p, wait in waits.items() if p not in self._told_still})
        for text in [
            *(reason.text for reason in new),
            *(text for p, text in held.items() if p not in self._told_still),
        ]:
            self._say(f"waiting: {text}")
        self._told_still = {*waits, *held}
        open_still = self._told_held if state.unreachable else {one.partition for one in state.held}
        if ended := self._told_held - open_still:
            self._say(f"over: the open transaction that held up {names_of(sorted(ended))}")
        self._told_held = (self._told_held & open_still) | held.keys()

    def look_last(self, clusters: LinkClusters) -> None:
        """Takes the last sample of a mirror that has ended: the target's log ends, and the losses."""
        away: dict[str, Exception] = {}
        problem = ""
        ends = asked_of(away, "target", clusters.target_ends, list(self.state.partitions))
        if ends is not None:
            self._took(ends.offsets)
            if ends.left_out:
                problem = next(f"{names_of(of)}: {why}" for why, of in by_reason(ends.left_out).items())
        if not away:
            rows = asked_of(away, "target", clusters.ledger)
            if rows is not None:
                self._state_topics.tell_losses(rows, self.state)
        self._problem = text_of(away["target"]) if away else problem

    def _took(self, target_ends: Mapping[TopicPartition, int]) -> None:
        """Takes the target's ends; for partitions that are new since the start, what is reported as copied so far counts as gained.

        A blocked partition gains nothing: another link may write to what is refused to us.
        """
        for partition in target_ends.keys() - self._first.keys() - self.state.blocked.keys():
            done = self.state.report.copied.get(partition, Copied())
            self._first[partition] = self._begins.get(partition, max(target_ends[partition] - done.records, 0))
        self._last = {**self._last, **target_ends}

    def _cannot_look(self, error: Exception) -> None:
        blind = f"{type(error).__name__}: {sentence(error)}"
        if blind != self.state.blind:
            _log.error("The watch of link %s cannot check, and tries again: %s", self.state.link, blind, exc_info=error)
        self.sample.change(lambda state: replace(state, blind=blind))
        self._show()

    def _show(self) -> None:
        if self._board is not None:
            self._board.tell(self.state)
        self._bars.show(self.state, self._goals)


def _now_ms() -> int:
    return int(time.time() * 1000)
