"""The ends of logs that are fully replicated: both ends must be told, and be equal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import (
    Unreplicated,
    Untold,
    replicated_end,
    replicated_ends,
    replicated_ends_at,
)
from tolerant_client.cluster.cluster import CONSUMER, DEBUGGING_REPLICA

WHOLE, BEHIND, UNTOLD, HALF = (TopicPartition("orders", number) for number in range(4))
REFUSAL = Errors.NotLeaderForPartitionError("orders-2")


class Cluster:
    """One node; the leader's log of BEHIND ends at 12, and 10 is replicated until it was asked for `heals_after` times."""

    def __init__(self, heals_after: int = 1000) -> None:
        self.net = self.manager = self
        self.name = "target"
        self.asked: list[int] = []
        self.slept = 0.0
        self._heals_after = heals_after

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds

    async def connect(self) -> None:
        pass

    async def track(self, topics: Iterable[str]) -> None:
        pass

    async def refresh(self) -> None:
        pass

    def known_leader(self, partition: TopicPartition) -> int:
        return 1

    def call_soon_with_future(self, function: Any, *args: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(function(*args))

    async def heard(self, future: asyncio.Future[Any], timeout_ms: float, node_id: int) -> Any:
        return await future

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        return {1: list(partitions)}

    async def insist(self, what: str, attempt: Any) -> Any:
        return await attempt()

    async def list_offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.asked.append(CONSUMER)
        return dict.fromkeys(asked, 10)

    async def offsets_at(
        self,
        node_id: int,
        partitions: Iterable[TopicPartition],
        asked: Any,
        isolation: int,
        *,
        replica_id: int = CONSUMER,
    ) -> dict[TopicPartition, Any]:
        self.asked.append(replica_id)
        is_behind = replica_id == DEBUGGING_REPLICA and self.asked.count(DEBUGGING_REPLICA) <= self._heals_after
        ends: dict[TopicPartition, Any] = {
            WHOLE: 10,
            BEHIND: 12 if is_behind else 10,
            UNTOLD: REFUSAL,
            HALF: 10 if replica_id == CONSUMER else REFUSAL,
        }
        return {p: ends[p] for p in partitions}


def test_an_end_is_one_where_the_leader_has_no_more_and_the_high_watermark_is_told_first() -> None:
    cluster: Any = Cluster()
    found = asyncio.run(replicated_ends(cluster, [WHOLE, BEHIND, HALF]))
    assert found == {WHOLE: 10, BEHIND: Unreplicated(10, 12), HALF: Unreplicated(10, -1)}
    assert cluster.asked == [CONSUMER, DEBUGGING_REPLICA]


def test_of_a_partition_without_a_high_watermark_its_leader_says_so_and_tells_the_ends_of_the_others() -> None:
    cluster: Any = Cluster()
    found = asyncio.run(replicated_ends(cluster, [WHOLE, UNTOLD]))
    assert found[WHOLE] == 10 and isinstance(found[UNTOLD], Untold)
    assert "node 1 of the target, which leads it, gives no offset for it: " in str(found[UNTOLD])


def test_a_node_tells_both_ends_of_what_it_leads_or_why_it_does_not() -> None:
    cluster: Any = Cluster()
    found = asyncio.run(replicated_ends_at(cluster, 1, [WHOLE, BEHIND, UNTOLD]))
    assert found == {WHOLE: 10, BEHIND: Unreplicated(10, 12), UNTOLD: REFUSAL}
    assert cluster.asked == [CONSUMER, DEBUGGING_REPLICA]


def test_replicas_that_catch_up_are_waited_for_and_others_are_a_retriable_error() -> None:
    cluster: Any = Cluster(heals_after=3)
    assert asyncio.run(replicated_end(cluster, BEHIND)) == 10
    assert cluster.slept < 0.1
    lasting: Any = Cluster()
    with pytest.raises(Errors.OffsetNotAvailableError, match="orders-1: replication on the target is behind") as caught:
        asyncio.run(replicated_end(lasting, BEHIND))
    assert caught.value.retriable and 3 < lasting.slept < 10
