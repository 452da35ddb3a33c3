"""A node that throttles us (KIP-219) is not away: requests wait for it, and no patience ends meanwhile (connections.py)."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import LeftThrottledError, lane_of
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.fetch import FetchedPartition, FetchResult
from tolerant_client.cluster.produce import ProduceResult, RawProduce
from tolerant_client.cluster.tasks import resolve
from tolerant_client.errors import ClusterUnreachableError, OutcomeUnknownError

FIRST = TopicPartition("orders", 0)


class Throttled(Cluster):
    """A cluster of one node that reads nothing until `until`."""

    until = 0.0

    def throttle_s(self, node_id: int | str) -> float:
        return max(0.0, self.until - time.monotonic())

    async def connect(self, timeout_ms: int = 0) -> None:
        """It is connected."""

    def version(self, *_: Any) -> int:
        return 11


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Throttled]:
    with Throttled({"bootstrap_servers": "localhost:1"}, patience_ms=1) as made:
        manager = made.manager
        monkeypatch.setattr(manager.cluster, "brokers", lambda: [SimpleNamespace(node_id=1)])
        monkeypatch.setattr(manager, "best_node", lambda but=(): None if made.paused_s(1) else 1)
        yield made


def test_what_any_node_may_do_waits_until_one_reads_again(cluster: Throttled) -> None:
    asked: list[float] = []

    async def attempt() -> int:
        asked.append(time.monotonic())
        if cluster.paused_s(1):
            raise Errors.NodeNotReadyError("metadata")
        return 7

    cluster.until = time.monotonic() + 0.2
    assert cluster.run(cluster.insist, "refreshing metadata", attempt, 5_000) == 7
    assert len(asked) == 2 and asked[1] >= cluster.until
    cluster.until = time.monotonic() + 0.2
    assert cluster.run(cluster._any_node) == 1 and time.monotonic() >= cluster.until


def test_a_steady_throttle_of_some_nodes_does_not_hide_that_the_one_that_is_asked_is_away(
    cluster: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait for the others is no patience; what passes besides is."""
    monkeypatch.setattr(cluster, "throttle_s", lambda node_id: 0.01)
    monkeypatch.setattr(cluster.manager, "best_node", lambda but=(): None)

    async def attempt() -> None:
        await cluster.net.sleep(0.02)
        raise Errors.NodeNotReadyError("node 2 is away")

    async def insist() -> None:
        await cluster.insist("fetching", attempt, 50)

    with pytest.raises(ClusterUnreachableError):
        cluster.run(insist)


def test_a_node_that_has_as_many_requests_as_it_may_is_not_taken_for_one_that_throttles(
    cluster: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cluster.manager._conns, 1, SimpleNamespace(paused={"max_in_flight"}))
    monkeypatch.setattr(cluster.manager, "best_node", lambda but=(): None)
    assert cluster.paused_s(1) > 0 and cluster.throttled_s() == 0.0

    async def heard() -> None:
        await cluster.heard(Future(), 20)

    began = time.monotonic()
    with pytest.raises(Errors.KafkaTimeoutError):
        cluster.run(heard)
    assert time.monotonic() - began < 0.9
    cluster.manager._conns.clear()


def test_a_throttle_is_no_silence(cluster: Throttled, monkeypatch: pytest.MonkeyPatch) -> None:
    async def heard(response: Future) -> Any:
        return await cluster.heard(response, 20)

    response = Future()
    cluster.until = time.monotonic() + 0.2
    cluster.net.call_later(0.1, lambda: resolve(response))
    cluster.run(heard, response)
    cluster.until = 0.0
    with pytest.raises(Errors.KafkaTimeoutError):
        cluster.run(heard, Future())
    monkeypatch.setattr(cluster, "throttle_s", lambda node: 0.0 if node != "read-1" or response.is_done else 0.1)
    response = Future()
    cluster.net.call_later(0.1, lambda: resolve(response))
    cluster.run(heard, response)


