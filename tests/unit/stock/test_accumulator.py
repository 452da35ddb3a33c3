"""What a flush waits for."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.stock.accumulator import TolerantAccumulator

PARTITION = TopicPartition("orders", 0)
LEADER = 1


class Flush(threading.Thread):
    """A flush of two records that are in one batch, which the sender has taken."""

    def __init__(self, timeout: float | None = None) -> None:
        super().__init__(daemon=True)
        self.cluster = Mock()
        self.cluster.partitions_for_broker.return_value = [PARTITION]
        self.records = TolerantAccumulator(retry_backoff_ms=0)
        for value in (b"a", b"b"):
            self.records.append(PARTITION, 0, None, value, [])
        (self.batch,) = self.drained()
        self.timeout, self.error = timeout, None
        self.records.begin_flush()
        self.start()

    def run(self) -> None:
        try:
            self.records.await_flush_completion(self.timeout)
        except Errors.KafkaError as error:
            self.error = error

    def drained(self) -> list[Any]:
        return list(self.records.drain(self.cluster, [LEADER], 1 << 20)[LEADER])

    def is_over(self, within: float) -> bool:
        self.join(within)
        return not self.is_alive() and not self.records.flush_in_progress()


def test_a_flush_waits_for_the_records_of_a_batch_that_is_split() -> None:
    """kafka-python raises UnknownError ("Future not done") then, from close(), too."""
    flush = Flush()
    flush.records.split_and_reenqueue(flush.batch)
    flush.records.deallocate(flush.batch)
    (first,) = flush.drained()
    first.complete(0, -1)
    assert not flush.is_over(within=0.2)
    (second,) = flush.drained()
    second.complete(1, -1)
    assert flush.is_over(within=10) and flush.error is None


def test_a_flush_ends_with_its_timeout() -> None:
    flush = Flush(timeout=0.1)
    assert flush.is_over(within=10) and isinstance(flush.error, Errors.KafkaTimeoutError)


@pytest.mark.parametrize("timeout", [None, 10.0])
def test_a_flush_does_not_raise_what_its_records_did(timeout: float | None) -> None:
    flush = Flush(timeout)
    flush.batch.abort(Errors.IllegalStateError("closed"))
    assert flush.is_over(within=10) and flush.error is None
