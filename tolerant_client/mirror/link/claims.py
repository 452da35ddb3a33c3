"""Who may write which partition of a target: a fold over the claims log, the same for every reader.  Pure.

Topic `tolerant-mirror-claims` on the target, one partition, LogAppendTime.  A record's key is its holder (one process that
copies, or the mirror that started it), its value JSON, complete in itself:

    {"version": 1, "link": "dr", "run": "5f0c...", "role": "copier", "host": "m1", "pid": 812, "since_ms": 1763775000000,
     "sequence": 7, "names": {"orders": [[0, 3]], "clicks": [[2, 2]]}, "asks": {},
     "waiting": {"orders-3": ["the target's broker ...", 1763775003000]}, "blocked": ["orders-3"], "waiting_count": 1,
     "is_end": false}

Of what waits `blocked` needs a person; a version before it does not say.  Ranges of partitions include both ends.  A record names all that its holder holds and takes; what it does not name it releases.

Laws:
A. A partition has one writer at every moment, as the claims log says: whoever holds no claim appends nothing.
B. Of what it names a record is granted what the holder's record before was granted, and what no other holder's newest
   record names.  A holder counts for less than LEASE_MS of log time after its newest record; then it holds nothing.
C. Log time is what each leader's clock measured between the records that it appended, added up: clocks of two brokers are
   never compared, and one that is set back stands still.  It never runs faster than the leader's clock.
D. Every reader that begins where the log does finds the same.  The log keeps an hour, and one that begins in its midst
   agrees with the others after some LEASE_MS: what was denied is soon named no longer.  Of a log that was cut, or that
   nobody wrote to for an hour, less may be left: its reader takes nothing until LEASE_MS of log and waiting are over, since
   whoever wrote what is gone may hold its claims, and be frozen, for as long.
E. A holder appends until LEASE_MS - MARGIN_MS of its own clock have passed since it *sent* its newest record that it has
   read in the log, and only to what that record was granted and every record that it has sent since names, too.
F. `sequence` grows with each record of a holder: what comes a second time, or late, says nothing.
G. What another process of the same run holds is asked for; that process stops writing it, settles what is in flight, and
   releases it.  What another run holds is waited for.
H. A term begins when a partition that its holder did not hold is granted to it, and lasts as long as it is granted without
   a break: what was read of the target's log in one term says nothing in the next, another may have written in between.
I. A run ends when its mirror says so: each copier of it then releases what it holds, and takes nothing more.
J. Another run lives where it has renewed a claim between two looks at the log's end, never because the log says so of the
   past: a reader is at the end once it has read what it sent itself within its lease.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.state_json import (
    MOST_INDEX,
    document,
    elements,
    flag,
    members,
    moment,
    named_partition,
    partition_range,
    require_few,
    text,
    whole,
)
from tolerant_client.mirror.topic_filter import OWN_TOPICS

CLAIMS_TOPIC = f"{OWN_TOPICS}claims"
LEASE_MS = 10_000
MARGIN_MS = 2_000  # for what a leader's clock runs faster than a holder's, and for what a check is older than its append
RENEW_MS = 2_500
WHOLE_TOPIC = -1  # the partition that a run's mirror claims of each of its topics, so that one of two starts has them all
MIRROR, COPIER = "mirror", "copier"

_VERSION = 1
_WAITING_SHOWN = 20
_REMEMBERED_MS = 3_600_000

Names = frozenset[TopicPartition]
_NONE: Names = frozenset()
_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Holder:
    """One process that claims; `run` is the same for all processes of one mirror, `since_ms` is by its own clock."""

    id: str
    link: str
    run: str
    host: str
    pid: int
    since_ms: int
    role: str = COPIER

    def __str__(self) -> str:
        return f"a mirror of link {self.link} on {self.host} (process {self.pid})"


class Waiting(NamedTuple):
    """Why a partition stands still, and since when (ms since 1970); with `is_blocked` until a person has done something."""

    reason: str
    since_ms: int
    is_blocked: bool = False


@dataclass(frozen=True)
class ClaimsRecord:
    """What a holder says: all that it claims from now on, and what it waits for.

    `waiting` are the first partitions that stand still, of `waiting_count`.
    """

    holder: Holder
    sequence: int
    names: Names = _NONE
    asks: Names = _NONE
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    waiting_count: int = 0
    is_end: bool = False


class Claim(NamedTuple):
    """Who holds a partition, and when it last said so, by the clock of the claims log's leader."""

    holder: Holder
    renewed_ms: int


@dataclass(frozen=True)
class Run:
    """One mirror, as its processes were seen lately; `seen_ms` by the clock of the claims log's leader.

    `is_alive`: a process of it has said something between two looks of the same reader, whatever the clocks say.
    """

    link: str
    run: str
    host: str
    pid: int
    since_ms: int
    seen_ms: int
    is_alive: bool
    is_ended: bool = False  # it has said so itself
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    waiting_count: int = 0


