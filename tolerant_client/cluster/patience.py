"""How long an operation is tried, how the pauses between tries grow, and when a repeated statement is believed.

Law: what a repeat may change (an error that is not retriable, a log that ends early) is believed after it was said
BELIEVED_AFTER times in a row: one wrong response, or a broker that has just started, proves nothing.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

BELIEVED_AFTER = 3
QUOTA_S = 30.0  # so long after its last throttle a quota limits us no more


class Backoff(NamedTuple):
    """Pauses between repeats, in seconds: each is twice as long as the one before, up to the longest."""

    first_s: float = 0.02
    longest_s: float = 1.0

    def pause_s(self, repeat: int) -> float:
        """The pause before a repeat; the first repeat is 1."""
        return min(self.first_s * 2.0 ** min(repeat - 1, 30), self.longest_s)


class Belief:
    """Counts how often the same was said in a row."""

    def __init__(self) -> None:
        self.times = 0
        self._said = ""

    def hear(self, what: str) -> bool:
        """Notes what was said; True if it is believed now."""
        self.times = self.times + 1 if what == self._said else 1
        self._said = what
        return self.times >= BELIEVED_AFTER

    def forget(self) -> None:
        """Discards what was said, which is out of date."""
        self.times, self._said = 0, ""


class Patience(Belief):
    """How long one operation may still be tried; its time begins when this is made."""

    def __init__(self, seconds: float, backoff: Backoff = Backoff()) -> None:
        super().__init__()
        self._until = time.monotonic() + seconds
        self._backoff = backoff
        self._repeats = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def extend(self, seconds: float) -> None:
        """Does not count time that could not be used."""
        self._until += seconds

    def pause_s(self) -> float:
        """The next pause; varied by up to a fifth, so that clients that failed together do not return together."""
        self._repeats += 1
        return self._backoff.pause_s(self._repeats) * random.uniform(0.8, 1.2)
