"""The health of a link: one definition and vocabulary for `status`, the page, the metrics, /healthz and exit codes.  Pure.

| health      | when                                                            | status exits | metric, page | /healthz |
|-------------|-----------------------------------------------------------------|--------------|--------------|----------|
| healthy     | a mirror was seen at work, all is known, nothing below holds    | 0            | 0, ok        | 200      |
| paused      | an operator has paused all or some; nothing else is wrong       | 0            | 0, ok        | 200      |
| promoted    | it copies nothing any more; what it left behind is no fault     | 0            | 0, ok        | 200      |
| handed back | MirrorMaker 2 copies again                                      | 0            | 0, ok        | 200      |
| waiting     | something does not move, and will resume by itself              | 3            | 1, warning   | 200      |
| unknown     | nothing is known of a cluster, a broker, a mirror, or its tasks | 3            | 1, warning   | 200      |
| blocked     | something resumes only after a person has done something        | 3            | 2, critical  | 200      |
| blocked     | the query has ended for good, or nothing watches it any more    | -            | 2, critical  | 503      |

Laws:
- Each reason is a sentence that says what is wrong, where, and what to do; it is never cut off.  The health of a link is that of
  its worst reason, in the order of the table.  A link that is promoted or handed back has no other reason: what it left behind is no
  fault of it: a note says it, in the words of the promotion, which exits with 3 for it.
- A partition is reported as waiting after WAITS_AFTER_S, with the broker's error and since when; by what sees it only with each
  micro-batch (partition_watch.py) after STILL_AFTER_S.
- What was not read is unknown: it is never shown as good news, neither as zero nor as "none".
- While one cluster does not respond, what the other one tells is shown; for a link that copies nothing any more the target suffices.
- A topic that the link has copied and the source no longer has is blocked; one that the target alone lacks is waiting; one that
  neither cluster has is no part of the link's state any more.
- Rows of the ledger are no reason: an accepted loss is reported, counted and kept, and the run that wrote it exits with 3.
  A target's log that goes on after the end of its source's is one: what the source has before that offset is not copied.  A running
  mirror, `--once`, `plan` and `status` say so in the same words (kept_beyond), the last three by both ends (kept_at_ends).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.claims_record import Waiting

WAITS_AFTER_S = 10.0
STILL_AFTER_S = 25  # a micro-batch takes up to 10 s in tail mode
_Named = TypeVar("_Named", TopicPartition, str)
_SHOWN = 5  # reasons of one kind that are shown
DELETED_ON_TARGET = (
    "not on the target any more, though the link had begun to copy it: a mirror that checks for new topics"
    " (refresh.topics.enabled) creates it again within a minute and fills it; else restart the mirror"
)
TRANSLATED_COPY_DELETED = (
    "not on the target any more, though the link has copied to it: with translated offsets nothing fills it again; mirror it"
    " alone under another link name to copy it again"
)
DELETE_COPY = "delete the copy on the target only if the topic was deleted on the source and you do not need the copy"
DELETED_ON_SOURCE = (
    "the source no longer has this topic, or does not show it to us (is Describe on it still granted?); " + DELETE_COPY
)
PARTITION_DELETED_ON_SOURCE = (
    "the source no longer has this partition: its topic was created again there with fewer; the target keeps its copy. Once"
    " you have seen to it, pause it: that ends this message"
)


def kept_beyond(until: int) -> str:
    """Why a partition is not copied whose target's log ends there, after the end of its source's, which has lost records."""
    return f"the source has not come to offset {until} again, which the target keeps"


def kept_at_ends(
    reached: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Why partitions with identical offsets are not copied: what is `reached` on the target is after the ends of their sources' logs.

    Pure.  The ends must be read after what is reached: a mirror may run.
    """
    return {p: kept_beyond(at) for p, at in reached.items() if at > ends.get(p, at)}


def deleted_on_source(*, has_topic: bool) -> str:
    """Why a partition that the source lacks is not copied, by whether the source has its topic."""
    return PARTITION_DELETED_ON_SOURCE if has_topic else DELETED_ON_SOURCE


def with_pause(told: Mapping[TopicPartition, str], which: str) -> dict[TopicPartition, str]:
    """Completes what is said of partitions that the source lacks with the command; the options `which` name the link."""
    lacking: dict[str, str] = {}
    for topic, number in sorted(p for p, why in told.items() if why == PARTITION_DELETED_ON_SOURCE):
        before = lacking.get(topic, f"tolerant-kafka pause {which} --topic {topic}")
        lacking[topic] = f"{before} --partition {number}"
    return {
        p: why.replace("pause it:", f"{lacking[p.topic]}:") if why == PARTITION_DELETED_ON_SOURCE else why
        for p, why in told.items()
    }


class Health(str, enum.Enum):
    """The health of a link, from the best to the worst."""

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
        """The metric: 0 nothing to do, 1 check it, 2 a person has to do something."""
        return 2 if self is Health.BLOCKED else 1 if self in (Health.WAITING, Health.UNKNOWN) else 0

    @property
    def level(self) -> str:
        """The level that the page shows."""
        return ("ok", "warning", "critical")[self.code]

    @property
    def exit_code(self) -> int:
        return 3 if self.code else 0


_ORDER = tuple(Health)


class Reason(NamedTuple):
    """Why a link is not healthy."""

    health: Health
    text: str


def worst(reasons: Iterable[Reason]) -> Health:
    """The worst health of the reasons; healthy without one."""
    return max((reason.health for reason in reasons), key=_ORDER.index, default=Health.HEALTHY)


def sorted_by_weight(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The worst first; reasons of equal weight keep their order."""
    return tuple(sorted(reasons, key=lambda reason: -_ORDER.index(reason.health)))


def waiting_reasons(waits: Mapping[TopicPartition, Waiting]) -> list[Reason]:
    """Reasons for partitions that are blocked or wait; one for all partitions with the same text, the oldest first."""
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


def not_responding(cluster: str, why: str) -> str:
    """A sentence about a cluster ("source", "target") of which nothing is known."""
    return f"The {cluster} cluster does not respond: {why}"


def blocked_reasons(blocked: Mapping[TopicPartition, str]) -> list[Reason]:
    """Reasons for partitions that need a person; one for all partitions with the same text."""
    found = by_reason(blocked).items()
    texts = few(reason if names(of) in reason else f"{names(of)}: {reason}" for reason, of in found)
    return [Reason(Health.BLOCKED, text) for text in texts]


def bare(which: str, reason: str) -> str:
    """A reason without the partition's name at its start, for a sentence that has named the partition."""
    return reason.removeprefix(f"{which}: ")


def by_reason(told: Mapping[_Named, str]) -> dict[str, list[_Named]]:
    """Groups partitions, or topics, by their text, sorted."""
    found: dict[str, list[_Named]] = {}
    for named, reason in sorted(told.items()):
        found.setdefault(reason, []).append(named)
    return found


def names(partitions: Iterable[TopicPartition]) -> str:
    """Names the first partition and counts the others."""
    known = list(partitions)
    more = len(known) - 1
    return f"{known[0].topic}-{known[0].partition}" + (
        f" and {more:,} more partition{'s' * (more > 1)}" if more else ""
    )


def few(texts: Iterable[str]) -> list[str]:
    """The first few texts, and one that counts the others."""
    known = list(texts)
    return known[:_SHOWN] + ([f"and {len(known) - _SHOWN:,} more like this"] if len(known) > _SHOWN else [])


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def counted_are(number: int, noun: str) -> str:
    """A number with its noun and the verb: "1 offset is", "2 offsets are"."""
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


def utc(time_ms: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1000))
