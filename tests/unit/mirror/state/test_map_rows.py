"""What the rows of a link's offset map say, and how little of it is read."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import kafka.errors as Errors
import pytest
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import LinkPromotedError, text_of
from tolerant_client.mirror.state import map_rows
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import (
    NO_MAP,
    LastRow,
    MappedTopics,
    last_rows,
    mapped_topics,
    read_each_map,
    read_last_rows,
    read_maps,
    say_over,
)
from tolerant_client.mirror.state.map_topic import map_topic
from tolerant_client.mirror.state.offset_map import LAST, CommittedRows, MapRow, RowKey, Run, last_of
from tolerant_client.records.record_batch import Record

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
KNOWN = LinkControl(map_id="m", adopted={P: 12})


@pytest.mark.parametrize(
    ("last", "generation", "is_over"), [(None, 0, False), (0, 0, True), (0, 1, False), (1, 0, True), (1, 1, True)]
)
def test_what_a_map_calls_over_is_resumed_by_nobody_and_hides_nothing_of_what_was_copied(
    monkeypatch: pytest.MonkeyPatch, last: int | None, generation: int, is_over: bool
) -> None:
    """A link that began again (take-over) has a later generation."""
    row = MapRow(RowKey(P, 0), "orders", ("s", "t"), 8, 0, (Run(0, 3, 8),))
    empty = MapRow(RowKey(Q, 0), "orders", ("s", "t"), 0, -1, (Run(0, 0, 0),))
    log = [row, empty] if last is None else [row, empty, last_of(last)]

    async def rows(*_: Any) -> Any:
        for found in log:
            yield found.key, found

    monkeypatch.setattr(map_rows, "_rows", rows)
    monkeypatch.setattr(map_rows.StateTopic, "start", AsyncMock(return_value=0))
    monkeypatch.setattr(map_rows.StateTopic, "end", AsyncMock(return_value=9))
    there = LedOffsets({TopicPartition(map_topic("dr"), 0): 0}, {})
    monkeypatch.setattr(map_rows, "list_led_offsets", AsyncMock(return_value=there))
    monkeypatch.setattr(map_rows, "read_control", AsyncMock(return_value=KNOWN))
    for name, told in {"has_map": True, "lost_map": None, "require_same_map": None, "topic_ids": {}}.items():
        monkeypatch.setattr(map_rows, name, AsyncMock(return_value=told))
    monkeypatch.setattr(map_rows.StateTopic, "exists", AsyncMock(return_value=True))
    target = cast(Cluster, Mock(spec=Cluster, net=Mock(sleep=AsyncMock()), file_options="--config f.properties"))
    control = replace(KNOWN, adopted={}, generation=generation)
    reading = read_last_rows(target, "dr", [P], control)
    if is_over:
        with pytest.raises(
            LinkPromotedError,
            match=f"was promoted, as {map_topic('dr')} of the target says.*failover --config f.properties writes it again",
        ):
            asyncio.run(reading)
    else:
        assert asyncio.run(reading) == {P: LastRow(row)}
    assert asyncio.run(last_rows(target, "dr", [P])) == {P: row}
    assert asyncio.run(read_maps(target, "dr")).keys() == {P}
    with closing(NetworkSelector()) as net:
        asked = SimpleNamespace(
            net=net, partitions=target.partitions, manager=KafkaConnectionManager(net, bootstrap_servers="b:9092")
        )
        found = net.run(mapped_topics, asked, "dr", control)
    assert found.partitions == {P, Q} and found.copies == {P: row} and found.last == (-1 if last is None else last)


def test_the_maps_of_several_links_are_read_at_the_same_time_within_one_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading: list[str] = []

    async def mapped(_: object, link: str, *__: object, within_s: float, **___: object) -> MappedTopics:
        reading.append(link)
        while len(reading) < 3:
            await net.sleep(0.001)
        return NO_MAP._replace(last=int(within_s))

    monkeypatch.setattr(map_rows, "mapped_topics", mapped)
    with closing(NetworkSelector()) as net:
        asked = {link: (LinkControl(), [P]) for link in ("a", "b", "c")}
        found = net.run(partial(read_each_map, within_s=5.0), SimpleNamespace(net=net), asked)
    assert found == dict.fromkeys(asked, NO_MAP._replace(last=5))


def test_the_row_that_calls_a_link_over_is_one_for_readers_that_do_not_know_it() -> None:
    row = last_of(2)
    assert MapRow.decode(RowKey.decode(row.key.encode()), row.encode()) == row and row.key == RowKey(LAST, 2)


def test_each_partition_of_the_map_is_told_that_the_link_is_over_and_one_that_refuses_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: dict[int, RowKey] = {}

    async def append(_: object, records: list[Record], partition: int) -> int:
        if partition == 2:
            raise Errors.TopicAuthorizationFailedError("no")
        written[partition] = RowKey.decode(records[0].key)
        return 0

    async def insist(what: str, attempt: Any, patience_ms: int) -> Any:
        return await attempt()

    monkeypatch.setattr(map_rows.StateTopic, "append", append)
    with closing(NetworkSelector()) as net:
        failed = net.run(partial(say_over, patience_ms=10), SimpleNamespace(net=net, insist=insist), "dr", 3)
    assert written == dict.fromkeys({*range(8)} - {2}, RowKey(LAST, 3))
    assert failed == {TopicPartition(map_topic("dr"), 2): text_of(Errors.TopicAuthorizationFailedError("no"))}


def test_of_a_map_no_more_is_read_than_it_takes_for_the_rows_in_question_and_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of P, of which the newest is the second one from the end; rows of Q at the start alone."""
    log = [MapRow(RowKey(Q, 0), "orders", ("s", "t"), 1, 0, (Run(0, 0, 1),))]
    log += [MapRow(RowKey(P, n), "orders", ("s", "t"), n + 1, 0, (Run(n, n, 1),)) for n in range(5_000)]
    log.append(last_of(0))
    read: list[int] = []

    async def rows(_: Any, __: int, start: int, end: int, committed: CommittedRows) -> Any:
        committed.__dict__["_open"] = {7: [(log[1].key, log[1])]}
        read.append(end - start)
        for found in log[start:end]:
            yield found.key, found

    def newest(*wanted: TopicPartition) -> dict[TopicPartition, MapRow]:
        read.clear()
        topic: Any = SimpleNamespace(name="map")
        chosen = set(wanted) if wanted else None
        found, writers = asyncio.run(map_rows._newest_of(topic, 0, 0, len(log), chosen))
        assert writers == {P: 7}
        return found

    monkeypatch.setattr(map_rows, "_rows", rows)
    assert newest(P) == {P: log[-2], LAST: log[-1]} and read == [2_000]
    assert newest(P, Q) == {P: log[-2], Q: log[0], LAST: log[-1]} and read == [2_000, 5_002]
    assert newest() == {P: log[-2], Q: log[0], LAST: log[-1]} and read == [5_002]


def test_the_parts_of_maps_without_a_leader_are_those_of_the_maps_that_were_asked_for() -> None:
    tracked = [map_topic("dr"), map_topic("eu")]
    away = {TopicPartition(map_topic("eu"), 3), TopicPartition("orders", 0)}
    asked: Any = SimpleNamespace(
        tracked=lambda start: [name for name in [*tracked, "orders"] if name.startswith(start)],
        known_leader=lambda partition: None if partition in away else 1,
    )
    assert map_rows.leaderless_parts(asked) == {TopicPartition(map_topic("eu"), 3)}
