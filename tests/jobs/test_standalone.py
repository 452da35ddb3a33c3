"""A standalone cluster of two worker processes: rows, connections kept between micro-batches, speculation, a clean end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from support.spark_processes import PATIENCE, Driver, standalone_cluster
from tolerant_client.cluster.admin.transactions import transactional_ids
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.testing import FaultProxy, KafkaCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
]

PARTITIONS = 2
FIRST, EACH, ROUNDS = 20, 4, 8
SOURCE, TARGET = "standalone-source", "standalone-target"


def test_executors_read_write_and_keep_their_connections(
    kafka_cluster: Any, fault_proxy: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
    admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (SOURCE, TARGET)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=kafka_cluster.bootstrap_servers)
    sent: list[list[Any]] = []

    def send(count: int) -> None:
        for number in range(len(sent), len(sent) + count):
            producer.send(SOURCE, b"%d" % number, partition=number % PARTITIONS)
            sent.append([number % PARTITIONS, number // PARTITIONS, str(number)])
        producer.flush()

    proxy = fault_proxy()
    send(FIRST)
    with standalone_cluster(tmp_path, workers=2) as address:
        arguments = ("master", address, proxy.bootstrap_servers, SOURCE, TARGET, str(ROUNDS))
        with Driver(*arguments, folder=tmp_path) as driver:
            assert driver.step("session")["kind"] == "pyspark.sql.session"
            read = driver.step("read")
            assert read["rows"] == sorted(sent)
            assert read["chosen"] == sorted(row for row in sent if row[0] == 1 and row[1] >= 2)
            assert len(read["executors"]) == 2
            assert driver.step("written")["rows"] == sorted(sent)
            driver.step("streaming")
            connected = []
            for _ in range(ROUNDS):
                send(EACH)
                driver.go()
                driver.step("round")
                connected.append(proxy.connected)
            # Two tasks a round, each reading and writing: without kept connections at least four a round.
            assert connected[-1] - connected[0] < ROUNDS, connected
            driver.go()
            assert driver.step("copied")["rows"] == sorted(sent)
            driver.step("stopped")
            assert driver.child.wait(PATIENCE) == 0
        deadline = time.monotonic() + PATIENCE
        while proxy.open_connections and time.monotonic() < deadline:
            time.sleep(0.1)
        assert proxy.open_connections == 0
    producer.close()


def test_an_attempt_that_loses_a_race_ends_quietly_and_every_row_is_written_once(
    kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Speculation with adaptive execution and a shuffle: copies of slow tasks, which are killed where they are."""
    servers, source, target = kafka_cluster.bootstrap_servers, "speculative-source", "speculative-target"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, target)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=servers)
    sent = [b"%d" % number for number in range(300)]
    for number, value in enumerate(sent):
        producer.send(source, value, partition=number % PARTITIONS)
    producer.close()
    with standalone_cluster(tmp_path, workers=2) as address:
        arguments = [address, servers, source, target, str(tmp_path / "checkpoint")]
        told = subprocess.run(
            [sys.executable, "-m", "support.speculation_process", *arguments],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE,
        )
    assert told.returncode == 0, told.stderr[-3000:]
    ended = json.loads(told.stdout.splitlines()[-1])
    assert ended.keys() == {"Success", "TaskKilled"}
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None, isolation_level="read_committed")
    partitions = [TopicPartition(target, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends, found = consumer.end_offsets(partitions), []
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        found += [record.value for records in consumer.poll(timeout_ms=500).values() for record in records]
    consumer.close()
    assert sorted(found) == sorted(sent)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        assert cluster.run(transactional_ids, cluster, "tolerant-sink-", ["Ongoing"]) == set()
