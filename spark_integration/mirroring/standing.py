"""What of a link stands still, as an operator is told of it: once when it begins, and once when it moves again.  Pure.

Laws:
- A partition moves again when it was copied further than it was when it waited last: that its position is known, or that a
  new task has not yet had its time to wait, is no progress.
- What nobody has spoken of for FORGOTTEN_MS is told anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from spark_integration.mirroring.link_state import LeftOut, TaskReport
from tolerant_client.mirror.link.claims import Waiting
from tolerant_client.mirror.link.health import names

FORGOTTEN_MS = 120_000
AWAY_AFTER_MS = 5_000  # after the first look that a cluster does not respond to, which has waited for it

Positions = Mapping[TopicPartition, int]


class _Wait(NamedTuple):
    """How far a partition was copied when it was said to wait last, if that was known, and when that was."""

    reached: int | None
    said_ms: int


class Standing:
    """What was told of one link."""

    def __init__(self) -> None:
        self._paused: Mapping[TopicPartition, str] = {}
        self._blocked: Mapping[TopicPartition, str] = {}
        self._waits: dict[TopicPartition, _Wait] = {}
        self._made_again: Mapping[str, int] = {}

    def waits(self, partition: TopicPartition) -> bool:
        """Whether it was told to wait, and has not moved since."""
        return partition in self._waits

    def news(self, report: TaskReport, reached: Positions, now_ms: int) -> list[str]:
        """What stands still that did not before, and what moves again, in words; `reached` is how far partitions are copied."""
        new = {p: wait.reason for p, wait in report.waiting.items() if p not in self._waits}
        made = [topic for topic, at in sorted(report.made_again.items()) if self._made_again.get(topic) != at]
        told = [
            *(f"made again: topic {topic}, which somebody had deleted on the target, is filled from the start" for topic in made),
            *_lines("paused", self._paused, report.paused),
            *_lines("blocked", self._blocked, report.blocked),
            *_lines("waiting", {}, new),
        ]
        self._made_again = {**self._made_again, **report.made_again}
        self._paused, self._blocked = report.paused, report.blocked
        moving, waits = [], {p: _Wait(reached.get(p), now_ms) for p in report.waiting}
        for p, wait in self._waits.items():
            if p in waits or p in report.paused or p in report.blocked or now_ms - wait.said_ms > FORGOTTEN_MS:
                continue
            now = reached.get(p)
            if now is None or wait.reached is None or now <= wait.reached:
                waits[p] = wait if wait.reached is not None else wait._replace(reached=now)
            else:
                moving.append(p)
        self._waits = waits
        return [*told, f"copying again: {names(sorted(moving))}"] if moving else told


class Away:
    """What was told of clusters that do not respond, and of partitions without a leader that does."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._told: frozenset[str] = frozenset()

    def news(self, unreachable: Mapping[str, str], leaderless: Mapping[str, LeftOut], now_ms: int) -> list[str]:
        """What does not respond for long and did before, and what responds again, in words; both by a cluster's name."""
        away = {f"the {name} cluster does not respond": why for name, why in unreachable.items()}
        away |= {f"the {name} has partitions that nobody can look at": left_out.why for name, left_out in leaderless.items()}
        self._since = {what: self._since.get(what, now_ms) for what in away}
        new = {what: why for what, why in away.items() if what not in self._told and now_ms - self._since[what] >= AWAY_AFTER_MS}
        over = sorted(self._told - away.keys())
        self._told = (self._told | new.keys()) & away.keys()
        return [*(f"unknown: {what}: {why}" for what, why in new.items()), *(f"over: {what}" for what in over)]


def carried(before: Mapping[TopicPartition, Waiting], now: TaskReport, former: Positions) -> dict[TopicPartition, Waiting]:
    """What waits, since when it really does: a new task, or one that took a partition over, counts from its own beginning."""
    return {
        p: wait._replace(since_ms=min(wait.since_ms, before[p].since_ms))
        if p in before and now.acked.get(p) == former.get(p)
        else wait
        for p, wait in now.waiting.items()
    }


def _lines(kind: str, before: Mapping[TopicPartition, str], now: Mapping[TopicPartition, str]) -> list[str]:
    """Who is there that was not before, and why; partitions of one topic for one reason together."""
    found: dict[tuple[str, str], list[int]] = {}
    for topic, partition in sorted(now.keys() - before.keys()):
        found.setdefault((topic, now[TopicPartition(topic, partition)]), []).append(partition)
    return [
        f"{kind}: {topic}-{numbers[0]}{f' and {len(numbers) - 1} more of its partitions' if len(numbers) > 1 else ''}: {why}"
        for (topic, why), numbers in found.items()
    ]
