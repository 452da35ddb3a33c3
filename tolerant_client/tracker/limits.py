"""What a connection may still do: repeat a request, answer wrongly, take its time on trial.

Laws:
- A request is sent again so often, in time, and not where it would undo a newer one.
- A trial is short: the peer's own client would have closed the connection at once, or have believed what it tells
  apart.
- A connection survives `max_mismatches` lost or orphaned answers in a sliding
  window; one more and it is not worth its place (T7).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tolerant_client.tracker.lifecycle import InFlightRequest, Verdict
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules.apis import Action


class Repeats:
    """What may be repeated on one connection; it is told of every sending."""

    __slots__ = ("_newest", "_policy")

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._newest: dict[Any, int] = {}  # by order key: the newest request that older ones yield to

    def sent(self, entry: InFlightRequest) -> None:
        """Notes that `entry` is on its way: older ones of its kind yield to it."""
        if entry.request.yields_to_newer:
            for key in entry.request.order_keys:
                self._newest[key] = max(entry.order, self._newest.get(key, -1))

    def forget(self) -> None:
        """Nothing older is left that would have to yield."""
        self._newest.clear()

    def allow(self, entry: InFlightRequest, now: float) -> bool:
        """Whether `entry` may be sent again at `now`, in seconds."""
        is_in_bounds = entry.resends < self._policy.max_resends and now < entry.deadline
        return entry.action.is_resend and is_in_bounds and not self.has_yielded(entry)

    def has_yielded(self, entry: InFlightRequest) -> bool:
        """Whether a repeat would undo a newer request of its kind (an OffsetCommit would rewind its group)."""
        return entry.request.yields_to_newer and any(
            self._newest.get(key, -1) > entry.order for key in entry.request.order_keys
        )

    def verdict(self, entry: InFlightRequest, reason: str) -> tuple[Verdict, str]:
        """What a lost request ends as that is not sent again (T3), and why."""
        if entry.action.is_resend and self.has_yielded(entry):
            return Verdict.HAND_UP, f"{reason}, and a newer {entry.api} was sent since"
        if entry.action.is_resend:
            return Verdict.EXHAUSTED, reason
        return (Verdict.OUTCOME_UNKNOWN if entry.action is Action.OUTCOME_UNKNOWN else Verdict.HAND_UP), reason


def verdict_at_end(entry: InFlightRequest, unflushed: frozenset[int]) -> Verdict:
    """What a request ends as when its connection does: unknown where it may not run twice and may have been carried out.

    `unflushed` are the ids of requests of which no byte has left the process.
    """
    may_have_run = entry.first_sent_at >= 0 and (entry.resends > 0 or entry.correlation_id not in unflushed)
    is_unknown = entry.action is Action.OUTCOME_UNKNOWN and may_have_run
    return Verdict.OUTCOME_UNKNOWN if is_unknown else Verdict.CLOSED


@dataclass(slots=True)
class Trial:
    """One trial: when it began, when it asks (infinite once asked), how long it may take; seconds."""

    began: float
    asks_at: float
    patience: float
    has_misfit: bool = False
    """An answer came that fits nothing."""
    unbelieved: int = 0
    """Answers that are believed for no request: so many have no other to come."""
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
