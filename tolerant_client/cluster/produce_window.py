"""How many bytes of Produce requests may be in flight to one node, and whose turn it is.

Laws:
A. A quota is no trouble: while a node throttles us (KIP-219) nothing is sent, and what waits is sent afterwards, in turn.
B. A broker throttles us for each request that it reads, and reads the next one after that: what is in flight takes as long as
   the quota takes for all its bytes.  So under a quota only as much is in flight as is taken in _FLIGHT_S, as was measured, and
   one request at least.  A response without a throttle proves nothing then: a quota is an average, over 10 s by default, so an
   old burst that leaves the average has the broker take the next one at once.  Before the first throttle, and long after the
   last, no more is in flight than _FIRST_BYTES and half of what was taken: that is what the quota takes in 5 s.
C. A turn comes in the order in which it was asked for, and is used at once: nobody loses it to a newcomer.
D. What lasts only for a time, as a transaction, begins in its turn, not before it: all others' throttles may come first.

With B, and because nothing but batches goes on this connection (connections.py), a transaction ends long before it would time
out, whatever the quota and however large its last batch: only the next batch waits for the throttle.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import PRODUCE, lane_of
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.patience import QUOTA_S
from tolerant_client.cluster.tasks import resolve

_FLIGHT_S = 1.0
_MEASURED_S = 10.0  # at least, and twice as long at most
_FIRST_BYTES = 1 << 20
_LEAST_BYTES = 1 << 16
_PREPARE_S = 1.0  # so long others wait for what another node, the coordinator, has to do first


class ProduceWindow:
    """The Produce requests on one lane of a node: at most `most`, and about `room_bytes`, are in flight."""

    def __init__(
        self,
        cluster: Cluster,
        node_id: int,
        most: int,
        on_room: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        purpose: str = PRODUCE,
    ) -> None:
        self.room_bytes = _FIRST_BYTES
        self._throttled_until = float("-inf")
        self._cluster = cluster
        self._lane = lane_of(purpose, node_id)
        self._most = most
        self._on_room = on_room
        self._clock = clock
        self.in_flight = 0
        self._bytes = 0
        self._measured_since = 0.0
        self._measured_bytes = 0.0  # since then
        self._is_paused = False  # until the end of a throttle
        self._is_flushing = False

    @property
    def throttled_until(self) -> float:
        """When the last throttle ended, or will by the clock: at once if the connection lifts one that is not true (connection.py)."""
        now = self._clock()
        if self._throttled_until > now:
            self._throttled_until = now + self._cluster.throttle_s(self._lane)
        return self._throttled_until

    def flush(self) -> None:
        """Calls `on_room`, unless that is at work and sends on: a request to a node that is away fails while it is being sent."""
        if self._is_flushing:
            return
        self._is_flushing = True
        try:
            self._on_room()
        finally:
            self._is_flushing = False

    def has_room(self) -> bool:
        """Whether a request may be sent now; if not, `on_room` is called once one may be."""
        if self.in_flight >= self._most or self._bytes >= self.room_bytes:
            return False
        if not self._cluster.paused_s(self._lane):
            return True
        if not self._is_paused:
            self._is_paused = True
            self._cluster.net.call_soon(self._resume)
        return False

    def request_bytes(self, most: int) -> int:
        """About how many bytes the next request may have."""
        return min(most, self.room_bytes - self._bytes)

    def sent(self, size: int, future: Any) -> None:
        """Counts a request of so many bytes until its future, that of Cluster.produce, is done."""
        self.keep(size)
        future.add_callback(partial(self._responded, size))
        future.add_errback(lambda _: self.leave(size))

    def keep(self, size: int) -> None:
        """Keeps the room of a request until `leave`."""
        self.in_flight += 1
        self._bytes += size

    def leave(self, size: int) -> None:
        self.in_flight -= 1
        self._bytes -= size
        self.flush()

    def _responded(self, size: int, response: Any) -> None:
        now = self._clock()
        if now - self.throttled_until > QUOTA_S:
            if 2 * self._bytes >= self.room_bytes:
                self.room_bytes += size // 2
            self._measured_since, self._measured_bytes = now, 0.0
        if response.throttle_time_ms:
            self._throttled_until = now + response.throttle_time_ms / 1000
        if now - self.throttled_until <= QUOTA_S:
            self._measure(size, now)
        self.leave(size)

    def _measure(self, size: int, now: float) -> None:
        """Law B under a quota."""
        self._measured_bytes += size
        measured_s = now - self._measured_since
        self.room_bytes = max(_LEAST_BYTES, int(self._measured_bytes / max(measured_s, _MEASURED_S) * _FLIGHT_S))
        if measured_s > 2 * _MEASURED_S:
            self._measured_since += measured_s / 2
            self._measured_bytes /= 2

    async def _resume(self) -> None:
        await self._cluster.sendable(self._lane)
        self._is_paused = False
        self.flush()


class ProduceTurns:
    """The turns of many owners at one node's `window`; each owner asks for one at a time."""

    def __init__(self, cluster: Cluster, node_id: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.window = ProduceWindow(cluster, node_id, most, self._take_turns, clock)
        self._net = cluster.net
        # What takes a turn, and a future for whether it did.
        self._waiting: OrderedDict[Hashable, tuple[Callable[[], None], Future]] = OrderedDict()
        self._prepared: deque[tuple[Callable[[], None], Future]] = deque()  # had their turn, and go first

    async def send(
        self,
        owner: Hashable,
        size: int,
        produce: Callable[[], Any],
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
        within_s: float = float("inf"),
    ) -> bool:
        """Calls `produce`, which sends a request and returns its future, in its turn; raises what it raises.

        `prepare` is awaited before, in the same turn: nobody else gets that, but after a second others get theirs meanwhile.
        Returns False, and calls neither, if its turn has not come after `within_s`, or was given up.
        """

        def send() -> None:
            self.window.sent(size, produce())

        if prepare is None:
            return await self._turn(owner, send, within_s)
        if not await self._turn(owner, lambda: self.window.keep(size), within_s):
            return False
        turn = Future()
        turn.add_callback(lambda _: self.window.leave(size))
        timer = self._net.call_later(_PREPARE_S, lambda: resolve(turn))
        try:
            await prepare()
            self._prepared.append((send, sent := Future()))
        finally:
            self._net.cancel(timer)
            resolve(turn)
        self.window.flush()  # where the turn has ended before
        return bool(await sent)

    def give_up(self, owner: Hashable) -> None:
        """Ends the wait of an owner whose turn has not come."""
        if (waiter := self._waiting.pop(owner, None)) is not None:
            waiter[1].success(False)

    async def _turn(self, owner: Hashable, take: Callable[[], None], within_s: float) -> bool:
        """Has `take` called in its turn; returns whether that came in time, and raises what it raises."""
        taken = Future()
        self._waiting[owner] = take, taken
        self.window.flush()
        if taken.is_done or within_s == float("inf"):
            return bool(await taken)
        timer = self._net.call_later(within_s, lambda: self.give_up(owner))
        try:
            return bool(await taken)
        finally:
            self._net.cancel(timer)

    def _take_turns(self) -> None:
        while (self._prepared or self._waiting) and self.window.has_room():
            take, taken = self._prepared.popleft() if self._prepared else self._waiting.popitem(last=False)[1]
            try:
                take()
            except BaseException as error:
                taken.failure(error)
            else:
                taken.success(True)
