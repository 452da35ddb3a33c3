"""How many Produce requests may be in flight to one node, and whether it takes one now.

Laws:
A. A quota is no trouble: while a node throttles us (KIP-219) nothing is sent, and what waits is sent afterwards, in turn.
B. A broker applies a throttle anew to each request that it has not read yet: many would outlast their timeouts.  So after a
   throttle a single request is in flight, and one more after each response without one; before the first they double.
C. A turn comes in the order in which it was asked for, and is used at once: nobody loses it to a newcomer.
D. What lasts only for a time, as a transaction, begins in its turn, not before it: all others' throttles may come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.tasks import resolve

_PREPARE_S = 1.0  # so long others wait for what another node, the coordinator, has to do first


class ProduceWindow:
    """The Produce requests to one node that are given to `sent`: at most `most` are in flight."""

    def __init__(self, cluster: Cluster, node_id: int, most: int) -> None:
        self.in_flight = 0
        self.is_throttled = False  # by the last response
        self.throttles = 0  # how often it was
        self._cluster = cluster
        self._node_id = node_id
        self._most = most
        self._size = 1
        # What takes a turn, and a future for whether it did.
        self._waiting: deque[tuple[Callable[[], None], Future]] = deque()
        self._prepared: deque[tuple[Callable[[], None], Future]] = deque()  # had their turn, and go first
        self._is_flushing = False
        self._is_paused = False  # until the end of a throttle

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

    async def send(
        self,
        produce: Callable[[], Any],
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
        within_s: float = float("inf"),
    ) -> bool:
        """Calls `produce`, which sends a request and returns its future, in its turn; raises what it raises.

        `prepare` is awaited before, in the same turn: nobody else gets that, but after a second others get theirs meanwhile.
        Returns False, and calls neither, if its turn has not come after `within_s`.
        """
        if prepare is None:
            return await self._turn(lambda: self.sent(produce()), within_s)
        turn = Future()
        if not await self._turn(lambda: self._keep(turn), within_s):
            return False
        timer = self._cluster.net.call_later(_PREPARE_S, lambda: resolve(turn))
        try:
            await prepare()
            self._prepared.append((lambda: self.sent(produce()), sent := Future()))
        finally:
            self._cluster.net.cancel(timer)
            resolve(turn)
        self._flush()  # where the turn has ended before
        return bool(await sent)

    async def _turn(self, take: Callable[[], None], within_s: float) -> bool:
        """Has `take` called in its turn; returns whether that came in time, and raises what it raises."""
        taken = Future()
        self._waiting.append((take, taken))
        self._flush()
        if taken.is_done or within_s == float("inf"):
            return bool(await taken)
        timer = self._cluster.net.call_later(within_s, lambda: self._give_up(taken))
        try:
            return bool(await taken)
        finally:
            self._cluster.net.cancel(timer)

    def _give_up(self, taken: Future) -> None:
        if not taken.is_done:
            self._waiting = deque(waiter for waiter in self._waiting if waiter[1] is not taken)
            taken.success(False)

    def _keep(self, turn: Future) -> None:
        self.in_flight += 1
        turn.add_callback(self._settled)

    def _answered(self, response: Any) -> None:
        self.is_throttled = response.throttle_time_ms > 0
        self.throttles += self.is_throttled
        if self.is_throttled:
            self._size = 1
        else:
            self._size = min(self._size + 1 if self.throttles else 2 * self._size, self._most)
        self._settled(response)

    def _settled(self, _: Any) -> None:
        self.in_flight -= 1
        self._flush()

    def _flush(self) -> None:
        if self._is_flushing:  # a request has failed at once
            return
        self._is_flushing = True
        while (waiting := self._prepared or self._waiting) and self.has_room:
            take, taken = waiting.popleft()
            try:
                take()
            except BaseException as error:
                taken.failure(error)
            else:
                taken.success(True)
        self._is_flushing = False
        if waiting and not self.is_full and not self._is_paused:
            self._is_paused = True
            self._cluster.net.call_soon(self._flush_later)

    async def _flush_later(self) -> None:
        await self._cluster.sendable(self._node_id)
        self._is_paused = False
        self._flush()
