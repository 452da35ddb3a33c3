"""Records of the topic `tolerant-mirror-claims`: who claims which partitions of a target (claims.py has the laws).  Pure.

The topic is on the target, with one partition and LogAppendTime.  A record's key is its holder (one process that
copies, or the mirror that started it), its value JSON, complete in itself:

    {"version": 1, "link": "dr", "run": "5f0c...", "role": "copier", "host": "m1", "pid": 812, "since_ms": 1763775000000,
     "sequence": 7, "clock_ms": 81234567, "read": 4711, "names": {"orders": [[0, 3]], "clicks": [[2, 2]]}, "asks": {},
     "waiting": {"orders-3": ["the target's broker ...", 1763775003000]}, "blocked": ["orders-3"],
     "remedies": {"orders-3": "..."}, "waiting_count": 1, "is_end": false, "is_held_up": false}

Ranges of partitions include both ends.  A record names every partition that its holder keeps or takes; it releases all others.
`blocked` are the waiting partitions that need a person, `remedies` the ends of their reasons that say what to do.  `is_held_up`:
a node of the target may have batches of the holder that it has not read: it throttles the holder, or did lately, or has not
responded to it for a second.  Earlier versions wrote none of these three: their holders may be held up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
from kafka.structs import TopicPartition

from tolerant_client.mirror.state.link_name import is_link_name
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS
from tolerant_client.state_json import MOST_INDEX, Moment, Whole, decoded, named_partition, require_few

CLAIMS_TOPIC = f"{OWN_TOPICS}claims"
# The mirror of a run claims this partition of each of its topics, so that one of two starts has them all.
WHOLE_TOPIC = -1
MIRROR, COPIER = "mirror", "copier"

_VERSION = 1
WAITING_SHOWN = 20

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
    """Why a partition waits, and since when (ms since 1970); if `is_blocked`, until a person has done something.

    `remedy` is the end of the reason that says what to do, or "".
    """

    reason: str
    since_ms: int
    is_blocked: bool = False
    remedy: str = ""


@dataclass(frozen=True)
class ClaimsRecord:
    """One record of a holder: all that it claims from now on, and what waits.

    `clock_ms` and `read` are those of law C; 0 measures nothing.  `waiting` are partitions that wait; in a record that was read,
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
    is_held_up: bool = False


def claimed_part(partition: TopicPartition, link: str) -> TopicPartition:
    """The name that a link with translated offsets claims: other such links may write to the partition, each with its own part.

    No topic has a colon in its name.  The part of link "" is that of all such links before their first records (copy_claims.py).
    """
    return TopicPartition(f"{partition.topic}:{link}", partition.partition)


def whole_of(name: TopicPartition) -> TopicPartition:
    """The partition of the target that a claimed name belongs to: itself, or that of claimed_part."""
    return TopicPartition(name.topic.partition(":")[0], name.partition)


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
    remedies: dict[str, str] = {}
    is_held_up: bool = True


def encode_claims(record: ClaimsRecord) -> bytes:
    """The value of a record."""
    # Partitions that need a person come first, then the oldest ones.
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
        "remedies": {f"{topic}-{index}": why.remedy for (topic, index), why in shown if why.remedy},
        "waiting_count": max(record.waiting_count, len(record.waiting)),
    }
    return msgspec.json.encode({name: said[name] for name in _Document.__struct_fields__})


def decode_claims(key: bytes | None, value: bytes | None) -> ClaimsRecord | None:
    """The record with this key and value; None if it is not ours, or of a newer version."""
    try:
        found = decoded(value, _Document)
        if found.version > _VERSION or not is_link_name(found.link):
            return None
        blocked = frozenset(map(_partition, found.blocked))
        remedies = {_partition(name): remedy for name, remedy in found.remedies.items()}
        waiting = {_partition(name): why for name, why in found.waiting.items()}
        return ClaimsRecord(
            Holder((key or b"").decode(), found.link, found.run, found.host, found.pid, found.since_ms, found.role),
            found.sequence,
            _names(found.names),
            _names(found.asks),
            {
                p: Waiting(reason, since_ms, p in blocked, remedies.get(p, ""))
                for p, (reason, since_ms) in waiting.items()
            },
            found.waiting_count,
            found.is_end,
            found.clock_ms,
            found.read,
            found.is_held_up,
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
