"""The batch producer on a real broker: what it sends, splits, refuses and waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from support.encoding import encode_batches
from support.mirror_link import create_topic, delete_topic
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.producer.batch_producer import BatchProducer, Refused
from tolerant_client.cluster.producer.sender import ProducerSettings
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import OptionError, RecordRefusedError, RecordTooLargeError, TolerantClientError
from tolerant_client.records.batch_encoding import EncodedBatch
from tolerant_client.testing import KafkaCluster
from tolerant_client.tracker.events import Completed

NOW = 1_700_000_000_000


@pytest.fixture
def servers(kafka_cluster: KafkaCluster) -> str:
    return kafka_cluster.bootstrap_servers


@pytest.fixture
def topic(request: pytest.FixtureRequest, servers: str) -> str:
    """A topic of two partitions named after the test, once its leaders serve it: before that they drop what comes with acks=0."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    create_topic(servers, name, 2)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        cluster.run(cluster.list_offsets, dict.fromkeys((TopicPartition(name, n) for n in range(2)), LATEST))
    return name


@pytest.fixture
def producer_of(servers: str) -> Iterator[Callable[..., BatchProducer]]:
    """Makes a started producer; all are closed after the test."""
    made: list[BatchProducer] = []

    def make(config: dict[str, Any] | None = None, **settings: Any) -> BatchProducer:
        cluster = Cluster({"bootstrap_servers": servers, **(config or {})})
        made.append(BatchProducer(cluster, ProducerSettings(**settings)))
        made[-1].cluster.run(made[-1].start)
        return made[-1]

    yield make
    for producer in made:
        producer.close()


def encoded(values: list[bytes | None], **options: Any) -> list[EncodedBatch]:
    return list(encode_batches(None, pa.array(values, pa.binary()), None, NOW, **options))


def enqueue(
    producer: BatchProducer, topic: str, values: list[bytes | None], partition: int = 0, **options: Any
) -> None:
    producer.cluster.run(producer.partition_count, topic)
    for batch in encoded(values, **options):
        rows = range(batch.first_row, batch.first_row + batch.record_count)
        producer.enqueue(TopicPartition(topic, partition), batch, rows)


def flush(producer: BatchProducer) -> None:
    producer.cluster.run(producer.flush)


def read(servers: str, topic: str, partition: int = 0) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None)
    try:
        wanted = TopicPartition(topic, partition)
        consumer.assign([wanted])
        (end,) = consumer.end_offsets([wanted]).values()
        found: list[bytes] = []
        while consumer.position(wanted) < end:
            found += [r.value for records in consumer.poll(timeout_ms=500).values() for r in records]
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize(("acks", "is_idempotent"), [(-1, True), (-1, False), (1, False), (0, False)])
def test_records_arrive_in_order_whatever_is_acknowledged(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str, acks: int, is_idempotent: bool
) -> None:
    producer = producer_of(acks=acks, is_idempotent=is_idempotent)
    values: list[bytes | None] = [b"%d" % n for n in range(5_000)]
    enqueue(producer, topic, values, max_batch_bytes=2_000)
    flush(producer)
    assert producer.bytes_in_flight == 0
    assert read(servers, topic) == values


