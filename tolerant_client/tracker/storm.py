"""Tells an election storm from single leader changes, from metadata alone.  Does no I/O.

A partition has *moved* when another broker leads it or its leader epoch rose (a broker that is elected again fences
older requests, too).

Laws:
- A storm begins when `storm_threshold` different partitions have moved within the window; it ends when none has moved
  for a whole window.
- So a storm describes the client's load, not its cause: a killed broker is one storm, and so is a rolling restart whose
  steps follow within the window; a restart that hands over a few leaders at a time is none.
- Metadata from a broker that lags (a lower epoch) is no news.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from tolerant_client.tracker.events import Storm, StormOver

WINDOW_MS = 10_000.0
_SHARE = 0.2
_FEW, _MANY = 10, 100

Leader = tuple[int, int]  # (node id, leader epoch); -1 where there is none


def storm_threshold(known: int) -> int:
    """How many of the `known` partitions make a storm: a fifth, but at least 10 and at most 100.

    Fewer than 10 errors are worth a line each; nobody reads more than 100, whatever their share.
    """
    return int(min(_MANY, max(_FEW, known * _SHARE)))


class StormDetector:
    """The leaders of one client's partitions, and which of them moved within the window."""

    def __init__(self, window_ms: float = WINDOW_MS) -> None:
        self.window_ms = window_ms
        self._leaders: dict[Any, Leader] = {}
        self._moves: deque[tuple[float, Any, int, int]] = deque()  # (when, partition, from node, to node)
        self._began: float | None = None
        self._moved: set[Any] = set()  # in this storm
        self._total = 0
        self.is_news = False
        """Whether the last `observe` changed what is known."""

    @property
    def is_storm(self) -> bool:
        """True from a Storm event to its StormOver."""
        return self._began is not None

    def observe(self, leaders: Iterable[tuple[Any, Leader]], now: float) -> list[Storm]:
        """Takes one metadata update: (partition, (leader, leader epoch)) of every partition that it names."""
        events = self.expired(now)
        seen: dict[Any, Leader] = {}
        for partition, leader in leaders:
            seen[partition] = self._newer(partition, leader, now)
        self.is_news = seen != self._leaders
        self._leaders = seen
        if self.is_storm:
            return events
        moved = {partition for _, partition, _, _ in self._moves}
        if len(moved) >= storm_threshold(len(seen)):
            self._began = now
            self._moved, self._total = moved, len(self._moves)
            events.append(self._begun(len(seen)))
        return events

    def expired(self, now: float) -> list[Storm]:
        """Drops moves that have left the window; returns the end of the storm when none is left."""
        since = now - self.window_ms / 1000
        last = self._moves[-1][0] if self._moves else since
        while self._moves and self._moves[0][0] <= since:
            self._moves.popleft()
        if self._began is None or self._moves:
            return []
        seconds, moved, known = last - self._began, len(self._moved), len(self._leaders)
        self._began = None
        message = (
            f"leader election storm over: {moved} of {known} partitions moved {self._total} times"
            f" in {seconds + self.window_ms / 1000:.0f} s, the last one {now - last:.0f} s ago"
        )
        return [StormOver("", -1, moved, known, self.window_ms, (), message)]

    def next_wakeup(self) -> float | None:
        """When to call `expired`; None without a storm."""
        return self._moves[-1][0] + self.window_ms / 1000 if self.is_storm and self._moves else None

    def _newer(self, partition: Any, leader: Leader, now: float) -> Leader:
        """The newer of the known and the seen leader; notes a move."""
        known = self._leaders.get(partition)
        if known is None:
            return leader
        (node, epoch), (known_node, known_epoch) = leader, known
        if epoch < 0 <= known_epoch:  # the topic was created again: kafka-python resets its epochs
            return leader
        if epoch < known_epoch:
            return known
        if epoch > known_epoch >= 0 or (node != known_node and known_node >= 0):
            self._moves.append((now, partition, known_node, node))
            if self.is_storm:
                self._moved.add(partition)
                self._total += 1
        return leader

    def _begun(self, known: int) -> Storm:
        lost = Counter(from_node for _, _, from_node, _ in self._moves if from_node >= 0)
        nodes = tuple(node for node, _ in lost.most_common())
        leaderless = sum(node < 0 for node, _ in self._leaders.values())
        message = (
            f"leader election storm: {len(self._moved)} of {known} partitions moved within"
            f" {self.window_ms / 1000:.0f} s, most of them away from node {nodes[0] if nodes else 'unknown'}"
            f" ({leaderless} have no leader now); requests to old leaders are sent again after a metadata refresh"
        )
        return Storm("", -1, len(self._moved), known, self.window_ms, nodes, message)
