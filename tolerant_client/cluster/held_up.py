"""Whether Produce requests may lie unread at the nodes of a cluster (mirror/engine/identical/unread.py tells what that means).

A node reads the next request of a connection once it has responded to the one before, and has throttled that connection for as long
as it then said, also if the connection is closed meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tolerant_client.cluster.patience import QUOTA_S

_SLOW_S = 1.0  # for the response to a request
_NEVER = float("-inf")


class HeldUp:
    """The Produce requests in flight on each lane, which a node responds to in order, and the throttles that it told of."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent_at: dict[str, deque[float]] = {}
        self._told_until: dict[str, float] = {}

    def sent(self, lane: str, future: Any) -> None:
        """Notes a request until its future, that of Cluster.produce, is done."""
        in_flight = self._sent_at.setdefault(lane, deque())
        in_flight.append(self._clock())

        def responded(response: Any) -> None:
            in_flight.popleft()
            if response is not None and response.throttle_time_ms:
                self._told_until[lane] = max(self.told_until(lane), self._clock() + response.throttle_time_ms / 1000)

        future.add_callback(responded)
        future.add_errback(lambda _: in_flight.popleft())

    def told_until(self, lane: str | None = None) -> float:
        """When all throttles of a lane, or of any, end that a node told of; -inf without any."""
        return max(self._told_until.values(), default=_NEVER) if lane is None else self._told_until.get(lane, _NEVER)

    def is_now(self) -> bool:
        """Whether a node throttles us, or did lately, or takes a second to respond to one of the requests in flight."""
        now = self._clock()
        is_slow = any(sent_at and now - sent_at[0] > _SLOW_S for sent_at in self._sent_at.values())
        return is_slow or now - self.told_until() <= QUOTA_S
