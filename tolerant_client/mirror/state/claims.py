"""Who may write which partition of a target: a fold over the claims log, the same for every reader.  Pure.

Topic `tolerant-mirror-claims` on the target, one partition, LogAppendTime.  A record's key is its holder (one process that
copies, or the mirror that started it), its value JSON, complete in itself:

    {"version": 1, "link": "dr", "run": "5f0c...", "role": "copier", "host": "m1", "pid": 812, "since_ms": 1763775000000,
     "sequence": 7, "clock_ms": 81234567, "read": 4711, "names": {"orders": [[0, 3]], "clicks": [[2, 2]]}, "asks": {},
     "waiting": {"orders-3": ["the target's broker ...", 1763775003000]}, "blocked": ["orders-3"], "waiting_count": 1,
     "is_end": false}

Ranges of partitions include both ends.  A record names all that its holder holds and takes; what it does not name it
releases.  Of what waits `blocked` needs a person; a version before it does not say.

Laws:
A. A partition has one writer at every moment, as the claims log says: whoever holds no claim appends nothing.  One that is
   claimed with identical offsets has no other claimant of any kind; links with translated offsets may share one, of which
   each claims its own part (`claimed_part`).
B. Of what it names a record is granted what the holder's record before was granted, and what conflicts with nothing that
   another holder's newest record names.  A holder counts until somebody has measured LEASE_MS of silence; then it holds
   nothing.
C. Silence is measured by whoever writes to the log: `read` is how far it had read when it sent a record, and `clock_ms` its
   own clock then.  Where two records of one process lie LEASE_MS apart, each holder whose newest record lies before what the
   first one had read was silent for as long, whatever the clocks of brokers say, and of all other machines.
D. Every reader that begins where the log does finds the same.  The log keeps an hour, and one that begins in its midst
   agrees with the others after some LEASE_MS: what was denied is soon named no longer.  Of a log that was cut, or that
   nobody wrote to for an hour, less may be left: where nobody has measured the silence of what is gone, its reader takes
   nothing for LEASE_MS, since whoever wrote it may hold its claims, and be frozen, for as long.
E. A holder appends until LEASE_MS - MARGIN_MS of its own clock have passed since it *sent* its newest record that it has
   read in the log, and only to what that record was granted and every record that it has sent since names, too.  So it
   has stopped before anybody can have measured its silence, unless one clock runs by a quarter faster than the other.
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

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
from kafka.structs import TopicPartition

from tolerant_client.mirror.state.topic_filter import OWN_TOPICS
from tolerant_client.state_json import MOST_INDEX, Moment, Whole, decoded, named_partition, require_few

CLAIMS_TOPIC = f"{OWN_TOPICS}claims"
LEASE_MS = 10_000
MARGIN_MS = 2_000  # for what another's clock runs faster than a holder's, and for what a check is older than its append
RENEW_MS = 2_500
# The partition that a run's mirror claims of each of its topics, so that one of two starts has them all.
WHOLE_TOPIC = -1
MIRROR, COPIER = "mirror", "copier"

_VERSION = 1
WAITING_SHOWN = 20
_REMEMBERED_MS = 3_600_000

Names = frozenset[TopicPartition]
NO_NAMES: Names = frozenset()


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

    `clock_ms` and `read` are those of law C; 0 measures nothing.  `waiting` are partitions that stand still; as it is read,
    the first ones of `waiting_count`.
    """

    holder: Holder
    sequence: int
    names: Names = NO_NAMES
    asks: Names = NO_NAMES
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    waiting_count: int = 0
    is_end: bool = False
    clock_ms: int = 0
    read: int = 0


class Claim(NamedTuple):
    """What a holder names, and where in the log it last said so, and when by the clock of the log's leader."""

    name: TopicPartition
    holder: Holder
    renewed_ms: int
    offset: int


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
    """What a link with translated offsets claims: others like it may write to the partition, but not this link's part of it.

    No topic has a colon in its name.
    """
    return TopicPartition(f"{partition.topic}:{link}", partition.partition)


