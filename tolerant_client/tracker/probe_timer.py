"""When silence on a connection is suspicious, so that a probe should ask (T5).

Laws:
- A broker handles the requests of a connection one after the other, so the time of the oldest one starts with the
  response to the one before it.
- Arriving bytes, and a broker's throttle (KIP-219), are progress.
- Silence is no fault before the broker's own wait (of a Fetch, a JoinGroup) and a generous round trip are over; each
  repeat is given twice as long.
- At most one probe is in flight; one without a response is replaced after a second, then after twice as long each time,
  and no sooner than this peer may take.
- The deadline of a request that was sent after a probe moves by the time that the probe kept it waiting (law E of
  inflight.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from tolerant_client.tracker.lifecycle import NEVER, InFlightRequest
from tolerant_client.tracker.limits import Trial
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.sending_order import SendingOrder

_AGAIN = 1.0  # seconds until an unanswered probe is replaced by the next one
_LONG_POLL = 0.5  # the most that a trial allows for requests that may rightly wait at the broker (fetch.max.wait.ms)
_MOST_DOUBLINGS = 16  # far above any ceiling, far below what a float holds
_FIRST_ESTIMATE = 1.0  # RFC 6298, section 2.1: before the first sample


class RoundTrips:
    """How long a response may take, from the round trips of one connection; seconds.

    The estimate is TCP's (RFC 6298): the smoothed round trip and four deviations, or a fixed margin where that is more,
    up to a ceiling.
    """

    __slots__ = ("_ceiling", "_deviation", "_margin", "_smoothed", "unanswered")

    def __init__(self, margin: float, ceiling: float) -> None:
        self._margin = margin
        self._ceiling = ceiling
        self._smoothed = -1.0
        self._deviation = 0.0
        self.unanswered = 0

    def sample(self, seconds: float) -> None:
        """Takes one measured round trip."""
        smoothed = self._smoothed
        if smoothed < 0.0:
            self._smoothed = seconds
            self._deviation = seconds / 2
            return
        error = seconds - smoothed
        self._deviation += 0.25 * (abs(error) - self._deviation)
        self._smoothed = smoothed + 0.125 * error

    @property
    def estimate(self) -> float:
        """A generous round trip."""
        if self._smoothed < 0.0:
            return min(self._ceiling, max(self._margin, _FIRST_ESTIMATE))
        return min(self._ceiling, self._smoothed + max(self._margin, 4 * self._deviation))

    def after(self, repeats: int) -> float:
        """The estimate, doubled for each of so many repeats that had no response either."""
        return float(min(self._ceiling, self.estimate * 2 ** min(repeats, _MOST_DOUBLINGS)))


class Silence:
    """Measures the silence of one connection; times in seconds."""

    __slots__ = ("_probed_at", "_progress", "responded_at", "round_trips")

    def __init__(self, policy: RecoveryPolicy) -> None:
        self.round_trips = RoundTrips(policy.probe_min_ms / 1000, policy.probe_max_ms / 1000)
        self._progress = -NEVER
        self._probed_at = -NEVER
        self.responded_at = -NEVER  # the last response

    def progress(self, now: float) -> None:
        """Notes that bytes are arriving (or, with a time ahead, that none can before it)."""
        if now > self._progress:
            self._progress = now

    def responded(self, now: float) -> None:
        """Notes a response to any request."""
        self.progress(now)
        self.responded_at = now

    def since(self, now: float) -> float:
        """From when silence counts: `now`, or the last progress, or the end of a throttle."""
        return max(now, self._progress)

    def answered(self, entry: InFlightRequest, now: float) -> None:
        """Learns the round trip from the response to a request."""
        took, expected = now - entry.sent_at, entry.expected
        if not expected:
            self.round_trips.sample(took)
        elif took > expected:
            self.round_trips.sample(took - expected)

    def allow_for(self, probe: InFlightRequest, entries: Iterable[InFlightRequest], now: float) -> None:
        """Moves the deadlines of the `entries` that were sent after a probe whose response has just come (law E)."""
        for entry in entries:
            if entry.order > probe.order and entry.sent_at >= 0:
                entry.deadline += now - max(entry.sent_at, self.responded_at)

    def probed(self, now: float) -> None:
        """Notes that a probe is sent."""
        self._probed_at = now
        self.round_trips.unanswered += 1

    def proved(self, probe: InFlightRequest, now: float) -> None:
        """Notes the response to a probe; no other one resets the pauses, because a slow peer still has probes to handle."""
        self.answered(probe, now)
        self.round_trips.unanswered = 0

    def due(self, requests: SendingOrder) -> float:
        """When to probe, by the oldest request without a response; NEVER while the connection authenticates."""
        oldest = requests.silent
        if oldest is None or requests.is_setting_up:
            return NEVER
        if requests.probe is not None:
            pause = max(
                _AGAIN * 2.0 ** min(self.round_trips.unanswered - 1, _MOST_DOUBLINGS), self.round_trips.estimate
            )
            return max(self._probed_at, self._progress) + pause
        return max(oldest.sent_at, self._progress) + oldest.expected + self.round_trips.after(oldest.resends)

    def trial_ends(self, trial: Trial | None) -> float:
        """When a trial has taken too long; NEVER without one."""
        return NEVER if trial is None else self.since(trial.began) + trial.patience

    def patience(self, rightly: float) -> float:
        """How long a stream may take to show that it is in step, while requests in flight may wait `rightly` seconds."""
        return self.round_trips.estimate + min(rightly, _LONG_POLL)
