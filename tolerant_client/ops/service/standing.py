"""What of a link does not move, reported to an operator once when it begins and once when it moves again.  Pure.

Laws:
- Each partition that was reported as paused, blocked or waiting is reported once as copied again.
- One that waited: when it is copied further than when it last waited.  That its position becomes known, or that a new
  task has not waited yet, is no progress.
- One that was paused or blocked: when a task reports another position.  The target's log end does not count: another
  link writes to a topic that is refused.
- One that no report has mentioned for FORGOTTEN_MS is reported as new.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.health import bare, names
from tolerant_client.ops.service.link_state import LeftOut, TaskReport

FORGOTTEN_MS = 120_000
AWAY_AFTER_MS = 5_000  # from the first sample that a cluster does not respond to; that sample has itself waited for it

Positions = Mapping[TopicPartition, int]


class _Wait(NamedTuple):
    """How far a partition was copied when it last waited, if that is known, and when that was."""

    reached: int | None
    said_ms: int


class Standing:
    """What was reported of one link."""

    def __init__(self) -> None:
        self._paused: Mapping[TopicPartition, str] = {}
        self._blocked: Mapping[TopicPartition, str] = {}
        self._waits: dict[TopicPartition, _Wait] = {}
        self._stopped: dict[TopicPartition, _Wait] = {}  # were paused or blocked; no task has moved them since
        self._made_again: Mapping[str, int] = {}

    def waits(self, partition: TopicPartition) -> bool:
        """Whether the partition was reported as waiting, and has not moved since."""
        return partition in self._waits

    def news(self, report: TaskReport, reached: Positions, now_ms: int) -> list[str]:
        """What newly does not move, and what moves again, in words; `reached` is how far partitions are copied."""
        new = {p: wait.reason for p, wait in report.waiting.items() if p not in self._waits}
        made = [topic for topic, at in sorted(report.made_again.items()) if self._made_again.get(topic) != at]
        told = [
            *(
                f"created again: topic {topic} was deleted on the target, and is filled from the start"
                for topic in made
            ),
            *_lines("paused", self._paused, report.paused),
            *_lines("blocked", self._blocked, report.blocked),
            *_lines("waiting", {}, new),
        ]
        self._made_again = {**self._made_again, **report.made_again}
        self._paused, self._blocked = report.paused, report.blocked
        moving, waits = [], {p: _Wait(reached.get(p), now_ms) for p in report.waiting}
        stopped = {p: _Wait(report.acked.get(p), now_ms) for p in (*report.paused, *report.blocked)}
        still = waits.keys() | stopped.keys()
        for p, wait in self._waits.items():
            if p in still or now_ms - wait.said_ms > FORGOTTEN_MS:
                continue
            now = reached.get(p)
            if now is None or wait.reached is None or now <= wait.reached:
                waits[p] = wait if wait.reached is not None else wait._replace(reached=now)
            else:
                moving.append(p)
        for p, wait in self._stopped.items():
            if p in still or now_ms - wait.said_ms > FORGOTTEN_MS:
                continue
            if report.acked.get(p) in (None, wait.reached):
                stopped[p] = wait
            else:
                moving.append(p)
        self._waits, self._stopped = waits, stopped
        return [*told, f"copying again: {names(sorted(moving))}"] if moving else told


class _Told(NamedTuple):
    """What is reported of a cluster: that it does not respond, or how many of its partitions have no usable leader."""

    dark: int | None  # None where the cluster itself does not respond
    text: str
    is_refused: bool = False  # it refuses our login

    @property
    def what(self) -> str:
        if self.is_refused:
            return "cluster refuses our login"
        return "cluster does not respond" if self.dark is None else "has partitions that cannot be checked"

    def is_news(self, told: _Told | None) -> bool:
        """Whether it is worse than what was reported, or of another kind."""
        return told is None or told.what != self.what or (self.dark or 0) > (told.dark or 0)


class Away:
    """What was reported of clusters that do not respond, and of partitions without a leader that responds."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._told: dict[str, _Told] = {}

    def news(
        self,
        unreachable: Mapping[str, str],
        leaderless: Mapping[str, LeftOut],
        now_ms: int,
        refused: Collection[str] = (),
    ) -> list[str]:
        """What has not responded for AWAY_AFTER_MS and is not reported yet, and what responds again, in words.

        Both mappings are by cluster name; `refused` are those of `unreachable` that refuse our login, so a person is needed.
        """
        seen = {
            name: _Told(left.partitions, f"{left.partitions:,} of them, {left.why}")
            for name, left in leaderless.items()
        }
        seen |= {name: _Told(None, why, name in refused) for name, why in unreachable.items()}
        self._since = {name: self._since.get(name, now_ms) for name in seen}
        lines = []
        for name, now in seen.items():
            if now.is_news(self._told.get(name)) and now_ms - self._since[name] >= AWAY_AFTER_MS:
                lines.append(f"{'blocked' if now.is_refused else 'unknown'}: the {name} {now.what}: {now.text}")
                self._told[name] = now
            elif name in self._told and self._told[name].what == now.what:
                self._told[name] = now  # fewer partitions: if the number grows again, that is reported again
        for name in sorted(self._told.keys() - seen.keys()):
            lines.append(f"over: the {name} {self._told.pop(name).what}")
        return lines


def carried(
    before: Mapping[TopicPartition, Waiting], now: TaskReport, former: Positions
) -> dict[TopicPartition, Waiting]:
    """What waits, with the true start of the wait: a new task, or one that took a partition over, counts from its own start."""
    return {
        p: wait._replace(since_ms=min(wait.since_ms, before[p].since_ms))
        if p in before and now.acked.get(p) == former.get(p)
        else wait
        for p, wait in now.waiting.items()
    }


def _lines(kind: str, before: Mapping[TopicPartition, str], now: Mapping[TopicPartition, str]) -> list[str]:
    """One line for the new entries of a topic that have the same reason."""
    found: dict[tuple[str, str], list[int]] = {}
    for topic, partition in sorted(now.keys() - before.keys()):
        found.setdefault((topic, now[TopicPartition(topic, partition)]), []).append(partition)
    lines = []
    for (topic, why), numbers in found.items():
        first = f"{topic}-{numbers[0]}"
        more = f" and {len(numbers) - 1} more of its partitions" if len(numbers) > 1 else ""
        lines.append(f"{kind}: {first}{more}: {bare(first, why)}")
    return lines
