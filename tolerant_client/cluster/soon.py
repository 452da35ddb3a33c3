"""Whose turn it is on a lane of small requests that may wait for no quota (Cluster.produce_soon), or may not lie unread (markers).

Laws:
A. Under a quota one request is in flight: its response may throttle the connection for minutes, which is then left with nothing
   in it.  What is left behind is read when the throttle ends, long after it was sent again.
B. Without a quota requests that a broker appends only once, by their sequence, are in flight together.  Others never are.
C. Turns come in the order in which they were asked for; but whoever gave one up, to prepare again, has the next one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.patience import QUOTA_S


class SoonTurns:
    """The turns at one lane; with `has_sequences` for requests that a broker appends once, however often they come."""

    def __init__(self, *, has_sequences: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._has_sequences = has_sequences
        self._clock = clock
        self._throttled_at = float("-inf")
        self._in_flight = 0
        self._waiting: deque[Future] = deque()

    @asynccontextmanager
    async def turn(self, *, is_next: bool = False) -> AsyncIterator[None]:
        """A turn, which lasts until the response; with `is_next` before those of all that wait."""
        mine = Future()
        if is_next:
            self._waiting.appendleft(mine)
        else:
            self._waiting.append(mine)
        self._give()
        await mine
        try:
            yield
        finally:
            self._in_flight -= 1
            self._give()

    def throttled(self) -> None:
        """Notes that a response throttles us."""
        self._throttled_at = self._clock()

    def _give(self) -> None:
        is_free = self._has_sequences and self._clock() - self._throttled_at > QUOTA_S
        while self._waiting and (is_free or not self._in_flight):
            self._in_flight += 1
            self._waiting.popleft().success(None)
