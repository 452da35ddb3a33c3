"""A new query with default options on a topic that is written to while it starts, and starts again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

TOPIC = "written-to"


@pytest.fixture(scope="module")
def servers(kafka_cluster: Any) -> Iterator[str]:
    """Of a cluster with a topic of two partitions that gets 300 records a second."""
    servers, ends = str(kafka_cluster.bootstrap_servers), Event()
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(TOPIC, 2, 1)])
    admin.close()

    def feed() -> None:
        with KafkaProducer(bootstrap_servers=servers) as producer:
            began, sent = time.monotonic(), 0
            while not ends.wait(0.02):
                while sent < (time.monotonic() - began) * 300:
                    producer.send(TOPIC, b"%d" % sent, partition=sent % 2)
                    sent += 1

    feeder = Thread(target=feed)
    feeder.start()
    yield servers
    ends.set()
    feeder.join()


def run(spark: Any, servers: str, checkpoint: Path, *, fails: bool = False) -> list[tuple[int, list[tuple[int, int]]]]:
    """One run of the query, until it has had two batches with rows, or its first one fails.

    Returns each batch's number and its rows' partitions and offsets.
    """
    reader = spark.readStream.format("tolerantkafka").option("kafka.bootstrap.servers", servers)
    frame = reader.option("subscribe", TOPIC).load().select("partition", "offset")
    taken: list[tuple[int, list[tuple[int, int]]]] = []
    enough = Event()

    def take(batch: Any, number: int) -> None:
        taken.append((number, sorted((row.partition, row.offset) for row in batch.collect())))
        if fails:
            raise RuntimeError("as it should")
        if sum(bool(rows) for _, rows in taken) == 2:
            enough.set()

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
    deadline = time.monotonic() + 120
    while query.isActive and not enough.wait(0.1):
        assert time.monotonic() < deadline, taken
    told = query.exception()
    query.stop()
    assert (told is None) != fails and "as it should" in str(told or "as it should"), told
    return taken


def test_a_new_query_starts(spark: Any, servers: str, tmp_path: Path) -> None:
    assert run(spark, servers, tmp_path)


def test_a_first_batch_that_failed_is_repeated_as_it_was_and_what_came_since_is_read(
    spark: Any, servers: str, tmp_path: Path
) -> None:
    (first,) = run(spark, servers, tmp_path, fails=True)
    time.sleep(1)
    repeated = run(spark, servers, tmp_path)
    assert repeated[0] == first
    for partition in (0, 1):
        offsets = [offset for _, rows in repeated for at, offset in rows if at == partition]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
