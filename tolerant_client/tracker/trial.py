"""What a stream that answered out of step is given: one trial at a time, and so many in a while.

Laws:
- A trial is short: the peer's own client would have closed the connection at once, or have believed what it tells
  apart.
- A connection survives `max_mismatches` lost or orphaned answers in a sliding
  window; one more and it is not worth its place (T7).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tolerant_client.policy import RecoveryPolicy


@dataclass(slots=True)
class Trial:
    """One trial: when it began, when it asks (infinite once asked), how long it may take; seconds."""

    began: float
    asks_at: float
    patience: float
    has_misfit: bool = False
    """An answer came that fits nothing."""
    is_meant: bool = True
    """Nothing is out of step but answers that came in their turn and speak of something else."""


class Budget:
    """The wrong answers that one connection may still send."""

    __slots__ = ("_policy", "_recent")

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._recent: deque[float] = deque()

    def count(self, now: float) -> str | None:
        """Counts one at `now`, in seconds; returns why the connection is to be retired, if it is."""
        self._recent.append(now)
        window = self._policy.mismatch_window_ms / 1000
        while self._recent[0] < now - window:
            self._recent.popleft()
        if len(self._recent) <= self._policy.max_mismatches:
            return None
        return f"{len(self._recent)} mismatches within {window:g} s"
