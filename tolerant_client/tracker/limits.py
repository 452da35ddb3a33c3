"""Limits of one connection: its repeats, its wrong responses, and the length of a trial.

Laws:
- A request is sent again at most `max_resends` times, before its deadline, and not if it would undo a newer one.
- A trial is short, because stock kafka-python would have closed the connection at once.
- A connection survives `max_mismatches` lost or orphaned responses in a sliding window; one more ends it (T7).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tolerant_client.tracker.lifecycle import InFlightRequest, Verdict
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules.apis import Action


class Repeats:
    """Which requests of one connection may be repeated; the tracker reports every sending to it."""

    __slots__ = ("_newest", "_policy")

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._newest: dict[Any, int] = {}  # by order key: the newest request that older ones yield to

    def sent(self, entry: InFlightRequest) -> None:
        """Notes that `entry` is on its way: older requests of its kind yield to it."""
        if entry.request.yields_to_newer:
            for key in entry.request.order_keys:
                self._newest[key] = max(entry.order, self._newest.get(key, -1))

    def forget(self) -> None:
        """Forgets the newest requests, when nothing older is in flight."""
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
        """The end of a lost request that is not sent again (T3), and the reason."""
        if entry.action.is_resend and self.has_yielded(entry):
            return Verdict.HAND_UP, f"{reason}, and a newer {entry.api} was sent since"
        if entry.action.is_resend:
            return Verdict.EXHAUSTED, reason
        return (Verdict.OUTCOME_UNKNOWN if entry.action is Action.OUTCOME_UNKNOWN else Verdict.HAND_UP), reason


def verdict_at_end(entry: InFlightRequest, unflushed: frozenset[int]) -> Verdict:
    """The end of a request whose connection ends: unknown if it may not run twice and may have been carried out.

    `unflushed` are the ids of requests of which no byte has left the process.
    """
    may_have_run = entry.first_sent_at >= 0 and (entry.resends > 0 or entry.correlation_id not in unflushed)
    is_unknown = entry.action is Action.OUTCOME_UNKNOWN and may_have_run
    return Verdict.OUTCOME_UNKNOWN if is_unknown else Verdict.CLOSED


@dataclass(slots=True)
class Trial:
    """One trial, in seconds: when it began, when it sends a probe (NEVER once sent), and how long it may take."""

    began: float
    asks_at: float
    patience: float
    has_misfit: bool = False
    """A response came that fits nothing."""
    unbelieved: int = 0
    """Responses that completed no request: so many of the requests without a response have no other to come."""
    is_meant: bool = True
    """The only responses out of step came in their turn and speak of something else."""


class Budget:
    """How many wrong responses a connection may still send."""

    __slots__ = ("_policy", "_recent")

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._recent: deque[float] = deque()

    def count(self, now: float) -> str | None:
        """Counts one at `now`, in seconds; returns the reason to retire the connection, or None."""
        self._recent.append(now)
        window = self._policy.mismatch_window_ms / 1000
        while self._recent[0] < now - window:
            self._recent.popleft()
        if len(self._recent) <= self._policy.max_mismatches:
            return None
        return f"{len(self._recent)} mismatches within {window:g} s"
