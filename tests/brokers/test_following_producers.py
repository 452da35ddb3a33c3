"""Producers that follow a link: what the standby has is acknowledged, the rest is sent there, and nothing twice."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.structs import TopicPartition

from support.mirror_link import (
    append_records,
    consume,
    create_topic,
    delete_records,
    delete_topic,
    ends,
    failed_over,
    mirror,
    promoted,
)
from tolerant_client import KafkaProducer
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.testing import Drop, FaultProxy, KafkaCluster
from tolerant_client.tracker.events import Event, Moved

PARTITIONS = 2


@pytest.fixture
def follows(target: str) -> Iterator[Callable[..., KafkaProducer]]:
    made: list[KafkaProducer] = []

    def producer(source: str, link: str, **options: Any) -> KafkaProducer:
        made.append(
            KafkaProducer(bootstrap_servers=source, standby={"bootstrap_servers": target}, link=link, **options)
        )
        return made[-1]

    yield producer
    for one in made:
        one.close(timeout=20)


def copied(source: str, target: str, name: str, config: dict[str, str] | None = None) -> None:
    """A topic with a record in each partition, which a link of the same name has copied."""
    create_topic(source, name, PARTITIONS, config)
    append_records(source, name, 1, partitions=PARTITIONS)
    mirror(source, target, name, name)


def written(servers: str, topic: str, before: list[int]) -> None:
    """Waits until each partition has got a record."""
    deadline = time.monotonic() + 60
    while any(now <= then for now, then in zip(ends(servers, topic, PARTITIONS), before, strict=True)):
        assert time.monotonic() < deadline, "it is not written"
        time.sleep(0.05)


def records_of(servers: str, topic: str) -> list[dict[int, bytes]]:
    """The values of each partition by offset, without filler."""
    found = consume(servers, topic, PARTITIONS, 1 << 30)
    return [
        {offset: value for offset, _, _, value, headers in found[n] if not any(name == FILLER for name, _ in headers)}
        for n in range(PARTITIONS)
    ]


@pytest.mark.parametrize(
    ("case", "options", "config"),
    [
        ("plain", {}, {}),
        ("first", {}, {}),
        ("batch", {"linger_ms": 200, "compression_type": "gzip"}, {}),
        ("recompressed", {"linger_ms": 200}, {"compression.type": "zstd"}),
        ("stamped", {}, {"message.timestamp.type": "LogAppendTime"}),
    ],
)
def test_what_was_copied_is_acknowledged_with_its_offset_and_the_rest_is_sent(
    kafka_cluster: KafkaCluster,
    source: str,
    target: str,
    follows: Callable[..., KafkaProducer],
    case: str,
    options: dict[str, Any],
    config: dict[str, str],
) -> None:
    name = f"following-producer-{case}"
    copied(source, target, name, config)
    many = 3 if "linger_ms" in options else 1
    with FaultProxy(kafka_cluster) as proxy:
        producer = follows(proxy.bootstrap_servers, name, **options)
        if case != "first":  # else nothing tells where to look but the time
            for number in range(PARTITIONS):
                producer.send(name, b"before", partition=number).get(20)
            mirror(source, target, name, name)
        proxy.faults = [Drop(api="Produce")]
        before = ends(source, name, PARTITIONS)
        was_copied = [producer.send(name, b"copied-%d" % n, b"key", [("h", b"v")], 0) for n in range(many)]
        written(source, name, [before[0], -1])
        mirror(source, target, name, name)
        was_not = [producer.send(name, b"left-%d" % n, partition=1) for n in range(many)]
        written(source, name, [-1, before[1]])
        after = producer.send(name, b"after", partition=0)
        failed_over(target, name)
        offsets = [sent.get(20).offset for sent in was_copied]
        assert offsets == list(range(before[0], before[0] + many))
        assert after.get(20).offset > offsets[-1] + 1, "the fence is between them"
        sent = [one.get(20).offset for one in was_not]
        assert producer.send(name, b"last", partition=1).get(20).offset > sent[-1]
    zero, one = records_of(target, name)
    assert [zero[offset] for offset in offsets] == [b"copied-%d" % n for n in range(many)]
    assert [one[offset] for offset in sent] == [b"left-%d" % n for n in range(many)]
    values = [value for value in (*zero.values(), *one.values()) if value[:4] in (b"copi", b"left", b"afte", b"last")]
    assert len(values) == len(set(values)) == 2 * many + 2


def test_records_of_equal_content_are_told_apart_by_their_number(
    kafka_cluster: KafkaCluster, source: str, target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-equal"
    copied(source, target, name)
    with FaultProxy(kafka_cluster) as proxy:
        producer = follows(proxy.bootstrap_servers, name)
        for _ in range(3):
            producer.send(name, b"tick", partition=0, timestamp_ms=1_700_000_000_000).get(20)
        mirror(source, target, name, name)
        proxy.faults = [Drop(api="Produce")]
        before = ends(source, name, PARTITIONS)
        fourth = producer.send(name, b"tick", partition=0, timestamp_ms=1_700_000_000_000)
        written(source, name, [before[0], -1])
        failed_over(target, name)
        assert fourth.get(20).offset > before[0], "what was acknowledged before is not taken for it"
    assert list(records_of(target, name)[0].values()).count(b"tick") == 4


def test_a_copy_is_found_though_the_log_begins_after_the_producers_last_record(
    kafka_cluster: KafkaCluster, source: str, target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-retention"
    copied(source, target, name)
    with FaultProxy(kafka_cluster) as proxy:
        producer = follows(proxy.bootstrap_servers, name)
        producer.send(name, b"first", partition=0).get(20)
        append_records(source, name, 20, first=2)
        mirror(source, target, name, name)
        for servers in (source, target):
            delete_records(servers, name, 10)
        proxy.faults = [Drop(api="Produce")]
        before = ends(source, name, PARTITIONS)
        sent = producer.send(name, b"late", partition=0)
        written(source, name, [before[0], -1])
        mirror(source, target, name, name)
        failed_over(target, name)
        assert sent.get(20).offset == before[0] == 22
    assert list(records_of(target, name)[0].values()).count(b"late") == 1


def test_without_an_acknowledgement_an_equal_record_of_another_time_is_not_taken_for_ours(
    kafka_cluster: KafkaCluster, source: str, target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-others"
    copied(source, target, name)
    other = kafka.KafkaProducer(bootstrap_servers=source)
    other.send(name, b"tick", partition=0).get(20)
    other.close()
    mirror(source, target, name, name)
    with FaultProxy(kafka_cluster, [Drop(api="Produce")]) as proxy:
        before = ends(source, name, PARTITIONS)
        sent = follows(proxy.bootstrap_servers, name).send(name, b"tick", partition=0)
        written(source, name, [before[0], -1])
        failed_over(target, name)
        assert sent.get(20).offset > before[0]
    assert list(records_of(target, name)[0].values()).count(b"tick") == 2


def test_a_producer_that_waits_for_its_id_moves(
    kafka_cluster: KafkaCluster, source: str, target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-id"
    copied(source, target, name)
    with FaultProxy(kafka_cluster, [Drop(api="InitProducerId")]) as proxy:
        sent = follows(proxy.bootstrap_servers, name).send(name, b"first", partition=0)
        deadline = time.monotonic() + 60
        while not proxy.injected:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        failed_over(target, name)
        sent.get(20)
    assert list(records_of(target, name)[0].values()).count(b"first") == 1


def test_a_producer_that_is_closed_in_the_outage_follows_while_it_waits(
    kafka_cluster: KafkaCluster, source: str, target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-closed"
    copied(source, target, name)
    with FaultProxy(kafka_cluster, [Drop(api="Produce")]) as proxy:
        producer = follows(proxy.bootstrap_servers, name)
        sent = [producer.send(name, b"%d" % n, partition=n % PARTITIONS) for n in range(4)]
        closing = threading.Thread(target=producer.close)
        closing.start()
        time.sleep(1)
        failed_over(target, name)
        closing.join(20)
        assert not closing.is_alive() and [one.get(0).offset > 0 for one in sent] == [True] * 4
    values = [value for one in records_of(target, name) for value in one.values() if len(value) == 1]
    assert sorted(values) == [b"0", b"1", b"2", b"3"]


class Writer:
    """Writes numbered records in a thread, and keeps what was acknowledged."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self.sent: list[Any] = []
        self._producer, self._topic, self._is_over = producer, topic, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            number = len(self.sent)
            self.sent.append(self._producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS))
            time.sleep(0.001)

    def end(self) -> list[TopicPartition]:
        """The place of each record, by its number."""
        self._is_over.set()
        self._thread.join()
        self._producer.flush(timeout=30)
        return [one.get(1) for one in self.sent]


