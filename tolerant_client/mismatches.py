"""What wrong answers say about a peer: how many it may still send, what they explain, how late it is.

Laws:
- A connection survives `max_mismatches` lost or orphaned answers in a sliding
  window; one more and it is not worth its place (T7).
- An orphan that arrived while requests were waiting is probably the answer of
  one of them: it explains one loss, which then needs no grace (T4).
- A peer that was seen to answer late is given twice that time from then on (T2).
"""

from __future__ import annotations

from collections import deque

from tolerant_client.lifecycle import InFlightRequest
from tolerant_client.policy import RecoveryPolicy


class Mismatches:
    """The wrong answers of one connection; times in seconds."""

    __slots__ = ("_lateness", "_policy", "_recent", "unexplained")

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._recent: deque[float] = deque()
        self._lateness = 0.0
        self.unexplained = 0  # orphans that no lost request explains yet

    def count(self, now: float) -> str | None:
        """Counts one; returns why the connection is to be retired, if it is."""
        self._recent.append(now)
        window = self._policy.mismatch_window_ms / 1000
        while self._recent[0] < now - window:
            self._recent.popleft()
        if len(self._recent) <= self._policy.max_mismatches:
            return None
        return f"{len(self._recent)} mismatches within {window:g} s"

    def explain(self, losses: int) -> bool:
        """True when orphans account for that many losses at once."""
        return 0 < losses <= self.unexplained

    def settle(self) -> None:
        """A request was declared lost: one orphan is accounted for."""
        self.unexplained = max(0, self.unexplained - 1)

    def late(self, by: float) -> None:
        """An answer came `by` after a later one, when its request had been given up."""
        self._lateness = min(self._policy.max_reorder_grace_ms / 1000, max(self._lateness, 2 * by))

    def grace(self, entry: InFlightRequest, round_trip: float) -> float:
        """How long the answer of an overtaken request may still come.

        Where giving up too early costs no more than one repeat (a Fetch, a Produce
        that the broker recognises), one generous round trip is enough.
        """
        grace = self._policy.reorder_grace_ms / 1000
        if round_trip >= 0 and entry.is_repeat_harmless:
            grace = min(grace, max(self._policy.min_reorder_grace_ms / 1000, round_trip))
        return max(grace, self._lateness)
