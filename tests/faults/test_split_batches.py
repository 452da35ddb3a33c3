"""A batch that is too large for its topic and may be written: no record is written twice, and none fails needlessly.

Brokers refuse a batch as too large before they look whether it is one that they have.
"""

from __future__ import annotations

import time

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition

import tolerant_client
from support.beside_stock import new_topic
from support.held_answers import RESET, HookedProxy, Link
from tolerant_client.testing import KafkaCluster

PRODUCE = 0
RECORDS = [b"%03d" % n * 300 for n in range(10)]


def limit(cluster: KafkaCluster, topic: str) -> None:
    """Lowers what the topic takes to half of the batch."""
    with kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "6000"})])
    time.sleep(0.5)


def values(cluster: KafkaCluster, topic: str) -> list[bytes]:
    partition = TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id=None)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[bytes] = []
    while consumer.position(partition) < consumer.end_offsets([partition])[partition]:
        found += [record.value for records in consumer.poll(500).values() for record in records]
    consumer.close()
    return found


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("lost", ["response", "connection"])
def test_a_batch_whose_response_is_lost_and_that_is_too_large_when_it_is_repeated(
    lost: str, is_written: bool, kafka_cluster: KafkaCluster
) -> None:
    topic = new_topic(kafka_cluster, f"split-{lost}-{is_written}".lower())
    seen: list[int] = []

    def answer(link: Link, api_key: int, frame: bytes) -> list[bytes] | str:
        if api_key != PRODUCE:
            return [frame]
        seen.append(len(frame))
        if len(seen) != 2:
            return [frame]
        if is_written:
            limit(kafka_cluster, topic)
        return RESET if lost == "connection" else []

    failed = []
    with HookedProxy(kafka_cluster.proxied) as proxy:
        proxy.answer = answer
        producer = tolerant_client.KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, linger_ms=300)
        producer.send(topic, b"first", partition=0).get(30)
        if not is_written:
            limit(kafka_cluster, topic)
        sent = [producer.send(topic, value, partition=0) for value in RECORDS]
        for value, future in zip(RECORDS, sent, strict=True):
            try:
                future.get(30)
            except Errors.KafkaError as error:
                assert "may be written" in str(error)
                failed.append(value)
        producer.send(topic, b"last", partition=0).get(30)
        producer.close(timeout=5)
    assert len(seen) > 2
    log = values(kafka_cluster, topic)
    assert log == [b"first", *RECORDS, b"last"]
    assert failed == (RECORDS if is_written else [])
