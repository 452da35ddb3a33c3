"""Which mirror may write which partition of a target: a fold over the claims log, the same for every reader.  Pure.

claims_record.py has the records of the log.

Laws:
A. A partition has one writer at every moment, as the claims log says: a process without a claim appends nothing.  A partition
   that is claimed with identical offsets has no other claimant of any kind; links with translated offsets may share one, of
   which each claims its own part (`claimed_part`).
B. A record is granted those of its names that the holder's record before was granted, and those that conflict with no name in
   another holder's newest record.  A holder counts until somebody has measured LEASE_MS of silence; then it holds nothing.
C. The writers of the log measure silence: `read` is how far a process had read when it sent a record, and `clock_ms` its own
   clock then.  If two records of one process are LEASE_MS apart, every holder whose newest record is before what the first of
   the two had read was silent for that long, whatever the clocks of brokers and of other machines say.
D. Every reader that begins at the log's start gets the same result.  The log keeps an hour; a reader that begins in the middle
   agrees with the others after about LEASE_MS, since holders soon stop naming what was denied.  A log that was truncated, or
   that nobody wrote to for an hour, may have lost records of holders whose silence nobody has measured: its reader takes
   nothing for LEASE_MS, since such a holder may keep its claims that long while it is frozen.
E. A holder appends until LEASE_MS - MARGIN_MS of its own clock have passed since it *sent* the newest of its records that it
   has read in the log, and only to partitions that this record was granted and that every record sent since also names.  So it
   stops before anybody can have measured its silence, unless one clock runs a quarter faster than the other.
F. `sequence` grows with each record of a holder: a record that comes a second time, or late, has no effect.
G. A process asks for partitions that another process of the same run holds; that process stops writing them, settles what is in
   flight, and releases them.  For partitions of another run it waits.
H. A term begins when a partition is granted to a holder that did not hold it, and lasts as long as it is granted without a break.
   What was read of the target's log in one term is invalid in the next: another holder may have written in between.
I. A run ends when its mirror says so: each of its copiers then releases what it holds, and takes nothing more.
J. Another run is alive if it has renewed a claim between two looks at the log's end, never because of what the log says of the
   past: a reader is at the end once it has read a record that it sent itself within its lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.claims_record import (
    COPIER,
    MIRROR,
    NO_NAMES,
    ClaimsRecord,
    Holder,
    Names,
    Waiting,
    whole_of,
)

LEASE_MS = 10_000
MARGIN_MS = 2_000  # for another clock that runs faster than the holder's, and for the time from a check to its append
RENEW_MS = 2_500

_REMEMBERED_MS = 3_600_000


class Claim(NamedTuple):
    """A name that a holder claims, with the offset of its newest record and that record's time by the log's leader."""

    name: TopicPartition
    holder: Holder
    renewed_ms: int
    offset: int


@dataclass(frozen=True)
class Run:
    """One mirror, as its processes were seen lately; `seen_ms` is by the clock of the claims log's leader.

    `is_alive`: a process of it has appended a record between two looks of the same reader, whatever the clocks say.
    `has_copied`: a process of it has claimed partitions to copy; before that it has written the link's control.
    `holds`: partitions are granted to a process of it; without that a mirror that is alive waits for them, and writes nothing.
    `copies` are those that are granted to its processes that copy, with identical offsets.
    """

    link: str
    run: str
    host: str
    pid: int
    since_ms: int
    seen_ms: int
    is_alive: bool
    is_ended: bool = False  # it has announced its end itself
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    waiting_count: int = 0
    has_copied: bool = False
    holds: bool = True
    copies: Names = NO_NAMES


class _Step(NamedTuple):
    """How far a process had read, by its own clock (law C)."""

    clock_ms: int
    read: int


class _Seen(NamedTuple):
    """The newest record of a holder, its granted names with their terms (law H), and its steps of the last lease."""

    record: ClaimsRecord
    offset: int
    append_ms: int
    terms: Mapping[TopicPartition, int]
    steps: deque[_Step]


class _CutOff(NamedTuple):
    """When a holder that fell silent while it was held up had spoken last, and whose it was."""

    spoke_ms: int
    run: str


class ClaimsLog:
    """The state of the claims log after the last record that was read; records are read in the order of their offsets."""

    def __init__(self) -> None:
        self.end = 0  # the offset after the last record
        self.silent_before = 0  # a holder without a record from this offset on no longer counts (law C)
        self._seen: dict[str, _Seen] = {}
        self._cut_off: dict[TopicPartition, _CutOff] = {}  # of holders that fell silent and spoke again

    def read(self, record: ClaimsRecord, append_ms: int, offset: int) -> Names | None:
        """Takes the next record, with its LogAppendTime and its offset; returns the names that it is granted.

        None for a record without effect (law F).
        """
        self.end = offset + 1
        seen = self._seen.get(record.holder.id)
        if seen is not None and record.sequence <= seen.record.sequence:
            return None
        steps = deque[_Step]() if seen is None else seen.steps
        self._measure(steps, _Step(record.clock_ms, min(record.read, offset)))
        held = {} if seen is None else seen.terms
        if seen is not None and (not self._counts(seen) or _slept(seen.record, record)):
            held = {}
            if seen.record.is_held_up:
                self._cut_off.update(dict.fromkeys(seen.terms, _CutOff(seen.append_ms, seen.record.holder.run)))
        terms = {name: held[name] for name in record.names if name in held}
        if missing := record.names - terms.keys():
            terms |= dict.fromkeys(missing - self.blocking(record.holder.id, missing).keys(), record.sequence)
        self._seen[record.holder.id] = _Seen(record, offset, append_ms, terms, steps)
        for holder_id in [
            h for h, s in self._seen.items() if append_ms - s.append_ms > _REMEMBERED_MS and not self._counts(s)
        ]:
            del self._seen[holder_id]
        return frozenset(terms)

    def _measure(self, steps: deque[_Step], step: _Step) -> None:
        """Law C: adds a step of a process; of those a lease back or older, only the newest is kept."""
        if steps and step.clock_ms < steps[-1].clock_ms:
            steps.clear()  # the clock went back: it measures nothing
        elif steps and step.clock_ms == steps[-1].clock_ms:
            steps.pop()
        steps.append(step)
        while len(steps) > 1 and steps[1].clock_ms <= step.clock_ms - LEASE_MS:
            steps.popleft()
        if steps[0].clock_ms <= step.clock_ms - LEASE_MS:
            self.silent_before = max(self.silent_before, steps[0].read)

    def terms_of(self, holder: Holder) -> Mapping[TopicPartition, int]:
        """The names that a holder was granted last, with their terms."""
        seen = self._seen.get(holder.id)
        return {} if seen is None else seen.terms

    def _counts(self, seen: _Seen) -> bool:
        return seen.offset >= self.silent_before

    def others(self, holder_id: str) -> dict[TopicPartition, Claim]:
        """The claims of all other holders, by name."""
        return {
            name: Claim(name, seen.record.holder, seen.append_ms, seen.offset)
            for other, seen in self._seen.items()
            if other != holder_id and self._counts(seen)
            for name in seen.record.names
        }

    def blocking(self, holder_id: str, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Claim]:
        """Those of `wanted` that this holder cannot have, with the claims of others that block them (law A)."""
        wanted = list(wanted)
        others = self.others(holder_id) if wanted else {}
        parts = {whole: claim for name, claim in others.items() if (whole := whole_of(name)) != name}
        found = {}
        for name in wanted:
            whole = whole_of(name)
            claim = others.get(name) or (parts if whole == name else others).get(whole)
            if claim is not None:
                found[name] = claim
        return found

    def claimed_by(self, name: TopicPartition, but: str) -> Holder | None:
        """Another holder than `but` that claims this very name."""
        found = (
            s.record.holder for h, s in self._seen.items() if h != but and self._counts(s) and name in s.record.names
        )
        return next(found, None)

    def copied_by(self, link: str) -> Names:
        """The partitions that copiers of a link were granted last, with identical offsets; of the last hour."""
        return _copied(seen for seen in self._seen.values() if seen.record.holder.link == link)

    def silent_ms(self, name: TopicPartition) -> float:
        """How long ago, by the log's times, one spoke last that fell silent while it was held up and held this name; or inf.

        It counts though it spoke again: nobody knows what became of that which it had sent.
        """
        spoke = [s.append_ms for s in self._silent_while_held_up() if name in s.terms]
        spoke += [self._cut_off[name].spoke_ms] if name in self._cut_off else []
        return max(s.append_ms for s in self._seen.values()) - max(spoke) if spoke else float("inf")

    def asks_of(self, holder: Holder) -> Names:
        """The names that other processes of a holder's run ask for."""
        asks = [
            seen.record.asks
            for other, seen in self._seen.items()
            if other != holder.id and seen.record.holder.run == holder.run and seen.record.asks and self._counts(seen)
        ]
        return frozenset().union(*asks)

    def has_ended(self, run: str) -> bool:
        """Whether the mirror of a run has announced its end."""
        mirrors = [s for s in self._seen.values() if (s.record.holder.run, s.record.holder.role) == (run, MIRROR)]
        return bool(mirrors) and max(mirrors, key=lambda seen: seen.offset).record.is_end

    def names_of_run(self, holder: Holder) -> Names:
        """The names that other processes of a holder's run claim."""
        return frozenset(name for name, claim in self.others(holder.id).items() if claim.holder.run == holder.run)

    def cut_off_of_run(self, holder: Holder) -> Names:
        """The names that other processes of a holder's run held when they fell silent while they were held up."""
        silent = (s.terms for s in self._silent_while_held_up() if s.record.holder.run == holder.run)
        spoke_again = (name for name, of in self._cut_off.items() if of.run == holder.run)
        return frozenset().union(*silent, spoke_again)

    def _silent_while_held_up(self) -> Iterator[_Seen]:
        """Holders that fell silent while they were held up, and have not spoken again."""
        return (s for s in self._seen.values() if s.record.is_held_up and not self._counts(s))

    def waits_of_run(self, holder: Holder) -> dict[TopicPartition, Waiting]:
        """What other processes of a holder's run say to wait, as of their newest records."""
        return _waiting(
            seen
            for other, seen in self._seen.items()
            if other != holder.id and seen.record.holder.run == holder.run and self._counts(seen)
        )

    def runs(self, before: ClaimsLog) -> list[Run]:
        """The mirrors that were seen in the last hour, the one that was seen last at the end.

        Those that have appended a record since `before`, an earlier look, are alive.
        """
        by_run: dict[str, list[_Seen]] = {}
        for seen in sorted(self._seen.values(), key=lambda seen: seen.offset):
            by_run.setdefault(seen.record.holder.run, []).append(seen)
        renewed = self._said_since(before)
        by_age = sorted(by_run.values(), key=lambda members: members[-1].offset)
        return [_run(members, renewed, [s for s in members if s.terms and self._counts(s)]) for members in by_age]

    def _said_since(self, before: ClaimsLog) -> frozenset[str]:
        """The holders with a record that an earlier look had not seen."""
        known = {holder_id: seen.record.sequence for holder_id, seen in before._seen.items()}
        return frozenset(h for h, seen in self._seen.items() if h not in known or seen.record.sequence > known[h])


