"""The newest sample of a link, combined from what its tasks, its duties and its watch report, each from its own thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.copy_metrics import Copied
from tolerant_client.ops.service.link_state import (
    DutyState,
    GroupState,
    LinkState,
    PartitionState,
    Phase,
    TaskReport,
    added,
)

_RECENT_MS = 60_000


class LinkSample:
    """Holds a LinkState; every change replaces it."""

    def __init__(self, state: LinkState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._latest: deque[tuple[int, Mapping[TopicPartition, Copied]]] = deque()
        self._former_reports = TaskReport()  # the sums of earlier queries, before restarts
        self._only_told: set[TopicPartition] = set()  # no task has these: they are refused, or have no leader

    @property
    def state(self) -> LinkState:
        return self._state

    def change(self, changed: Callable[[LinkState], LinkState]) -> None:
        """Replaces the state by what `changed` makes of it, atomically."""
        with self._lock:
            self._state = changed(self._state)

    def tell_report(self, report: TaskReport) -> None:
        """Takes the report of the running query's tasks; a new query's sums are added to those of the queries before.

        Its sums may have grown though its `time_ms` is that of the last one: the copy during Spark's start reports besides.
        """
        self.change(lambda state: self._reported(state, report))

    def _reported(self, state: LinkState, report: TaskReport) -> LinkState:
        told = report.blocked.keys() | report.waiting.keys()
        new = (told | report.acked.keys()) - state.partitions.keys() - state.absent
        over = self._only_told - told - report.acked.keys()
        self._only_told = (self._only_told | new) & told - report.acked.keys()
        partitions = {p: known for p, known in state.partitions.items() if p not in over}
        state = replace(state, partitions={**partitions, **{p: PartitionState(p) for p in new}})
        last = state.report
        if not report.time_ms:
            return replace(
                state, report=replace(last, paused=report.paused, blocked=report.blocked, waiting=report.waiting)
            )
        if report.records < last.records - self._former_reports.records:
            self._former_reports = last  # a new query counts from 0
        if is_new := report.time_ms != last.time_ms:
            self._latest.append((report.time_ms, report.latest))
        while report.time_ms - self._latest[0][0] > _RECENT_MS:
            self._latest.popleft()
        return replace(
            state,
            report=replace(self._former_reports.plus([report], report.time_ms), latest=report.latest),
            recent=added({}, *(latest for _, latest in self._latest)),
            phase=Phase.RUNNING if is_new else state.phase,
        )

    def tell_phase(self, phase: Phase, problem: str = "") -> None:
        """Takes the query's phase; RESTARTING counts as one restart."""
        again = phase is Phase.RESTARTING
        self.change(lambda state: replace(state, phase=phase, problem=problem, restarts=state.restarts + again))

    def tell_duty(self, duty: str, problem: str = "") -> None:
        """Takes the result of a duty's round that ended now."""
        now_ms = int(time.time() * 1000)

        def told(state: LinkState) -> LinkState:
            ended = state.duties.get(duty, DutyState())._replace(time_ms=now_ms, problem=problem)
            return replace(state, duties={**state.duties, duty: ended})

        self.change(told)

    def tell_groups(self, groups: Iterable[GroupState]) -> None:
        """Takes a round's report about group offsets; offsets that it does not name stay as the round before left them."""

        def told(state: LinkState) -> LinkState:
            known = {group[:3]: group._replace(note="") for group in state.groups or ()}
            for group in groups:
                former = known.get(group[:3])
                known[group[:3]] = (
                    group if former is None else group._replace(latency=former.latency.plus(group.latency))
                )
            return replace(state, groups=tuple(known[key] for key in sorted(known)))

        self.change(told)
