"""Every fault of the proxy, on Produce and Fetch answers: each record once and in order, within a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tolerant_client.testing import (
    Drop,
    Duplicate,
    Fault,
    FaultProxy,
    KafkaCluster,
    Reorder,
    Reset,
    RewriteCorrelationId,
    Stale,
    Stall,
    Truncate,
)

RECORDS = 3_000
PARTITIONS = 4  # an idempotent producer has one batch in flight for each
ONE_BATCH = 2_000  # and with no larger requests, four requests: several, that can change places
PATIENCE = 40.0

FAULTS = {
    "drop": lambda api: [Drop(api=api, every=7, after=1)],
    "duplicate": lambda api: [Duplicate(api=api, every=5)],
    "reorder": lambda api: [Reorder(api=api)],
    "wrong id, later": lambda api: [RewriteCorrelationId(api=api, every=7, after=1)],
    "wrong id, earlier": lambda api: [RewriteCorrelationId(api=api, every=7, after=1, delta=-1)],
    "stale": lambda api: [Stale(api=api, every=5, after=2)],
    "truncate": lambda api: [Truncate(api=api, every=20, after=3, cut=3)],
    "stall": lambda api: [Stall(seconds=0.3, api=api, every=20)],
    "reset": lambda api: [Reset(api=api, every=20, after=3)],
    "all at once": lambda api: [
        Drop(api=api, every=17),
        RewriteCorrelationId(api=api, every=13, after=3),
        Duplicate(api=api, every=11),
        Stale(api=api, every=19, after=5),
        Reset(api=api, every=40, after=9),
    ],
}


@pytest.mark.parametrize("name", FAULTS)
def test_records_are_written_and_read_once_and_in_order(
    name: str, kafka_cluster: KafkaCluster, fault_proxy: Callable[..., FaultProxy]
) -> None:
    topic = "spoiled-" + name.replace(" ", "-").replace(",", "")
    faults: Callable[[str], list[Fault]] = FAULTS[name]
    admin = KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    admin.close()
    proxy = fault_proxy(faults=faults("Produce"))
    start = time.monotonic()

    producer = KafkaProducer(
        bootstrap_servers=proxy.bootstrap_servers, linger_ms=0, batch_size=ONE_BATCH, max_request_size=ONE_BATCH
    )
    sent = [producer.send(topic, b"%08d" % n + b"." * 92, partition=n % PARTITIONS) for n in range(RECORDS)]
    producer.flush(timeout=PATIENCE)
    producer.close(timeout=5)
    assert [f.value.offset for f in sent] == [n // PARTITIONS for n in range(RECORDS)]
    produced = time.monotonic() - start
    produce_faults = proxy.injected_total

    proxy.faults = faults("Fetch")
    consumer = KafkaConsumer(
        bootstrap_servers=proxy.bootstrap_servers,
        group_id=None,
        max_partition_fetch_bytes=8_000,
        fetch_max_bytes=8_000,
    )
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    values: dict[TopicPartition, list[int]] = {partition: [] for partition in partitions}
    deadline = time.monotonic() + PATIENCE
    while sum(map(len, values.values())) < RECORDS and time.monotonic() < deadline:
        for partition, records in consumer.poll(timeout_ms=500).items():
            values[partition] += [int(r.value[:8]) for r in records]
    consumer.close()
    consumed = time.monotonic() - start - produced

    print(f"\n{name}: produced {produced:.1f} s ({produce_faults} faults), consumed {consumed:.1f} s, {proxy.injected}")
    assert values == {p: list(range(p.partition, RECORDS, PARTITIONS)) for p in partitions}
    assert produce_faults > 0
    # A consumer has one Fetch in flight, so there is nothing to change places with.
    assert proxy.injected_total > produce_faults or name == "reorder"
