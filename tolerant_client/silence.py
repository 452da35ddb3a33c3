"""When silence on a connection is suspicious, so that a probe should ask (T5).

Laws:
- A broker takes one request of a connection after the other, so the time of the
  oldest one starts when the one before it was answered.
- Bytes that are arriving, and a broker's throttle (KIP-219), are progress.
- A request that may rightly wait at the broker (Fetch) is given its own measure.
"""

from __future__ import annotations

from tolerant_client.lifecycle import NEVER, InFlightRequest
from tolerant_client.policy import RecoveryPolicy
from tolerant_client.roundtrips import RoundTrips


class Silence:
    """The measure of one connection; times in seconds."""

    __slots__ = ("_probed_at", "_progress", "_waits", "round_trips")

    def __init__(self, policy: RecoveryPolicy) -> None:
        floor = policy.probe_min_ms / 1000
        self.round_trips = RoundTrips(floor, policy.probe_max_ms / 1000)
        self._waits = RoundTrips(floor, NEVER)  # of requests that may wait at the broker
        self._progress = -NEVER
        self._probed_at = -NEVER

    def progress(self, now: float) -> None:
        """Notes that bytes are arriving (or, with a time ahead, that none can before it)."""
        if now > self._progress:
            self._progress = now

    def since(self, now: float) -> float:
        """From when silence counts: now, or the end of a throttle."""
        return max(now, self._progress)

    def answered(self, entry: InFlightRequest, now: float) -> None:
        """Learns from the answer of a request."""
        took, expected = now - entry.sent_at, entry.expected
        if not expected:
            self.round_trips.sample(took)
        else:
            self._waits.sample(took)
            if took > expected:
                self.round_trips.sample(took - expected)
        self.round_trips.unanswered = 0

    def probed(self, now: float, is_repeated: bool) -> None:
        """Notes that a probe is sent, while another one waits or not."""
        self._probed_at = now
        self.round_trips.unanswered += 1 if is_repeated else 0

    def due(self, oldest: InFlightRequest, is_probing: bool) -> float:
        """When to probe, given the oldest request without an answer.

        A probe behind a fetch that rightly waits only waits with it, so where data
        is flowing it need not be held back for the fetch's whole max_wait_ms.
        """
        since = max(oldest.sent_at, self._progress)
        if is_probing:
            return max(since, self._probed_at) + self.round_trips.margin * 2
        patience = oldest.expected + self.round_trips.margin
        return since + (min(patience, self._waits.margin) if oldest.expected else patience)
