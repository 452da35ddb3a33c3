"""Offset maps of other links that take longer to read than anybody waits: each part is read once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import EARLIEST
from tolerant_client.errors import OffsetMapError
from tolerant_client.mirror.state import map_rows
from tolerant_client.mirror.state import map_topic as map_topic_module
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import MappedTopics, mapped_topics
from tolerant_client.mirror.state.map_topic import map_partition, map_topic
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run, last_of
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, iter_batches

P = TopicPartition("orders", 0)
PART = map_partition("eu", P)
Q = next(p for n in range(1, 99) if map_partition("eu", p := TopicPartition("orders", n)) == PART)


def row_of(partition: TopicPartition, number: int) -> MapRow:
    runs = Run(10 * number, 10 * number, 1), Run(10 * number + 5, 10 * number + 5, 1)
    return MapRow(RowKey(partition, number), "orders", ("s", "t"), 10 * number + 6, 0, runs)


class World:
    """A part of a map, of which each batch takes a second to read; `read` are the offsets of all that were."""

    def __init__(self, net: NetworkSelector) -> None:
        self.net = net
        self.name = "target"
        self.manager = KafkaConnectionManager(net, bootstrap_servers="b:9092")
        self.log: list[Record] = []
        self.start = 0
        self.id = "map-id"
        self.read: list[int] = []
        self.readings = 0
        self.known = KnownMaps(lambda: float(len(self.read)))

    def append(self, *rows: MapRow) -> None:
        self.log += [Record(len(self.log) + n, 0, row.key.encode(), row.encode()) for n, row in enumerate(rows)]

    async def batches(self, position: int, end: int, _: int) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        self.readings += 1
        for record in self.log[position:end]:
            await self.net.sleep(0.01)
            self.read.append(record.offset)
            yield from_record(record)
        self.readings -= 1

    async def offsets(self, _: Any, wanted: Any, **__: Any) -> LedOffsets:
        return LedOffsets({p: self.start if at == EARLIEST else len(self.log) for p, at in wanted.items()}, {})

    def asked(self, *wanted: TopicPartition, within_s: float | None = None) -> MappedTopics:
        found: MappedTopics = self.net.run(self.ask, *wanted, within_s)
        return found

    async def ask(self, *asked: Any) -> MappedTopics:
        *of, within_s = asked
        cluster: Any = self
        return await mapped_topics(cluster, "eu", LinkControl(), of=of, within_s=within_s, known=self.known)


def from_record(record: Record) -> tuple[BatchHeader, memoryview]:
    batch = bytearray(encode_batch([record._replace(offset=0)]))
    batch[:8] = record.offset.to_bytes(8, "big")
    return next(iter_batches(memoryview(bytes(batch))))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with closing(NetworkSelector()) as net:
        found = World(net)

        def map_of(*_: Any) -> Any:
            async def exists() -> bool:
                return True

            return SimpleNamespace(
                cluster=found, name=map_topic("eu"), id=found.id, batches=found.batches, exists=exists
            )

        for module in (map_rows, map_topic_module):
            monkeypatch.setattr(module, "map_of", map_of)
        monkeypatch.setattr(map_rows, "list_led_offsets", found.offsets)
        yield found


def test_a_map_that_takes_longer_than_anybody_waits_is_read_on_and_each_row_once(world: World) -> None:
    world.append(*(row_of(P, n) for n in range(30)))
    told = []
    for asks in range(1, 100):
        if not (found := world.asked(P, within_s=0.05)).unread:
            break
        told.append(found.unread[PART])
        assert world.known.read_at == len(world.read) > 0, "it is progress"
    assert 1 < asks < 20 and world.read == list(range(30)) and world.readings == 0
    assert all("of 30 so far" in text for text in told) and told == sorted(
        set(told), key=lambda text: int(text.split()[3])
    )
    newest = row_of(P, 29)
    assert found.copies == {P: newest._replace(runs=newest.runs[-1:])} and found.last == -1


def test_who_asks_next_reads_what_was_added_whichever_partition_he_asks_for(world: World) -> None:
    world.append(row_of(Q, 0), row_of(P, 0))
    assert world.asked(P).partitions == {P}
    world.append(row_of(P, 1), last_of(0))
    found = world.asked(P, Q)
    assert world.read == [0, 1, 2, 3] and found.last == 0
    assert {p: row.position for p, row in found.copies.items()} == {P: 16, Q: 6}
    world.append(row_of(P, 2))

    async def both() -> list[MappedTopics]:
        futures = [world.net.call_soon_with_future(world.ask, p, None) for p in (P, Q)]
        return [await future for future in futures]

    found, other = world.net.run(both)
    assert found.copies[P].position == 26 and other.copies[Q].position == 6 and world.read == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("what", ["another topic", "cut", "emptied"])
def test_another_log_in_its_place_is_read_from_its_start(world: World, what: str) -> None:
    world.append(*(row_of(P, n) for n in range(9)))
    assert world.asked(P).copies[P].position == 86
    if what == "another topic":
        world.id = "another"
    elif what == "cut":
        del world.log[5:]
    else:
        world.append(row_of(P, 9), row_of(Q, 0))
        world.start = 10  # what was read before it is gone
    world.read.clear()
    found = world.asked(P)
    assert found.partitions == ({P} if what != "emptied" else frozenset())
    assert world.read == {"another topic": [*range(9)], "cut": [*range(5)], "emptied": [10]}[what]


def test_a_record_that_is_no_row_keeps_what_was_read_before_it(world: World) -> None:
    world.append(*(row_of(P, n) for n in range(3)))
    world.log.append(Record(3, 0, b"no", b"row"))
    for _ in range(3):
        assert "holds no row" in world.asked(P).unread[PART]
    assert world.read == [0, 1, 2, 3, 3, 3]
    assert issubclass(OffsetMapError, Errors.KafkaError)
