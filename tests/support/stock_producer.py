"""kafka-python's accumulator with our sender and a broker that is played by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.stock.accumulator import TolerantAccumulator
from tolerant_client.stock.sender import TolerantSender
from tolerant_client.stock.stock_names import ProducerBatch, ProducerIdAndEpoch, TransactionState
from tolerant_client.stock.transactions import TolerantTransactionManager

PARTITION, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
LEADER = 1


class Producer:
    """kafka-python's accumulator with one batch, and our sender; with a producer id where there are `transactions`."""

    def __init__(self, retries: int = 10, transactions: Any = None, message_version: int = 2) -> None:
        self.client, self.transactions = Mock(), transactions
        self.cluster = self.client.cluster
        self.cluster.leader_for_partition.return_value = LEADER
        self.cluster.partitions_for_broker.return_value = [PARTITION, OTHER]
        self.accumulator = TolerantAccumulator(
            linger_ms=0, retry_backoff_ms=100, transaction_manager=transactions, message_version=message_version
        )
        self.sender = TolerantSender(
            self.client,
            self.cluster,
            self.accumulator,
            retries=retries,
            retry_backoff_ms=100,
            transaction_manager=transactions,
            guarantee_message_order=transactions is not None,
        )
        self.append()

    def append(self, partition: TopicPartition = PARTITION) -> Any:
        """The future of another record."""
        return self.accumulator.append(partition, 0, None, b"value", [], None)[0]

    def sent(self) -> ProducerBatch | None:
        """The batch that is sent now."""
        batches = self.all_sent()
        return batches[0] if batches else None

    def sends(self) -> ProducerBatch:
        """The batch that is sent now; there is one."""
        batch = self.sent()
        assert batch is not None
        return batch

    def all_sent(self) -> list[ProducerBatch]:
        nodes, _, _ = self.accumulator.ready(self.cluster)
        return list(self.accumulator.drain(self.cluster, nodes, 1 << 20).get(LEADER, ()))

    def requested(self) -> list[int]:
        """The partitions whose batches the sender requests now."""
        self.client.send.reset_mock()
        self.sender._send_producer_data()
        requests = [call.args[1] for call in self.client.send.call_args_list]
        return [part.index for request in requests for topic in request.topic_data for part in topic.partition_data]

    def fail(self, batch: ProducerBatch, error: Exception) -> None:
        self.sender._failed_produce([batch], LEADER, error)

    def refuse(self, batch: ProducerBatch, error: type[Errors.BrokerResponseError], at: int = -1) -> None:
        """A broker refuses the batch; `at` is the offset at which it has appended it all the same."""
        refusal = response(error, batch.topic_partition)
        refusal.responses[0].partition_responses[0].base_offset = at
        self.sender._handle_produce_response(LEADER, 0.0, [batch], refusal)

    def let_pass(self, seconds: float, *batches: ProducerBatch) -> None:
        """Makes batches older."""
        for batch in batches:
            batch.created -= seconds
            batch.last_attempt -= seconds


def response(error: type[Errors.KafkaError], *partitions: TopicPartition) -> Any:
    """What a broker says of the batches of these partitions."""
    said = {"error_code": error.errno, "error_message": None, "record_errors": (), "base_offset": -1}
    said |= {"log_start_offset": -1, "log_append_time_ms": -1}
    parts = [SimpleNamespace(index=each.partition, **said) for each in partitions]
    return SimpleNamespace(responses=[SimpleNamespace(name=PARTITION.topic, partition_responses=parts)])


def idempotent(epoch: int = 0) -> Producer:
    transactions = TolerantTransactionManager(api_version=(4, 2))
    transactions.init_producer_id()
    transactions._pending_requests.clear()
    transactions.set_producer_id_and_epoch(ProducerIdAndEpoch(7, epoch))
    transactions._transition_to(TransactionState.READY)
    return Producer(transactions=transactions)


def stamp(batch: ProducerBatch | None) -> tuple[int, int, int]:
    assert batch is not None
    return batch.producer_id, batch.producer_epoch, batch.base_sequence
