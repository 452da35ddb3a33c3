"""Incident 1, "Correlation id for response (R) does not match request (Q)" (KAFKA-4669), replayed.

One Fetch answer in a few comes under a wrong correlation id, or does not come at
all.  Our consumer must read every record once, in order, and never stall for long.
With TOLERANT_LONG=1 stock kafka-python reads the same topic after it; what it does is recorded, not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from support.long import LONG
from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tolerant_client.testing import Drop, Fault, FaultProxy, KafkaCluster, RewriteCorrelationId

pytestmark = pytest.mark.alone

RECORDS = 40_000
PARTITIONS = 2
TOPIC = "incident-1-hung-mirror"
LONGEST_STALL = 2.0


@dataclass
class Reading:
    """What one consumer did."""

    values: dict[int, list[int]]
    seconds: float
    longest_stall: float

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    def __str__(self) -> str:
        rate = self.count / self.seconds
        return f"{self.count} records in {self.seconds:.1f} s ({rate:.0f}/s), longest stall {self.longest_stall:.2f} s"


@pytest.fixture(scope="module")
def topic(kafka_cluster: KafkaCluster) -> Iterator[str]:
    servers = kafka_cluster.bootstrap_servers
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    producer = KafkaProducer(bootstrap_servers=servers, batch_size=100_000, linger_ms=50)
    for n in range(RECORDS):
        producer.send(TOPIC, b"%020d" % n + b"." * 480, partition=n % PARTITIONS)
    producer.close()
    yield TOPIC
    admin.delete_topics([TOPIC])
    admin.close()


def read(consumer: Any, patience: float) -> Reading:
    """Reads until everything is there or the patience ends."""
    partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
    reading = Reading({n: [] for n in range(PARTITIONS)}, 0.0, 0.0)
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    start = last = time.monotonic()
    while reading.count < RECORDS and time.monotonic() - start < patience:
        for partition, records in consumer.poll(timeout_ms=200).items():
            reading.values[partition.partition] += [int(r.value[:20]) for r in records]
            now = time.monotonic()
            reading.longest_stall = max(reading.longest_stall, now - last)
            last = now
    end = time.monotonic()
    reading.seconds = end - start
    reading.longest_stall = max(reading.longest_stall, end - last)
    return reading


@pytest.mark.parametrize(
    "fault",
    [RewriteCorrelationId(api="Fetch", after=2, every=5, delta=-1), Drop(api="Fetch", after=2, every=8)],
    ids=["wrong correlation id", "lost answer"],
)
def test_every_record_arrives_once_in_order_and_without_a_long_stall(
    topic: str, fault: Fault, fault_proxy: Callable[..., FaultProxy], record_property: Callable[[str, object], None]
) -> None:
    proxy = fault_proxy(faults=[fault])
    options = {"bootstrap_servers": proxy.bootstrap_servers, "group_id": None, "max_partition_fetch_bytes": 262_144}
    consumer = KafkaConsumer(**options)
    try:
        ours = read(consumer, patience=30.0)
    finally:
        consumer.close()
    injected = proxy.injected_total
    counters = consumer.recovery_counters

    print(f"\nincident 1, {fault.name}: ours {ours}, {injected} faults")
    record_property("ours", str(ours))
    if LONG:
        proxy.faults = (fault,)
        stock_consumer = kafka.KafkaConsumer(**options)
        try:
            stock = read(stock_consumer, patience=6.0)
        finally:
            stock_consumer.close()
        print(f"stock kafka-python {stock}")
        record_property("stock", str(stock))

    assert injected > 5
    assert ours.values == {n: list(range(n, RECORDS, PARTITIONS)) for n in range(PARTITIONS)}
    assert ours.longest_stall < LONGEST_STALL
    assert counters.of("lost", "Fetch") >= injected - 1  # the last one may come after the last record
    assert counters.of("retired") == 0