def claimed_part(partition: TopicPartition, link: str) -> TopicPartition:
    """What a link with translated offsets claims: others may write to the partition, but not this link's part of it.

    No topic has a colon in its name.
    """
    return TopicPartition(f"{partition.topic}:{link}", partition.partition)


# -- records ------------------------------------------------------------------


def encode_claims(record: ClaimsRecord) -> bytes:
    """The value of a record."""
    holder = record.holder
    shown = sorted(record.waiting.items(), key=lambda item: (item[1].since_ms, item[0]))[:_WAITING_SHOWN]
    said = {
        "version": _VERSION,
        "link": holder.link,
        "run": holder.run,
        "role": holder.role,
        "host": holder.host,
        "pid": holder.pid,
        "since_ms": holder.since_ms,
        "sequence": record.sequence,
        "names": _ranges(record.names),
        "asks": _ranges(record.asks),
        "waiting": {f"{topic}-{index}": [why.reason, why.since_ms] for (topic, index), why in shown},
        "blocked": [f"{topic}-{index}" for (topic, index), why in shown if why.is_blocked],
        "waiting_count": max(record.waiting_count, len(record.waiting)),
        "is_end": record.is_end,
    }
    return json.dumps(said, separators=(",", ":")).encode()


def decode_claims(key: bytes | None, value: bytes | None) -> ClaimsRecord | None:
    """What a record says; None for one that is none of ours, or of a newer version."""
    try:
        found = document(value)
        if whole(found["version"]) > _VERSION:
            return None
        link, run, host, role = (text(found[name]) for name in ("link", "run", "host", "role"))
        waiting = {_partition(name): elements(why, 2) for name, why in members(found["waiting"]).items()}
        blocked = frozenset(_partition(text(name)) for name in elements(found.get("blocked", [])))
        return ClaimsRecord(
            Holder((key or b"").decode(), link, run, host, whole(found["pid"]), moment(found["since_ms"]), role),
            whole(found["sequence"]),
            _names(found["names"]),
            _names(found["asks"]),
            {p: Waiting(text(reason), moment(since), p in blocked) for p, (reason, since) in waiting.items()},
            whole(found["waiting_count"]),
            flag(found["is_end"]),
        )
    except (ValueError, KeyError):
        return None


def _ranges(names: Iterable[TopicPartition]) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for topic, index in sorted(names):
        ranges = found.setdefault(topic, [])
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return found


def _names(found: Any) -> Names:
    ranges = [
        (text(topic), partition_range(first, whole(last, WHOLE_TOPIC, MOST_INDEX) + 1, WHOLE_TOPIC))
        for topic, spans in members(found).items()
        for first, last in (elements(span, 2) for span in elements(spans))
    ]
    require_few(of for _, of in ranges)
    return frozenset(TopicPartition(topic, n) for topic, of in ranges for n in of)


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(text(topic), named_partition(number))


# -- the fold -----------------------------------------------------------------


class _Seen(NamedTuple):
    """The newest record of a holder: log time, the leader's clock, and what it was granted, each under its term (law H)."""

    record: ClaimsRecord
    time_ms: int
    append_ms: int
    terms: Mapping[TopicPartition, int]

    @property
    def granted(self) -> Names:
        return frozenset(self.terms)


