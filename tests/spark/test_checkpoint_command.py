"""A query moves between Spark's own Kafka source and ours, and no record is lost or doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from typer.testing import CliRunner

from spark_integration.cli.app import app
from spark_integration.reading.offsets import topic_ids

pytestmark = pytest.mark.long

PARTITIONS = 2


class Query:
    """A streaming query into files; each run takes what is there and stops."""

    def __init__(self, spark: Any, servers: str, topic: str, folder: Path) -> None:
        self._spark, self._servers, self._topic, self._folder = spark, servers, topic, folder
        self._sent = 0
        admin = KafkaAdminClient(bootstrap_servers=servers)
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        admin.close()

    def send(self, count: int) -> None:
        producer = KafkaProducer(bootstrap_servers=self._servers)
        for number in range(self._sent, self._sent + count):
            producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS)
        producer.close()
        self._sent += count

    def checkpoint(self, name: str) -> Path:
        return self._folder / name

    def run(self, source: str, checkpoint: str = "one", **options: str) -> None:
        reader = self._spark.readStream.format(source).option("kafka.bootstrap.servers", self._servers)
        reader = reader.option("subscribe", self._topic).options(**{"startingOffsets": "earliest", **options})
        query = (
            reader.load()
            .selectExpr("cast(value as string) as value", "partition", "offset")
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self.checkpoint(checkpoint)))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180), f"{source} did not come to its end"

    def _write(self, batch: Any, number: int) -> None:
        batch.write.mode("append").parquet(str(self._folder / "rows"))

    def rows(self) -> list[int]:
        return sorted(int(row.value) for row in self._spark.read.parquet(str(self._folder / "rows")).collect())

    def check(self) -> None:
        assert self.rows() == list(range(self._sent))


@pytest.fixture
def query(spark: Any, kafka_cluster: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Query]:
    topic = f"moved-{abs(hash(request.node.name)):x}"
    yield Query(spark, kafka_cluster.bootstrap_servers, topic, tmp_path)


@pytest.mark.parametrize("sources", [("kafka", "tolerantkafka", "kafka"), ("tolerantkafka", "kafka", "tolerantkafka")])
def test_a_query_keeps_its_checkpoint_when_only_its_format_changes(query: Query, sources: tuple[str, ...]) -> None:
    for source in sources:
        query.send(11)
        query.run(source)
        query.check()


def test_a_moved_query_with_nothing_to_read_writes_the_topics_ids_down_once(query: Query) -> None:
    query.send(11)
    query.run("kafka")
    for _ in range(2):
        query.run("tolerantkafka")
    query.check()
    offsets = query.checkpoint("one") / "offsets"
    planned = {entry.name: entry.read_text().splitlines()[-1] for entry in offsets.iterdir() if entry.name.isdigit()}
    assert {number: bool(topic_ids(json.loads(line))) for number, line in planned.items()} == {"0": False, "1": True}


def test_one_command_says_where_another_query_starts(query: Query) -> None:
    query.send(11)
    query.run("kafka")
    query.send(8)
    printed = CliRunner().invoke(app, ["offsets", str(query.checkpoint("one"))])
    assert printed.exit_code == 0
    assert "the end of batch 0" in printed.stderr and ", committed, source 0" in printed.stderr
    query.run("tolerantkafka", "two", startingOffsets=printed.stdout.strip())
    query.check()


def test_a_batch_that_was_not_committed_is_read_again_not_skipped(query: Query) -> None:
    query.send(10)
    query.run("kafka")
    query.send(6)
    query.run("kafka")
    (query.checkpoint("one") / "commits" / "1").unlink()  # the driver died here
    printed = CliRunner().invoke(app, ["offsets", str(query.checkpoint("one"))])
    assert "the end of batch 0" in printed.stderr
    assert "batch 1 was planned and not committed; it will be read again" in printed.stderr
    query.run("tolerantkafka", "two", startingOffsets=printed.stdout.strip())
    assert query.rows() == sorted([*range(16), *range(10, 16)])
    planned = CliRunner().invoke(app, ["offsets", str(query.checkpoint("one")), "--batch", "1"])
    assert "planned, not committed" in planned.stderr
    query.send(4)
    query.run("tolerantkafka", "three", startingOffsets=planned.stdout.strip())
    assert query.rows()[-4:] == [16, 17, 18, 19]
