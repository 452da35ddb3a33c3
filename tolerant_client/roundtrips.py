"""How long an answer may take before silence is suspicious, from measured round trips.

The estimate is TCP's (RFC 6298): smoothed round trip plus four deviations.  To
ask costs less than to send again, so a probe is due after two deviations,
between a floor and a ceiling, doubled for every probe that stays unanswered.
"""

from __future__ import annotations

_MOST_DOUBLINGS = 16  # far above any ceiling, far below what a float holds
_FIRST_MARGIN = 1.0  # RFC 6298, section 2.1: before the first sample


class RoundTrips:
    """Round trips of one connection, in seconds."""

    __slots__ = ("_ceiling", "_deviation", "_floor", "_smoothed", "unanswered")

    def __init__(self, floor: float, ceiling: float) -> None:
        self._floor = floor
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
        """A generous round trip (smoothed plus four deviations); negative before the first sample."""
        return self._smoothed + 4 * self._deviation if self._smoothed >= 0.0 else -1.0

    @property
    def margin(self) -> float:
        """How long silence is normal, beyond what the request itself may take."""
        if self._smoothed < 0.0:
            margin = max(self._floor, _FIRST_MARGIN)
        else:
            margin = max(self._floor, self._smoothed + 2 * self._deviation)
        return float(min(self._ceiling, margin * 2 ** min(self.unanswered, _MOST_DOUBLINGS)))
