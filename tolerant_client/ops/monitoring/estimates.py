"""What a watch derives from successive samples: rates, record sizes, and whose age to ask for.  Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.copy_metrics import Copied
from tolerant_client.ops.service.link_state import PartitionState

_RATE_S = 10.0
_KNOWN_SIZE = 100  # copied records of a topic from which the mean size is known


class Rates:
    """How fast positions move, per second, over the last 10 s."""

    def __init__(self) -> None:
        self._positions: deque[tuple[float, Mapping[TopicPartition, int]]] = deque()

    def of(self, now: float, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Takes the positions at `now`, in seconds, and returns their rates; a position that moved back has rate 0."""
        while len(self._positions) > 1 and now - self._positions[1][0] >= _RATE_S:
            self._positions.popleft()
        rates: dict[TopicPartition, float] = {}
        if self._positions and now > self._positions[0][0]:
            at, before = self._positions[0]
            rates = {p: max(position - before.get(p, position), 0) / (now - at) for p, position in positions.items()}
        if not self._positions or now - self._positions[-1][0] >= 1.0:
            self._positions.append((now, positions))
        return rates


class Standstill:
    """Since when partitions have not moved although there is something to copy, by the caller's clock.  Pure."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, int]] = {}  # position, and since when

    def of(self, now: int, waiting: Mapping[TopicPartition, int], after: int) -> dict[TopicPartition, int]:
        """Takes the positions of partitions with something to copy; returns those unmoved for `after`, with their start."""
        former = self._since
        self._since = {p: former[p] if p in former and former[p][0] == at else (at, now) for p, at in waiting.items()}
        return {p: since for p, (_, since) in self._since.items() if now - since >= after}


class Ages:
    """The times of the oldest records not yet copied; the partitions to ask for take turns.

    A time is valid while the partition keeps its position.  So after one turn each partition that does not move is known,
    and a sample of those that move.
    """

    def __init__(self) -> None:
        self._told: dict[TopicPartition, tuple[int, int]] = {}  # the offset asked for, and its time
        self._asked: dict[TopicPartition, None] = {}  # the one asked longest ago first

    def turn(self, states: Mapping[TopicPartition, PartitionState], most: int) -> dict[TopicPartition, int]:
        """At most `most` partitions to ask for now, with their positions."""
        for partition in [p for p in (*self._told, *self._asked) if p not in states or not states[p].lag_offsets]:
            self._told.pop(partition, None)
            self._asked.pop(partition, None)
        wanted = {
            p: state.position
            for p, state in states.items()
            if state.lag_offsets and state.position is not None and self._told.get(p, (-1, 0))[0] != state.position
        }
        turn = [*(p for p in wanted if p not in self._asked), *(p for p in self._asked if p in wanted)][:most]
        for partition in turn:
            self._asked.pop(partition, None)
            self._asked[partition] = None
        return {p: wanted[p] for p in turn}

    def told(self, positions: Mapping[TopicPartition, int], times_ms: Mapping[TopicPartition, int]) -> None:
        """Takes the response to a turn."""
        self._told.update((p, (positions[p], time_ms)) for p, time_ms in times_ms.items())

    def oldest_ms(self, partition: TopicPartition, position: int | None) -> int | None:
        """The time of the record at this position, if known."""
        offset, time_ms = self._told.get(partition, (-1, 0))
        return time_ms if offset == position else None


def sizes_by_topic(copied: Mapping[TopicPartition, Copied]) -> dict[str, float]:
    """Mean bytes per record by topic, for topics with enough copied records."""
    records: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for (topic, _), done in copied.items():
        records[topic] += done.records
        sizes[topic] += done.bytes
    return {topic: sizes[topic] / number for topic, number in records.items() if number >= _KNOWN_SIZE}
