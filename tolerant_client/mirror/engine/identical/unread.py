"""Batches that may lie unread at a broker: what was sent to it before the log was read, and may be appended after that.

Laws:
A. A broker reads the next request of a connection once it has responded to the one before, and has throttled that connection for as
   long as it then said: after minutes of a quota, or half a minute in which a replica of that request's partitions does not follow.
   It does so whether the client still lives or not (also if the client has reset the connection under a throttle: Linux leaves what
   has arrived readable, measured).  It then refuses a batch that was appended meanwhile as a repeat, while it remembers the producer,
   and it forgets that after old records.  So while batches may lie unread, a batch that will be old by the end of that time is not
   appended after one that was not old.
B. After a batch that was old when it was sent nothing lies unread: it goes alone (law G of identical/partition.py), on a connection of
   its own, which is read at once (Law A of identical/append.py).  So a log that ends with one may go on with one.  Who took a log over
   does not know when its last batch was sent, and a batch ages: it counts as sent within the last hour (_SENT_MS).
C. Another writer that released its claim had nothing in flight.  One that fell silent may have had, if its claims say that it was
   held up (cluster/held_up.py): that counts for LATE_S from when it last renewed them, since nobody knows how long a broker throttles
   it.  This process knows what it was told, also of connections that were lost, and keeps its claim that long.
D. What no broker has received when a connection is closed is gone (cluster/connections.py): no network delivers it later.

Not covered: a throttle of more than LATE_S after a writer was killed; one that was told in a response that was lost, or, as the
first in half a minute, so shortly before the writer was killed that its claims do not say it (half a second); a replica that stopped
to follow, or is slow from the first batch on, so shortly before the writer was frozen, its connections open (a second and a half, and
what the claims take to be written, which wait for replicas, too).

Pure: no I/O, no clock; times are seconds of the caller's clock, timestamps ms since 1970.
"""

from __future__ import annotations

from collections.abc import Callable

LATE_S = 300.0  # the longest that a writer which fell silent may have been held up
_SENT_MS = 3_600_000
_NEVER = float("-inf")


class Unread:
    """What may lie unread of one partition.

    `lost_until`: until then what this process sent on a connection that was lost; `until`, whatever anybody sent.
    `since`: since when the next batch waits for that, None if none does; `waited_until`: the end of the last such wait.
    """

    def __init__(self) -> None:
        self.lost_until = _NEVER
        self.since: float | None = None
        self.waited_until = _NEVER
        self._silent_until = _NEVER
        self._remembered_ms = _NEVER  # until then the broker remembers the producer of the last batch

    @property
    def until(self) -> float:
        return max(self.lost_until, self._silent_until)

    def lost(self, until: float) -> None:
        """Notes that a request is lost on a connection that is throttled `until` then."""
        self.lost_until = max(self.lost_until, until)

    def took_over(self, silent_s: float, now: float) -> None:
        """Notes how long ago another writer fell silent that was held up and had not released the partition (Law C)."""
        self._silent_until = max(self._silent_until, now + LATE_S - silent_s)

    def ends_with(self, remembered_ms: float) -> None:
        """Notes the last batch of the log, also one in flight, by the time at which it will be old."""
        self._remembered_ms = remembered_ms

    def holds(self, is_next_old: Callable[[float], bool], now_ms: float, now: float) -> bool:
        """Whether the next batch has to wait until nothing can lie unread any more (Laws A and B); `is_next_old` at a time in ms."""
        if (left_s := self.until - now) <= 0 or now_ms - _SENT_MS >= self._remembered_ms:
            return False
        return is_next_old(now_ms + 1000 * left_s)

    def wait(self, now: float) -> float:
        """Notes that the next batch waits; returns until when."""
        self.since, self.waited_until = now, self.until
        return self.until

    @property
    def reason(self) -> str:
        return (
            f"old records come next, which wait for up to {LATE_S / 60:.0f} minutes: a writer before was cut off, and a broker that"
            " held it up (a quota, or a replica that does not follow) may still append what it had sent"
        )
