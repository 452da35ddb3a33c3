"""What Spark's own Kafka source does not have: chosen columns, groups that show progress."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from spark_integration.progress import offsets_behind_latest
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.records.record_batch import Record, decode_records, encode_batch, iter_batches

TOPIC, FRAMED, SECOND = "beyond", "beyond-framed", "beyond-second"
T0 = 1_700_000_000_000
RECORDS = 60  # of each of 2 partitions
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def servers(kafka_cluster: Any) -> str:
    return str(kafka_cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers)
    yield client
    client.close()


@pytest.fixture(scope="module")
def producer(servers: str) -> Iterator[KafkaProducer]:
    client = KafkaProducer(bootstrap_servers=servers)
    yield client
    client.close()


@pytest.fixture(scope="module")
def topics(admin: KafkaAdminClient, producer: KafkaProducer) -> None:
    admin.create_topics([NewTopic(TOPIC, 2, 1), NewTopic(FRAMED, 1, 1), NewTopic(SECOND, 1, 1)])
    for number in range(RECORDS):
        for partition in (0, 1):
            producer.send(TOPIC, b"v%d" % number, partition=partition, timestamp_ms=T0 + number)
        if number % 20 == 19:
            producer.flush()  # several batches
    prefix = b"\0" + struct.pack(">i", 77)
    producer.send(FRAMED, prefix + b"body", key=prefix + b"k")
    producer.send(FRAMED, b"plain", key=b"k")
    producer.flush()


@pytest.fixture
def load(spark: Any, servers: str, topics: None) -> Callable[..., Any]:
    def load(schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("tolerantkafka").option("kafka.bootstrap.servers", servers)
        reader = reader.options(**{"subscribe": TOPIC, **options})
        return (reader.schema(schema) if schema else reader).load()

    return load


def test_a_schema_chooses_columns_in_any_order(load: Callable[..., Any]) -> None:
    frame = load("offset bigint, value binary")
    assert [field.simpleString() for field in frame.schema] == ["offset:bigint", "value:binary"]
    assert {(row.offset, bytes(row.value)) for row in frame.collect()} == {(n, b"v%d" % n) for n in range(RECORDS)}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("value string", "Column value is binary, not string; cast it after reading"),
        ("value binary, nothing int", "There is no column 'nothing'"),
        ("value binary not null", "Column value may be null: write it without NOT NULL"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(load: Callable[..., Any], schema: str, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        load(schema).collect()


def test_the_leader_epoch_is_a_column_on_request(load: Callable[..., Any]) -> None:
    frame = load(includeLeaderEpoch="true")
    assert frame.columns[-1] == "leaderEpoch"
    assert {row.leaderEpoch for row in frame.collect()} == {0}


def test_the_prefix_of_a_schema_registry_is_split_off_on_request(load: Callable[..., Any]) -> None:
    rows = load(subscribe=FRAMED, schemaRegistryFraming="both").orderBy("offset").collect()
    assert [(bytes(r.key), r.keySchemaId, bytes(r.value), r.valueSchemaId) for r in rows] == [
        (b"k", 77, b"body", 77),
        (b"k", None, b"plain", None),
    ]
    (first, _) = load("valueSchemaId int", subscribe=FRAMED, schemaRegistryFraming="value").collect()
    assert tuple(first) == (77,)


def test_whole_batches_are_rows_on_request(load: Callable[..., Any]) -> None:
    rows = load(payload="batches").collect()
    assert sum(row.recordCount for row in rows) == 2 * RECORDS
    for row in rows:
        ((header, view),) = iter_batches(memoryview(bytes(row.batch)))
        assert (header.base_offset, header.last_offset) == (row.baseOffset, row.lastOffset)
        values = [record.value for record in decode_records(view)]
        assert values == [b"v%d" % n for n in range(row.baseOffset, row.lastOffset + 1)]


def test_a_batch_that_two_tasks_share_is_a_row_of_one(load: Callable[..., Any]) -> None:
    rows = load(payload="batches", maxRecordsPerPartition="7").collect()
    assert sum(row.recordCount for row in rows) == 2 * RECORDS


def test_a_decompression_bomb_is_refused(load: Callable[..., Any], servers: str, admin: KafkaAdminClient) -> None:
    topic, gzip = "beyond-bomb", 1
    admin.create_topics([NewTopic(topic, 1, 1)])
    batch = encode_batch([Record(0, T0, None, bytes(280 << 20))], codec=gzip)
    assert len(batch) < 1_000_000
    with Cluster({"bootstrap_servers": servers}) as cluster:
        partition = TopicPartition(topic, 0)
        node = cluster.run(cluster.leader, partition)
        (appended,) = cluster.run(cluster.produce, node, {partition: memoryview(batch)})
    assert appended.error_code == 0
    with pytest.raises(
        Exception, match=r"RecordBatchError: beyond-bomb-0: gzip data of .* decompresses to more than .*base offset 0"
    ):
        load(subscribe=topic).count()


def test_one_frame_with_several_filters_has_all_rows_of_each(load: Callable[..., Any], spark: Any) -> None:
    """Spark keeps what a Python source planned for the first filter, and reads it for the others too."""
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = load()
        first, second = frame.where("partition = 0"), frame.where("partition = 1")
        assert first.count() == second.count() == RECORDS
        assert frame.where("offset < 10").count() == 20
        assert first.union(second).count() == frame.count() == 2 * RECORDS
        assert first.join(second.select("offset"), "offset").count() == RECORDS
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_stream_shows_its_progress_as_a_group(
    spark: Any, servers: str, admin: KafkaAdminClient, producer: KafkaProducer, topics: None, tmp_path: Path
) -> None:
    group = "beyond-group"
    for wave in (1, 2):
        for number in range(10):
            producer.send(SECOND, b"%d" % number)
        producer.flush()
        reader = spark.readStream.format("tolerantkafka").option("kafka.bootstrap.servers", servers)
        reader = (
            reader.option("subscribe", SECOND).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "6")
        )
        frame = reader.option("commitOffsets", "true").option("kafka.group.id", group).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        lags = [
            offsets_behind_latest(progress.sources[0]).get("maxOffsetsBehindLatest")
            for progress in query.recentProgress
        ]
        assert lags == ["4", "0"]
        committed = admin.list_group_offsets({group: None})[group][TopicPartition(SECOND, 0)].offset
        assert committed == 10 * wave


def test_a_stream_of_whole_batches_goes_on_after_a_restart(
    spark: Any, servers: str, topics: None, tmp_path: Path
) -> None:
    counted: list[int] = []
    for _ in range(2):
        reader = spark.readStream.format("tolerantkafka").option("kafka.bootstrap.servers", servers)
        frame = (
            reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").option("payload", "batches").load()
        )
        writer = frame.writeStream.foreachBatch(lambda batch, _: counted.extend(r.recordCount for r in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    assert sum(counted) == 2 * RECORDS
