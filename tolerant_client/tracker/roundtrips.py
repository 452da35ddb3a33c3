"""How long an answer may take before silence is suspicious, from measured round trips.

The estimate is TCP's (RFC 6298): the smoothed round trip and four deviations, or
a fixed margin where that is more, up to a ceiling.
"""

from __future__ import annotations

_MOST_DOUBLINGS = 16  # far above any ceiling, far below what a float holds
_FIRST_ESTIMATE = 1.0  # RFC 6298, section 2.1: before the first sample


class RoundTrips:
    """Round trips of one connection, in seconds."""

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
        """The estimate, doubled for each of so many repeats that were not answered either."""
        return float(min(self._ceiling, self.estimate * 2 ** min(repeats, _MOST_DOUBLINGS)))
