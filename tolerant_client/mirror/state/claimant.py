"""One holder of claims: what it wants, what it may write, and which record it appends next (claims.py has the laws).  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.claims import LEASE_MS, MARGIN_MS, RENEW_MS, Claim, ClaimsLog
from tolerant_client.mirror.state.claims_record import COPIER, NO_NAMES, ClaimsRecord, Holder, Names, Waiting


class _Sent(NamedTuple):
    at: float
    names: Names


class Claimant:
    """One holder: what it wants, what it may write, and which record it appends next.  `now` is its own monotonic seconds.

    Its owner appends `record` whenever one `is_due`, one at a time, and passes every record of the log to `read`, in order.
    """

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.log = ClaimsLog()
        self.waiting: Mapping[TopicPartition, Waiting] = {}
        self.is_held_up = False
        self._wanted: set[TopicPartition] = set()
        self._held: Names = NO_NAMES
        self._terms: Mapping[TopicPartition, int] = {}
        self._until = float("-inf")
        self._sequence = 0
        self._is_ended = False
        self._sent: dict[int, _Sent] = {}
        self._said: tuple[Names, Names] | None = NO_NAMES, NO_NAMES  # by the newest record; None: to be sent again
        self._said_held_up = False
        self._renew_at = float("-inf")

    def want(self, names: Iterable[TopicPartition]) -> None:
        """Claims these partitions, now or as soon as they are free."""
        self._wanted.update(names)

    def leave(self, names: Iterable[TopicPartition]) -> None:
        """Releases claims; the caller appends nothing to them any more and has nothing in flight."""
        self._wanted.difference_update(names)
        self._held = self._held & self._wanted

    def holds(self, name: TopicPartition, now: float) -> bool:
        """Whether it may append to a partition now (law E)."""
        return self.is_read_up(now) and name in self._held

    def is_read_up(self, now: float) -> bool:
        """Whether it has read the log up to a record that it sent within its lease, so that what the log says is recent."""
        return now < self._until

    def term(self, name: TopicPartition, now: float) -> int | None:
        """The term in which it may append to a partition now; None if it may not (laws E and H)."""
        return self._terms.get(name) if self.holds(name, now) else None

    def has_lapsed(self, now: float) -> bool:
        """Whether its lease is over and `lapse` was not called since."""
        return bool(self._held) and now >= self._until

    def lapse(self) -> None:
        """Holds nothing until the log grants it something again."""
        self._held = NO_NAMES

    def not_said(self) -> None:
        """The newest record may not have arrived: it is due again."""
        self._said = None

    @property
    def is_said(self) -> bool:
        """Whether the log names nothing of it any more, and it wants nothing."""
        return not self._wanted and self._said == (NO_NAMES, NO_NAMES)

    @property
    def wanted(self) -> Collection[TopicPartition]:
        return self._wanted

    @property
    def asked(self) -> Names:
        """The partitions it holds that another process of its run asks for; all of them once the run has ended."""
        return self._held if self.is_run_over else self._held & self.log.asks_of(self.holder)

    @property
    def is_run_over(self) -> bool:
        """Whether it copies for a mirror that has announced its end (law I)."""
        return self.holder.role == COPIER and self.log.has_ended(self.holder.run)

    @property
    def blocked(self) -> dict[TopicPartition, Claim]:
        """The partitions that it wants and does not hold, with the claims of others that block them."""
        return self.log.blocking(self.holder.id, self._wanted - self._held)

    def is_due(self, now: float) -> bool:
        """Whether a record is to be appended."""
        if self._said is None:
            return True
        is_news = self._to_say() != self._said or self.is_held_up and not self._said_held_up
        return is_news or bool(self._wanted) and now >= self._renew_at

    def end(self) -> None:
        """Wants nothing any more; the next record announces that the run is over."""
        self.leave(set(self._wanted))
        self._is_ended, self._said = True, None

    def record(self, now: float) -> ClaimsRecord:
        """The next record; the caller appends it at once."""
        self._said = names, asks = self._to_say()
        self._said_held_up = self.is_held_up
        self._sequence += 1
        self._sent[self._sequence] = _Sent(now, names)
        self._renew_at = now + RENEW_MS / 1000
        waiting = dict(self.waiting)
        return ClaimsRecord(
            self.holder,
            self._sequence,
            names,
            asks,
            waiting,
            len(waiting),
            self._is_ended,
            int(1000 * now),
            self.log.end,
            self.is_held_up,
        )

    def _to_say(self) -> tuple[Names, Names]:
        """The partitions that the next record names, and those that it asks for."""
        missing = self._wanted - self._held
        if not missing or self.is_run_over:
            return self._held, NO_NAMES
        blocked = self.log.blocking(self.holder.id, missing)
        asks = frozenset(name for name, claim in blocked.items() if claim.holder.run == self.holder.run)
        return self._held | (missing - blocked.keys()), asks

    def read(self, record: ClaimsRecord, append_ms: int, offset: int) -> None:
        """Takes the next record of the log, of whatever holder."""
        granted = self.log.read(record, append_ms, offset)
        if granted is None or record.holder.id != self.holder.id:
            return
        sent = self._sent.pop(record.sequence, None)
        if sent is None:
            return
        for sequence in [s for s in self._sent if s < record.sequence]:
            del self._sent[sequence]  # law F: it has no effect any more
        self._held, self._terms = granted & self._wanted, self.log.terms_of(self.holder)
        for later in self._sent.values():
            self._held &= later.names
        self._until = sent.at + (LEASE_MS - MARGIN_MS) / 1000
        if granted != record.names:
            self._said = None  # send a record without the denied names soon

    def start_again(self) -> None:
        """Forgets the log, which was created again or truncated; it holds nothing until the log was read again."""
        self.log = ClaimsLog()
        self._held = NO_NAMES
        self._sent.clear()
        self._said = None