class ClaimsLog:
    """What the claims log says up to the last record that was read; records in the order of their offsets."""

    def __init__(self) -> None:
        self.time_ms = 0  # log time
        self._seen: dict[str, _Seen] = {}
        self._leader_epoch: int | None = None
        self._append_ms = 0

    def read(self, record: ClaimsRecord, append_ms: int, leader_epoch: int) -> Names | None:
        """Takes the next record, with its LogAppendTime and its batch's leader epoch; what it is granted.

        None for a record that says nothing (law F).
        """
        if leader_epoch != self._leader_epoch:
            self._leader_epoch, self._append_ms = leader_epoch, append_ms
        self.time_ms += max(0, append_ms - self._append_ms)
        self._append_ms = max(append_ms, self._append_ms)
        seen = self._seen.get(record.holder.id)
        if seen is not None and record.sequence <= seen.record.sequence:
            return None
        held = seen.terms if seen is not None and self._counts(seen) else {}
        terms = {name: held[name] for name in record.names if name in held}
        if len(terms) < len(record.names):
            others = self.others(record.holder.id)
            terms |= {name: record.sequence for name in record.names if name not in terms and name not in others}
        self._seen[record.holder.id] = _Seen(record, self.time_ms, append_ms, terms)
        for holder_id in [h for h, s in self._seen.items() if self.time_ms - s.time_ms > _REMEMBERED_MS]:
            del self._seen[holder_id]
        return frozenset(terms)

    def terms_of(self, holder: Holder) -> Mapping[TopicPartition, int]:
        """What a holder was granted last, each under its term."""
        seen = self._seen.get(holder.id)
        return {} if seen is None else seen.terms

    def _counts(self, seen: _Seen) -> bool:
        return self.time_ms - seen.time_ms < LEASE_MS

    def others(self, holder_id: str) -> dict[TopicPartition, Claim]:
        """What holders but this one name, and who that is."""
        return {
            name: Claim(seen.record.holder, seen.append_ms)
            for other, seen in self._seen.items()
            if other != holder_id and self._counts(seen)
            for name in seen.record.names
        }

    def asks_of(self, holder: Holder) -> Names:
        """What other processes of a holder's run ask for."""
        asks = [
            seen.record.asks
            for other, seen in self._seen.items()
            if other != holder.id and seen.record.holder.run == holder.run and seen.record.asks and self._counts(seen)
        ]
        return frozenset().union(*asks)

    def has_ended(self, run: str) -> bool:
        """Whether the mirror of a run has said that it ends."""
        mirrors = [seen for seen in self._seen.values() if (seen.record.holder.run, seen.record.holder.role) == (run, MIRROR)]
        return bool(mirrors) and max(mirrors, key=lambda seen: seen.time_ms).record.is_end

    def names_of_run(self, holder: Holder) -> Names:
        """What other processes of a holder's run name."""
        return frozenset(name for name, claim in self.others(holder.id).items() if claim.holder.run == holder.run)

    def claims(self) -> dict[TopicPartition, Claim]:
        """Who holds what, by log time: of a holder that died, until others have written for a lease."""
        return {
            name: Claim(seen.record.holder, seen.append_ms)
            for seen in self._seen.values()
            if self._counts(seen)
            for name in seen.granted
            if name.partition != WHOLE_TOPIC
        }

    def runs(self, before: ClaimsLog | None = None) -> list[Run]:
        """The mirrors that were seen in the last hour, the one that was seen last at the end.

        Alive are those that have said something since `before`, an earlier look; without one none is known to be.
        """
        by_run: dict[str, list[_Seen]] = {}
        for seen in self._seen.values():
            by_run.setdefault(seen.record.holder.run, []).append(seen)
        renewed = self._said_since(before) if before is not None else _NOBODY
        return sorted((_run(members, renewed) for members in by_run.values()), key=lambda run: run.seen_ms)

    def _said_since(self, before: ClaimsLog) -> frozenset[str]:
        """Holders whose newest record an earlier look had not seen."""
        known = {holder_id: seen.record.sequence for holder_id, seen in before._seen.items()}
        return frozenset(h for h, seen in self._seen.items() if h not in known or seen.record.sequence > known[h])


def _run(members: list[_Seen], renewed: frozenset[str]) -> Run:
    newest = max(members, key=lambda seen: (seen.record.holder.role == MIRROR, seen.append_ms))
    seen_ms = max(seen.append_ms for seen in members)
    is_ended = newest.record.is_end
    alive = [seen for seen in members if not seen.record.is_end and seen.record.holder.id in renewed]
    waiting = {partition: why for seen in alive for partition, why in seen.record.waiting.items()}
    holder = newest.record.holder
    return Run(
        holder.link,
        holder.run,
        holder.host,
        holder.pid,
        min(seen.record.holder.since_ms for seen in members),
        seen_ms,
        bool(alive) and not is_ended,
        is_ended,
        waiting,
        sum(seen.record.waiting_count for seen in alive),
    )


# -- one holder ---------------------------------------------------------------


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
        self._held: Names = _NONE
        self._terms: Mapping[TopicPartition, int] = {}
        self._until = float("-inf")
        self._sequence = 0
        self._is_ended = False
        self._sent: dict[int, _Sent] = {}
        self._said: tuple[Names, Names] | None = (_NONE, _NONE)  # named and asked for; None: to be said anew
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
        self._held = _NONE

    def not_said(self) -> None:
        """Takes it that the newest record may not have arrived: it is said anew."""
        self._said = None

    @property
    def is_said(self) -> bool:
        """Whether the log has nothing of it that it does not want any more."""
        return not self._wanted and self._said == (_NONE, _NONE)

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
        """What it wants and others name, with who that is."""
        others, missing = self.log.others(self.holder.id), self._wanted - self._held
        return {name: others[name] for name in missing if name in others}

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
        first = dict(sorted(self.waiting.items(), key=lambda item: (item[1].since_ms, item[0]))[:_WAITING_SHOWN])
        return ClaimsRecord(self.holder, self._sequence, names, asks, first, len(self.waiting), self._is_ended)

    def _to_say(self) -> tuple[Names, Names]:
        """What it names, and what it asks for."""
        missing = self._wanted - self._held
        if not missing or self.is_run_over:
            return self._held, _NONE
        others = self.log.others(self.holder.id)
        free = frozenset(name for name in missing if name not in others)
        asks = frozenset(name for name in missing - free if others[name].holder.run == self.holder.run)
        return self._held | free, asks

    def read(self, record: ClaimsRecord, append_ms: int, leader_epoch: int) -> None:
        """Takes the next record of the log, whoever wrote it."""
        granted = self.log.read(record, append_ms, leader_epoch)
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
        self._held = _NONE
        self._sent.clear()
        self._said = None

