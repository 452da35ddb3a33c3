"""metrics.py and client_metrics.py: kafka-python's metrics and Prometheus count exactly the faults that were injected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from kafka.protocol.consumer import ListOffsetsRequest
from prometheus_client import CollectorRegistry, generate_latest

import tolerant_client
from support.fake_broker import FakeBroker, serve
from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tolerant_client.metrics import RecoveryCollector
from tolerant_client.stock import installation
from tolerant_client.stock.client_metrics import GROUP
from tolerant_client.tracker.events import Orphan, RecoveryCounters, Requeued

METRIC = "tolerant_client_recovery_events_total"
DROPPED, DOUBLED = 3, 2


class Spoiler:
    """Drops the first DROPPED responses to ListOffsets, and doubles DOUBLED after them, every other one.

    Two doubled ones in a row would put the stream out of step and end the connection.
    """

    def __init__(self) -> None:
        self.answers = 0

    def __call__(self, name: str, frame: bytes) -> list[bytes]:
        if name != "ListOffsets":
            return [frame]
        self.answers += 1
        if self.answers <= DROPPED:
            return []
        after = self.answers - DROPPED
        return [frame, frame] if after % 2 and after < 2 * DOUBLED else [frame]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    broker.spoil = Spoiler()
    with serve(broker):
        yield broker


def ask(consumer: Any, times: int = 2 * DOUBLED) -> None:
    """Asks a broker for the log end `times` times, beyond all faults."""
    manager = consumer._client._manager

    async def list_offsets() -> Any:
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        partition = topic_class.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = topic_class(name="topic", partitions=[partition])
        connection = await manager.get_connection(1)
        return await connection.send_request(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]))

    for _ in range(times):
        consumer._client._net.run(list_offsets)


def address(broker: FakeBroker) -> str:
    return f"{broker.host}:{broker.port}"


def samples(collector: RecoveryCollector) -> dict[tuple[str, str, str, str], float]:
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (s.labels["kind"], s.labels["api"], s.labels["node"], s.labels["client_id"]): s.value
        for family in registry.collect()
        for s in family.samples
        if s.name == METRIC
    }


def test_both_views_count_exactly_what_was_injected(broker: FakeBroker) -> None:
    consumer = KafkaConsumer(bootstrap_servers=address(broker), client_id="asking")
    ask(consumer)
    own = consumer.metrics()[GROUP]
    assert own["requeued-total"] == own["lost-total"] == DROPPED
    assert own["orphan-duplicate-total"] == own["orphan-total"] == DOUBLED
    assert own["orphan-late-total"] == own["retired-total"] == own["failed-total"] == 0
    assert own["probe-total"] == consumer.recovery_counters.of("probe") >= 1
    shown = samples(RecoveryCollector(consumer))
    assert shown["requeued", "ListOffsets", "1", "asking"] == DROPPED
    assert sum(n for (kind, *_), n in shown.items() if kind == "orphan:duplicate") == DOUBLED
    assert shown["completed", "ListOffsets", "1", "asking"] == 2 * DOUBLED
    assert sum(shown.values()) == sum(consumer.recovery_counters.as_dict().values())
    consumer.close()


def test_the_metric_carries_the_clients_id_as_its_tag(broker: FakeBroker) -> None:
    consumer = KafkaConsumer(bootstrap_servers=address(broker), client_id="tagged")
    names = [name for name in consumer.metrics(raw=True) if name.group == GROUP]
    assert {"lost-total", "requeued-total", "reordered-total"} <= {name.name for name in names}
    assert {name.tags["client-id"] for name in names} == {"tagged"}
    consumer.close()


def test_every_client_has_the_group_and_a_client_without_metrics_works(broker: FakeBroker) -> None:
    where = {"bootstrap_servers": address(broker)}
    for client in (KafkaConsumer(**where), KafkaProducer(enable_idempotence=False, **where)):
        assert client.metrics()[GROUP]["completed-total"] > 0
        client.close()
    admin = KafkaAdminClient(**where)  # has no metrics() in kafka-python 3.0; its reporters see them
    assert {"lost-total", "requeued-total"} <= {name.name for name in admin._metrics.metrics if name.group == GROUP}
    admin.close()
    silent = KafkaConsumer(metrics_enabled=False, **where)
    ask(silent, times=1)
    assert silent.metrics() in (None, {})
    silent.close()


def test_stock_clients_have_the_group_while_installed(broker: FakeBroker) -> None:
    before = samples(RecoveryCollector(installation.recovery_counters, client_id="all"))
    tolerant_client.install()
    try:
        consumer = kafka.KafkaConsumer(bootstrap_servers=address(broker))
    finally:
        tolerant_client.uninstall()
    ask(consumer)
    assert consumer.metrics()[GROUP]["requeued-total"] == DROPPED
    after = samples(RecoveryCollector(installation.recovery_counters, client_id="all"))
    key = ("requeued", "ListOffsets", "1", "all")
    assert after[key] - before.get(key, 0) == DROPPED
    consumer.close()


@pytest.mark.parametrize("kind", ["KafkaConsumer", "KafkaProducer", "KafkaAdminClient"])
def test_a_stock_client_is_a_source_while_installed(broker: FakeBroker, kind: str) -> None:
    tolerant_client.install()
    try:
        client = getattr(kafka, kind)(bootstrap_servers=address(broker))
    finally:
        tolerant_client.uninstall()
    assert sum(samples(RecoveryCollector(client)).values()) > 0
    client.close()


def test_sources_with_the_same_labels_are_added_and_a_scrape_reads_them() -> None:
    first, second = RecoveryCounters(), RecoveryCounters()
    first.add(Orphan("Fetch", 1, "late"), 2)
    second.add(Orphan("Fetch", 9, "late"), 2)
    second.add(Requeued("Fetch", 5, None, "lost"), None)
    registry = CollectorRegistry()
    registry.register(RecoveryCollector(first, second, client_id="c"))
    text = generate_latest(registry).decode()
    assert f'{METRIC}{{api="Fetch",client_id="c",kind="orphan:late",node="2"}} 2.0' in text
    assert f'{METRIC}{{api="Fetch",client_id="c",kind="requeued",node=""}} 1.0' in text


def test_counts_never_fall_between_two_scrapes(broker: FakeBroker) -> None:
    consumer = KafkaConsumer(bootstrap_servers=address(broker))
    collector = RecoveryCollector(consumer)
    first = samples(collector)
    ask(consumer)
    second = samples(collector)
    assert set(first) <= set(second)
    assert all(second[labels] >= first[labels] for labels in first)
    consumer.close()
