"""Shows the links of a service on one board: what the supervisor tells of them goes to a LinkWatch each."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kafka.errors import KafkaError

from spark_integration.mirroring.link_state import GroupState, LinkState, Phase
from spark_integration.mirroring.supervisor import LinkEvent, SupervisedLink
from spark_integration.mirroring.watch import LinkWatch
from spark_integration.monitoring.board import Board
from tolerant_client.mirror.link.control import LinkControl
from tolerant_client.mirror.link.groups import GroupsReport
from tolerant_client.mirror.sync import PreparedLink


class FlowWatches:
    """Takes LinkEvents, each link's from its own threads; a link that never ran is on the board with what went wrong."""

    def __init__(self, links: Iterable[SupervisedLink], board: Board) -> None:
        self._links = {link.settings.link: link for link in links}
        self._board = board
        self._watches: dict[str, LinkWatch] = {}
        self._started_ms = int(time.time() * 1000)

    def __enter__(self) -> FlowWatches:
        for link in self._links:
            self._show(link, Phase.STARTING, "")
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches.values():
            try:
                watch.__exit__(None, None, None)
            except KafkaError:
                pass  # a cluster that is away at the end: the mirror itself has said so

    def tell(self, event: LinkEvent) -> None:
        """Raises KafkaError where a link has started and the clusters do not answer then."""
        watch = self._watches.get(event.link)
        if watch is None:
            if event.kind == "started":
                self._watches[event.link] = self._watch(event.link, event.facts)
            elif event.kind in ("failed", "promoted"):
                self._show(event.link, Phase.RESTARTING if event.kind == "failed" else Phase.STOPPED, event.text)
        elif event.kind == "started":
            watch.tell_phase(Phase.RUNNING)
        elif event.kind == "report":
            watch.tell(event.facts)
        elif event.kind == "failed":
            watch.tell_phase(Phase.RESTARTING, event.text)
        elif event.kind in ("promoted", "stopped"):
            watch.tell_phase(Phase.STOPPED, event.text)
        elif event.kind == "control" and isinstance(event.facts, LinkControl):
            watch.tell_control(event.facts.paused, event.facts.bytes_per_s, event.facts.is_promoted)
        elif event.kind == "duty":
            watch.tell_duty(event.text)
            if isinstance(event.facts, GroupsReport):
                watch.tell_groups(_groups(event.facts))
        elif event.kind == "duty failed":
            watch.tell_duty(event.facts, event.text)

    def _watch(self, link: str, prepared: PreparedLink) -> LinkWatch:
        settings = self._links[link].settings
        watch = LinkWatch(
            settings.source,
            settings.target,
            prepared.ends,
            link,
            is_once=False,
            is_shown=False,
            board=self._board,
            names=self._links[link].aliases,
            offsets=settings.offsets,
            topic_names=settings.names,
        )
        return watch.__enter__()

    def _show(self, link: str, phase: Phase, problem: str) -> None:
        now_ms = int(time.time() * 1000)
        aliases = self._links[link].aliases
        self._board.tell(LinkState(link, now_ms, self._started_ms, *aliases, phase=phase, problem=problem))


def _groups(report: GroupsReport) -> list[GroupState]:
    """What the round left of each group's offsets, as far as the report names them."""
    moved = [
        GroupState(m.position.group, m.position.partition.topic, m.position.partition.partition, m.position.offset)
        for m in report.moved
    ]
    known = {group[:3] for group in moved}
    behind = [
        GroupState(p.group, p.partition.topic, p.partition.partition, p.offset, note="not all that it has read is copied yet")
        for p in report.behind
    ]
    return [*moved, *(group for group in behind if group[:3] not in known)]
