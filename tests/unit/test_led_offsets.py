"""Offsets of many partitions, of which some have no leader, or one that does not answer: the others do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror import led_offsets
from tolerant_client.mirror.led_offsets import LedOffsets, stable_ends

LED, LOST, FAILING, DEAD = (TopicPartition("orders", number) for number in range(4))


class Cluster:
    """A source whose partitions are led by node 1, but LOST by nobody, and DEAD by node 2, which does not answer."""

    name = "source"

    def __init__(self, healed_after: int = 1000) -> None:
        self.net = self
        self.slept = 0.0
        self.refreshes = 0
        self.tracked: set[str] = set()
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

    async def offsets_at(
        self, node_id: int, partitions: Iterable[TopicPartition], timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, Any]:
        assert isolation == 1
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
    assert "node 1 of the source, which leads it, tells no offset of it: " in found.left_out[FAILING]
    assert "node 2" in found.left_out[DEAD]
    assert cluster.tracked == {"orders"}
    assert cluster.refreshes == 2  # three looks: a single wrong answer leaves nothing out
    assert cluster.slept < 1


def test_a_leader_that_comes_back_between_two_looks_is_asked() -> None:
    cluster = Cluster(healed_after=1)
    assert ask(cluster) == LedOffsets({LED: 10, LOST: 11, FAILING: 12, DEAD: 13}, {})


def test_a_start_waits_for_an_election_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(healed_after=6)
    monkeypatch.setattr(led_offsets.time, "monotonic", lambda: cluster.slept)
    assert len(ask(cluster).left_out) == 3
    assert not ask(Cluster(healed_after=2)).left_out
    cluster.refreshes, cluster.slept = 0, 0.0
    assert not ask(cluster, patience_ms=10_000).left_out
    assert cluster.slept < 10
