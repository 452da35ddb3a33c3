"""Spark Connect: a client that reaches Spark over gRPC alone reads, writes and streams through tolerantkafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from support.spark_processes import PATIENCE, Driver

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
]

PARTITIONS, FIRST, EACH, ROUNDS = 2, 20, 5, 2
SOURCE, TARGET = "connect-source", "connect-target"


def test_a_connect_client_reads_writes_and_streams(kafka_cluster: Any, tmp_path: Path) -> None:
    servers = kafka_cluster.bootstrap_servers
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (SOURCE, TARGET)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=servers)
    sent: list[list[Any]] = []

    def send(count: int) -> None:
        for number in range(len(sent), len(sent) + count):
            producer.send(SOURCE, b"%d" % number, partition=number % PARTITIONS)
            sent.append([number % PARTITIONS, number // PARTITIONS, str(number)])
        producer.flush()

    send(FIRST)
    arguments = ("remote", "local[2]", servers, SOURCE, TARGET, str(ROUNDS))
    # By this Spark gives the server a free port instead of a fixed one.
    with Driver(*arguments, folder=tmp_path, environment={"SPARK_TESTING": "1"}) as driver:
        assert driver.step("session")["kind"] == "pyspark.sql.connect.session"
        read = driver.step("read")
        assert read["rows"] == sorted(sent)
        assert read["chosen"] == sorted(row for row in sent if row[0] == 1 and row[1] >= 2)
        assert driver.step("written")["rows"] == sorted(sent)
        driver.step("streaming")
        for _ in range(ROUNDS):
            send(EACH)
            driver.go()
            driver.step("round")
        driver.go()
        assert driver.step("copied")["rows"] == sorted(sent)
        driver.step("stopped")
        assert driver.child.wait(PATIENCE) == 0
    producer.close()
