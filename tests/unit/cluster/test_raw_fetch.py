"""Which fetch version a node gets while its cluster is upgraded (Cluster.session, send_fetch); no broker."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import FETCH_BY_ID_VERSION, RawFetch

A0 = TopicPartition("a", 0)
LIMITS = {"max_wait_ms": 1, "max_bytes": 2, "partition_max_bytes": 3}


class Connection:
    """A connection whose node speaks Fetch up to `highest`."""

    def __init__(self, highest: int) -> None:
        self.broker_version_data = SimpleNamespace(api_versions={RawFetch.API_KEY: (0, highest)})

    def __await__(self) -> Generator[Any, None, Connection]:
        yield from ()
        return self


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose first broker knows topic ids; node 1 does not yet."""
    with Cluster({"bootstrap_servers": "127.0.0.1:1"}) as made:

        async def connect() -> None:
            pass

        async def send(request: RawFetch, lane: str) -> str:
            return f"{request.API_VERSION} to {lane}"

        monkeypatch.setattr(made, "connect", connect)
        monkeypatch.setattr(made, "send", send)
        monkeypatch.setattr(made, "version", lambda request, lowest, highest: highest)
        monkeypatch.setattr(made, "highest_version", lambda request: 17)
        monkeypatch.setattr(made, "lane", lambda purpose, node_id: f"{purpose}-{node_id}")
        connections = {"fetch-1": Connection(12), "fetch-2": Connection(17)}
        monkeypatch.setattr(made.manager, "get_connection", connections.__getitem__)
        made.manager.cluster._topic_ids = {"a": SimpleNamespace(int=5, bytes=bytes(16))}
        yield made


def test_a_topic_that_only_the_second_response_knows_is_found_with_its_id(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = SimpleNamespace(name="a", error_code=3, partitions=[], topic_id=None, is_internal=False)
    parts = [SimpleNamespace(partition_index=0, leader_epoch=0)]
    known = SimpleNamespace(name="a", error_code=0, partitions=parts, topic_id=uuid.UUID(int=5), is_internal=False)
    answers = [SimpleNamespace(topics=[unknown]), SimpleNamespace(topics=[known])]

    async def send(request: Any, node_id: Any = None) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(cluster, "send", send)
    cluster.manager.broker_version_data = SimpleNamespace(api_versions={})
    assert cluster.run(cluster.partitions, ["a"]) == {"a": [0]}
    assert cluster.topic_ids == {"a": "AAAAAAAAAAAAAAAAAAAABQ"}


def first_request(cluster: Cluster, node_id: int) -> RawFetch:
    session = cluster.run(lambda: cluster.session(node_id))
    session.seek(A0, 7)
    return session.request(**LIMITS)


def test_node_that_an_upgrade_has_not_reached_gets_no_version_it_does_not_know(cluster: Cluster) -> None:
    request = first_request(cluster, 1)
    assert request.API_VERSION == FETCH_BY_ID_VERSION
    with pytest.raises(Errors.UnsupportedVersionError, match="node 1 of .* does not know Fetch version 13"):
        cluster.run(lambda: cluster.send_fetch(1, request))
    again = first_request(cluster, 1)
    assert (again.API_VERSION, again.positions) == (11, {A0: 7})
    assert cluster.run(lambda: cluster.send_fetch(1, again)) == "11 to fetch-1"
    assert first_request(cluster, 2).API_VERSION == FETCH_BY_ID_VERSION, "the others still use ids"


def test_node_that_knows_ids_is_asked_by_them(cluster: Cluster) -> None:
    request = first_request(cluster, 2)
    assert cluster.run(lambda: cluster.send_fetch(2, request)) == "13 to fetch-2"
