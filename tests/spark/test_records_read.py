"""spark.read.format("tolerantkafka") against a real broker: rows are what was produced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.records.record_batch import Record, encode_batch

T0 = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
RECORDS = 1_000
PARTITIONS = 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def sample(count: int = RECORDS) -> list[Record]:
    """Records with null keys, null values, headers, and lengths that vary.

    kafka-python's producer takes no null header value: see encoded().
    """
    return [
        Record(
            i,
            T0 + i,
            None if i % 3 == 0 and i % 7 else b"key%d" % i,
            None if i % 7 == 0 else b"value" * (i % 40),
            (("trace", b"%d" % i), ("empty", b"")) if i % 5 == 0 else (),
        )
        for i in range(count)
    ]


def encoded(count: int = RECORDS) -> list[Record]:
    """As sample, with a null header value too."""
    return [record._replace(headers=(*record.headers, ("none", None))) for record in sample(count)]


def rows(frame: Any) -> list[Record]:
    """The rows as records, by partition and offset."""
    return [
        Record(
            row.offset,
            (row.timestamp.replace(tzinfo=timezone.utc) - EPOCH) // timedelta(milliseconds=1),
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple(
                (header.key, None if header.value is None else bytes(header.value))
                for header in ((row.headers if "headers" in row else None) or ())
            ),
        )
        for row in sorted(frame.collect(), key=lambda row: (row.partition, row.offset))
    ]


@pytest.fixture(scope="module")
def servers(kafka_cluster: Any) -> str:
    return str(kafka_cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers)
    yield client
    client.close()


@pytest.fixture(scope="module")
def topics(servers: str, admin: KafkaAdminClient) -> None:
    """One topic a codec, recompressed by the broker (Java), and one that is empty."""
    admin.create_topics(
        [
            NewTopic(f"read-{codec}", PARTITIONS, 1, topic_configs={"compression.type": kind})
            for codec, kind in zip(CODECS, ("uncompressed", *CODECS[1:]), strict=True)
        ]
        + [NewTopic("read-empty", PARTITIONS, 1)]
    )
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=50)
    for codec in CODECS:
        for record in sample():
            producer.send(
                f"read-{codec}",
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.offset % PARTITIONS,
                timestamp_ms=record.timestamp,
            )
    producer.close()


@pytest.fixture
def load(spark: Any, servers: str, topics: None) -> Callable[..., Any]:
    def load(**options: Any) -> Any:
        reader = spark.read.format("tolerantkafka").option("kafka.bootstrap.servers", servers)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return load


def expected(partition: int) -> list[Record]:
    mine = [record for record in sample() if record.offset % PARTITIONS == partition]
    return [record._replace(offset=offset) for offset, record in enumerate(mine)]


@pytest.mark.parametrize("codec", CODECS)
def test_rows_are_what_was_produced(load: Callable[..., Any], codec: str) -> None:
    frame = load(subscribe=f"read-{codec}", includeHeaders="true")
    assert rows(frame) == [record for p in range(PARTITIONS) for record in expected(p)]


def test_the_columns_are_those_of_sparks_own_source(load: Callable[..., Any]) -> None:
    frame = load(subscribe="read-none")
    assert [field.simpleString() for field in frame.schema] == [
        "key:binary", "value:binary", "topic:string", "partition:int", "offset:bigint",
        "timestamp:timestamp", "timestampType:int",
    ]  # fmt: skip
    row = frame.filter("partition = 1 and offset = 0").first()
    assert (row.topic, row.timestampType) == ("read-none", 0)


def test_offsets_bound_what_is_read(load: Callable[..., Any]) -> None:
    frame = load(
        assign='{"read-lz4":[1]}',
        startingOffsets='{"read-lz4":{"1":7}}',
        endingOffsets='{"read-lz4":{"1":20}}',
        includeHeaders="true",
        minPartitions="4",
    )
    assert rows(frame) == expected(1)[7:20]
    assert frame.rdd.getNumPartitions() == 4


def test_timestamps_bound_what_is_read(load: Callable[..., Any]) -> None:
    frame = load(subscribe="read-none", startingTimestamp=str(T0 + 100), endingTimestamp=str(T0 + 200))
    assert sorted(record.timestamp - T0 for record in rows(frame)) == list(range(100, 200))


def test_a_pattern_reads_every_topic_that_it_matches(load: Callable[..., Any]) -> None:
    assert load(subscribePattern="read-(none|zstd|empty)").count() == 2 * RECORDS


def test_an_empty_topic_has_no_rows(load: Callable[..., Any]) -> None:
    assert rows(load(subscribe="read-empty")) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": "read-nowhere"}, "Topic read-nowhere does not exist"),
        ({"assign": '{"read-none":[0,9]}'}, "topic read-none has no partition 9"),
        ({"subscribe": "read-none", "startingOffsets": '{"read-none":{"0":1}}'}, "missing: read-none-1"),
        ({"subscribe": "read-none", "endingOffsets": '{"read-none":{"0":1,"1":9999}}'}, "the log ends at 500"),
        ({"subscribe": "read-none", "startingTimestamp": str(T0 * 2)}, "has no record at or after"),
        ({"subscribe": "read-none", "startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
    ],
)
def test_what_is_wrong_is_named(load: Callable[..., Any], options: dict[str, str], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        load(**options).collect()


def test_records_that_are_gone_are_a_loss_or_left_out(
    load: Callable[..., Any], servers: str, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic("read-shortened", 1, 1)])
    _append(servers, "read-shortened", encode_batch(sample(50)))
    admin.delete_records({TopicPartition("read-shortened", 0): 20})
    wanted = {"subscribe": "read-shortened", "startingOffsets": '{"read-shortened":{"0":5}}'}
    with pytest.raises(Exception, match=r"DataLossError.*15 offsets are gone"):
        load(**wanted).collect()
    left = rows(load(**wanted, failOnDataLoss="false", includeHeaders="true"))
    assert left == sample(50)[20:]


def test_a_record_that_is_all_headers_is_read(load: Callable[..., Any], servers: str, admin: KafkaAdminClient) -> None:
    """1 MB of them: the most that a producer sends by default."""
    admin.create_topics([NewTopic("read-all-headers", 1, 1)])
    crowd = Record(1, T0, b"key", b"value", (("", None),) * 520_000)
    _append(servers, "read-all-headers", encode_batch([*sample(1), crowd, *sample(1)]))
    frame = load(subscribe="read-all-headers", includeHeaders="true")
    counted = [tuple(row) for row in frame.selectExpr("offset", "size(headers)").orderBy("offset").collect()]
    assert counted == [(0, 2), (1, 520_000), (2, 2)]


@pytest.mark.parametrize("codec", range(5))
def test_brokers_accept_what_encode_batch_writes(
    load: Callable[..., Any], servers: str, admin: KafkaAdminClient, codec: int
) -> None:
    """The broker decompresses a produced batch with Java's codecs to check its records."""
    topic = f"read-encoded-{codec}"
    admin.create_topics([NewTopic(topic, 1, 1)])
    _append(servers, topic, encode_batch(encoded(), codec=codec))
    assert rows(load(subscribe=topic, includeHeaders="true")) == encoded()


def _append(servers: str, topic: str, batch: bytes) -> None:
    with Cluster({"bootstrap_servers": servers}) as cluster:
        partition = TopicPartition(topic, 0)
        cluster.run(cluster.connect)
        node = cluster.run(cluster.leader, partition)
        (answer,) = cluster.run(cluster.produce, node, {partition: memoryview(batch)})
        assert answer.error_code == 0, answer
