"""When a link of a service is started, left alone, stopped and started again.  Pure: time and chance are arguments.

Laws:
- There is no last attempt: a failed link is started again for as long as the service runs.
- A query that finishes no micro-batch counts as dead, like one that has ended.
- A promoted link is checked from time to time, and never counts as failed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tolerant_client.cluster.patience import Backoff


@dataclass(frozen=True)
class RestartPolicy:
    """Seconds: the first and the longest wait before a restart, how long a link must run well for the waits to start over,
    how long a query may run without finishing a micro-batch, and how often a promoted link is checked.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    healthy_s: float = 60.0
    stalled_s: float = 300.0
    promoted_s: float = 60.0

    def wait_s(self, failures: int, chance: float) -> float:
        """The wait after so many failures in a row: it doubles, and `chance` (0 to 1) shortens it by up to a half,
        so that many links of a cluster that was unavailable do not all return at the same moment.
        """
        return Backoff(self.first_s, self.longest_s).pause_s(failures) * (1 - chance / 2)


class Step(enum.Enum):
    """What to do with a link now."""

    START = "start"
    LOOK = "look"  # it runs: check its progress
    TAKE_DOWN = "take down"  # it runs, but has not finished a micro-batch for too long
    WAIT = "wait"


class LinkLife:
    """One link through its starts and failures; `now` is monotonic seconds."""

    def __init__(self, policy: RestartPolicy = RestartPolicy()) -> None:
        self._policy = policy
        self._is_running = False
        self._due_at = float("-inf")
        self._well_since = 0.0
        self._moved_at = 0.0
        self._batch: int | None = None
        self.failures = 0  # in a row

    def step(self, now: float) -> Step:
        if not self._is_running:
            return Step.START if now >= self._due_at else Step.WAIT
        return Step.TAKE_DOWN if now - self._moved_at > self._policy.stalled_s else Step.LOOK

    def started(self, now: float) -> None:
        self._is_running = True
        self._batch = None
        self._well_since = self._moved_at = now

    def looked(self, now: float, batch: int | None, is_repeated: bool = False) -> None:
        """`batch` is the last finished micro-batch, None before the first one; `is_repeated` if it ended with an error."""
        if is_repeated:
            self._well_since = now
        if batch != self._batch:
            self._batch, self._moved_at = batch, now
            if now - self._well_since >= self._policy.healthy_s:
                self.failures = 0

    def failed(self, now: float, chance: float) -> float:
        """The seconds until the next try."""
        self.failures += 1
        return self._rest(now, self._policy.wait_s(self.failures, chance))

    def promoted(self, now: float) -> float:
        """The seconds until the next check whether the link is still promoted."""
        self.failures = 0
        return self._rest(now, self._policy.promoted_s)

    def _rest(self, now: float, wait_s: float) -> float:
        self._is_running = False
        self._due_at = now + wait_s
        return wait_s
