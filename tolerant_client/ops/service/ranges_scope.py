"""Which partitions a running mirror copies, which wait, and for what.  Pure: observations are arguments.

Laws:
- A partition that has lost its leader keeps its former end and remains among those that are copied.
- An error of a topic or a partition is reported for as long as it lasts, and for no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.mirror.engine.planned_link import PlannedLink
from tolerant_client.mirror.state.health import DELETED_ON_SOURCE, PARTITION_DELETED_ON_SOURCE


@dataclass(frozen=True)
class Scope:
    """The result of the last plans; topics have their names on the target.

    `ends` are the last stable offsets of what is copied, `gained` their growth since the plan before.
    `leaderless`, `refused` and `gone` say why partitions are not copied.
    """

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    gained: Mapping[TopicPartition, int] = field(default_factory=dict)
    leaderless: Mapping[TopicPartition, str] = field(default_factory=dict)
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    gone: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def blocked(self) -> dict[TopicPartition, str]:
        """Why partitions are not copied until a person acts; those in `leaderless` only wait for a broker."""
        return {**self.gone, **self.refused}

    @property
    def led(self) -> list[TopicPartition]:
        """The partitions whose leaders are checked."""
        return [*self.ends, *(p for p in self.leaderless if p not in self.ends)]

    def lacking(self, planned: PlannedLink) -> set[str]:
        """Topics that were copied, by this run or before, and that the source no longer has."""
        known = {p.topic for p in (*self.ends, *self.gone)} | planned.gone.keys()
        return known - {topic.name for topic in planned.topics.copied} - planned.topics.refused.keys()

    def made_again(self, planned: PlannedLink) -> set[str]:
        """Topics that were copied and that the target no longer had."""
        return {topic.name for topic in planned.topics.create} & {p.topic for p in self.ends}

    def after_plan(
        self, planned: PlannedLink, copies: Mapping[str, Sequence[int]], starts: Mapping[TopicPartition, int]
    ) -> Scope:
        """The scope after a plan of all topics: `copies` are those of `lacking` on the target, `starts` the source's log starts."""
        refused = {p: why for p, why in planned.waiting.items() if p.topic in planned.topics.refused}
        leaderless = {p: why for p, why in planned.waiting.items() if p not in refused}
        kept = {p: self.ends[p] for p in leaderless if p in self.ends}
        gone = {TopicPartition(topic, n): DELETED_ON_SOURCE for topic, numbers in copies.items() for n in numbers}
        copied = {topic.name for topic in planned.topics.copied}
        gone |= {
            TopicPartition(topic, n): PARTITION_DELETED_ON_SOURCE
            for topic, numbers in planned.gone.items()
            for n in numbers
            if topic in copied
        }
        former = {**starts, **self.ends}
        gained = {p: max(0, end - former.get(p, 0)) for p, end in planned.ends.items()}
        return Scope({**kept, **planned.ends}, gained, leaderless, refused, gone)

    def after_look(self, found: LedOffsets) -> Scope:
        """The scope after a check of the leaders of `led`."""
        gained = {p: max(0, end - self.ends.get(p, 0)) for p, end in found.offsets.items()}
        return replace(self, ends={**self.ends, **found.offsets}, gained=gained, leaderless=found.left_out)
