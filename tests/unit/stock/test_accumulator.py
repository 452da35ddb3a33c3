"""What a flush waits for."""

from __future__ import annotations

import threading
import time
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


def test_a_flush_ends_where_a_split_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python has bound records to a part by then, and who waits for that one would wait for ever."""
    flush = Flush()
    bind, woken = flush.batch._record_futures[0].__class__.rebind, threading.Event()

    def rebind_once(record: Any, part: Any, index: int) -> None:
        if woken.is_set():
            raise MemoryError
        bind(record, part, index)
        woken.set()
        time.sleep(0.1)  # the flush waits for the part now

    monkeypatch.setattr(flush.batch._record_futures[0].__class__, "rebind", rebind_once)
    with pytest.raises(MemoryError):
        flush.records.split_and_reenqueue(flush.batch)
    flush.batch.abort(Errors.KafkaError("the split failed"))
    assert flush.is_over(within=10) and flush.error is None