def whole_of(name: TopicPartition) -> TopicPartition:
    """The partition of the target that something is claimed of: itself, or that of claimed_part."""
    return TopicPartition(name.topic.partition(":")[0], name.partition)


# -- records ------------------------------------------------------------------


_Number = Annotated[int, msgspec.Meta(ge=WHOLE_TOPIC, le=MOST_INDEX)]
_Ranges = dict[str, list[tuple[_Number, _Number]]]


class _Document(msgspec.Struct):
    """The value of a record, as above."""

    version: Whole
    link: str
    run: str
    role: str
    host: str
    pid: Whole
    since_ms: Moment
    sequence: Whole
    names: _Ranges
    asks: _Ranges
    waiting: dict[str, tuple[str, Moment]]
    waiting_count: Whole
    is_end: bool
    clock_ms: Whole = 0
    read: Whole = 0
    blocked: list[str] = []


def encode_claims(record: ClaimsRecord) -> bytes:
    """The value of a record."""
    # What needs a person before what cures itself, the oldest first.
    shown = sorted(record.waiting.items(), key=lambda item: (not item[1].is_blocked, item[1].since_ms, item[0]))[
        :WAITING_SHOWN
    ]
    said = {
        **vars(record.holder),
        **vars(record),
        "version": _VERSION,
        "names": _ranges(record.names),
        "asks": _ranges(record.asks),
        "waiting": {f"{topic}-{index}": why[:2] for (topic, index), why in shown},
        "blocked": [f"{topic}-{index}" for (topic, index), why in shown if why.is_blocked],
        "waiting_count": max(record.waiting_count, len(record.waiting)),
    }
    return msgspec.json.encode({name: said[name] for name in _Document.__struct_fields__})


def decode_claims(key: bytes | None, value: bytes | None) -> ClaimsRecord | None:
    """What a record says; None for one that is none of ours, or of a newer version."""
    try:
        found = decoded(value, _Document)
        if found.version > _VERSION:
            return None
        blocked = frozenset(map(_partition, found.blocked))
        waiting = {_partition(name): why for name, why in found.waiting.items()}
        return ClaimsRecord(
            Holder((key or b"").decode(), found.link, found.run, found.host, found.pid, found.since_ms, found.role),
            found.sequence,
            _names(found.names),
            _names(found.asks),
            {p: Waiting(reason, since_ms, p in blocked) for p, (reason, since_ms) in waiting.items()},
            found.waiting_count,
            found.is_end,
            found.clock_ms,
            found.read,
        )
    except ValueError:
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


def _names(found: _Ranges) -> Names:
    ranges = [(topic, range(first, last + 1)) for topic, spans in found.items() for first, last in spans]
    require_few(of for _, of in ranges)
    return frozenset(TopicPartition(topic, n) for topic, of in ranges for n in of)


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, named_partition(number))


# -- the fold -----------------------------------------------------------------


class _Step(NamedTuple):
    """How far a process had read, by its own clock (law C)."""

    clock_ms: int
    read: int


class _Seen(NamedTuple):
    """The newest record of a holder, what it was granted, each under its term (law H), and its steps of the last lease."""

    record: ClaimsRecord
    offset: int
    append_ms: int
    terms: Mapping[TopicPartition, int]
    steps: deque[_Step]


