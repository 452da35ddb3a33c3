"""copy_metrics.py: what a target acknowledges is counted once, with its ages and latencies; no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.future import Future
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import FetchResult
from tolerant_client.cluster.produce import ProducedPartition, ProduceResult
from tolerant_client.mirror.batches.gaps import Gap, filler_batches
from tolerant_client.mirror.engine.copy_metrics import LATENCY_BOUNDS_MS, Copied, MeasuredCluster, Span
from tolerant_client.records.record_batch import Record, encode_batch

ORDERS, MAP = TopicPartition("orders", 0), TopicPartition("tolerant-mirror-offsets-x", 0)
T0 = 1_700_000_000_000


class Broker:
    """A cluster whose responses the test gives, under a clock that stands still in between."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now_s = T0 / 1000
        self.sent: list[tuple[Future, list[TopicPartition]]] = []

        def produce(cluster: Cluster, node_id: int, batches: Any, *_: Any, **__: Any) -> Future:
            self.sent.append((Future(), list(batches)))
            return self.sent[-1][0]

        async def send(cluster: Cluster, request: Any, node_id: Any = None) -> Any:
            return SimpleNamespace(error_code=self.error_code)

        self.error_code = 0
        monkeypatch.setattr(Cluster, "produce", produce)
        monkeypatch.setattr(Cluster, "send", send)
        self.cluster = MeasuredCluster({"bootstrap_servers": "127.0.0.1:1"}, wall_clock=lambda: self.now_s, **options)

    def produce(self, *times_ms: int, partition: TopicPartition = ORDERS, **options: Any) -> int:
        batch = encode_batch([Record(0, time, b"k", b"v") for time in times_ms])
        self.cluster.produce(1, {partition: memoryview(batch)}, **options)
        return len(batch)

    def end(self, transactional_id: str, *, is_committed: bool = True) -> None:
        self.cluster.run(self.cluster.send, EndTxnRequest(transactional_id, 1, 1, is_committed, max_version=3))

    def answer(self, error_code: int = 0, throttle_time_ms: int = 0) -> None:
        future, partitions = self.sent.pop(0)
        future.success(ProduceResult([ProducedPartition(p, error_code, 0) for p in partitions], throttle_time_ms))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Broker(monkeypatch)
    yield made
    made.cluster.close()


def test_age_is_measured_at_the_append_and_latency_at_the_acknowledgement(broker: Broker) -> None:
    size = broker.produce(T0 - 500, T0 - 40)
    broker.now_s += 0.1
    broker.answer()
    taken = broker.cluster.take()
    assert taken.copied == {ORDERS: Copied(2, size, Span(1, 40, 40, 40, 40), Span(1, 140, 140, 140, 140))}
    assert taken.latencies[LATENCY_BOUNDS_MS.index(250)] == 1 == sum(taken.latencies)


@pytest.mark.parametrize(("latency_ms", "place"), [(0, 0), (5, 0), (6, 1), (300_000, 13), (300_001, 14)])
def test_latency_is_counted_under_the_first_bound_that_is_not_less(broker: Broker, latency_ms: int, place: int) -> None:
    broker.produce(T0 - latency_ms)
    broker.answer()
    assert broker.cluster.take().latencies[place] == 1


def test_what_was_taken_is_not_counted_again(broker: Broker) -> None:
    broker.produce(T0)
    broker.answer()
    assert broker.cluster.take().copied
    again = broker.cluster.take()
    assert (again.copied, sum(again.latencies), again.recoveries) == ({}, 0, {})


def test_batches_of_a_partition_are_added_up(broker: Broker) -> None:
    for time_ms in (T0 - 10, T0 - 30):
        broker.produce(time_ms)
        broker.answer()
    assert broker.cluster.take().copied[ORDERS].latency == Span(2, 40, 10, 30, 30)


def test_refused_and_unanswered_batches_are_not_counted(broker: Broker) -> None:
    for _ in range(3):
        broker.produce(T0)
    broker.answer(error_code=6)
    broker.sent[0][0].failure(ConnectionError("away"))
    assert broker.cluster.take().copied == {}


def test_records_without_a_time_count_but_have_no_age(broker: Broker) -> None:
    broker.produce(-1)
    broker.answer()
    copied = broker.cluster.take()
    assert (copied.copied[ORDERS].records, copied.copied[ORDERS].latency, sum(copied.latencies)) == (1, Span(), 0)


