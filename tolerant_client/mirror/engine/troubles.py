"""What went wrong with a partition since it last moved, and how much of it is believed: what would stop it only when it was
found three times without progress in between.

No clock here: time is passed.
"""

from __future__ import annotations

from collections import deque

import kafka.errors as Errors

from tolerant_client.cluster.patience import BELIEVED_AFTER, Backoff
from tolerant_client.errors import TolerantClientError

_ABSENT_S = 3.0  # a broker hears of a new topic a little later than the others
_PAUSES = Backoff()

# Refusals that only say "this is not the next batch": somebody else appended it
# (45, 46), or the broker's state of the producer is not what we read (47, 59).
_NOT_NEXT = {
    Errors.OutOfOrderSequenceNumberError.errno,
    Errors.DuplicateSequenceNumberError.errno,
    Errors.InvalidProducerEpochError.errno,
    Errors.UnknownProducerIdError.errno,
    Errors.OffsetOutOfRangeError.errno,
}


class Troubles:
    """Those of one partition; `count` is of all that it ever had, `since` when they began."""

    def __init__(self) -> None:
        self.count = 0
        self.since: float | None = None
        self.absent_since: float | None = None
        self._reasons: deque[str] = deque(maxlen=5)
        self._doubts = 0
        self._damage = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The last ones."""
        return tuple(self._reasons)

    def add(self, reason: str, now: float) -> float | None:
        """Takes one; returns for how long the partition is left alone then, if it is not tried again at once."""
        self.count += 1
        pause_s = None
        if self.since is None:
            self.since = now
        elif len(self._reasons) > 1:
            pause_s = _PAUSES.pause_s(self._doubts + len(self._reasons))
        self._reasons.append(reason)
        return pause_s

    def is_believed(self) -> bool:
        """Takes a finding that would stop the partition; True once there were enough of them."""
        self._doubts += 1
        return self._doubts >= BELIEVED_AFTER

    def damaged(self, what: str) -> None:
        """Damage that differs from one response to the next was done on the way: only the same is found again."""
        if what != self._damage:
            self._damage, self._doubts = what, 0

    def is_absent_for_good(self, now: float) -> bool:
        """Takes it that the target does not have the partition; True when that lasts."""
        if self.absent_since is None:
            self.absent_since = now
        return now - self.absent_since > _ABSENT_S

    def moved(self) -> None:
        """Takes it that the log has grown, or is whole; whether what was refused stays refused only a response shows."""
        self.since = None
        self._reasons.clear()

    def progressed(self) -> None:
        """Takes it that something was appended."""
        self.moved()
        self._doubts = 0


def refusal(partition: str, doing: str, offset: int, error_code: int) -> TolerantClientError | None:
    """What an error code of a fetch or an append stops a partition for, if it is found again; None for one that passes."""
    error = Errors.for_code(error_code)
    if error_code in _NOT_NEXT or getattr(error, "retriable", False):
        return None
    return TolerantClientError(
        f"{partition}: {doing} at offset {offset} was refused with {error.__name__}"
        f" (error {error_code}: {getattr(error, 'description', '')}); check the topic's configuration and ACLs"
    )
