"""Which requests of a connection may be sent again: so often, in time, and not where it would undo a newer one."""

from __future__ import annotations

from typing import Any

from tolerant_client.policy import RecoveryPolicy
from tolerant_client.tracker.lifecycle import InFlightRequest


class Repeats:
    """What may be repeated on one connection; it is told of every first sending."""

    __slots__ = ("_newest", "_policy")

    def __init__(self, policy: RecoveryPolicy) -> None:
        self._policy = policy
        self._newest: dict[Any, int] = {}  # by order key: the newest request that older ones yield to

    def sent(self, entry: InFlightRequest) -> None:
        """Notes that `entry` is on its way for the first time: older ones of its kind yield to it."""
        if entry.request.yields_to_newer:
            self._newest.update(dict.fromkeys(entry.request.order_keys, entry.order))

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
