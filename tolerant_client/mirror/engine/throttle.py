"""How fast a worker may fetch from the source: a token bucket that runs into debt.

The size of an answer is known only when it is there.  So a fetch goes out when nothing is owed, and what it brings is
owed then.  In any `t` seconds at most `bytes_per_s * (t + BURST_S)` bytes come, and one answer of each source node more;
answers are kept small for that.  Several workers of a link each have an equal share: together never more than the
link's rate, and less where some of them have nothing to copy.

No I/O and no clock here: times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

BURST_S = 0.5  # what was not used in that time may be used later
_ANSWER_S = 0.25  # an answer holds what may come in that time
_LEAST_ANSWER = 16 << 10  # bytes; a broker gives a whole batch in any case


class TokenBucket:
    """Without a rate nothing is held back.  `free_at` is when the next fetch may go out."""

    def __init__(self) -> None:
        self.free_at = float("-inf")
        self._rate: float | None = None

    @property
    def has_rate(self) -> bool:
        return self._rate is not None

    def set_rate(self, bytes_per_s: float | None, now: float) -> None:
        """Takes another rate; what is owed stays owed."""
        if bytes_per_s == self._rate:
            return
        owed = self.wait_s(now) * (self._rate or 0.0)
        self._rate = bytes_per_s
        self.free_at = now + owed / bytes_per_s if bytes_per_s else float("-inf")

    def wait_s(self, now: float) -> float:
        """Seconds until the next fetch may go out."""
        return max(0.0, self.free_at - now)

    def answer_bytes(self, most: int) -> int:
        """How much to ask for at once, if `most` would be asked for without a rate."""
        return most if self._rate is None else min(most, max(_LEAST_ANSWER, int(self._rate * _ANSWER_S)))

    def take(self, size: int, now: float) -> None:
        """Owes what has come."""
        if self._rate is not None:
            self.free_at = max(self.free_at, now - BURST_S) + size / self._rate
