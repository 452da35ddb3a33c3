"""What a watch works out from one look to the next: rates, whose age is asked for, sizes of records.  Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.copy_metrics import Copied
from tolerant_client.ops.service.link_state import PartitionState

_RATE_S = 10.0
_KNOWN_SIZE = 100  # records of a topic, once copied, tell what its records take


class Rates:
    """How fast positions move, per second, over the last 10 s."""

    def __init__(self) -> None:
        self._positions: deque[tuple[float, Mapping[TopicPartition, int]]] = deque()

    def of(self, now: float, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Takes where partitions are at `now`, seconds, and returns their rates; a position that went back has 0."""
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
    """Since when partitions stand where they are though something waits there, by a clock of whoever looks.  Pure."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, int]] = {}  # where, and since when

    def of(self, now: int, waiting: Mapping[TopicPartition, int], after: int) -> dict[TopicPartition, int]:
        """Takes where the partitions stand that something waits in; those that have stood there for `after`, since when."""
        former = self._since
        self._since = {p: former[p] if p in former and former[p][0] == at else (at, now) for p, at in waiting.items()}
        return {p: since for p, (_, since) in self._since.items() if now - since >= after}


class Ages:
    """When the oldest records were written that are not copied, of partitions that are asked for in turn.

    What was told holds while the partition stays where it is.  So whatever stands still is known after one turn, and of
    what moves a sample is.
    """

    def __init__(self) -> None:
        self._told: dict[TopicPartition, tuple[int, int]] = {}  # the offset that was asked for, and its time
        self._asked: dict[TopicPartition, None] = {}  # the longest ago first

    def turn(self, states: Mapping[TopicPartition, PartitionState], most: int) -> dict[TopicPartition, int]:
        """At most so many partitions to ask for now, with their positions."""
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
        """Takes the answer to a turn."""
        self._told.update((p, (positions[p], time_ms)) for p, time_ms in times_ms.items())

    def oldest_ms(self, partition: TopicPartition, position: int | None) -> int | None:
        """What was told of this position."""
        offset, time_ms = self._told.get(partition, (-1, 0))
        return time_ms if offset == position else None


def sizes_by_topic(copied: Mapping[TopicPartition, Copied]) -> dict[str, float]:
    """Bytes a record by topic, where enough was copied to tell."""
    records: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for (topic, _), done in copied.items():
        records[topic] += done.records
        sizes[topic] += done.bytes
    return {topic: sizes[topic] / number for topic, number in records.items() if number >= _KNOWN_SIZE}
