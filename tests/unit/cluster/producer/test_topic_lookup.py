"""Topics that a producer looks up: a missing one is waited for once, together with others, and after that only asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.protocol.metadata import MetadataRequest

from tolerant_client.cluster import patience
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.topic_lookup import TopicLookup
from tolerant_client.errors import RecordRefusedError

UNKNOWN, NO_LEADER, INVALID = 3, 5, 17


class FakeCluster:
    """Has topics, each from some second of its clock on; it is its own manager, network and metadata."""

    def __init__(self, topics: dict[str, float]) -> None:
        self.manager = self.net = self.cluster = self
        self.topics = topics
        self.now = 0.0
        self.requests: list[list[str]] = []
        self.electing: dict[str, float] = {}  # until when
        self.tracked: list[str] = []

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {0, 1} if topic in self.tracked else None

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def insist(self, what: str, ask: Callable[[], Awaitable[Any]], patience_ms: int) -> Any:
        return await ask()

    async def track(self, topics: Iterable[str]) -> None:
        self.tracked += topics

    async def send(self, request: MetadataRequest) -> Any:
        names = [topic.name for topic in request.topics]
        self.requests.append(names)
        return SimpleNamespace(topics=[self._described(name) for name in [*names, "stranger"]])

    def _described(self, name: str) -> Any:
        code = INVALID if " " in name else 0 if self.topics.get(name, 1e9) <= self.now else UNKNOWN
        code = NO_LEADER if self.electing.get(name, 0.0) > self.now else 29 if name == "stranger" else code
        return SimpleNamespace(name=name, error_code=code, partitions=[] if code else [0, 1])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster({"there": 0.0, "soon": 2.0})
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: cluster.now))
    return cluster


def look(lookup: TopicLookup, topics: Sequence[str]) -> dict[str, Any]:
    found = asyncio.run(lookup.partition_counts(topics))
    return {topic: str(count) if isinstance(count, RecordRefusedError) else count for topic, count in found.items()}


def test_missing_topics_are_waited_for_together_and_once(cluster: FakeCluster) -> None:
    lookup = TopicLookup(cast(Cluster, cluster), 60_000)
    missing = [f"missing-{n}" for n in range(250)]
    found = look(lookup, ["there", "soon", *missing, "no name", "x" * 250])
    assert 10 < cluster.now < 11
    assert (found["there"], found["soon"]) == (2, 2)
    assert all("have not created it within 10 s" in found[topic] for topic in missing)
    assert "not a valid topic name" in found["no name"] and "250 characters" in found["x" * 250]
    assert max(map(len, cluster.requests)) == 100
    waited, cluster.requests = cluster.now, []
    assert look(lookup, missing[:3]) == {topic: found[topic] for topic in missing[:3]}
    assert cluster.now == waited and cluster.requests == [missing[:3]]


def test_a_topic_that_is_created_after_it_was_waited_for_in_vain_is_found(cluster: FakeCluster) -> None:
    lookup = TopicLookup(cast(Cluster, cluster), 500)
    assert "within 0.5 s" in look(lookup, ["soon"])["soon"]
    cluster.now = 3.0
    assert look(lookup, ["soon"]) == {"soon": 2}
    assert cluster.tracked == ["soon"]
    cluster.requests = []
    assert look(lookup, ["soon"]) == {"soon": 2} and not cluster.requests
    cluster.tracked, cluster.topics["soon"] = [], cluster.now + 0.3  # for a moment a broker says that it is unknown
    assert look(lookup, ["soon"]) == {"soon": 2}, "it is waited for like one that was never missing"


def test_a_topic_whose_leaders_are_elected_is_waited_for_whatever_was_missed_before(cluster: FakeCluster) -> None:
    lookup = TopicLookup(cast(Cluster, cluster), 1_000)
    assert "within 1 s" in look(lookup, ["later"])["later"]
    cluster.topics["later"], cluster.electing["later"] = cluster.now, cluster.now + 0.5
    assert look(lookup, ["later"]) == {"later": 2}
    cluster.electing["there"] = cluster.now + 60
    assert "named no leader for it within 1 s" in look(lookup, ["there"])["there"]
