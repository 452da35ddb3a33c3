"""How long something is tried, how the pauses between the tries grow, and when what is said is believed.

Law: what a repeat may change (an error that is not retriable, a log that ends early) is believed when it was said
BELIEVED_AFTER times in a row: one wrong response, or a broker that has just started, proves nothing.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

BELIEVED_AFTER = 3


class Backoff(NamedTuple):
    """Pauses between repeats, in seconds: each is twice as long as the one before, up to the longest."""

    first_s: float = 0.02
    longest_s: float = 1.0

    def pause_s(self, repeat: int) -> float:
        """The pause before a repeat, of which the first is 1."""
        return min(self.first_s * 2.0 ** min(repeat - 1, 30), self.longest_s)


class Belief:
    """How often the same was said in a row."""

    def __init__(self) -> None:
        self.times = 0
        self._said = ""

    def hear(self, what: str) -> bool:
        """Whether this is believed now."""
        self.times = self.times + 1 if what == self._said else 1
        self._said = what
        return self.times >= BELIEVED_AFTER

    def forget(self) -> None:
        """What was said is out of date."""
        self.times, self._said = 0, ""


class Patience(Belief):
    """What is left of it with one thing that is tried; it begins when it is made."""

    def __init__(self, seconds: float, backoff: Backoff = Backoff()) -> None:
        super().__init__()
        self._until = time.monotonic() + seconds
        self._backoff = backoff
        self._repeats = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def pause_s(self) -> float:
        """The next pause; up to a fifth shorter or longer, so that many that failed together do not come back together."""
        self._repeats += 1
        return self._backoff.pause_s(self._repeats) * random.uniform(0.8, 1.2)
