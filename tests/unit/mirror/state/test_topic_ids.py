"""Which topics are there, and which they are, as Metadata tells it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import present_ids, topic_ids
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.state.carriers import Written
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.link_control import TopicIds
from tolerant_client.mirror.state.topics import read_ids

OLD, NEW = uuid.UUID(int=7), uuid.UUID(int=8)


class Cluster:
    """Topics with their ids, `version` of Metadata; requests for `unknown` get that response once."""

    def __init__(self, topics: dict[str, uuid.UUID], *, version: int = 12, unknown: Iterable[str] = ()) -> None:
        self._topics, self._unknown = topics, set(unknown)
        self._version = version

    def highest_version(self, request: Any) -> int:
        assert request is MetadataRequest
        return self._version

    def wire_topic(self, name: str) -> str:
        return name

    topic_of = wire_topic

    def by_own_names(self) -> Any:
        return self

    async def connect(self) -> None:
        pass

    async def insist(self, what: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()

    async def send(self, request: Any) -> Any:
        return SimpleNamespace(topics=[self._told(topic.name) for topic in request.topics])

    def _told(self, name: str) -> Any:
        if name not in self._topics or name in self._unknown:
            self._unknown.discard(name)
            code = Errors.UnknownTopicOrPartitionError.errno
            return SimpleNamespace(name=name, error_code=code, topic_id=uuid.UUID(int=0))
        return SimpleNamespace(name=name, error_code=0, topic_id=self._topics[name])


def test_a_topic_that_is_said_to_be_unknown_has_no_id_that_could_be_the_same() -> None:
    source: Any = Cluster({"orders": OLD, "audit": OLD}, unknown=["orders"])
    target: Any = Cluster({"orders": NEW, "audit": NEW})
    assert asyncio.run(read_ids(source, target, ["orders", "audit"])) == {"audit": TopicIds(str(OLD), str(NEW))}
    assert asyncio.run(read_ids(source, target, ["orders"])) == {"orders": TopicIds(str(OLD), str(NEW))}


def test_a_cluster_that_tells_no_ids_has_none_of_any_topic() -> None:
    old: Any = Cluster({"orders": OLD}, version=9)
    assert asyncio.run(present_ids(old, ["orders"])) == {"orders": None}
    assert asyncio.run(topic_ids(old, ["orders"])) == {}
    upgraded: Any = Cluster({"orders": uuid.UUID(int=0)})  # brokers whose metadata is of a version before ids
    assert asyncio.run(present_ids(upgraded, ["orders"])) == {"orders": None}


def test_a_translated_link_waits_for_the_id_of_a_topic_that_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there: list[str] = []

    async def facts(target: Any, topics: Iterable[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(topic_id=NEW, max_message_bytes=1000) for name in topics if name in there}

    monkeypatch.setattr("tolerant_client.mirror.engine.translated.shared_reads.topic_facts", facts)
    source: Any = Cluster({"orders": OLD}, unknown=["orders"])
    reads = SharedReads(source, source, ControlWatch(source, "link"), lambda: 0.0)
    with pytest.raises(
        Errors.UnknownTopicOrPartitionError, match="the target has no topic orders.* start the mirror again"
    ):
        asyncio.run(reads._read_topic("orders"))
    there.append("orders")
    with pytest.raises(Errors.UnknownTopicOrPartitionError, match="the source has no topic orders"):
        asyncio.run(reads._read_topic("orders"))
    assert asyncio.run(reads._read_topic("orders")).ids == (str(OLD), str(NEW))


def test_which_logs_the_copiers_have_written_is_asked_of_all_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start into topics of others asks for thousands of logs without a row."""
    asked: list[Any] = []

    async def find_written(_: Any, producer_ids: set[int], partitions: Iterable[TopicPartition]) -> Written:
        asked.append((producer_ids, set(partitions)))
        return Written(frozenset(p for p in partitions if p.partition == 2))

    monkeypatch.setattr("tolerant_client.mirror.engine.translated.shared_reads.find_written", find_written)
    with closing(NetworkSelector()) as net:
        cluster: Any = SimpleNamespace(net=net, by_own_names=lambda: None)
        reads = SharedReads(cluster, cluster, ControlWatch(cluster, "link"), lambda: 0.0)

        async def ask() -> list[bool]:
            places = [TopicPartition("orders", n) for n in range(4)]
            asking = [net.call_soon_with_future(reads.has_written, p, 70 + p.partition) for p in places]
            return [await one for one in asking]

        assert net.run(ask) == [False, False, True, False]
    assert sum(len(partitions) for _, partitions in asked) == 4 and len(asked) <= 2
    assert all(ids == {70 + p.partition for p in partitions} for ids, partitions in asked)
