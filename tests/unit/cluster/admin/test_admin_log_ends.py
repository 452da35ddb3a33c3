"""Where logs end of which all is replicated: both ends must be told, and be the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import (
    Unreplicated,
    replicated_end,
    replicated_ends,
    replicated_ends_at,
)
from tolerant_client.cluster.cluster import CONSUMER, DEBUGGING_REPLICA

WHOLE, BEHIND, UNTOLD = (TopicPartition("orders", number) for number in range(3))
REFUSAL = Errors.NotLeaderForPartitionError("orders-2")


class Cluster:
    """One node; its leader ends at 12 in BEHIND, of which 10 are replicated until that was asked for `heals_after` times."""

    def __init__(self, heals_after: int = 1000) -> None:
        self.net = self
        self.asked: list[int] = []
        self.slept = 0.0
        self._heals_after = heals_after

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds

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
        ends: dict[TopicPartition, Any] = {WHOLE: 10, BEHIND: 12 if is_behind else 10, UNTOLD: REFUSAL}
        return {p: ends[p] for p in partitions}


def test_an_end_is_one_where_the_leader_has_no_more_and_the_high_watermark_is_told_first() -> None:
    cluster: Any = Cluster()
    found = asyncio.run(replicated_ends(cluster, [WHOLE, BEHIND, UNTOLD]))
    assert found == {WHOLE: 10, BEHIND: Unreplicated(10, 12), UNTOLD: Unreplicated(10, -1)}
    assert cluster.asked == [CONSUMER, DEBUGGING_REPLICA]


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
