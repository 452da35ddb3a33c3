"""The Python examples of Spark's "Structured Streaming + Kafka Integration Guide", with the one word changed.

https://spark.apache.org/docs/latest/structured-streaming-kafka-integration.html: servers and topics are the test's, and
where an example names offsets they are of the test's records; what else an example says is in each function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

FORMAT = "tolerantkafka"  # the word
TEXTS = ("CAST(key AS STRING)", "CAST(value AS STRING)")
OLD = [("k1", "old 1"), ("k2", "old 2"), ("k3", "old 3")]
NEW = [("k1", "new 1"), (None, "new 2")]

Example = Callable[[Any], Any]


@pytest.fixture(scope="module")
def servers(kafka_cluster: Any) -> str:
    return str(kafka_cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def producer(servers: str) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=0)
    yield producer
    producer.close()


@pytest.fixture(scope="module", autouse=True)
def topics(servers: str, producer: KafkaProducer) -> None:
    """guide-topic1 of two partitions with records in both, guide-topic2 of one, and two to write to."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    wanted = {"guide-topic1": 2, "guide-topic2": 1, "guide-out1": 2, "guide-out2": 2}
    admin.create_topics([NewTopic(name, count, 1) for name, count in wanted.items()])
    admin.close()
    for number, (key, value) in enumerate(OLD):
        send(producer, "guide-topic1", key, value, number % 2)
    send(producer, "guide-topic2", "k4", "old 4", 0)


def send(producer: KafkaProducer, topic: str, key: str | None, value: str, partition: int = 0) -> None:
    data = value.encode()
    sent = producer.send(topic, data, key and key.encode(), headers=[("trace", data)], partition=partition)
    sent.get(30)


@pytest.fixture
def reader(spark: Any, servers: str) -> Any:
    return spark.read.format(FORMAT).option("kafka.bootstrap.servers", servers)


def subscribe_to_one_topic(reader: Any) -> Any:
    return reader.option("subscribe", "guide-topic1").load().selectExpr(*TEXTS)


def subscribe_to_one_topic_with_headers(reader: Any) -> Any:
    frame = reader.option("subscribe", "guide-topic1").option("includeHeaders", "true").load()
    return frame.selectExpr(*TEXTS, "headers")


def subscribe_to_several_topics(reader: Any) -> Any:
    return reader.option("subscribe", "guide-topic1,guide-topic2").load().selectExpr(*TEXTS)


def subscribe_to_a_pattern(reader: Any) -> Any:
    return reader.option("subscribePattern", "guide-topic.*").load().selectExpr(*TEXTS)


def by_value(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=lambda row: str(row[1]))