def test_a_request_carries_a_batch_of_every_partition(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    events: list[Any] = []
    producer = producer_of({"recovery_listener": events.append})
    producer.cluster.run(producer.partition_count, topic)

    async def both() -> None:  # within one call: the sender does not run between
        (batch,) = encoded([b"x"] * 10)
        for partition in (0, 1):
            producer.enqueue(TopicPartition(topic, partition), batch, range(10))
        await producer.flush()

    producer.cluster.run(both)
    assert sum(type(event) is Completed and event.api == "Produce" for event in events) == 1


def test_a_batch_that_is_too_large_for_its_topic_is_split(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    create_topic(servers, topic + "-small", 1, {"max.message.bytes": "5000"})
    producer = producer_of()
    values: list[bytes | None] = [b"%04d" % n + b"x" * 300 for n in range(200)]
    enqueue(producer, topic + "-small", values)
    enqueue(producer, topic + "-small", values)
    flush(producer)
    assert read(servers, topic + "-small") == values * 2
    limit = producer.largest_batch(topic + "-small")
    assert limit is not None and limit <= 5_000 and producer.largest_batch(topic) is None


def test_a_record_that_is_too_large_is_named_or_handed_over(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    create_topic(servers, topic + "-small", 1, {"max.message.bytes": "5000"})
    values: list[bytes | None] = [b"a", b"x" * 10_000, b"b", b"c"]
    producer = producer_of()
    enqueue(producer, topic + "-small", values)
    with pytest.raises(
        RecordTooLargeError, match=r"small-0: the record in row 1 of 100\d\d bytes is larger than the topic's"
    ):
        flush(producer)
    with pytest.raises(RecordTooLargeError):
        producer.pump()
    refused: list[Refused] = []
    producer = producer_of()
    producer.on_refused = refused.append
    enqueue(producer, topic + "-small", values)
    flush(producer)
    assert [(r.row, r.record.value) for r in refused] == [(1, b"x" * 10_000)]
    assert sorted(set(read(servers, topic + "-small"))) == [b"a", b"b", b"c"]
    assert read(servers, topic + "-small")[-3:] == [b"a", b"b", b"c"]


def test_a_record_that_its_topic_does_not_take_is_found_among_others(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    """A compacted topic takes no record without a key."""
    name = topic + "-compacted"
    create_topic(servers, name, 1, {"cleanup.policy": "compact"})
    refused: list[Refused] = []
    producer = producer_of()
    producer.on_refused = refused.append
    producer.cluster.run(producer.partition_count, name)
    keys = pa.array([b"a", None, b"b", b"c", None], pa.binary())
    for batch in encode_batches(keys, pa.array([b"v"] * 5, pa.binary()), None, NOW):
        producer.enqueue(TopicPartition(name, 0), batch, range(5))
    flush(producer)
    assert sorted(r.row for r in refused) == [1, 4]
    assert all("InvalidRecordError" in str(r.error) for r in refused)
    assert len(read(servers, name)) == 3


def test_hundreds_of_refused_records_are_handed_over_one_by_one(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    """Each of them is progress, however long all take: no batch behind them runs out of time."""
    name = topic + "-compacted"
    create_topic(servers, name, 1, {"cleanup.policy": "compact"})
    refused: list[Refused] = []
    producer = producer_of(delivery_timeout_ms=2_000, request_timeout_ms=2_000)
    producer.on_refused = refused.append
    enqueue(producer, name, [b"%d" % n for n in range(400)])
    flush(producer)
    assert sorted(r.row for r in refused) == list(range(400))
    assert read(servers, name) == []


def test_a_record_that_brokers_would_close_the_connection_for_is_not_sent(
    producer_of: Callable[..., BatchProducer], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tolerant_client.cluster.producer.batch_producer._MAX_SENT_BYTES", 5_000)
    refused: list[Refused] = []
    producer = producer_of()
    producer.on_refused = refused.append
    enqueue(producer, topic, [b"x" * 6_000])
    (found,) = refused
    assert isinstance(found.error, RecordTooLargeError) and "socket.request.max.bytes" in str(found.error)
    assert producer.bytes_in_flight == 0


def test_a_topic_that_is_created_again_between_two_tasks_is_written_on(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    name = topic + "-again"
    producer = producer_of()
    for count in (100, 50):
        create_topic(servers, name, 1)
        producer.cluster.run(producer.start)
        enqueue(producer, name, [b"x"] * count)
        flush(producer)
        assert len(read(servers, name)) == count
        delete_topic(servers, name)


def test_a_topic_that_is_created_again_within_a_task_has_lost_what_was_acknowledged(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    """The log itself says so: of what it was given before it has nothing."""
    name = topic + "-again"
    producer = producer_of()
    create_topic(servers, name, 1)
    enqueue(producer, name, [b"x"] * 100)
    flush(producer)
    delete_topic(servers, name)
    create_topic(servers, name, 1)
    enqueue(producer, name, [b"y"] * 50)
    with pytest.raises(TolerantClientError, match=f"{name}-0 lost records that had been acknowledged"):
        flush(producer)


def test_what_is_enqueued_is_not_sent_after_a_stop(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    producer = producer_of()
    enqueue(producer, topic, [b"x"] * 10)
    producer.stop(RuntimeError("upstream failed"))
    with pytest.raises(RuntimeError, match="upstream failed"):
        flush(producer)
    assert read(servers, topic) == []


def test_memory_is_bounded(producer_of: Callable[..., BatchProducer], servers: str, topic: str) -> None:
    producer = producer_of(max_bytes_in_flight=50_000)
    most = 0
    for _ in range(200):
        enqueue(producer, topic, [b"x" * 1_000] * 10)
        most = max(most, producer.bytes_in_flight)
        producer.cluster.run(producer.room)
        assert producer.bytes_in_flight < 50_000
    flush(producer)
    assert most < 70_000
    assert len(read(servers, topic)) == 2_000


def test_a_producer_goes_on_with_its_sequences_from_task_to_task(
    producer_of: Callable[..., BatchProducer], servers: str, topic: str
) -> None:
    producer = producer_of()
    identity = producer._sender.producer_id, producer._sender.producer_epoch
    for number in range(3):
        producer.cluster.run(producer.start)
        enqueue(producer, topic, [b"%d" % number])
        flush(producer)
    assert (producer._sender.producer_id, producer._sender.producer_epoch) == identity
    assert read(servers, topic) == [b"0", b"1", b"2"]


def test_a_topic_that_does_not_exist_is_named(producer_of: Callable[..., BatchProducer]) -> None:
    producer = producer_of(max_block_ms=300)
    with pytest.raises(RecordRefusedError, match="Topic nowhere does not exist"):
        producer.cluster.run(producer.partition_count, "nowhere")
    with pytest.raises(RecordRefusedError, match="'no/name' is not a valid topic name"):
        producer.cluster.run(producer.partition_count, "no/name")
    with pytest.raises(RecordRefusedError, match="Topic x{249} does not exist"):
        producer.cluster.run(producer.partition_count, "x" * 249)
    for length in (250, 40_000):
        with pytest.raises(
            RecordRefusedError, match=rf"'x{{40}}'\.\.\. \({length} characters\) is not a valid topic name"
        ) as told:
            producer.cluster.run(producer.partition_count, "x" * length)
        assert len(str(told.value)) < 200


def test_a_transaction_longer_than_the_brokers_allow_is_an_option_that_is_wrong(
    producer_of: Callable[..., BatchProducer],
) -> None:
    producer = producer_of()
    transaction = ProducerTransaction(producer.cluster, "too-long", 10**9)
    with pytest.raises(OptionError, match="more than the brokers' transaction.max.timeout.ms"):
        producer.cluster.run(transaction.begin)


@pytest.fixture(scope="module")
def creating(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    return start_cluster(heap="256m", broker_config={"auto.create.topics.enable": "true", "num.partitions": "3"})


def test_brokers_that_create_topics_do_so_as_for_javas_producer(creating: KafkaCluster) -> None:
    with BatchProducer(Cluster({"bootstrap_servers": creating.bootstrap_servers}), ProducerSettings()) as producer:
        producer.cluster.run(producer.start)
        assert producer.cluster.run(producer.partition_count, "made-by-the-broker") == 3
        enqueue(producer, "made-by-the-broker", [b"x"], 2)
        flush(producer)
    assert read(creating.bootstrap_servers, "made-by-the-broker", 2) == [b"x"]
