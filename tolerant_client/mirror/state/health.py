"""How a link is: one definition and one vocabulary for `status`, the page, the metrics, /healthz and exit codes.  Pure.

| health      | when                                                            | status exits | metric, page | /healthz |
|-------------|-----------------------------------------------------------------|--------------|--------------|----------|
| healthy     | a mirror was seen at work, all was seen, nothing below holds    | 0            | 0, ok        | 200      |
| paused      | an operator has paused all or a part; nothing else is wrong     | 0            | 0, ok        | 200      |
| promoted    | promoted, and everything is fenced: nothing is to be copied     | 0            | 0, ok        | 200      |
| handed back | MirrorMaker 2 copies again                                      | 0            | 0, ok        | 200      |
| waiting     | something does not move, and goes on by itself once it can      | 3            | 1, warning   | 200      |
| unknown     | something was not seen: a cluster, a broker, a mirror, its tasks| 3            | 1, warning   | 200      |
| blocked     | something goes on only when a person has done something         | 3            | 2, critical  | 200      |
| blocked     | the query has ended for good, or nobody watches it any more     | -            | 2, critical  | 503      |

Laws:
- Each reason is a sentence that says what is wrong and where, and what to do, which is never cut off; the health of a link is that of its worst reason, in the order
  of the table.  A link that is promoted or handed back has no other reason: what it does not copy is nobody's lag.
- What waits is said to wait after WAITS_AFTER_S, with what the broker said, and since when.
- What was not seen is unknown: it is never shown as good news, neither as zero nor as "none".
- Rows of the ledger are no reason: an accepted loss is told, counted and kept, and the run that wrote it exits with 3.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.claims import Waiting

WAITS_AFTER_S = 10.0
_SHOWN = 5  # reasons of one kind
DELETED_ON_TARGET = (
    "not on the target any more, though the link had begun to copy it: a mirror that looks for new topics"
    " (refresh.topics.enabled) makes it again within a minute, and fills it; else start it again"
)


class Health(str, enum.Enum):
    """Worse ones come later."""

    HEALTHY = "healthy"
    PAUSED = "paused"
    PROMOTED = "promoted"
    HANDED_BACK = "handed back"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"

    def __str__(self) -> str:
        return self.value

    @property
    def code(self) -> int:
        """What the metric says: 0 nothing to do, 1 look at it, 2 a person has to do something."""
        return 2 if self is Health.BLOCKED else 1 if self in (Health.WAITING, Health.UNKNOWN) else 0

    @property
    def level(self) -> str:
        """How the page shows it."""
        return ("ok", "warning", "critical")[self.code]

    @property
    def exit_code(self) -> int:
        return 3 if self.code else 0


_ORDER = tuple(Health)


class Reason(NamedTuple):
    """Why a link is not just healthy."""

    health: Health
    text: str


def worst(reasons: Iterable[Reason]) -> Health:
    """The health that reasons make; healthy without one."""
    return max((reason.health for reason in reasons), key=_ORDER.index, default=Health.HEALTHY)


def sorted_by_weight(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The worst first; those of equal weight in their order."""
    return tuple(sorted(reasons, key=lambda reason: -_ORDER.index(reason.health)))


def waiting_reasons(waits: Mapping[TopicPartition, Waiting]) -> list[Reason]:
    """What stands still, what is blocked and what waits; partitions of one reason together, the oldest first."""
    found: dict[tuple[bool, str], list[tuple[int, TopicPartition]]] = {}
    for partition, wait in waits.items():
        found.setdefault((wait.is_blocked, wait.reason), []).append((wait.since_ms, partition))
    texts: dict[bool, list[str]] = {True: [], False: []}
    for (is_blocked, reason), members in sorted(found.items(), key=lambda item: min(item[1])):
        which = names(p for _, p in sorted(members))
        texts[is_blocked].append(f"{which} since {utc(min(members)[0])}: {bare(which, reason)}")
    return [
        Reason(Health.BLOCKED if each else Health.WAITING, text) for each, told in texts.items() for text in few(told)
    ]


def blocked_reasons(blocked: Mapping[TopicPartition, str]) -> list[Reason]:
    """What needs a person, partitions of one reason together."""
    found = by_reason(blocked).items()
    texts = few(reason if names(of) in reason else f"{names(of)}: {reason}" for reason, of in found)
    return [Reason(Health.BLOCKED, text) for text in texts]


def bare(which: str, reason: str) -> str:
    """A reason, which may begin with the name of its partition, for a sentence that has named it."""
    return reason.removeprefix(f"{which}: ")


def by_reason(told: Mapping[TopicPartition, str]) -> dict[str, list[TopicPartition]]:
    """The partitions of which the same is told, sorted."""
    found: dict[str, list[TopicPartition]] = {}
    for partition, reason in sorted(told.items()):
        found.setdefault(reason, []).append(partition)
    return found


def names(partitions: Iterable[TopicPartition]) -> str:
    """The first of several partitions, and how many more there are."""
    known = list(partitions)
    more = len(known) - 1
    return f"{known[0].topic}-{known[0].partition}" + (
        f" and {more:,} more partition{'s' * (more > 1)}" if more else ""
    )


def few(texts: Iterable[str]) -> list[str]:
    """The first sentences, and one that says how many more there are."""
    known = list(texts)
    return known[:_SHOWN] + ([f"and {len(known) - _SHOWN:,} more like this"] if len(known) > _SHOWN else [])


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def utc(time_ms: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1000))