class ClaimsLog:
    """What the claims log says up to the last record that was read; records in the order of their offsets."""

    def __init__(self) -> None:
        self.end = 0  # behind the last record
        self.silent_before = 0  # whoever has said nothing from this offset on counts no more (law C)
        self._seen: dict[str, _Seen] = {}

    def read(self, record: ClaimsRecord, append_ms: int, offset: int) -> Names | None:
        """Takes the next record, with its LogAppendTime and its offset; what it is granted.

        None for a record that says nothing (law F).
        """
        self.end = offset + 1
        seen = self._seen.get(record.holder.id)
        if seen is not None and record.sequence <= seen.record.sequence:
            return None
        steps = deque[_Step]() if seen is None else seen.steps
        self._measure(steps, _Step(record.clock_ms, min(record.read, offset)))
        held = {} if seen is None or not self._counts(seen) or _slept(seen.record, record) else seen.terms
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
        """Law C: adds a step of a process to those before it, of which one lies a lease back at most."""
        if steps and step.clock_ms < steps[-1].clock_ms:
            steps.clear()  # that is no clock
        elif steps and step.clock_ms == steps[-1].clock_ms:
            steps.pop()
        steps.append(step)
        while len(steps) > 1 and steps[1].clock_ms <= step.clock_ms - LEASE_MS:
            steps.popleft()
        if steps[0].clock_ms <= step.clock_ms - LEASE_MS:
            self.silent_before = max(self.silent_before, steps[0].read)

    def terms_of(self, holder: Holder) -> Mapping[TopicPartition, int]:
        """What a holder was granted last, each under its term."""
        seen = self._seen.get(holder.id)
        return {} if seen is None else seen.terms

    def _counts(self, seen: _Seen) -> bool:
        return seen.offset >= self.silent_before

    def others(self, holder_id: str) -> dict[TopicPartition, Claim]:
        """What holders but this one name, and who that is."""
        return {
            name: Claim(name, seen.record.holder, seen.append_ms, seen.offset)
            for other, seen in self._seen.items()
            if other != holder_id and self._counts(seen)
            for name in seen.record.names
        }

    def blocking(self, holder_id: str, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Claim]:
        """What of `wanted` this holder cannot have, and for which claim of another one (law A)."""
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
        mirrors = [
            seen for seen in self._seen.values() if (seen.record.holder.run, seen.record.holder.role) == (run, MIRROR)
        ]
        return bool(mirrors) and max(mirrors, key=lambda seen: seen.offset).record.is_end

    def names_of_run(self, holder: Holder) -> Names:
        """What other processes of a holder's run name."""
        return frozenset(name for name, claim in self.others(holder.id).items() if claim.holder.run == holder.run)

    def runs(self, before: ClaimsLog) -> list[Run]:
        """The mirrors that were seen in the last hour, the one that was seen last at the end.

        Alive are those that have said something since `before`, an earlier look.
        """
        by_run: dict[str, list[_Seen]] = {}
        for seen in sorted(self._seen.values(), key=lambda seen: seen.offset):
            by_run.setdefault(seen.record.holder.run, []).append(seen)
        renewed = self._said_since(before)
        by_age = sorted(by_run.values(), key=lambda members: members[-1].offset)
        return [_run(members, renewed) for members in by_age]

    def _said_since(self, before: ClaimsLog) -> frozenset[str]:
        """Holders whose newest record an earlier look had not seen."""
        known = {holder_id: seen.record.sequence for holder_id, seen in before._seen.items()}
        return frozenset(h for h, seen in self._seen.items() if h not in known or seen.record.sequence > known[h])


def _slept(before: ClaimsRecord, now: ClaimsRecord) -> bool:
    """Whether a holder was silent for a lease by its own clock: its term is over, though nobody else may have noticed."""
    return now.clock_ms - before.clock_ms >= LEASE_MS


def _run(members: list[_Seen], renewed: frozenset[str]) -> Run:
    """`members` in the order of the log."""
    newest = max(members, key=lambda seen: (seen.record.holder.role == MIRROR, seen.offset))
    seen_ms = members[-1].append_ms
    is_ended = newest.record.is_end
    alive = [seen for seen in members if not seen.record.is_end and seen.record.holder.id in renewed]
    waiting = _waiting(alive)
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
        # The mirror says again what its copiers do.
        max(
            sum(seen.record.waiting_count for seen in alive if seen.record.holder.role == role)
            for role in (MIRROR, COPIER)
        ),
    )


def _waiting(members: Iterable[_Seen]) -> dict[TopicPartition, Waiting]:
    """What stands still, by all who speak of it: what needs a person comes first, then what the mirror says of its copiers."""
    said = [
        (why.is_blocked, seen.record.holder.role == MIRROR, p, why)
        for seen in members
        for p, why in seen.record.waiting.items()
    ]
    return {p: why for _, _, p, why in sorted(said, key=lambda one: one[:2])}
