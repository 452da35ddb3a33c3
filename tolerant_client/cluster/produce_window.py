"""How many Produce requests may be in flight to one node, and whether it takes one now.

Laws:
A. A quota is no trouble: while a node throttles us (KIP-219) nothing is sent, and what waits is sent afterwards, in turn.
B. A broker applies a throttle anew to each request that it has not read yet: many would outlast their timeouts.  So after a
   throttle a single request is in flight, and twice as many after each response without one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.tasks import resolve


class ProduceWindow:
    """The Produce requests to one node that are given to `sent`: at most `most` are in flight."""

    def __init__(self, cluster: Cluster, node_id: int, most: int) -> None:
        self.in_flight = 0
        self.is_throttled = False  # by the last response
        self._cluster = cluster
        self._node_id = node_id
        self._most = most
        self._size = 1
        self._waiting: deque[Future] = deque()

    @property
    def is_full(self) -> bool:
        return self.in_flight >= self._size

    @property
    def has_room(self) -> bool:
        return not (self.is_full or self._cluster.paused_s(self._node_id))

    def sent(self, future: Any) -> None:
        """Counts a request until its future, that of Cluster.produce, is done."""
        self.in_flight += 1
        future.add_callback(self._answered)
        future.add_errback(self._settled)

    async def send(self, produce: Callable[[], Any]) -> None:
        """Calls `produce`, which sends a request and returns its future, once there is room; raises what it raises."""
        while not self.has_room:
            if self.is_full:
                self._waiting.append(Future())
                await self._waiting[-1]
            else:
                await self._cluster.sendable(self._node_id)
        try:
            future = produce()
        except BaseException:
            self._wake()
            raise
        self.sent(future)

    def _answered(self, response: Any) -> None:
        self.is_throttled = response.throttle_time_ms > 0
        self._size = 1 if self.is_throttled else min(2 * self._size, self._most)
        self._settled(response)

    def _settled(self, _: Any) -> None:
        self.in_flight -= 1
        self._wake()

    def _wake(self) -> None:
        for _ in range(min(self._size - self.in_flight, len(self._waiting))):
            resolve(self._waiting.popleft())
