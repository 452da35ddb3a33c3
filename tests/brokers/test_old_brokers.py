"""Old brokers and old message formats: rows are what was produced, with the times that Spark's own source gives them.

With TOLERANT_LONG=1 more versions are started, and Spark's own source reads the same topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import TopicPartition

from spark_integration.reading.offsets import OffsetRange
from spark_integration.reading.options import parse_read_options
from spark_integration.reading.reader import read_range
from spark_integration.reading.resolve import resolve_ranges
from support.legacy_sets import message_set
from support.mirror_link import append_batches, both, create_topic
from support.zookeeper_kafka import ZooKeeperKafka
from tolerant_client import KafkaProducer
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.errors import DataLossError, UnsupportedSourceError
from tolerant_client.mirror.engine.planned_link import plan_link
from tolerant_client.records import codecs
from tolerant_client.records.arrow import SCHEMA
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.testing.artifacts import spark_kafka_jars

pytestmark = pytest.mark.broker

T0 = 1_500_000_000_000
NO_TIME = (-1, -1)
CODECS = {"none": codecs.NONE, "gzip": codecs.GZIP, "snappy": codecs.SNAPPY, "lz4": codecs.LZ4}
SIZES = (1, 7, 40, 2)  # of the sets that a topic is made of
COUNT = sum(SIZES)
PRODUCE_VERSIONS = {"0.8.2.2": 0, "0.9.0.1": 1, "0.10.2.2": 2, "2.8.2": 2}

Row = tuple[int, int, int, bytes | None, bytes | None]  # offset, timestamp, its type, key, value


def pair(offset: int) -> tuple[bytes | None, bytes | None]:
    key = None if offset % 5 == 1 else b"k%d" % offset
    return key, None if offset % 7 == 3 else b"value %d " % offset * (offset % 9)


def expected(count: int, has_times: bool, start: int = 0) -> list[Row]:
    return [(i, *((T0 + i, 0) if has_times else NO_TIME), *pair(i)) for i in range(start, start + count)]


def fill(broker: ZooKeeperKafka, topic: str, magic: int, codec: int, start: int = 0) -> None:
    """COUNT messages in sets of several sizes; a topic for v0 has the broker convert them."""
    for size in SIZES:
        given = [pair(i) for i in range(start, start + size)]
        stored = message_set(magic, codec, given, 0, T0 + start)
        assert broker.produce(topic, stored, PRODUCE_VERSIONS[broker.version]) == start
        start += size


def read(
    servers: str, topic: str, start: int, until: int, given: Mapping[str, str] | None = None, **config: Any
) -> list[Row]:
    options = parse_read_options(
        {"kafka.bootstrap.servers": servers, "subscribe": topic, **(given or {})}, is_stream=False
    )
    options = replace(options, kafka={**options.kafka, **config})
    rows: list[Row] = []
    for piece in read_range(options, OffsetRange(topic, 0, start, until), SCHEMA):
        assert set(piece.column("topic").to_pylist()) == {topic}
        micros = piece.column("timestamp").view(pa.int64()).to_pylist()
        columns = (piece.column(name).to_pylist() for name in ("offset", "timestampType", "key", "value"))
        rows += [(o, t // 1000, kind, k, v) for t, o, kind, k, v in zip(micros, *columns, strict=True)]
    return rows


def read_by_kafka_python(servers: str, topic: str, count: int, **config: Any) -> list[Row]:
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None, consumer_timeout_ms=30_000, **config)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        rows: list[Row] = []
        while len(rows) < count:
            r = next(consumer)
            time = NO_TIME if r.timestamp is None else (r.timestamp, r.timestamp_type)
            rows.append((r.offset, *time, r.key, r.value))
        return rows
    finally:
        consumer.close()


def read_by_spark(session: Any, source: str, servers: str, topic: str) -> list[Row]:
    frame = (
        session.read.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .load()
        .selectExpr("offset", "unix_micros(timestamp) as micros", "timestampType", "key", "value")
    )
    return sorted(
        (r.offset, r.micros // 1000, r.timestampType, r.key and bytes(r.key), r.value and bytes(r.value))
        for r in frame.collect()
    )


def wait_for_format(broker: ZooKeeperKafka, topic: str, magic: int) -> None:
    """Produces until the broker keeps what it gets in this format."""
    partition = TopicPartition(topic, 0)
    with Cluster({"bootstrap_servers": broker.bootstrap_servers}) as cluster:
        for _ in range(300):
            offset = broker.produce(topic, message_set(1, codecs.NONE, [(None, b"probe")], 0, T0), 2)
            node = cluster.run(cluster.leader, partition)
            (answer,) = cluster.run(cluster.fetch, node, {partition: offset})
            if answer.records[16] == magic:
                return
            time.sleep(0.1)
    raise AssertionError(f"{topic} does not change to format v{magic}")


def create(broker: ZooKeeperKafka, topics: Mapping[str, Mapping[str, str]]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_topics([NewTopic(name, 1, 1, topic_configs=dict(config)) for name, config in topics.items()])
    finally:
        admin.close()
    for name in topics:
        broker.make_topic(name)  # waits for the leader


@pytest.fixture(scope="module")
def kafka_0_10(start_old_broker: Callable[..., ZooKeeperKafka]) -> ZooKeeperKafka:
    """Kafka 0.10.2 with a topic v0-CODEC and v1-CODEC for each codec, as this broker writes them."""
    broker = start_old_broker("0.10.2.2")
    topics = {
        f"v{magic}-{codec}": {} if magic else {"message.format.version": "0.9.0"}
        for magic in (0, 1)
        for codec in CODECS
    }
    create(broker, topics)
    for topic in topics:
        fill(broker, topic, 1, CODECS[topic[3:]])
    return broker


@pytest.fixture(scope="module")
def kafka_2_8(start_old_broker: Callable[..., ZooKeeperKafka]) -> ZooKeeperKafka:
    """The last but one release line that writes old formats."""
    return start_old_broker("2.8.2")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_rows_of_kafka_0_10_are_those_produced(kafka_0_10: ZooKeeperKafka, magic: int, codec: str) -> None:
    servers, topic = kafka_0_10.bootstrap_servers, f"v{magic}-{codec}"
    rows = expected(COUNT, bool(magic))
    assert read(servers, topic, 0, COUNT) == rows
    # From the middle of a compressed set to the middle of the same one.
    assert read(servers, topic, 11, 23) == rows[11:23]
    if codec in ("none", "gzip"):  # what kafka-python reads without further packages
        assert read_by_kafka_python(servers, topic, COUNT) == rows


def test_rows_that_the_broker_stamped_have_its_time(kafka_0_10: ZooKeeperKafka) -> None:
    create(kafka_0_10, {"stamped": {"message.timestamp.type": "LogAppendTime"}})
    fill(kafka_0_10, "stamped", 1, codecs.GZIP)
    rows = read(kafka_0_10.bootstrap_servers, "stamped", 0, COUNT)
    assert rows == read_by_kafka_python(kafka_0_10.bootstrap_servers, "stamped", COUNT)
    assert {row[2] for row in rows} == {1}
    assert min(row[1] for row in rows) > T0 + 10**11
    assert len({row[1] for row in rows[8:48]}) == 1  # one set, one stamp


def test_everything_is_committed_where_there_are_no_transactions(kafka_0_10: ZooKeeperKafka) -> None:
    servers = kafka_0_10.bootstrap_servers
    committed = {"isolation.level": "read_committed"}
    assert read(servers, "v1-snappy", 0, COUNT, committed) == expected(COUNT, True)
    options = parse_read_options(
        {"kafka.bootstrap.servers": servers, "subscribe": "v1-snappy", **committed}, is_stream=False
    )
    with Cluster(options.kafka) as cluster:
        assert cluster.run(resolve_ranges, cluster, options) == [OffsetRange("v1-snappy", 0, 0, COUNT)]


def test_offsets_are_found_by_time_where_messages_have_one(kafka_0_10: ZooKeeperKafka) -> None:
    with Cluster({"bootstrap_servers": kafka_0_10.bootstrap_servers}) as cluster:
        old, new = TopicPartition("v0-gzip", 0), TopicPartition("v1-gzip", 0)
        assert cluster.run(cluster.list_offsets, {old: EARLIEST, new: LATEST}) == {old: 0, new: COUNT}
        assert cluster.run(cluster.list_offsets, {old: T0 + 20, new: T0 + 20}) == {old: -1, new: 20}


def test_looking_for_a_topic_does_not_create_it(kafka_0_10: ZooKeeperKafka) -> None:
    with Cluster({"bootstrap_servers": kafka_0_10.bootstrap_servers}) as cluster:
        before = cluster.run(cluster.partitions)
        assert "v1-lz4" in before
        assert cluster.run(cluster.partitions, ["v1-lz4", "nobody"]) == {"v1-lz4": [0]}
        assert cluster.run(cluster.partitions) == before


def test_the_mirror_refuses_an_old_target_by_name(source: str, kafka_0_10: ZooKeeperKafka) -> None:
    create_topic(source, "to-an-old-target")
    with both(source, kafka_0_10.bootstrap_servers) as (origin, target):
        with pytest.raises(UnsupportedSourceError, match=r"the target speak Fetch versions 0-3,.*0\.11 or newer"):
            origin.run(plan_link, origin, target, "to-an-old-target")


@pytest.mark.long
def test_spark_reads_old_messages(spark: Any, kafka_0_10: ZooKeeperKafka) -> None:
    from spark_integration.source import TolerantKafkaDataSource

    spark.dataSource.register(TolerantKafkaDataSource)
    for magic in (0, 1):
        rows = read_by_spark(spark, "tolerantkafka", kafka_0_10.bootstrap_servers, f"v{magic}-lz4")
        assert rows == expected(COUNT, bool(magic))


@pytest.mark.long
@pytest.mark.parametrize("topic", [f"v{magic}-{codec}" for magic in (0, 1) for codec in CODECS] + ["stamped"])
def test_spark_s_own_source_reads_the_same_rows(spark: Any, kafka_0_10: ZooKeeperKafka, topic: str) -> None:
    from spark_integration.source import TolerantKafkaDataSource

    spark_kafka_jars()
    spark.dataSource.register(TolerantKafkaDataSource)
    servers = kafka_0_10.bootstrap_servers
    ours, theirs = (read_by_spark(spark, source, servers, topic) for source in ("tolerantkafka", "kafka"))
    assert ours == theirs
    assert len(ours) == COUNT


@pytest.mark.long
@pytest.mark.parametrize(("version", "config"), [("0.9.0.1", (0, 9)), ("0.8.2.2", (0, 8, 2))])
def test_brokers_that_do_not_tell_their_versions_are_read_if_the_user_does(
    start_old_broker: Callable[..., ZooKeeperKafka], version: str, config: tuple[int, ...]
) -> None:
    broker = start_old_broker(version)
    servers = broker.bootstrap_servers
    for codec, number in CODECS.items():
        broker.make_topic(f"v0-{codec}")
        fill(broker, f"v0-{codec}", 0, number)
        rows = expected(COUNT, False)
        assert read(servers, f"v0-{codec}", 0, COUNT, api_version=config) == rows
        assert read(servers, f"v0-{codec}", 11, 23, api_version=config) == rows[11:23]
        if codec in ("none", "gzip"):
            assert read_by_kafka_python(servers, f"v0-{codec}", COUNT, api_version=config) == rows
    with Cluster({"bootstrap_servers": servers, "api_version": config}) as cluster:
        partition = TopicPartition("v0-gzip", 0)
        assert cluster.run(cluster.partitions) == {f"v0-{codec}": [0] for codec in CODECS}
        assert cluster.run(cluster.list_offsets, {partition: EARLIEST}) == {partition: 0}
        assert cluster.run(cluster.list_offsets, {partition: LATEST}) == {partition: COUNT}
        with pytest.raises(UnsupportedSourceError, match="find no offsets by time"):
            cluster.run(cluster.list_offsets, {partition: T0})


def test_a_topic_that_has_an_id_and_cannot_be_fetched_by_it_is_compared_all_the_same(kafka_2_8: ZooKeeperKafka) -> None:
    """Topic ids came with Kafka 2.8, Fetch by id with 3.1."""
    servers, records = kafka_2_8.bootstrap_servers, encode_batch([Record(0, T0, *pair(i)) for i in range(COUNT)])
    options = parse_read_options({"kafka.bootstrap.servers": servers, "subscribe": "made-anew"}, is_stream=False)
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        create(kafka_2_8, {"made-anew": {}})
        append_batches(servers, [(TopicPartition("made-anew", 0), records)])
        with Cluster(options.kafka) as cluster:
            (planned,) = cluster.run(resolve_ranges, cluster, options)
        assert sum(piece.num_rows for piece in read_range(options, planned, SCHEMA)) == COUNT
        admin.delete_topics(["made-anew"])
        deadline = time.monotonic() + 60
        while True:
            try:
                create(kafka_2_8, {"made-anew": {}})
                break
            except TopicAlreadyExistsError:  # ZooKeeper has it for a while longer
                assert time.monotonic() < deadline
                time.sleep(0.2)
        append_batches(servers, [(TopicPartition("made-anew", 0), records)])
        with pytest.raises(DataLossError, match="made-anew-0 .* its topic was deleted and created again"):
            list(read_range(options, planned, SCHEMA))
    finally:
        admin.close()


@pytest.mark.long
@pytest.mark.parametrize("codec", [*CODECS, "zstd"])
def test_a_log_that_was_written_through_two_upgrades_is_read_through(
    kafka_2_8: ZooKeeperKafka, codec: str, spark: Any
) -> None:
    """v0, v1, v2 and v0 again in one partition, as the topic's message.format.version changes."""
    broker, servers = kafka_2_8, kafka_2_8.bootstrap_servers
    topic = f"upgraded-{codec}"
    number = CODECS.get(codec, codecs.NONE)
    create(broker, {topic: {"message.format.version": "0.9.0"}})
    create(broker, {f"{topic}-probe": {}})
    formats = [("0.9.0", 0), ("0.10.0", 1), ("2.8", 2), ("0.9.0", 0)]
    admin = KafkaAdminClient(bootstrap_servers=servers)
    rows: list[Row] = []
    try:
        for format_version, magic in formats:
            # The broker hears of changes one after the other: once the probe has the format, the topic has it.
            for name in (topic, f"{topic}-probe"):
                config = {"message.format.version": format_version}
                admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=config)])
            wait_for_format(broker, f"{topic}-probe", magic)
            start_at = len(rows)
            if magic == 2:
                records = [Record(0, T0 + i, *pair(i)) for i in range(start_at, start_at + COUNT)]
                batch = encode_batch(records, codec=codecs.ZSTD if codec == "zstd" else number)
                append_batches(servers, [(TopicPartition(topic, 0), batch)])
            else:
                fill(broker, topic, 1, number, start_at)
            rows += expected(COUNT, bool(magic), start_at)
    finally:
        admin.close()
    assert read(servers, topic, 0, len(rows)) == rows
    assert read(servers, topic, COUNT - 9, 3 * COUNT + 9) == rows[COUNT - 9 : 3 * COUNT + 9]
    assert read_by_spark(spark, "kafka", servers, topic) == rows


