"""What a topic with state says is read whole, or not at all; it is made as durable as its cluster can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as Errors
import pytest

from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.state import state_topic
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.state_topic import COMPACTED, StateTopic
from tolerant_client.records.record_batch import Record, encode_batch


def batch(*offsets: int) -> bytes:
    return encode_batch([Record(n, 1, b"k%d" % n, b"v") for n in offsets], base_offset=offsets[0])


class Log:
    """A cluster whose topic's log starts at `first`; each fetch brings what stands next in `responses`, or an error."""

    def __init__(self, responses: list[bytes | int], first: int = 0, brokers: int = 3) -> None:
        self.responses, self.first, self.asked = responses, first, list[int]()
        self.manager = SimpleNamespace(cluster=SimpleNamespace(brokers=lambda: range(brokers)))

    async def partitions(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [0] for name in names if self.responses}

    async def leader(self, _: object) -> int:
        return 1

    async def refresh(self) -> None:
        """Asks for the brokers."""

    async def list_offsets(self, wanted: dict[Any, int]) -> dict[Any, int]:
        return {p: self.first if timestamp == EARLIEST else 9 for p, timestamp in wanted.items()}

    async def fetch(self, _: int, positions: dict[Any, int], **limits: int) -> list[FetchedPartition]:
        ((partition, position),) = positions.items()
        self.asked.append(position)
        response = self.responses.pop(0) if self.responses else b""
        code, data = (response, b"") if isinstance(response, int) else (0, response)
        return [FetchedPartition(partition, code, 9, 9, 0, (), memoryview(data))]

    async def insist(self, what: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await attempt()
        except Errors.NotLeaderForPartitionError:
            return await attempt()


def topic(log: Log, **settings: Any) -> StateTopic:
    return StateTopic(cast(Cluster, log), "state", COMPACTED, "the state", **settings)


def read(log: Log, position: int, end: int) -> list[int]:
    return [record.offset for record in asyncio.run(topic(log).records(position, end))]


def test_records_are_read_on_from_a_position_whatever_the_brokers_send_at_once() -> None:
    log = Log([Errors.NotLeaderForPartitionError.errno, batch(0, 1, 2), b"", b"", batch(4, 5) + batch(6, 7)])
    assert read(log, 1, 7) == [1, 2, 4, 5, 6]
    assert log.asked == [1, 1, 3, 3, 3]


def test_what_was_deleted_is_passed_over() -> None:
    log = Log([batch(4, 5)], first=4)
    assert read(log, 0, 6) == [4, 5] and log.asked == [4]
    assert read(Log([], first=6), 0, 6) == []


def test_all_is_read_up_to_the_end_and_nothing_without_the_topic() -> None:
    assert len(asyncio.run(topic(Log([batch(0, 1, 2), batch(5, 6, 7, 8)])).read_all())) == 7
    assert asyncio.run(topic(Log([])).read_all()) == []


def test_a_log_that_ends_before_it_was_said_to_is_not_taken_for_all_of_it() -> None:
    with pytest.raises(Errors.OffsetNotAvailableError, match="state could be read up to 3 of 9 only"):
        read(Log([batch(0, 1, 2)]), 0, 9)


def test_what_the_cleaner_took_around_the_end_of_a_piece_is_not_waited_for() -> None:
    assert read(Log([batch(0, 1, 2), batch(7, 8)]), 0, 5) == [0, 1, 2]
    assert read(Log([batch(7, 8)]), 0, 5) == []


def test_batches_end_where_the_brokers_say_three_times_that_these_are_all() -> None:
    async def collect(log: Log) -> list[int]:
        return [header.base_offset async for header, _ in topic(log).batches(0, 9)]

    log = Log([batch(0), b"", b"", batch(2)])
    assert asyncio.run(collect(log)) == [0, 2]
    assert log.asked == [0, 1, 1, 1, 3, 3, 3]


@pytest.mark.parametrize(
    ("brokers", "settings", "replicas", "insync"),
    [
        (1, {}, 1, "1"),
        (2, {}, 2, "1"),
        (2, {"insync_of_two": 2}, 2, "2"),
        (5, {}, 3, "2"),
        (5, {"replicas": 4, "insync_of_two": None}, 4, None),
        (5, {"replicas": -1, "insync_of_two": None}, -1, None),
    ],
)
def test_it_is_made_as_durable_as_the_cluster_can(
    monkeypatch: pytest.MonkeyPatch, brokers: int, settings: dict[str, Any], replicas: int, insync: str | None
) -> None:
    made: list[TopicSpec] = []

    async def fit(_: object, topics: list[TopicSpec]) -> tuple[list[TopicSpec], tuple[str, ...]]:
        return topics, ()

    async def create(_: object, topics: list[TopicSpec]) -> None:
        made.extend(topics)

    monkeypatch.setattr(state_topic, "fit_topics", fit)
    monkeypatch.setattr(state_topic, "create_topics", create)
    asyncio.run(topic(Log([], brokers=brokers), **settings).ensure())
    (spec,) = made
    assert (spec.partitions, spec.replication_factor, spec.config.get("min.insync.replicas")) == (1, replicas, insync)
    assert spec.config["cleanup.policy"] == "compact" and spec.config["message.timestamp.type"] == "CreateTime"


@pytest.mark.parametrize("is_described", [False, True])
def test_the_rights_that_are_missing_to_read_it_are_named(is_described: bool) -> None:
    refused = Errors.TopicAuthorizationFailedError("topic state")

    async def partitions(names: list[str]) -> dict[str, list[int]]:
        if not is_described:
            raise refused
        return dict.fromkeys(names, [0])

    async def insist(*_: Any) -> Any:
        raise refused

    async def list_offsets(asked: dict[Any, int]) -> dict[Any, int]:
        return dict.fromkeys(asked, 5)

    cluster: Any = SimpleNamespace(name="target", partitions=partitions, insist=insist, list_offsets=list_offsets)

    async def read() -> None:
        topic = StateTopic(cluster, "state", COMPACTED, "the offset map")
        assert await topic.exists()
        async for _ in topic.batches(0, 5):
            pass

    told = "We may not read topic state of the target, the offset map: grant us Read and Describe on it"
    with pytest.raises(Errors.TopicAuthorizationFailedError, match=told):
        asyncio.run(read())