def test_a_producer_goes_on_under_load_when_its_cluster_is_killed(
    target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-killed"
    with KafkaCluster(heap="320m") as lost:
        source = lost.bootstrap_servers
        copied(source, target, name)
        events: list[Event] = []
        producer = follows(source, name, recovery_listener=events.append)
        writer = Writer(producer, name)
        time.sleep(0.5)
        mirror(source, target, name, name)
        lost.kill(1)
        time.sleep(0.5)
        failed_over(target, name)
        fenced_at = ends(target, name, PARTITIONS)
        deadline = time.monotonic() + 60
        while ends(target, name, PARTITIONS)[0] <= fenced_at[0] + 5:
            assert time.monotonic() < deadline, "nothing is written on the standby"
        places = writer.end()
        assert [event for event in events if isinstance(event, Moved)]
    there = records_of(target, name)
    lost_records = 0
    for number, place in enumerate(places):
        value = there[place.partition].get(place.offset)
        lost_records += value != b"%d" % number  # acknowledged by the lost cluster alone
    for values in there:
        ours = [int(value) for value in values.values() if value.isdigit()]
        assert ours == sorted(set(ours)), "none twice, and in order"
    numbers = {int(value) for values in there for value in values.values() if value.isdigit()}
    assert len(numbers) == len(places) - lost_records
    assert numbers >= set(range(len(places) - 20, len(places)))
    delete_topic(target, name)


def test_a_producer_without_sequences_sends_again_what_may_be_written(
    kafka_cluster: KafkaCluster, source: str, target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-plain"
    name += "-acks1"
    copied(source, target, name)
    with FaultProxy(kafka_cluster) as proxy:
        producer = follows(proxy.bootstrap_servers, name, acks=1, enable_idempotence=False)
        producer.send(name, b"before", partition=0).get(20)
        proxy.faults = [Drop(api="Produce")]
        before = ends(source, name, PARTITIONS)
        sent = producer.send(name, b"again", partition=0)
        written(source, name, [before[0], -1])
        mirror(source, target, name, name)
        promoted(source, target, name)
        assert sent.get(20).offset > before[0]
    assert b"again" in records_of(target, name)[0].values()


def test_a_producer_that_is_made_after_the_promotion_begins_at_the_standby(
    source: str, target: str, follows: Callable[..., KafkaProducer]
) -> None:
    name = "following-producer-late"
    copied(source, target, name)
    promoted(source, target, name)
    at = follows(source, name).send(name, gzip.compress(b"x"), partition=0).get(20)
    assert at.offset == ends(target, name, PARTITIONS)[0] - 1


def test_a_transactional_producer_cannot_follow(source: str, target: str) -> None:
    with pytest.raises(OptionError, match="transactional_id cannot follow a link: leave out standby and link"):
        KafkaProducer(
            bootstrap_servers=source, standby={"bootstrap_servers": target}, link="any", transactional_id="orders"
        )
