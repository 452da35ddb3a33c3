"""When a batch that failed is sent again."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import ConnectionLostError, ConnectionTimedOutError, RecoveryExhaustedError
from tolerant_client.stock.sender import TolerantSender
from tolerant_client.stock.stock_names import ProducerBatch, producer_module

PARTITION = TopicPartition("orders", 0)
LEADER = 1


class Producer:
    """kafka-python's accumulator with one batch, and our sender."""

    def __init__(self, retries: int = 10) -> None:
        self.cluster = Mock()
        self.cluster.leader_for_partition.return_value = LEADER
        self.cluster.partitions_for_broker.return_value = {PARTITION}
        self.accumulator = producer_module.RecordAccumulator(linger_ms=0, retry_backoff_ms=100)
        self.sender = TolerantSender(Mock(), self.cluster, self.accumulator, retries=retries, retry_backoff_ms=100)
        self.accumulator.append(PARTITION, 0, None, b"value", [], None)

    def sent(self) -> ProducerBatch | None:
        """The batch that is sent now."""
        nodes, _, _ = self.accumulator.ready(self.cluster)
        batches = self.accumulator.drain(self.cluster, nodes, 1 << 20).get(LEADER)
        return batches[0] if batches else None

    def fail(self, batch: ProducerBatch, error: Exception) -> None:
        self.sender._failed_produce([batch], LEADER, error)


@pytest.mark.parametrize("error", [Errors.KafkaConnectionError("reset"), ConnectionLostError("ended")])
def test_a_batch_whose_connection_ended_is_sent_over_the_next_one_at_once(error: Exception) -> None:
    producer = Producer()
    batch = producer.sent()
    assert batch is not None
    producer.fail(batch, error)
    assert producer.sent() is batch


def test_a_batch_that_fails_again_waits() -> None:
    producer = Producer()
    for _ in range(2):
        batch = producer.sent()
        assert batch is not None
        producer.fail(batch, Errors.KafkaConnectionError("reset"))
    assert producer.sent() is None


def test_a_batch_that_timed_out_or_was_refused_waits() -> None:
    errors = (
        Errors.RequestTimedOutError,
        Errors.NotLeaderForPartitionError,
        ConnectionTimedOutError,
        RecoveryExhaustedError,
    )
    for error in errors:
        producer = Producer()
        batch = producer.sent()
        assert batch is not None
        producer.fail(batch, error("frozen"))
        assert producer.sent() is None


def test_the_last_try_waits_until_metadata_may_have_told_another_leader() -> None:
    producer = Producer(retries=1)
    batch = producer.sent()
    assert batch is not None
    producer.fail(batch, Errors.KafkaConnectionError("reset"))
    assert producer.sent() is None


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_record_whose_transaction_waits_for_a_silent_broker_ends_in_time(is_closing: bool) -> None:
    """kafka-python expires nothing while a request of the transaction is under way, and ours is sent again and again."""
    producer = Producer()
    accumulator, sender = producer.accumulator, producer.sender
    accumulator.config["delivery_timeout_ms"] = 0
    (batch,) = accumulator._incomplete.all()
    manager = sender._client._manager
    manager.closed, naps = False, list[float]()

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        manager.closed = len(naps) == 2

    manager._net.sleep = sleep
    sender._running = not is_closing
    sender._transaction_manager = Mock()
    asyncio.run(sender._end_late_records())
    (record,) = batch._record_futures
    assert isinstance(record.exception, Errors.KafkaTimeoutError) and "delivery_timeout_ms" in str(record.exception)
    assert not accumulator.has_incomplete and sender._force_close is is_closing
