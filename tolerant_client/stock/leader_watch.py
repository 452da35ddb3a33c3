"""Watches the leaders in a client's metadata: reports election storms, paces refreshes.

Laws:
- A storm is reported once when it begins and once when it ends: a warning in the
  log, an event for the listener, a count.
- Refreshes that follow each other for some seconds and bring nothing new get
  further and further apart, up to a second, with jitter (KIP-580).  kafka-python
  asks ten times a second while any partition has an error, and all clients that
  lost the same broker ask in step.
- While a broker that leads partitions cannot be reached, metadata is requested
  about once a second until other brokers lead them.  kafka-python asks only after
  it has tried to connect again, and waits up to 30 s between two tries.
"""

from __future__ import annotations

import logging
import random
import time
import weakref
from collections.abc import Iterator
from typing import Any

from tolerant_client.stock.alarm import Alarm
from tolerant_client.tracker.events import Storm
from tolerant_client.tracker.storm import Leader, StormDetector

log = logging.getLogger(__name__)

_MAX_PAUSE_MS = 1_000.0
_ELECTION_S = 5.0  # in which most elections end, and topics are created again: nobody is to notice them later than with kafka-python
_REST_PAUSES = 2.0  # a refresh this many pauses after the last one was not waiting for its turn


class RefreshPace:
    """The pause between two metadata refreshes: after some seconds in which they bring nothing new, it doubles.  Pure."""

    def __init__(self, base_ms: float) -> None:
        self._base_ms = base_ms
        self._pause_ms = base_ms
        self._last: float | None = None
        self._in_vain_since = 0.0

    def refreshed(self, is_news: bool, now: float) -> float:
        """Notes a refresh; returns the milliseconds, with a fifth of jitter, before the next one may come."""
        in_vain = not is_news and self._last is not None and (now - self._last) * 1000 < _REST_PAUSES * self._pause_ms
        if not in_vain:
            self._pause_ms, self._in_vain_since = self._base_ms, now
        elif now - self._in_vain_since > _ELECTION_S:
            self._pause_ms = min(self._pause_ms * 2, max(_MAX_PAUSE_MS, self._base_ms))
        self._last = now
        return self._pause_ms * random.uniform(0.8, 1.2)


class LeaderWatch:
    """Belongs to one TolerantConnectionManager, to which it reports storms."""

    def __init__(self, manager: Any) -> None:
        self._manager = weakref.ref(manager)
        self._net = manager._net
        self._cluster = manager.cluster
        self._base_ms = self._cluster.config["retry_backoff_ms"]
        self._alarm = Alarm(self._net, self._on_alarm)
        self._search: Any = None
        self.forget()
        self._cluster.add_listener(self.updated)

    def forget(self) -> None:
        """Knows no leaders any more: the client moves to another cluster."""
        self._detector = StormDetector()
        self._pace = RefreshPace(self._base_ms)

    def unreachable(self, node_id: Any) -> None:
        """Notes that a broker could not be connected to; on the event loop."""
        if self._search is None and self._cluster.partitions_for_broker(node_id):
            self._search = self._net.call_later(_MAX_PAUSE_MS / 1000 * random.uniform(0.8, 1.2), self._ask_again)

    def updated(self, _: Any = None) -> None:
        """Checks metadata that has just been refreshed."""
        now = time.monotonic()
        events = self._detector.observe(self._leaders(), now)
        self._cluster.config["retry_backoff_ms"] = self._pace.refreshed(self._detector.is_news, now)
        self._tell(events)
        self._arm()

    def _leaders(self) -> Iterator[tuple[Any, Leader]]:
        for topic, partitions in self._cluster._partitions.items():
            for index, data in partitions.items():
                yield (topic, index), (data.leader_id, -1 if data.leader_epoch is None else data.leader_epoch)

    def _tell(self, events: list[Storm]) -> None:
        manager = self._manager()
        if manager is None or manager.closed:
            return
        for event in events:
            log.warning("%s", event.message)
            manager.recovery_event(event)

    def _arm(self) -> None:
        due = self._detector.next_wakeup()
        if due is not None:
            self._alarm.set(due)

    def _ask_again(self) -> None:
        self._search = None
        manager = self._manager()
        if manager is None or manager.closed:
            return
        lost = [node for node in manager.unreachable_nodes() if self._cluster.partitions_for_broker(node)]
        if lost:
            self._cluster.request_update()
            self.unreachable(lost[0])

    def _on_alarm(self) -> None:
        self._tell(self._detector.expired(time.monotonic()))
        self._arm()
