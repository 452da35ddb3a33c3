"""Incident 3, "the groups that could not start" (GROUP_COORDINATOR_NOT_AVAILABLE), replayed.

Each partition of __consumer_offsets has one replica, and a broker is killed.  A group
that belongs to one of its partitions must be told so within seconds, with what an
operator needs; the other groups must not notice; and when the broker is back the same
consumer goes on.  By default it is told in the log and by an event, and polls on like
stock kafka-python, which polls beside it and is silent; who asks for it gets an error.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import NewTopic
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer, RecoveryPolicy
from tolerant_client.errors import CoordinatorUnavailableError
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, CoordinatorPartition
from tolerant_client.stock.coordinator_watch import describe_coordinator
from tolerant_client.testing import KafkaCluster
from tolerant_client.tracker.events import CoordinatorUnavailable, Event, Listener

TOPIC = "incident-3-coordinator"
TRANSACTIONAL = "incident-3-transactions"
RECORDS = 300
VICTIM = 3
PATIENCE = 90.0  # seconds; for a slow machine, never the time a test should take

Consumers = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    cluster = start_cluster(
        nodes=3,
        broker_config={
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "50",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "50",
        },
    )
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic(TOPIC, 3, 3), NewTopic(TRANSACTIONAL, 1, 3)])
    admin.close()
    produce(cluster)
    return cluster


@pytest.fixture
def ours(cluster: KafkaCluster) -> Iterator[Consumers]:
    """Our consumers, closed after the test; `limit_ms` as RecoveryPolicy.coordinator_timeout_ms."""
    consumers = []

    def make(
        group: str, *topics: str, limit_ms: float = 60_000, is_raising: bool = False, listener: Listener | None = None
    ) -> Any:
        policy = RecoveryPolicy(coordinator_timeout_ms=limit_ms, raise_coordinator_unavailable=is_raising)
        consumers.append(
            KafkaConsumer(*topics, recovery_policy=policy, recovery_listener=listener, **options(cluster, group))
        )
        return consumers[-1]

    yield make
    for consumer in consumers:
        consumer.close(autocommit=False)


def options(cluster: KafkaCluster, group: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }


def produce(cluster: KafkaCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    for n in range(RECORDS):
        producer.send(TOPIC, b"%d" % n, partition=n % 3)
    producer.close()


def read(consumer: Any, count: int) -> int:
    """Polls until so many records came or the patience ends."""
    found, deadline = 0, time.monotonic() + PATIENCE
    while found < count and time.monotonic() < deadline:
        found += sum(map(len, consumer.poll(timeout_ms=300).values()))
    return found


def described(consumer: Any, name: str, topic: str = OFFSETS_TOPIC) -> CoordinatorPartition:
    manager = consumer._client._manager
    found = manager.run(describe_coordinator, manager, name, topic)
    assert found is not None
    return found


def led_by(
    consumer: Any, is_wanted: Callable[[int], bool], prefix: str, topic: str = OFFSETS_TOPIC
) -> tuple[str, CoordinatorPartition]:
    """A group or transactional id that belongs to a partition whose leader is wanted."""
    for n in itertools.count():
        found = described(consumer, f"{prefix}-{n}", topic)
        if is_wanted(found.leader):
            return found.name, found
    raise AssertionError("never")


def kill_victim(cluster: KafkaCluster, consumer: Any, name: str, topic: str = OFFSETS_TOPIC) -> None:
    """Until the controller has noticed and the partition of `name` has no leader."""
    cluster.kill(VICTIM)
    deadline = time.monotonic() + PATIENCE
    while described(consumer, name, topic).leader == VICTIM and time.monotonic() < deadline:
        time.sleep(0.2)


@pytest.mark.long
def test_group_on_a_new_cluster_waits_for_the_offsets_topic_without_an_error(ours: Consumers) -> None:
    # The first group of this cluster: FindCoordinator answers 15 until __consumer_offsets is there.
    consumer = ours("the-first", TOPIC, limit_ms=60_000)
    assert read(consumer, RECORDS) == RECORDS


def test_brokers_name_the_leader_of_the_partition_that_we_compute(ours: Consumers) -> None:
    consumer = ours("asks")
    manager = consumer._client._manager

    def found(group: str) -> Any:
        request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
        return manager.run(manager.send, request).coordinators[0]

    deadline = time.monotonic() + PATIENCE
    for n in range(40):
        group = f"group-{n}-\u00e9\U0001f600" * (1 + n % 3)
        while (
            named := found(group)
        ).error_code == Errors.CoordinatorNotAvailableError.errno:  # the topic is being made
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert named.node_id == described(consumer, group).leader


@pytest.mark.long
@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_group_without_a_coordinator_is_told_which_partition_and_others_go_on(
    cluster: KafkaCluster,
    ours: Consumers,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    asks = ours("asks")
    group, before = led_by(asks, lambda leader: leader == VICTIM, "hit")
    spared, _ = led_by(asks, lambda leader: leader != VICTIM, "spared")
    told: list[CoordinatorUnavailable] = []

    def hear(event: Event) -> None:
        if isinstance(event, CoordinatorUnavailable):
            told.append(event)

    consumer = ours(group, TOPIC, listener=hear)
    raising = ours(group, TOPIC, limit_ms=3_000, is_raising=True)

    kill_victim(cluster, asks, group)
    began, polls = time.monotonic(), 0
    while not told and time.monotonic() - began < PATIENCE:
        assert consumer.poll(timeout_ms=300) == {}
        polls += 1
    (event, *_), waited = told, time.monotonic() - began
    record_property("told", event.message)
    print(f"\nincident 3, after {waited:.1f} s: {event.message}")

    assert polls >= 3
    assert (event.name, event.topic, event.partition) == (group, OFFSETS_TOPIC, before.partition)
    assert (event.leader, event.replicas) == (-1, (VICTIM,))
    assert f"{OFFSETS_TOPIC}-{before.partition} (of 50 partitions)" in event.message
    assert f"Start broker {VICTIM}" in event.message
    assert any(record.getMessage() == event.message for record in caplog.records)

    partition = TopicPartition(TOPIC, 0)
    with pytest.raises(Errors.KafkaTimeoutError, match=f"Start broker {VICTIM}") as caught:
        consumer.commit({partition: OffsetAndMetadata(1, "", -1)}, timeout_ms=6_000)
    assert isinstance(caught.value, CoordinatorUnavailableError)
    with pytest.raises(CoordinatorUnavailableError):
        consumer.committed(partition, timeout_ms=6_000)
    with pytest.raises(CoordinatorUnavailableError, match=f"Start broker {VICTIM}"):
        read(raising, RECORDS)
    raising.close(autocommit=False)

    assert read(ours(spared, TOPIC), RECORDS) == RECORDS

    stock = kafka.KafkaConsumer(TOPIC, **options(cluster, group))
    try:
        silent_until = time.monotonic() + waited
        while time.monotonic() < silent_until:
            assert stock.poll(timeout_ms=300) == {}
    finally:
        stock.close(autocommit=False)

    cluster.restart(VICTIM)
    assert read(consumer, RECORDS) >= RECORDS
    consumer.commit({partition: OffsetAndMetadata(7, "", -1)})
    assert consumer.committed(partition) == 7


def test_restart_of_the_coordinator_is_ridden_out_without_an_error(cluster: KafkaCluster, ours: Consumers) -> None:
    asks = ours("asks")
    group, _ = led_by(asks, lambda leader: leader == VICTIM, "patient")
    consumer = ours(group, TOPIC, limit_ms=60_000)
    assert read(consumer, RECORDS) == RECORDS
    lookups = consumer.recovery_counters.of("completed", "FindCoordinator")
    cluster.stop(VICTIM)
    for _ in range(10):
        consumer.poll(timeout_ms=200)
    cluster.restart(VICTIM)
    produce(cluster)
    assert read(consumer, RECORDS) >= RECORDS
    consumer.commit()
    assert consumer.recovery_counters.of("completed", "FindCoordinator") > lookups


@pytest.mark.long
def test_transactional_id_without_a_coordinator_is_told_and_the_same_call_goes_on_later(
    cluster: KafkaCluster, ours: Consumers
) -> None:
    producers: list[Any] = []

    def producer(transactional_id: str, limit_ms: float = 3_000) -> Any:
        producers.append(
            KafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers,
                transactional_id=transactional_id,
                recovery_policy=RecoveryPolicy(coordinator_timeout_ms=limit_ms, raise_coordinator_unavailable=True),
            )
        )
        return producers[-1]

    def write(to: Any) -> None:
        to.begin_transaction()
        to.send(TRANSACTIONAL, b"record", partition=0).get(timeout=PATIENCE)

    try:
        producer("the-first", limit_ms=60_000).init_transactions()  # makes __transaction_state
        asks = ours("asks")
        hit, before = led_by(asks, lambda leader: leader == VICTIM, "hit", TRANSACTIONS_TOPIC)
        late, _ = led_by(asks, lambda leader: leader == VICTIM, "late", TRANSACTIONS_TOPIC)
        spared, _ = led_by(asks, lambda leader: leader != VICTIM, "spared", TRANSACTIONS_TOPIC)
        in_transaction = producer(hit)
        in_transaction.init_transactions()
        write(in_transaction)
        kill_victim(cluster, asks, hit, TRANSACTIONS_TOPIC)

        with pytest.raises(CoordinatorUnavailableError) as caught:
            in_transaction.commit_transaction()
        error = caught.value
        assert (error.group, error.topic, error.partition) == (hit, TRANSACTIONS_TOPIC, before.partition)
        assert (error.leader, error.replicas) == (-1, (VICTIM,))
        assert f"Start broker {VICTIM}" in str(error)

        newcomer = producer(late)
        with pytest.raises(CoordinatorUnavailableError, match=TRANSACTIONS_TOPIC):
            newcomer.init_transactions()

        other = producer(spared)
        other.init_transactions()
        write(other)
        other.commit_transaction()

        cluster.restart(VICTIM)
        for finish in (in_transaction.commit_transaction, newcomer.init_transactions):
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    finish()
                    break
                except CoordinatorUnavailableError:
                    assert time.monotonic() < deadline
        write(newcomer)
        newcomer.commit_transaction()
    finally:
        for one in producers:
            one.close(timeout=5)
    reader = KafkaConsumer(
        TRANSACTIONAL,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=None,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    assert read(reader, 3) == 3
    reader.close()