@pytest.mark.parametrize(
    "example",
    [subscribe_to_one_topic, subscribe_to_one_topic_with_headers, subscribe_to_several_topics, subscribe_to_a_pattern],
    ids=lambda example: example.__name__,
)
def test_a_streaming_read(spark: Any, servers: str, producer: KafkaProducer, tmp_path: Path, example: Example) -> None:
    frame = example(spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", servers))
    name = example.__name__
    query = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()  # a new query begins at the end
        for key, value in NEW:
            send(producer, "guide-topic1", key, value)
        query.processAllAvailable()
        rows = by_value(spark.table(name).collect())
    finally:
        query.stop()
    assert [row[:2] for row in rows] == NEW
    if len(rows[0]) == 3:
        assert [[(header.key, bytes(header.value)) for header in row[2]] for row in rows] == [
            [("trace", value.encode())] for _, value in NEW
        ]


def test_a_batch_read_of_one_topic_from_earliest_to_latest(reader: Any) -> None:
    rows = by_value(subscribe_to_one_topic(reader).collect())
    assert [row for row in rows if row[1].startswith("old")] == OLD


def test_a_batch_read_of_several_topics_between_offsets(reader: Any) -> None:
    frame = (
        reader.option("subscribe", "guide-topic1,guide-topic2")
        .option("startingOffsets", '{"guide-topic1":{"0":1,"1":-2},"guide-topic2":{"0":-2}}')
        .option("endingOffsets", '{"guide-topic1":{"0":2,"1":-1},"guide-topic2":{"0":-1}}')
        .load()
    )
    assert by_value(frame.selectExpr(*TEXTS).collect()) == [("k2", "old 2"), ("k3", "old 3"), ("k4", "old 4")]


def test_a_batch_read_of_a_pattern(reader: Any) -> None:
    frame = reader.option("subscribePattern", "guide-topic.*").option("startingOffsets", "earliest")
    rows = by_value(frame.option("endingOffsets", "latest").load().selectExpr(*TEXTS).collect())
    assert [row for row in rows if row[1].startswith("old")] == [*OLD, ("k4", "old 4")]


def written(reader: Any, topic: str, prefix: str) -> list[tuple[Any, ...]]:
    rows = reader.option("subscribe", topic).load().selectExpr(*TEXTS).where(f"value like '{prefix}%'").collect()
    return by_value(rows)


def stream(spark: Any, *columns: str) -> Any:
    """A stream of three rows, of Spark's own `rate` source."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).option("numPartitions", 1).load()
    return frame.where("value < 3").selectExpr(*columns)


def finish(writer: Any, folder: Path) -> None:
    query = writer.option("checkpointLocation", str(folder)).start()
    try:
        for _ in range(600):
            if any(progress["numInputRows"] for progress in query.recentProgress):
                return
            assert not query.awaitTermination(0.2)
        raise AssertionError("nothing was processed in 120 s")
    finally:
        query.stop()


def test_a_streaming_write_to_the_topic_of_an_option(spark: Any, servers: str, reader: Any, tmp_path: Path) -> None:
    df = stream(spark, "concat('k', value) AS key", "concat('s-option ', value) AS value")
    writer = df.selectExpr(*TEXTS).writeStream.format(FORMAT).option("kafka.bootstrap.servers", servers)
    finish(writer.option("topic", "guide-out1"), tmp_path)
    assert written(reader, "guide-out1", "s-option") == [(f"k{i}", f"s-option {i}") for i in range(3)]


def test_a_streaming_write_to_the_topics_of_a_column(spark: Any, servers: str, reader: Any, tmp_path: Path) -> None:
    df = stream(spark, "'guide-out2' AS topic", "concat('k', value) AS key", "concat('s-column ', value) AS value")
    writer = df.selectExpr("topic", *TEXTS).writeStream.format(FORMAT)
    finish(writer.option("kafka.bootstrap.servers", servers), tmp_path)
    assert written(reader, "guide-out2", "s-column") == [(f"k{i}", f"s-column {i}") for i in range(3)]


def batch(spark: Any, prefix: str, topic: str | None = None) -> Any:
    topics = () if topic is None else (f"'{topic}' AS topic",)
    return spark.range(3).selectExpr(*topics, "concat('k', id) AS key", f"concat('{prefix} ', id) AS value")


def test_a_batch_write_to_the_topic_of_an_option(spark: Any, servers: str, reader: Any) -> None:
    writer = batch(spark, "b-option").selectExpr(*TEXTS).write.format(FORMAT).option("kafka.bootstrap.servers", servers)
    writer.option("topic", "guide-out1").mode("append").save()
    assert written(reader, "guide-out1", "b-option") == [(f"k{i}", f"b-option {i}") for i in range(3)]


def test_a_batch_write_to_the_topics_of_a_column(spark: Any, servers: str, reader: Any) -> None:
    df = batch(spark, "b-column", "guide-out2").selectExpr("topic", *TEXTS)
    df.write.format(FORMAT).option("kafka.bootstrap.servers", servers).mode("append").save()
    assert written(reader, "guide-out2", "b-column") == [(f"k{i}", f"b-column {i}") for i in range(3)]


def test_a_batch_write_needs_one_word_more_than_the_guide_has(spark: Any, servers: str) -> None:
    """Without a mode Spark itself refuses every Python sink, and says what to write."""
    writer = batch(spark, "no mode").write.format(FORMAT).option("kafka.bootstrap.servers", servers)
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode. Please use .*"Append"'):
        writer.option("topic", "guide-out1").save()
