"""One holder of claims: what it wants, what it may write, and what it has to say next (claims.py has the laws).  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.claims import (
    COPIER,
    LEASE_MS,
    MARGIN_MS,
    NO_NAMES,
    RENEW_MS,
    Claim,
    ClaimsLog,
    ClaimsRecord,
    Holder,
    Names,
    Waiting,
)


class _Sent(NamedTuple):
    at: float
    names: Names


class Claimant:
    """One holder: what it wants, what it may write, and what it has to say next.  `now` is its own monotonic seconds.

    Whoever owns it appends `record` whenever one `is_due`, one at a time, and reads it every record of the log in order.
    """

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.log = ClaimsLog()
        self.waiting: Mapping[TopicPartition, Waiting] = {}
        self._wanted: set[TopicPartition] = set()
        self._held: Names = NO_NAMES
        self._terms: Mapping[TopicPartition, int] = {}
        self._until = float("-inf")
        self._sequence = 0
        self._is_ended = False
        self._sent: dict[int, _Sent] = {}
        self._said: tuple[Names, Names] | None = (NO_NAMES, NO_NAMES)  # named and asked for; None: to be said anew
        self._renew_at = float("-inf")

    def want(self, names: Iterable[TopicPartition]) -> None:
        """Claims these, now or as soon as they are free."""
        self._wanted.update(names)

    def leave(self, names: Iterable[TopicPartition]) -> None:
        """Gives claims back; the caller appends nothing to them any more, and nothing is in flight."""
        self._wanted.difference_update(names)
        self._held = self._held & self._wanted

    def holds(self, name: TopicPartition, now: float) -> bool:
        """Whether it may append to a partition now (law E)."""
        return self.is_read_up(now) and name in self._held

    def is_read_up(self, now: float) -> bool:
        """Whether it has read the log up to a record that it sent within its lease: who counts there counted just now."""
        return now < self._until

    def term(self, name: TopicPartition, now: float) -> int | None:
        """The term under which it may append to a partition now; None where it may not (laws E and H)."""
        return self._terms.get(name) if self.holds(name, now) else None

    def has_lapsed(self, now: float) -> bool:
        """Whether what it held is over, and nobody has drawn the consequence (`lapse`)."""
        return bool(self._held) and now >= self._until

    def lapse(self) -> None:
        """Holds nothing until a record is granted something again."""
        self._held = NO_NAMES

    def not_said(self) -> None:
        """Takes it that the newest record may not have arrived: it is said anew."""
        self._said = None

    @property
    def is_said(self) -> bool:
        """Whether the log has nothing of it that it does not want any more."""
        return not self._wanted and self._said == (NO_NAMES, NO_NAMES)

    @property
    def wanted(self) -> Collection[TopicPartition]:
        return self._wanted

    @property
    def asked(self) -> Names:
        """What it holds and another process of its run asks for; all of it once the run has ended."""
        return self._held if self.is_run_over else self._held & self.log.asks_of(self.holder)

    @property
    def is_run_over(self) -> bool:
        """Whether it copies for a mirror that has said that it ends (law I)."""
        return self.holder.role == COPIER and self.log.has_ended(self.holder.run)

    @property
    def blocked(self) -> dict[TopicPartition, Claim]:
        """What it wants and the claims of others keep it from."""
        return self.log.blocking(self.holder.id, self._wanted - self._held)

    def is_due(self, now: float) -> bool:
        """Whether it has something to say."""
        if self._said is None:
            return True
        return self._to_say() != self._said or bool(self._wanted) and now >= self._renew_at

    def end(self) -> None:
        """Says that its run is over, and wants nothing any more."""
        self.leave(set(self._wanted))
        self._is_ended, self._said = True, None

    def record(self, now: float) -> ClaimsRecord:
        """What it says now; to be appended at once."""
        self._said = names, asks = self._to_say()
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
        )

    def _to_say(self) -> tuple[Names, Names]:
        """What it names, and what it asks for."""
        missing = self._wanted - self._held
        if not missing or self.is_run_over:
            return self._held, NO_NAMES
        blocked = self.log.blocking(self.holder.id, missing)
        asks = frozenset(name for name, claim in blocked.items() if claim.holder.run == self.holder.run)
        return self._held | (missing - blocked.keys()), asks

    def read(self, record: ClaimsRecord, append_ms: int, offset: int) -> None:
        """Takes the next record of the log, whoever wrote it."""
        granted = self.log.read(record, append_ms, offset)
        if granted is None or record.holder.id != self.holder.id:
            return
        sent = self._sent.pop(record.sequence, None)
        if sent is None:
            return
        for sequence in [s for s in self._sent if s < record.sequence]:
            del self._sent[sequence]  # law F: it says nothing any more
        self._held, self._terms = granted & self._wanted, self.log.terms_of(self.holder)
        for later in self._sent.values():
            self._held &= later.names
        self._until = sent.at + (LEASE_MS - MARGIN_MS) / 1000
        if granted != record.names:
            self._said = None  # what was denied is not named any longer than it takes to say so

    def start_anew(self) -> None:
        """Forgets what the log said: it was made anew, or cut; nothing is held until it was read again."""
        self.log = ClaimsLog()
        self._held = NO_NAMES
        self._sent.clear()
        self._said = None
