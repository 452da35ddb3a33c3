"""Offsets of many partitions; some have no leader, or one that does not respond: the others do not wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets, LogOffsets, log_offsets, stable_ends
from tolerant_client.cluster.cluster import EARLIEST, READ_COMMITTED

LED, LOST, FAILING, DEAD = (TopicPartition("orders", number) for number in range(4))


class Cluster:
    """A source whose partitions are led by node 1, except LOST, which has no leader, and DEAD, led by the silent node 2."""

    name = "source"

    def __init__(self, healed_after: int = 1000) -> None:
        self.net = self.manager = self
        self.slept = 0.0
        self.refreshes = 0
        self.tracked: set[str] = set()
        self.hangs = -1
        self.asked: list[int] = []
        self._healed_after = healed_after

    async def connect(self) -> None:
        pass

    async def track(self, topics: Iterable[str]) -> None:
        self.tracked |= set(topics)

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds

    async def refresh(self) -> None:
        self.refreshes += 1

    @property
    def is_healed(self) -> bool:
        return self.refreshes >= self._healed_after

    def known_leader(self, partition: TopicPartition) -> int | None:
        if self.is_healed:
            return 1
        return {LOST: None, DEAD: 2}.get(partition, 1)

    def why_leaderless(self, partition: TopicPartition) -> str:
        return "it has no leader on the source"

    def call_soon_with_future(self, function: Any, *args: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(function(*args))

    async def heard(self, future: asyncio.Future[Any], timeout_ms: float, node_id: int) -> Any:
        self.waited_ms = timeout_ms
        try:
            return await asyncio.wait_for(future, min(timeout_ms / 1000, 0.05))
        except asyncio.TimeoutError:
            raise Errors.KafkaTimeoutError("too long") from None

    async def offsets_at(
        self,
        node_id: int,
        partitions: Iterable[TopicPartition],
        timestamps: Mapping[TopicPartition, int],
        isolation: int,
    ) -> dict[TopicPartition, Any]:
        assert isolation == 1
        self.asked.append(node_id)
        if node_id == self.hangs:
            await asyncio.sleep(60)
        if node_id == 2:
            raise Errors.NodeNotReadyError("node 2")
        failure = Errors.UnknownTopicOrPartitionError("orders-2")
        return {p: failure if p == FAILING and not self.is_healed else 10 + p.partition for p in partitions}


def ask(cluster: Cluster, patience_ms: int = 0) -> LedOffsets:
    return asyncio.run(stable_ends(cluster, [LED, LOST, FAILING, DEAD], patience_ms))  # type: ignore[arg-type]


def test_what_cannot_be_asked_is_left_out_with_its_reason_and_the_others_are_told() -> None:
    cluster = Cluster()
    found = ask(cluster)
    assert found.offsets == {LED: 10}
    assert found.left_out[LOST] == "it has no leader on the source"
    assert "node 1 of the source, which leads it, gives no offset for it: " in found.left_out[FAILING]
    assert found.left_out[DEAD] == "node 2 of the source, which leads it, does not respond: node 2"
    assert cluster.tracked == {"orders"}
    assert cluster.refreshes == 2  # three checks: a single wrong response leaves nothing out
    assert cluster.slept < 1


def test_a_leader_that_comes_back_between_two_looks_is_asked() -> None:
    cluster = Cluster(healed_after=1)
    assert ask(cluster) == LedOffsets({LED: 10, LOST: 11, FAILING: 12, DEAD: 13}, {})


def test_a_start_waits_for_an_election_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(healed_after=6)
    monkeypatch.setattr(time, "monotonic", lambda: cluster.slept)
    assert len(ask(cluster).left_out) == 3
    assert not ask(Cluster(healed_after=2)).left_out
    cluster.refreshes, cluster.slept = 0, 0.0
    assert not ask(cluster, patience_ms=10_000).left_out
    assert cluster.slept < 10


def test_a_leader_that_hangs_is_waited_for_once_and_the_others_are_told() -> None:
    cluster = Cluster()
    cluster.hangs = 2
    found = asyncio.run(stable_ends(cluster, [LED, DEAD]))  # type: ignore[arg-type]
    assert found.offsets == {LED: 10}
    assert "node 2 of the source, which leads it, does not respond: no response within 5 s" in found.left_out[DEAD]
    assert sorted(cluster.asked) == [1, 2] and cluster.waited_ms <= 5_000


def test_a_last_stable_offset_below_the_start_of_a_log_is_its_start() -> None:
    """Kafka 4.2 tells it after DeleteRecords in an open transaction: the offset of the batch in which the log was cut."""

    class Cut:
        async def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation_level: int = 0) -> dict[Any, int]:
            if isolation_level == READ_COMMITTED:
                return dict.fromkeys(wanted, 3)
            return {p: 7 if which == EARLIEST else 7 + p.partition for p, which in wanted.items()}

    found = asyncio.run(log_offsets(Cut(), [LED, LOST]))  # type: ignore[arg-type]
    assert found == {LED: LogOffsets(7, 7, 7), LOST: LogOffsets(7, 7, 8)}