def test_clock_of_a_producer_that_is_ahead_gives_no_negative_age(broker: Broker) -> None:
    broker.produce(T0 + 60_000)
    broker.answer()
    assert broker.cluster.take().copied[ORDERS].age == Span(1, 0, 0, 0, 0)


def test_filler_records_are_none_of_the_source(broker: Broker) -> None:
    ((_, batch),) = filler_batches(Gap(0, 30), is_compacted=False, max_batch_bytes=1000, timestamp_ms=T0)
    broker.cluster.produce(1, {ORDERS: batch})
    broker.produce(T0)
    broker.answer()
    broker.answer()
    assert broker.cluster.take().copied[ORDERS].records == 1


@pytest.mark.parametrize("has_copies", [False, True])
def test_transactions_are_filler_or_copies_and_the_mirrors_own_topics_neither(
    monkeypatch: pytest.MonkeyPatch, has_copies: bool
) -> None:
    broker = Broker(monkeypatch, has_transactional_copies=has_copies)
    broker.produce(T0, transactional_id="tolerant-mirror-x")
    broker.produce(T0, partition=MAP, transactional_id="tolerant-mirror-x")
    broker.produce(T0, partition=MAP)
    while broker.sent:
        broker.answer()
    broker.end("tolerant-mirror-x")
    assert list(broker.cluster.take().copied) == [ORDERS] * has_copies
    broker.cluster.close()


def test_what_was_produced_in_a_transaction_counts_once_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Another one is aborted, by whom ever.  2. It is committed; the first response says that it is not yet."""
    broker, one = Broker(monkeypatch, has_transactional_copies=True), "tolerant-mirror-x"
    for end in (
        lambda: broker.end(one, is_committed=False),
        lambda: broker.cluster.run(broker.cluster.send, InitProducerIdRequest(one, 60_000, max_version=3)),
    ):
        broker.produce(T0, transactional_id=one)
        broker.answer()
        end()
        broker.end(one)
        assert broker.cluster.take().copied == {}
    broker.produce(T0, transactional_id=one)
    broker.answer()
    broker.error_code = 51
    broker.end(one)
    broker.produce(T0, transactional_id="another")
    broker.answer()
    assert broker.cluster.take().copied == {}
    broker.error_code, broker.now_s = 0, broker.now_s + 0.2
    broker.end(one)
    taken = broker.cluster.take().copied[ORDERS]
    assert (taken.records, taken.age.last, taken.latency.last) == (1, 0, 200), "consumers see it when it is committed"
    broker.cluster.close()


def test_recovery_events_of_both_clusters_are_told_as_they_grow(broker: Broker) -> None:
    source = Cluster({"bootstrap_servers": "127.0.0.1:1"}, broker.cluster.net, name="source")
    for cluster, kind, number in ((source, "lost", 2), (broker.cluster, "lost", 1), (source, "completed", 9)):
        cluster.manager.recovery_counters._counts[kind, "Fetch", 1] += number
    assert broker.cluster.take(source).recoveries == {"lost": 3}
    source.manager.recovery_counters._counts["retired", "Fetch", 1] += 1
    assert broker.cluster.take(source).recoveries == {"retired": 1}
    source.close()


def test_throttle_times_of_both_clusters_are_those_since_the_last_call(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MeasuredCluster({"bootstrap_servers": "127.0.0.1:1"}, broker.cluster.net, name="source")
    for throttle_time_ms in (0, 300):
        broker.produce(T0)
        broker.answer(throttle_time_ms=throttle_time_ms)
    broker.produce(T0, acks=0)
    broker.sent.pop(0)[0].success(None)

    async def fetched(*_: Any) -> FetchResult:
        return FetchResult(0, 0, 700, [])

    monkeypatch.setattr(Cluster, "send", fetched)
    source.run(source.send, object())
    taken = broker.cluster.take(source).throttles
    assert {kind: (span.number, span.mean, span.greatest) for kind, span in taken.items()} == {
        "produce": (2, 150, 300),
        "fetch": (1, 700, 700),
    }
    assert broker.cluster.take(source).throttles == {}
    source.close()
