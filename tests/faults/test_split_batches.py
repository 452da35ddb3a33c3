"""A batch that is too large for its topic: no record is written twice, and none fails needlessly.

It may be written: brokers refuse a batch as too large before they look whether it is one that they have.
"""

from __future__ import annotations

import threading
import time

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition

import tolerant_client
from support.beside_stock import new_topic
from support.held_answers import RESET, HookedProxy, Link
from support.settled import changing
from tolerant_client.testing import KafkaCluster

PRODUCE = 0
SMALL = {"max.message.bytes": "6000"}  # which the topic takes: half of the batch
RECORDS = [b"%03d" % n * 300 for n in range(10)]


def limit(cluster: KafkaCluster, topic: str) -> None:
    """Lowers what the topic takes."""
    with changing(cluster.bootstrap_servers) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, SMALL)])


def values(cluster: KafkaCluster, topic: str) -> list[bytes]:
    """The committed ones."""
    partition = TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=None, isolation_level="read_committed"
    )
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


def test_a_transaction_begins_without_a_gap_after_one_that_was_aborted_while_a_part_waited(
    kafka_cluster: KafkaCluster,
) -> None:
    topic = new_topic(kafka_cluster, "split-abort")
    limit(kafka_cluster, topic)
    seen: list[int] = []
    is_part_sent = threading.Event()

    def answer(link: Link, api_key: int, frame: bytes) -> list[bytes] | str:
        if api_key != PRODUCE:
            return [frame]
        seen.append(len(frame))
        if len(seen) == 2:  # the batch is the first, refused
            is_part_sent.set()
            time.sleep(1)
        return [frame]

    with HookedProxy(kafka_cluster.proxied) as proxy:
        proxy.answer = answer
        producer = tolerant_client.KafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, linger_ms=300, transactional_id=topic
        )
        producer.init_transactions()
        producer.begin_transaction()
        for value in RECORDS:
            producer.send(topic, value, partition=0)
        assert is_part_sent.wait(30)
        producer.abort_transaction()
        for value in RECORDS[:3]:
            producer.begin_transaction()
            producer.send(topic, value, partition=0)
            producer.commit_transaction()
        producer.close(timeout=5)
    assert values(kafka_cluster, topic) == RECORDS[:3]


def test_one_record_that_is_too_large_fails_alone(kafka_cluster: KafkaCluster) -> None:
    topic = new_topic(kafka_cluster, "split-one-large")
    limit(kafka_cluster, topic)
    sent = [*RECORDS[:3], b"x" * 7000, *RECORDS[3:]]
    failed = []
    with tolerant_client.KafkaProducer(bootstrap_servers=kafka_cluster.bootstrap_servers, linger_ms=300) as producer:
        for value, future in [(value, producer.send(topic, value, partition=0)) for value in sent]:
            try:
                future.get(30)
            except Errors.MessageSizeTooLargeError as error:
                assert "may be written" not in str(error)
                failed.append(value)
    assert failed == [sent[3]]
    assert values(kafka_cluster, topic) == RECORDS


def test_a_record_that_is_written_and_given_up_without_a_response_is_not_called_unsent(
    kafka_cluster: KafkaCluster,
) -> None:
    topic = new_topic(kafka_cluster, "given-up")
    lost: list[bytes] = []

    def answer(link: Link, api_key: int, frame: bytes) -> list[bytes] | str:
        if api_key != PRODUCE:
            return [frame]
        lost.append(frame)
        return RESET

    with HookedProxy(kafka_cluster.proxied) as proxy:
        proxy.answer = answer
        producer = tolerant_client.KafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers,
            enable_idempotence=False,
            acks=1,
            retries=1,
        )
        future = producer.send(topic, b"written", partition=0)
        with pytest.raises(Errors.KafkaError, match="may be written"):
            future.get(30)
        producer.close(timeout=1)
    assert values(kafka_cluster, topic) == [b"written"] * len(lost)


def test_late_records_of_a_batch_that_is_written_are_not_called_unsent(kafka_cluster: KafkaCluster) -> None:
    """Without a producer id; they are written once more, as with kafka-python."""
    topic = new_topic(kafka_cluster, "split-late")
    seen: list[int] = []

    def answer(link: Link, api_key: int, frame: bytes) -> list[bytes] | str:
        if api_key != PRODUCE:
            return [frame]
        seen.append(len(frame))
        if len(seen) == 1:
            limit(kafka_cluster, topic)
            return RESET
        return [frame] if len(seen) == 2 else []  # the repeat is refused, its first part gets no response

    with HookedProxy(kafka_cluster.proxied) as proxy:
        proxy.answer = answer
        producer = tolerant_client.KafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers,
            linger_ms=300,
            enable_idempotence=False,
            acks=1,
            max_in_flight_requests_per_connection=1,
            request_timeout_ms=2500,
            delivery_timeout_ms=4000,
        )
        for future in [producer.send(topic, value, partition=0) for value in RECORDS]:
            with pytest.raises(Errors.KafkaTimeoutError, match="may be written"):
                future.get(30)
        producer.close(timeout=1)
    assert set(values(kafka_cluster, topic)) == set(RECORDS)
