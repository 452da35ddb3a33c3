"""How fast a worker may fetch from the source: a token bucket that runs into debt.

The size of a response is known only once it has arrived.  So a fetch goes out when nothing is owed, and the size of its
response is then owed.  In any `t` seconds at most `bytes_per_s * (t + BURST_S)` bytes arrive, plus one response of each
source node; so responses are kept small.  Several workers of a link each have an equal share: together never more than the
link's rate, and less where some of them have nothing to copy.

No I/O and no clock here: times are arguments, in seconds of the caller's monotonic clock.
"""

from __future__ import annotations

BURST_S = 0.5  # the unused rate of this time may be used later
_RESPONSE_S = 0.25  # a response holds what may arrive in this time
_LEAST_RESPONSE = 16 << 10  # bytes; a broker sends at least one whole batch anyway


class TokenBucket:
    """Without a rate there is no limit.  `free_at` is when the next fetch may go out."""

    def __init__(self) -> None:
        self.free_at = float("-inf")
        self._rate: float | None = None

    @property
    def has_rate(self) -> bool:
        return self._rate is not None

    def set_rate(self, bytes_per_s: float | None, now: float) -> None:
        """Sets another rate; the bytes owed stay owed."""
        if bytes_per_s == self._rate:
            return
        owed = self.wait_s(now) * (self._rate or 0.0)
        self._rate = bytes_per_s
        self.free_at = now + owed / bytes_per_s if bytes_per_s else float("-inf")

    def wait_s(self, now: float) -> float:
        """Seconds until the next fetch may go out."""
        return max(0.0, self.free_at - now)

    def response_bytes(self, most: int) -> int:
        """How many bytes to request at once, if `most` would be requested without a rate."""
        return most if self._rate is None else min(most, max(_LEAST_RESPONSE, int(self._rate * _RESPONSE_S)))

    def take(self, size: int, now: float) -> None:
        """Adds the size of what has arrived to what is owed."""
        if self._rate is not None:
            self.free_at = max(self.free_at, now - BURST_S) + size / self._rate
