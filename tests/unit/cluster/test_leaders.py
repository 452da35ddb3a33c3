"""cluster/leaders.py: what the last Metadata says that a cluster does not have, and which topics there are; no broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster import leaders as leaders_module
from tolerant_client.cluster.leaders import Leaders

TOPICS: dict[str, dict[int, Any]] = {"orders": {0: None, 1: None}, "half": {0: None, 2: None}, "none": {}}


@pytest.fixture
def leaders() -> Leaders:
    metadata = SimpleNamespace(
        unauthorized_topics={"hidden"},
        partitions_for_topic=lambda topic: set(TOPICS[topic]) if topic in TOPICS else None,
    )
    made = Leaders.__new__(Leaders)
    vars(made).update(names=None, name="source", manager=SimpleNamespace(cluster=metadata))
    return made


@pytest.mark.parametrize(
    "topic, number, is_lacking, why",
    [
        ("orders", 1, False, "it has no leader on the source"),
        ("orders", 2, True, "the source has no such partition (any more)"),
        ("half", 1, False, "it has no leader on the source"),  # the broker was not told of all partitions yet
        ("none", 0, False, "it has no leader on the source"),
        ("gone", 0, True, "the source has no such topic (any more)"),
        ("hidden", 5, False, "it may not be described on the source; grant Describe on its topic"),
    ],
)
def test_a_partition_above_those_that_the_topic_has_is_gone_and_any_other_has_no_leader(
    leaders: Leaders, topic: str, number: int, is_lacking: bool, why: str
) -> None:
    assert leaders.lacks(topic, number) is is_lacking
    assert leaders.why_leaderless(TopicPartition(topic, number)) == why


class Started(Leaders):
    """A broker with these topics, of which it knows once it was asked `knows_after` times."""

    def __init__(self, *topics: str, knows_after: int = 0, has_zookeeper: bool = True) -> None:
        versions = SimpleNamespace(api_versions={3: (0, 9)} | ({6: (0, 5)} if has_zookeeper else {}))
        sleep = AsyncMock()
        self.names, self.topic_ids, self.leader_epochs = None, {}, {}
        self.manager = SimpleNamespace(broker_version_data=versions)
        self.net = SimpleNamespace(sleep=sleep)
        self.there, self.knows_after, self.asked = topics, knows_after, 0

    async def connect(self, timeout_ms: int = 0) -> None:
        """There is nothing to connect to."""

    async def _any_node(self) -> int:
        return 7

    async def insist(self, what: str, attempt: Any, patience_ms: int | None = None) -> Any:
        return await attempt()

    async def send(self, request: Any, node_id: Any = None) -> Any:
        assert node_id == 7, "another one may know them"
        self.asked += 1
        known = self.there if self.asked > self.knows_after else ()
        wanted = known if request.topics is None else [topic.name for topic in request.topics]
        of = {
            name: (0, [SimpleNamespace(partition_index=0, leader_epoch=4)]) if name in known else (3, [])
            for name in wanted
        }
        return SimpleNamespace(
            topics=[
                SimpleNamespace(name=name, error_code=code, partitions=there, topic_id=None, is_internal=False)
                for name, (code, there) in of.items()
            ]
        )


@pytest.mark.parametrize(
    ("started", "found", "asked"),
    [
        (Started("orders", knows_after=9), True, 11),
        (Started("orders"), True, 1),
        (Started("other"), False, 3),  # it knows some: no more is waited for
        (Started("other", has_zookeeper=False), False, 2),
        (Started(has_zookeeper=False), False, 2),
    ],
)
def test_a_broker_that_knows_no_topic_yet_is_not_believed(started: Started, found: bool, asked: int) -> None:
    assert asyncio.run(started.partitions(["orders"])) == ({"orders": [0]} if found else {})
    assert started.asked == asked


def test_a_broker_that_knows_no_topic_yet_is_not_believed_by_who_asks_for_all_topics_either() -> None:
    assert asyncio.run(Started("orders", knows_after=9).partitions()) == {"orders": [0]}
    assert asyncio.run(Started(has_zookeeper=False).partitions()) == {}


def test_a_cluster_without_topics_is_believed_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders_module, "_STARTS_S", 0.05)
    started = Started()
    assert asyncio.run(started.partitions(["orders"])) == {} and started.asked > 5