@pytest.mark.long
def test_compacted_logs_keep_the_offsets_of_what_is_left(start_old_broker: Callable[..., ZooKeeperKafka]) -> None:
    """Compaction leaves holes inside compressed sets, where offsets of v1 are relative."""
    broker = start_old_broker("0.10.2.2", **{"log.cleaner.backoff.ms": "300"})
    compact = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    topics = {
        f"v{magic}-{codec}": {**compact, **({} if magic else {"message.format.version": "0.9.0"})}
        for magic in (0, 1)
        for codec in CODECS
    }
    create(broker, topics)
    produced = [(i, b"k%d" % (i if i % 3 == 0 else i * 7 % 97), b"v%d" % i) for i in range(3000)]
    last_of_key = {key: offset for offset, key, _ in produced}
    for topic in topics:
        for first in range(0, len(produced), 20):
            given = [(key, value) for _, key, value in produced[first : first + 20]]
            broker.produce(topic, message_set(1, CODECS[topic[3:]], given, 0, T0 + first), 2)
    for topic in topics:
        for _ in range(300):
            rows = read(broker.bootstrap_servers, topic, 0, len(produced))
            if len(rows) < len(produced):
                break
            time.sleep(0.2)
        assert len(rows) < len(produced), f"{topic} was not compacted"
        assert [(o, k, v) for o, _, _, k, v in rows] == [produced[row[0]] for row in rows]
        has_times = topic.startswith("v1")
        assert [row[1:3] for row in rows] == [(T0 + row[0], 0) if has_times else NO_TIME for row in rows]
        assert {row[0] for row in rows} >= set(last_of_key.values())


def test_a_broker_believes_a_raised_epoch_and_a_record_that_it_refuses_fails_alone(
    start_old_broker: Callable[..., ZooKeeperKafka],
) -> None:
    """The first broker that knows producer ids: it is not asked for the next epoch, which KIP-360 added in Kafka 2.5."""
    broker = start_old_broker("0.11.0.3")
    create(broker, {"limited": {"max.message.bytes": "2000"}})
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        assert producer.config["enable_idempotence"]
        first = producer.send("limited", b"1").get(30)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send("limited", b"x" * 5000).get(30)
        rest = [producer.send("limited", b"%d" % number).get(30) for number in (2, 3)]
    assert [record.offset - first.offset for record in rest] == [1, 2]
