"""Watches the links of a service: the supervisor's events go to one LinkWatch for each link.

What a LinkWatch sees not moving, open transactions of the source included, is told as events, with or without a board.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType

from kafka.errors import KafkaError
from rich.console import Console

from spark_integration.mirror.supervisor import SupervisedLink
from tolerant_client.errors import ClusterUnreachableError, LoginRefusedError
from tolerant_client.mirror.engine.copy_metrics import Span
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.link_clusters import not_responding
from tolerant_client.ops.monitoring.watch import LinkWatch
from tolerant_client.ops.service.link_events import LinkEvent, Tell, undone
from tolerant_client.ops.service.link_state import DutyState, GroupState, LinkState, Phase

_PHASES: Mapping[str, Phase] = {
    "started": Phase.RUNNING,
    "failed": Phase.RESTARTING,
    "promoted": Phase.STOPPED,
    "stopped": Phase.STOPPED,
    "dead": Phase.FAILED,
}


class FlowWatches:
    """Takes LinkEvents, each link's from its own threads; the board shows a link that never ran with its error."""

    def __init__(self, links: Iterable[SupervisedLink], board: Board | None, tell: Tell) -> None:
        self._links = {link.settings.link: link for link in links}
        self._board = board
        self._tell = tell
        self._watches: dict[str, LinkWatch] = {}
        self._restarts: Counter[str] = Counter()
        self._started_ms = int(time.time() * 1000)

    def __enter__(self) -> FlowWatches:
        for link in self._links.values():
            self._show(link, Phase.STARTING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for watch in list(self._watches.values()):
            try:
                watch.__exit__(kind, error, trace)
            except KafkaError:
                pass  # a cluster that is unavailable at the end: the mirror itself has reported it

    def stop(self) -> None:
        """Asks all watches to end, each after its last sample, and waits for nothing."""
        for watch in list(self._watches.values()):
            watch.stop()

    def tell(self, event: LinkEvent) -> None:
        link = self._links.get(event.link)
        if link is None:
            return  # heartbeats of a flow that copies nothing
        watch = self._watches.get(event.link)
        phase = _PHASES.get(event.kind)
        problem = "" if event.kind in ("started", "stopped") else event.text
        if event.kind == "started" and watch is None:
            self._watches[event.link] = self._watch(link, event.facts)
        elif phase is not None and watch is None:
            self._restarts[event.link] += phase is Phase.RESTARTING
            self._show(link, phase, problem, is_promoted=event.kind == "promoted", error=event.facts)
        elif watch is None:
            return
        elif phase is not None:
            watch.tell_phase(phase, problem)
        elif event.kind == "report":
            watch.tell(event.facts)
        elif event.kind == "duty":
            watch.sample.tell_duty(event.text, undone(getattr(event.facts, "left", ())))
            if isinstance(event.facts, GroupsReport):
                watch.sample.tell_groups(_groups(event.facts))
        elif event.kind == "duty failed":
            watch.sample.tell_duty(event.facts, event.text.removeprefix(f"{event.facts} "))

    def _watch(self, link: SupervisedLink, prepared: PreparedLink) -> LinkWatch:
        settings = link.settings
        watch = LinkWatch(
            settings,
            prepared.ends,
            prepared.target_ends,
            is_shown=False,
            board=self._board,
            names=link.aliases,
            duties={duty.name: duty.interval_s for duty in link.duties},
            console=Console(quiet=True),  # all texts go to `say`
            say=lambda text: self._tell(LinkEvent(settings.link, "standing", text)),
        )
        watch.sample.change(lambda state: replace(state, restarts=self._restarts[settings.link]))
        return watch.__enter__()

    def _show(
        self,
        link: SupervisedLink,
        phase: Phase,
        problem: str = "",
        *,
        is_promoted: bool = False,
        error: Exception | None = None,
    ) -> None:
        """Shows a link that has no watch yet: no sample exists, and the start's `error` is all that is known of the clusters."""
        settings = link.settings
        if self._board is None:
            return
        away: dict[str, Exception] = {}
        if isinstance(error, (ClusterUnreachableError, LoginRefusedError)) and error.cluster:
            away[error.cluster] = error
        unreachable, refused = not_responding(away)
        self._board.tell(
            LinkState(
                settings.link,
                0,
                self._started_ms,
                *link.aliases,
                offsets=settings.offsets,
                phase=phase,
                problem=problem,
                unreachable=unreachable,
                refused=refused,
                restarts=self._restarts[settings.link],
                duties={duty.name: DutyState(interval_s=duty.interval_s) for duty in link.duties},
                control=LinkControl(is_promotion_begun=is_promoted, is_fenced=is_promoted),
                own_rate=settings.bytes_per_s,
                addresses=(settings.source.get("bootstrap.servers", ""), settings.target.get("bootstrap.servers", "")),
            )
        )


def _groups(report: GroupsReport) -> list[GroupState]:
    """The offsets of groups as the round left them, as far as the report names them."""
    latency = Span().seen(report.latency_ms)
    moved = [
        GroupState(
            m.position.group, m.position.partition.topic, m.position.partition.partition, m.position.offset, latency
        )
        for m in report.moved
    ]
    known = {group[:3] for group in moved}
    behind = [
        GroupState(
            p.group, p.partition.topic, p.partition.partition, p.offset, note="not all that it has read is copied yet"
        )
        for p in report.behind
    ]
    return [*moved, *(group for group in behind if group[:3] not in known)]
