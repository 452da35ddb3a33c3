"""The errors for transactions that the target does not allow, and for responses with another batch's offset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.structs import TopicPartition

from tolerant_client.cluster.produce import ProducedPartition, ProduceResult
from tolerant_client.cluster.produce_window import ProduceTurns
from tolerant_client.errors import OffsetMapError, OptionError
from tolerant_client.mirror.batches.merge import DenseBatch
from tolerant_client.mirror.engine.translated.copy_transaction import CopyTransaction, reason_of
from tolerant_client.mirror.engine.translated.fetched_queue import Outgoing
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.records.record_batch import Record, encode_batch, read_header

P = TopicPartition("orders", 0)


async def refuse(
    kind: int, key: str, what: str, request: Callable[[], Any], read: Callable[[Any], Any], patience_ms: Any = None
) -> Any:
    return read(SimpleNamespace(error_code=Errors.InvalidTransactionTimeoutError.errno))


def test_a_mirror_whose_transactions_are_too_long_for_the_brokers_is_told_no_option_of_a_sink() -> None:
    nobody: Any = None
    partition = TopicPartition("orders", 0)
    copying = CopyTransaction(
        nobody, "tolerant-mirror-a-copy-orders-0", partition, partition, 60_000, nobody, lambda: None, nobody
    )
    copying._coordinators = SimpleNamespace(ask=refuse)  # type: ignore[assignment]
    with pytest.raises(
        OptionError, match="transactions of 60000 ms, .*transaction.max.timeout.ms; raise that"
    ) as raised:
        asyncio.run(copying.renew())
    assert "kafka.transaction.timeout.ms" not in str(raised.value)


@pytest.mark.parametrize(
    ("of_the_second", "raised"),
    [
        (Future().failure(Errors.RequestTimedOutError("lost")), Errors.RequestTimedOutError),
        (Future().success(ProduceResult([ProducedPartition(P, 0, 100)], 0)), OffsetMapError),
    ],
    ids=["lost", "the first one's"],
)
def test_a_batch_that_gets_the_response_of_the_next_one_ends_its_transaction(
    of_the_second: Future, raised: type[Exception]
) -> None:
    """Otherwise a row of the map would have another batch's offset."""
    responses = iter([Future().success(ProduceResult([ProducedPartition(P, 0, 102)], 0)), of_the_second])
    target: Any = SimpleNamespace(produce=lambda *_, **__: next(responses), paused_s=lambda _: 0.0, net=None)
    turns = ProduceTurns(target, 1, 16)
    nobody: Any = None
    copying = CopyTransaction(
        target, "tolerant-mirror-a-copy-orders-0", P, P, 60_000, lambda _: turns, lambda: None, nobody
    )
    copying._start_over()
    copying.began_at = 0.0

    async def copy() -> None:
        for source in (0, 2):
            batch = memoryview(bytearray(encode_batch([Record(0, 1, None, b"x")] * 2)))
            await copying.send(1, Outgoing(DenseBatch(read_header(batch), batch, ((source, 2),)), source + 2, 0), 1.0)
        await copying.settle(0)

    with pytest.raises(raised):
        asyncio.run(copy())


@pytest.mark.parametrize(
    ("away", "told"),
    [
        ({P}, "orders-0 of the target has no leader, so the last transaction cannot end ("),
        ({map_partition("dr", P)}, "tolerant-mirror-offsets-dr-"),
        (set(), "ConcurrentTransactionsError: "),
    ],
    ids=["copy", "map", "none"],
)
def test_a_transaction_that_does_not_end_names_the_partition_without_a_leader(
    away: set[TopicPartition], told: str
) -> None:
    target: Any = SimpleNamespace(known_leader=lambda p: None if p in away else 1)
    found = reason_of(Errors.ConcurrentTransactionsError("InitProducerId"), target, "dr", P)
    assert found.startswith(told) and "ConcurrentTransactionsError" in found
    other = reason_of(Errors.NotLeaderForPartitionError("orders"), target, "dr", P)
    assert other.startswith("NotLeaderForPartitionError")