def _slept(before: ClaimsRecord, now: ClaimsRecord) -> bool:
    """Whether a holder was silent for a lease by its own clock: its term is over, even if nobody else has noticed."""
    return now.clock_ms - before.clock_ms >= LEASE_MS


def _run(members: list[_Seen], renewed: frozenset[str], holding: Collection[_Seen]) -> Run:
    """`members` in the order of the log; those `holding` have claims that count."""
    newest = max(members, key=lambda seen: (seen.record.holder.role == MIRROR, seen.offset))
    is_ended = newest.record.is_end
    alive = [seen for seen in members if not seen.record.is_end and seen.record.holder.id in renewed]
    holder = newest.record.holder
    return Run(
        holder.link,
        holder.run,
        holder.host,
        holder.pid,
        min(seen.record.holder.since_ms for seen in members),
        members[-1].append_ms,
        bool(alive) and not is_ended,
        is_ended,
        _waiting(alive),
        # The mirror repeats what its copiers report.
        max(
            sum(seen.record.waiting_count for seen in alive if seen.record.holder.role == role)
            for role in (MIRROR, COPIER)
        ),
        any(seen.record.holder.role == COPIER for seen in members),
        bool(holding),
        _copied(holding),
    )


def _copied(members: Iterable[_Seen]) -> Names:
    """The partitions that the copiers among these holders were granted last, with identical offsets."""
    return frozenset(n for s in members if s.record.holder.role == COPIER for n in s.terms if whole_of(n) == n)


def _waiting(members: Iterable[_Seen]) -> dict[TopicPartition, Waiting]:
    """The waiting partitions of all members; for one that several report, a blocked reason counts most, then the mirror's."""
    said = [
        (why.is_blocked, seen.record.holder.role == MIRROR, p, why)
        for seen in members
        for p, why in seen.record.waiting.items()
    ]
    return {p: why for _, _, p, why in sorted(said, key=lambda one: one[:2])}
