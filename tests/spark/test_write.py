"""df.write / writeStream.format("tolerantkafka") against a real broker: what was written is what the rows say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.partitioner.default import murmur2
from kafka.structs import TopicPartition
from pyspark import TaskContext
from pyspark.sql import functions as F

from tolerant_client.cluster.admin.transactions import transactional_ids
from tolerant_client.cluster.cluster import Cluster

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def read(servers: str, topic: str, partitions: int = PARTITIONS) -> list[Any]:
    """Every committed record, by partition and offset, as a stock consumer sees it."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None, isolation_level="read_committed"
    )
    try:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(wanted)
        ends = consumer.end_offsets(wanted)
        records: list[Any] = []
        while any(consumer.position(partition) < ends[partition] for partition in wanted):
            for some in consumer.poll(timeout_ms=500).values():
                records += some
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def servers(kafka_cluster: Any) -> str:
    return str(kafka_cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers)
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, admin: KafkaAdminClient) -> str:
    """A topic named after the test."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    return name


@pytest.fixture
def write(servers: str) -> Callable[..., None]:
    def write(frame: Any, **options: Any) -> None:
        writer = frame.write.format("tolerantkafka").mode("append").option("kafka.bootstrap.servers", servers)
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        writer.save()

    return write


def numbered(spark: Any, count: int, tasks: int = 2) -> Any:
    """Rows key0 ... with values that say their number."""
    return spark.range(0, count, 1, tasks).select(
        F.concat(F.lit("key"), F.col("id").cast("string")).alias("key"),
        F.concat(F.lit("value"), F.col("id").cast("string")).alias("value"),
    )


@pytest.mark.parametrize("codec", CODECS)
def test_rows_arrive_with_key_value_and_headers(
    spark: Any, servers: str, topic: str, write: Callable[..., None], codec: str
) -> None:
    rows = [
        (
            None if n % 3 == 0 else b"k%d" % n,
            None if n % 7 == 0 else b"v" * n,
            [("n", b"%d" % n), ("none", None)] if n % 2 else None,
        )
        for n in range(300)
    ]
    frame = spark.createDataFrame(rows, "key binary, value binary, headers array<struct<key:string,value:binary>>")
    write(frame, topic=topic, kafka__compression__type=codec)
    found = {(r.key, r.value, tuple(r.headers)) for r in read(servers, topic)}
    assert found == {(key, value, tuple(headers or ())) for key, value, headers in rows}
    assert len(read(servers, topic)) == len(rows)


def test_strings_are_utf_8(spark: Any, servers: str, topic: str, write: Callable[..., None]) -> None:
    write(spark.createDataFrame([("clé", "naïve ☃")], "key string, value string"), topic=topic)
    (record,) = read(servers, topic)
    assert (record.key.decode(), record.value.decode()) == ("clé", "naïve ☃")


def test_keys_go_where_javas_producer_sends_them(
    spark: Any, servers: str, topic: str, write: Callable[..., None]
) -> None:
    write(numbered(spark, 500), topic=topic)
    wanted = {key: (murmur2(key) & 0x7FFFFFFF) % PARTITIONS for key in (b"key%d" % n for n in range(500))}
    assert {record.key: record.partition for record in read(servers, topic)} == wanted


def test_partition_and_topic_columns_decide(
    spark: Any, servers: str, topic: str, write: Callable[..., None], admin: KafkaAdminClient
) -> None:
    other = topic + "-other"
    admin.create_topics([NewTopic(other, PARTITIONS, 1)])
    frame = spark.range(0, 60, 1, 2).select(
        F.col("id").cast("string").alias("value"),
        F.when(F.col("id") % 2 == 0, topic).otherwise(other).alias("topic"),
        (F.col("id") % PARTITIONS).cast("int").alias("partition"),
    )
    write(frame)
    for name, remainder in ((topic, 0), (other, 1)):
        found = {(int(r.value), r.partition) for r in read(servers, name)}
        assert found == {(n, n % PARTITIONS) for n in range(60) if n % 2 == remainder}


def test_the_topic_option_wins_over_the_column(
    spark: Any, servers: str, topic: str, write: Callable[..., None]
) -> None:
    write(spark.createDataFrame([("v", "nowhere")], "value string, topic string"), topic=f"  {topic} ")
    assert [record.value for record in read(servers, topic)] == [b"v"]


def test_rows_without_keys_keep_their_order_and_their_number(
    spark: Any, servers: str, topic: str, write: Callable[..., None]
) -> None:
    write(spark.range(0, 20_000, 1, 2).selectExpr("cast(id as string) value"), topic=topic)
    records = read(servers, topic)
    assert sorted(int(record.value) for record in records) == list(range(20_000))
    assert {record.partition for record in records} == set(range(PARTITIONS))


@pytest.mark.parametrize(
    ("frame", "options", "reason"),
    [
        ("select 'k' as key", {"topic": "T"}, "Required attribute 'value' not found"),
        ("select 1 as value", {"topic": "T"}, "value attribute unsupported type int"),
        ("select 'v' as value, 1 as n, 2 as n", {"topic": "T"}, "The frame has several columns 'n'"),
        ("select 'v' as value", {}, "topic option required when no 'topic' attribute is present"),
        ("select 'v' as value, cast(null as string) as topic", {}, "null topic present in the data"),
        ("select 'v' as value", {"topic": "no-such-topic", "kafka__max__block__ms": "500"}, "Topic no-such-topic does not exist"),
        ("select 'v' as value, 7 as partition", {"topic": "T"}, "has partition 7, but topic T has 3 partitions, 0 to 2; leave the column"),
        ("select repeat('v', 2000000) as value", {"topic": "T"}, "T-[0-2]: the record in row 0 of 20000.. bytes is larger than"),
        ("select repeat('v', 2000) as value", {"topic": "T", "kafka__max__request__size": "1000"}, "larger than max.request.size, 1000"),
        ("select 'v' as value", {"topic": "T", "kafka__transactional__id": "mine"}, "kafka.transactional.id is not supported"),
        ("select 'v' as value", {"topic": "T", "kafka__key__serializer": "x"}, "kafka.key.serializer is not supported"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    spark: Any, topic: str, write: Callable[..., None], frame: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(
        Exception, match=reason.replace("T", topic) if "T-" in reason or "topic T" in reason else reason
    ):
        write(spark.sql(frame), **{k: topic if v == "T" else v for k, v in options.items()})


def test_overwriting_is_refused(spark: Any, servers: str, topic: str) -> None:
    writer = numbered(spark, 1).write.format("tolerantkafka").option("kafka.bootstrap.servers", servers)
    with pytest.raises(Exception, match="Save mode Overwrite not allowed"):
        writer.option("topic", topic).mode("overwrite").save()


# -- streams ---------------------------------------------------------------------


def stream(spark: Any, folder: Path) -> Any:
    """A stream of the text files that are put into a folder."""
    return spark.readStream.text(str(folder))


def run_once(frame: Any, servers: str, topic: str, checkpoint: Path, mode: str = "append", **options: str) -> None:
    writer = frame.writeStream.format("tolerantkafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    query = writer.outputMode(mode).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


@pytest.mark.parametrize("exactly_once", ["false", "true"])
def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: Any, servers: str, topic: str, tmp_path: Path, exactly_once: str
) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    for batch in range(3):
        (folder / f"{batch}.txt").write_text("".join(f"{batch}-{n}\n" for n in range(50)))
        run_once(stream(spark, folder), servers, topic, checkpoint, exactlyOnce=exactly_once)
    found = sorted(record.value.decode() for record in read(servers, topic))
    assert found == sorted(f"{batch}-{n}" for batch in range(3) for n in range(50))


def test_complete_mode_appends_all_rows_again(spark: Any, servers: str, topic: str, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    for text in ("a\na\nb\n", "a\n"):
        (folder / f"{len(text)}.txt").write_text(text)
        counts = stream(spark, folder).groupBy("value").count()
        frame = counts.selectExpr("value key", "cast(count as string) value")
        run_once(frame, servers, topic, checkpoint, "complete")
    found = sorted((record.key, record.value) for record in read(servers, topic))
    assert found == [(b"a", b"2"), (b"a", b"3"), (b"b", b"1"), (b"b", b"1")]


def test_spark_itself_refuses_what_python_data_sources_cannot_have(
    spark: Any, servers: str, topic: str, tmp_path: Path
) -> None:
    """Save mode errorIfExists and output mode update work with Spark's own sink; the JVM never asks ours."""
    frame = numbered(spark, 1)
    writer = frame.write.format("tolerantkafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    with pytest.raises(Exception, match="ErrorIfExists|errorifexists"):
        writer.save()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a\n")
    with pytest.raises(Exception, match="does not support Update mode"):
        run_once(stream(spark, tmp_path / "in"), servers, topic, tmp_path / "checkpoint", "update")


# -- dead letters ----------------------------------------------------------------


def test_records_that_cannot_be_written_become_dead_letters(
    spark: Any, servers: str, topic: str, write: Callable[..., None], admin: KafkaAdminClient
) -> None:
    dead, small = topic + "-dead", topic + "-small"
    admin.create_topics([NewTopic(dead, 1, 1), NewTopic(small, 1, 1, topic_configs={"max.message.bytes": "1000"})])
    frame = spark.range(0, 40, 1, 1).selectExpr(
        "cast(id as string) as key",
        "case when id = 5 then repeat('x', 5000) when id = 7 then repeat('y', 2000000) else 'v' end as value",
        f"case when id = 9 then null when id = 11 then 'no-such' when id in (5, 7) then '{small}'"
        f" when id % 2 = 0 then '{small}' else '{topic}' end as topic",
        "case when id = 13 then 99 when id = 15 then 2 else null end as partition",
    )
    for _ in range(2):  # what was dead remains dead when the write is repeated
        write(frame, deadLetterTopic=dead, kafka__max__block__ms="500", exactlyOnce="true", exactlyOnceId=topic)
    letters = {}
    for letter in read(servers, dead, 1):
        headers = {name: value.decode() for name, value in letter.headers}
        letters[int(headers["tolerant.row"])] = (letter, headers)
    assert sorted(letters) == [5, 7, 9, 11, 13]
    assert letters[5][0].value == b"x" * 5000
    assert letters[7][0].value is None and letters[7][1]["tolerant.trimmed"] == "2000001"
    assert [letters[n][1]["tolerant.topic"] for n in sorted(letters)] == [small, small, "", "no-such", topic]
    assert "larger than the topic's max.message.bytes" in letters[5][1]["tolerant.reason"]
    written = [int(r.key) for name, n in ((topic, PARTITIONS), (small, 1)) for r in read(servers, name, n)]
    assert sorted(written) == [n for n in range(40) if n not in letters]
    assert len(read(servers, dead, 1)) == len(letters)


# -- exactly once ----------------------------------------------------------------


def test_a_batch_write_with_an_id_is_written_once(
    spark: Any, servers: str, topic: str, write: Callable[..., None]
) -> None:
    for _ in range(3):
        write(numbered(spark, 200), topic=topic, exactlyOnce="true", exactlyOnceId=topic)
    assert len(read(servers, topic)) == 200
    with pytest.raises(Exception, match="RepeatDiffersError"):
        write(numbered(spark, 201), topic=topic, exactlyOnce="true", exactlyOnceId=topic)
    assert len(read(servers, topic)) == 200


def test_one_id_serves_all_micro_batches_that_foreach_batch_writes(
    spark: Any, servers: str, topic: str, write: Callable[..., None], admin: KafkaAdminClient, tmp_path: Path
) -> None:
    """Micro-batch 1 fails once it is written: its repeat writes nothing again, and the ids do not pile up."""
    folder = tmp_path / "in"
    folder.mkdir()
    failing = tmp_path / "failing"

    def take(frame: Any, number: int) -> None:
        write(frame, topic=topic, exactlyOnce="true", exactlyOnceId=topic)
        if number == 1 and failing.exists():
            raise RuntimeError("after the write")

    def run() -> None:
        writer = stream(spark, folder).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    failing.touch()
    for batch in range(3):
        (folder / f"{batch}.txt").write_text(f"{batch}\n")
        if batch == 1:
            with pytest.raises(Exception, match="after the write"):
                run()
            failing.unlink()
        run()
    assert sorted(record.value for record in read(servers, topic)) == [b"0", b"1", b"2"]
    groups = {group["group_id"] for group in admin.list_groups()}
    assert {name for name in groups if topic in name} == {f"tolerant-sink-{topic}/0", f"tolerant-sink-{topic}/ended"}


def test_a_foreach_batch_that_hides_the_run_of_its_query_is_refused_before_anything_is_written(
    spark: Any, servers: str, topic: str, write: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.txt").write_text("0\n")
    is_named = [True, False]

    def take(frame: Any, number: int) -> None:
        if is_named.pop(0):
            spark.sparkContext.setJobGroup("small batches", "what the UI shows")
        spark.sparkContext.setJobDescription("what the UI shows")
        write(frame, topic=topic, exactlyOnce="true", exactlyOnceId=topic)

    def run() -> None:
        writer = stream(spark, folder).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="job group of this micro-batch is 'small batches'.* Do not call setJobGroup"):
        run()
    assert not read(servers, topic)
    run()
    assert [record.value for record in read(servers, topic)] == [b"0"]


def test_micro_batches_whose_python_processes_have_ended_use_the_ids_of_the_former_ones(
    spark: Any, servers: str, topic: str, tmp_path: Path
) -> None:
    """Spark ends a process after its task here, and otherwise after a minute without one."""
    folder, batches = tmp_path / "in", 5
    folder.mkdir()
    for number in range(batches):
        (folder / f"{number}.txt").write_text("".join(f"{number * 30 + n}\n" for n in range(30)))
    settings = spark.sparkContext._jsc.sc().conf()  # what each job of the session reads
    frame = spark.readStream.option("maxFilesPerTrigger", "1").text(str(folder)).repartition(3)
    settings.set("spark.python.worker.reuse", "false")
    try:
        run_once(frame, servers, topic, tmp_path / "checkpoint", exactlyOnce="true", exactlyOnceId=topic)
    finally:
        settings.set("spark.python.worker.reuse", "true")
    assert sorted(int(record.value) for record in read(servers, topic)) == list(range(30 * batches))
    with Cluster({"bootstrap_servers": servers}) as cluster:
        found = cluster.run(transactional_ids, cluster, f"tolerant-sink-{topic}/", ("CompleteCommit",))
    assert len(found or ()) == 3 + 1, "of each task, and the decider's"


def test_a_repeat_with_another_number_of_tasks_writes_nothing_again(
    spark: Any, servers: str, topic: str, write: Callable[..., None]
) -> None:
    for tasks in (3, 2, 5):
        write(numbered(spark, 30, tasks), topic=topic, exactlyOnce="true", exactlyOnceId=topic)
    assert len(read(servers, topic)) == 30


def test_a_shuffle_that_deals_its_rows_otherwise_in_the_repeat_writes_each_row_once(
    spark: Any, servers: str, topic: str, tmp_path: Path
) -> None:
    """Adaptive execution gives a repeated micro-batch another number of tasks, with other rows in each of them."""
    folder, checkpoint, flag = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "failing"
    folder.mkdir()
    # Does not compress away.
    (folder / "0.txt").write_text("".join(f"{n:06d}{os.urandom(250).hex()}\n" for n in range(8_000)))
    flag.touch()
    told = tmp_path / "tasks"
    told.mkdir()

    def once(batches: Iterator[Any]) -> Iterator[Any]:
        """Fails in task 0 while the flag is there, once the others have written."""
        number = TaskContext.get().partitionId()
        (told / f"{flag.exists()}-{number}").touch()
        for batch in batches:
            if number == 0 and flag.exists():
                time.sleep(3)
                raise RuntimeError("killed in the middle")
            yield batch

    frame = stream(spark, folder).repartition("value").mapInArrow(once, "value string")
    adaptive = "spark.sql.adaptive."
    given = {f"{adaptive}coalescePartitions.parallelismFirst": "false", f"{adaptive}coalescePartitions.minPartitionSize": "1k",
             "spark.sql.shuffle.partitions": "12"}  # fmt: skip
    for name, setting in given.items():
        spark.conf.set(name, setting)
    try:
        for number in range(2):
            spark.conf.set(f"{adaptive}advisoryPartitionSizeInBytes", f"{1200 - 400 * number}k")
            with pytest.raises(Exception, match="killed in the middle"):
                run_once(frame, servers, topic, checkpoint, exactlyOnce="true")
        flag.unlink()
        spark.conf.set(f"{adaptive}advisoryPartitionSizeInBytes", "200k")
        run_once(frame, servers, topic, checkpoint, exactlyOnce="true")
    finally:
        for name in (*given, f"{adaptive}advisoryPartitionSizeInBytes"):
            spark.conf.unset(name)
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    tasks = [sum(1 for _ in told.glob(f"{is_failing}-*")) for is_failing in (True, False)]
    assert 1 < tasks[0] < tasks[1], tasks
    assert sorted(int(record.value[:6]) for record in read(servers, topic)) == list(range(8_000))