def test_a_fetch_whose_response_only_throttles_is_sent_again_for_the_patience(
    cluster: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = FetchedPartition(FIRST, 0, 9, 9, 0, (), memoryview(b""))
    sent: list[Any] = []
    responses = [FetchResult(0, 0, 500, []), FetchResult(0, 0, 500, [part])]
    monkeypatch.setattr(cluster, "lane", lane_of)

    async def send(request: Any, node_id: Any = None) -> FetchResult:
        sent.append(node_id)
        await cluster.net.sleep(0.002)
        return responses.pop(0)

    async def fetch() -> list[FetchedPartition]:
        return await cluster.fetch(1, {FIRST: 0}, max_wait_ms=0)

    monkeypatch.setattr(cluster, "send", send)
    cluster.patience_ms = 60_000
    assert cluster.run(fetch) == [part] and sent == ["read-1"] * 2, "what else is asked does not wait for the throttle"
    cluster.patience_ms = 1
    responses[:] = [FetchResult(0, 0, 500, [])]
    assert cluster.run(fetch) == []


class Node:
    """A node that responds to what is sent when the test says so, and whose lane is left once it throttles."""

    def __init__(self, cluster: Throttled, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[int, str]] = []
        self.waiting: list[Future] = []
        monkeypatch.setattr(cluster, "produce", self.produce)
        monkeypatch.setattr(cluster, "leave_throttled", self.leave)

    def produce(self, node_id: int, batches: Any, *, transactional_id: str | None, lane: str) -> Future:
        self.sent.append((next(iter(batches)).partition, lane))
        self.waiting.append(Future())
        return self.waiting[-1]

    def respond(self, throttle_time_ms: int = 0) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.waiting.pop(0).success(ProduceResult([], throttle_time_ms))

    def leave(self, longer_s: float = 1.0, lane: str | None = None) -> None:
        if self.throttle_time_ms > 1_000:
            behind, self.waiting[:] = self.waiting[:], []
            left = LeftThrottledError("a quota throttles it")
            unknown = OutcomeUnknownError("the connection was lost")  # of what was written
            unknown.__cause__ = left
            for number, future in enumerate(behind):
                future.failure(left if number % 2 else unknown)


@pytest.mark.parametrize("transactional_id", ["x", None], ids=["rows", "state"])
def test_under_a_quota_what_may_not_wait_is_sent_alone_and_only_rows_that_were_left_behind_are_sent_again(
    cluster: Throttled, monkeypatch: pytest.MonkeyPatch, transactional_id: str | None
) -> None:
    """The node reads one request of each connection, and throttles that for a minute.

    What was left behind is read when the throttle ends: a record without a sequence is then in the log twice, the second time
    as the last one of its key.
    """
    node = Node(cluster, monkeypatch)
    batches = {number: {TopicPartition("map", number): memoryview(b"")} for number in range(4)}

    async def run() -> list[Any]:
        produce = functools.partial(cluster.produce_soon, 1, transactional_id=transactional_id)
        appended = [cluster.net.call_soon_with_future(produce, batch) for batch in batches.values()]
        await cluster.net.sleep(0.01)
        while node.waiting:
            node.respond(60_000)
            await cluster.net.sleep(0.01)
        return [await future for future in appended]

    assert [result.throttle_time_ms for result in cluster.run(run)] == [60_000] * 4
    if transactional_id is None:
        assert node.sent == [(number, "state") for number in range(4)]
    else:
        assert node.sent == [(number, "rows") for number in (0, 1, 2, 3, 1, 2, 3)], "the first burst, then one by one"


def test_without_a_quota_rows_are_in_flight_together_and_state_waits_for_none_of_them(
    cluster: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(cluster, monkeypatch)

    async def run() -> None:
        def send(number: int, transactional_id: str | None) -> Any:
            batch = {TopicPartition("map", number): memoryview(b"")}
            produce = functools.partial(cluster.produce_soon, transactional_id=transactional_id)
            return cluster.net.call_soon_with_future(produce, 1, batch)

        futures = [send(number, transactional_id) for number, transactional_id in enumerate(("a", "b", None, None))]
        await cluster.net.sleep(0.01)
        assert node.sent == [(0, "rows"), (1, "rows"), (2, "state")]
        for _ in range(4):
            node.respond()
            await cluster.net.sleep(0.01)
        for future in futures:
            await future

    cluster.run(run)
    assert node.sent[3:] == [(3, "state")]


def test_a_node_that_is_not_upgraded_yet_says_on_the_lane_of_batches_that_it_knows_no_ids_of_topics(
    cluster: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have no other connection: the cluster's versions are those of another node."""
    versions = [SimpleNamespace(api_versions={RawProduce.API_KEY: (0, highest)}) for highest in (13, 12)]
    monkeypatch.setattr(cluster.manager, "broker_version_data", versions[0])
    assert cluster.produces_by_id(1)
    lane = SimpleNamespace(broker_version_data=versions[1])
    monkeypatch.setitem(cluster.manager._conns, "produce-1", lane)
    assert not cluster.produces_by_id(1)
    cluster.manager._conns.clear()


def test_a_quota_is_named_with_its_node(cluster: Throttled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "throttle_s", functools.partial(Cluster.throttle_s, cluster))
    assert cluster.quota_words() == ""
    monkeypatch.setitem(cluster.manager._conns, "fetch-1", SimpleNamespace(paused={"throttle"}, _throttle_time=0.0))
    assert cluster.quota_words() == "; node 1 of the cluster throttles us: a quota (tolerant-kafka doctor names it)"
    monkeypatch.setitem(cluster.manager._conns, "fetch-1", SimpleNamespace(paused={"max_in_flight"}))
    assert cluster.quota_words() == ""
    cluster.manager._conns.clear()


def test_what_may_not_wait_leaves_the_connections_that_a_quota_throttles(
    cluster: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "throttle_s", functools.partial(Cluster.throttle_s, cluster))
    closed: list[tuple[int, str]] = []
    now = time.monotonic()
    for node, paused, until in (
        (1, {"throttle"}, now + 9),
        (2, {"throttle"}, now + 1),
        (3, {"max_in_flight"}, now + 9),
        (4, set[str](), 0.0),
        ("produce-1", {"throttle"}, now + 9),  # a new one would take a batch beyond the quota
    ):
        there = SimpleNamespace(
            paused=paused, _throttle_time=until, close=lambda error, node=node: closed.append((node, str(error)))
        )
        monkeypatch.setitem(cluster.manager._conns, node, there)
    cluster.leave_throttled(2.5, "rows-1")
    assert not closed
    cluster.leave_throttled(2.5)
    assert [node for node, _ in closed] == [1] and "quota" in closed[0][1]
    cluster.manager._conns.clear()
