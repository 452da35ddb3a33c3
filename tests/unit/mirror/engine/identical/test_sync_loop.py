"""Which partitions a refusal to read a log concerns, and why one without a leader waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.errors import OrdersHiddenError, PartitionRefusedError, text_of
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.identical.sync_loop import SyncLoop
from tolerant_client.mirror.state.control_topic import orders_hidden

ORDERS, SECOND, PAYMENTS = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)


def test_a_topic_that_we_may_not_read_stops_alone_and_the_others_are_read() -> None:
    copies = {p: PartitionCopy(p, 0.0) for p in (ORDERS, PAYMENTS, SECOND)}
    troubled: list[TopicPartition] = []
    read: list[list[TopicPartition]] = []

    async def sync(due: list[TopicPartition]) -> None:
        if ORDERS in due:
            raise Errors.TopicAuthorizationFailedError("Fetch of orders-0: comparing records of the source")
        read.append(due)

    loop: Any = SyncLoop.__new__(SyncLoop)
    loop.sync = sync
    loop._clock = lambda: 1.0
    loop._source = SimpleNamespace(wire_topic=lambda topic: f"source-{topic}")
    loop._flow = SimpleNamespace(
        to_sync=set(),
        copies=lambda partitions: [copies[p] for p in partitions],
        after_trouble=lambda copy: troubled.append(copy.partition),
    )
    for _ in range(BELIEVED_AFTER):
        asyncio.run(loop._try_sync([ORDERS, PAYMENTS, SECOND]))
    assert read == [[PAYMENTS]] * BELIEVED_AFTER
    assert troubled == [ORDERS, SECOND] * BELIEVED_AFTER
    for copy in (copies[ORDERS], copies[SECOND]):
        assert copy.phase is Phase.STOPPED and isinstance(copy.error, PartitionRefusedError)
    error = copies[ORDERS].error
    assert error is not None and text_of(error).startswith(
        "orders-0: Fetch of orders-0: comparing records of the source;"
    )
    assert "on topic source-orders of the source, and on topic orders and" in str(error)


def test_no_log_is_copied_while_the_operators_orders_may_not_be_read() -> None:
    copies = {p: PartitionCopy(p, 0.0) for p in (ORDERS, PAYMENTS)}

    async def sync(due: list[TopicPartition]) -> None:
        raise orders_hidden()

    loop: Any = SyncLoop.__new__(SyncLoop)
    loop.sync, loop._clock = sync, lambda: 1.0
    loop._flow = SimpleNamespace(
        copies=lambda partitions: [copies[p] for p in partitions], stop=lambda p, error: copies[p].stop(error)
    )
    asyncio.run(loop._try_sync([ORDERS, PAYMENTS]))
    for copy in copies.values():
        assert isinstance(copy.error, OrdersHiddenError) and "tolerant-mirror-control" in text_of(copy.error)


def test_what_a_refused_reading_has_put_back_is_not_read_by_its_halves() -> None:
    """It would be placed, and then placed again with batches in flight by the loop that takes what was put back."""
    read: list[list[TopicPartition]] = []
    to_sync: set[TopicPartition] = set()

    async def sync(due: list[TopicPartition]) -> None:
        read.append(due)
        if len(due) > 1:
            to_sync.add(ORDERS)  # as not_read() does
            raise Errors.TopicAuthorizationFailedError("Fetch of payments-0: comparing records of the source")

    loop: Any = SyncLoop.__new__(SyncLoop)
    loop.sync, loop._flow = sync, SimpleNamespace(to_sync=to_sync, copies=lambda partitions: [])
    asyncio.run(loop._try_sync([ORDERS, PAYMENTS]))
    assert read == [[ORDERS, PAYMENTS], [PAYMENTS]]


def test_a_partition_that_the_source_lacks_is_not_told_to_have_no_leader() -> None:
    told: dict[TopicPartition, str] = {}

    async def track(_: Any) -> None:
        pass

    def cluster(name: str, why: dict[TopicPartition, str]) -> Any:
        return SimpleNamespace(
            name=name, track=track, known_leader=lambda p: None if p in why else 1, why_leaderless=why.__getitem__
        )

    gone, waits = "the source has no such partition (any more)", "it has no leader on the target"
    loop: Any = SyncLoop.__new__(SyncLoop)
    loop._source, loop._target = cluster("source", {SECOND: gone}), cluster("target", {ORDERS: waits})
    loop._flow = SimpleNamespace(
        tasks=SimpleNamespace(spawn=lambda *_: None), not_read=lambda of, why: told.update(dict.fromkeys(of, why))
    )
    assert asyncio.run(loop._led([ORDERS, SECOND, PAYMENTS])) == [PAYMENTS]
    assert told == {SECOND: gone, ORDERS: waits}
