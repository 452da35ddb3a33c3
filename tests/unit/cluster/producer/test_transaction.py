"""What the error says where a transaction does not begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.producer.transaction import ProducerTransaction

ID = "tolerant-mirror-a-gap-orders-0"


class Coordinators:
    """Responds to everything, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, kind: int, key: str, what: str, request: Callable[[], Any], read: Callable[[Any], Any]) -> Any:
        self.asked.append(what)
        return read(SimpleNamespace(error_code=0, producer_id=7, producer_epoch=3))


def test_a_coordinator_that_is_away_is_told_of_with_the_transactional_id_that_it_was_asked_for() -> None:
    coordinators: Any = Coordinators()
    nobody: Any = None
    transaction = ProducerTransaction(nobody, ID, 1000, coordinators)
    asyncio.run(transaction.begin())
    asyncio.run(transaction.begin_next())
    assert coordinators.asked == [f"beginning a transaction of {ID!r}", f"beginning the next transaction of {ID!r}"]


def test_of_partitions_that_a_transaction_may_not_have_those_are_named_for_which_a_right_is_missing() -> None:
    class Refusing(Coordinators):
        async def ask(self, kind: int, key: str, what: str, request: Any, read: Any, patience: Any = None) -> Any:
            codes = {"map": 55, "orders": 29}  # OPERATION_NOT_ATTEMPTED, TOPIC_AUTHORIZATION_FAILED
            told = [
                SimpleNamespace(name=name, results_by_partition=[SimpleNamespace(partition_error_code=code)])
                for name, code in codes.items()
            ]
            return read(SimpleNamespace(results_by_topic_v3_and_below=told))

    coordinators: Any = Refusing()
    cluster: Any = SimpleNamespace(wire_topic=str)
    transaction = ProducerTransaction(cluster, ID, 1000, coordinators)
    with pytest.raises(Errors.TopicAuthorizationFailedError, match="adding topic orders to"):
        asyncio.run(transaction.add_partitions([TopicPartition("orders", 0), TopicPartition("map", 0)]))
