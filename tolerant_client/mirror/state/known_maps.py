"""What has been read of offset maps of other links: each part once, from its start on, for all who ask.

A map may take longer to read than anybody waits.  Laws:
- What was read stays read: whoever asks again has the reading go on where it is, and never begin again, unless the map is another topic,
  or its log was cut, since.
- One reading of a part runs at a time, whoever waits for it, and goes on when they do not wait any more.
- What is told is all that the part had when it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from kafka.structs import TopicPartition

from tolerant_client.cluster.event_loop import Future
from tolerant_client.mirror.state.offset_map import CommittedRows, MapRow
from tolerant_client.mirror.state.state_topic import StateTopic


class KnownMaps:
    """Parts of maps, of one event loop; `read_at` is when something of one was read last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.read_at = float("-inf")
        self._clock = clock
        self._parts: dict[tuple[str, str, int], _Part] = {}

    def part(self, topic: StateTopic, number: int, start: int, end: int) -> _Part:
        """What is known of a part whose log is [start, end) now."""
        key = topic.cluster.name, topic.name, number
        known = self._parts.get(key)
        if known is None or known.topic_id != topic.id or not start <= known.position <= end:
            known = self._parts[key] = _Part(topic, number, start, self._progressed)
        return known

    def _progressed(self) -> None:
        self.read_at = self._clock()


class _Part:
    """One part of a map, read up to `position`; of the newest row of a partition only the last run is kept."""

    def __init__(self, topic: StateTopic, number: int, start: int, progressed: Callable[[], None]) -> None:
        self.topic_id = topic.id
        self.position = start
        self._topic = topic
        self._number = number
        self._progressed = progressed
        self._committed = CommittedRows(f"{topic.name}-{number}")
        self._rows: dict[TopicPartition, MapRow] = {}
        self._reading: Future | None = None

    async def newest(self, end: int, wanted: set[TopicPartition]) -> dict[TopicPartition, MapRow]:
        """The newest rows of these partitions before `end`; raises KafkaError, and OffsetMapError for what is no row."""
        while self.position < end:
            if self._reading is None or self._reading.is_done:
                self._reading = self._topic.cluster.net.call_soon_with_future(self._read, end)
            await self._reading
        return {p: row for p, row in self._rows.items() if p in wanted}

    def undecided(self, wanted: set[TopicPartition]) -> dict[TopicPartition, MapRow]:
        """Rows of these partitions, of what is read, that may be committed yet."""
        return {p: row for p, row in self._committed.undecided.items() if p in wanted}

    async def _read(self, end: int) -> None:
        async for header, batch in self._topic.batches(self.position, end, self._number):
            if header.base_offset >= end:
                break
            for key, row in self._committed.feed(header, batch):
                if row is not None:
                    self._rows[key.partition] = row._replace(runs=row.runs[-1:])
            self.position = header.next_offset
            self._progressed()
        self.position = max(self.position, end)
