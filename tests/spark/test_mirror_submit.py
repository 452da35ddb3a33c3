"""The mirror under spark-submit, on a standalone cluster of two workers, as the guide on running says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from kafka import KafkaProducer
from support.spark_processes import standalone_cluster

import spark_integration
from tolerant_client.mirror.plan import TopicSpec
from tolerant_client.mirror.topics import create_topics
from tolerant_client.mirror.verify.verification import verify
from tolerant_client.raw import RawCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not os.environ.get("TOLERANT_LONG"), reason="takes a while; tox: clusters"),
]

PARTITIONS, RECORDS = 4, 2_000
SUBMIT = Path(spark_integration.__file__).parent / "deployment" / "submit.py"


def test_executors_of_a_standalone_cluster_copy(
    kafka_cluster: Any, kafka_cluster_factory: Callable[..., Any], tmp_path: Path
) -> None:
    one, two = kafka_cluster.bootstrap_servers, kafka_cluster_factory(heap="384m").bootstrap_servers
    with RawCluster({"bootstrap_servers": one}) as cluster:
        cluster.run(create_topics, cluster, [TopicSpec("submitted", PARTITIONS, 1)])
    producer = KafkaProducer(bootstrap_servers=one)
    for number in range(RECORDS):
        producer.send("submitted", b"%d" % number, partition=number % PARTITIONS)
    producer.close()
    home = Path(pyspark.__file__).parent
    with standalone_cluster(tmp_path, workers=2) as master:
        command = [
            *(str(home / "bin" / "spark-submit"), "--master", master, "--total-executor-cores", "2"),
            *("--executor-memory", "512m", "--conf", "spark.task.maxFailures=8", "--conf", "spark.ui.enabled=false"),
            str(SUBMIT),
            *("mirror", "--source", one, "--target", two, "--topics", "submitted", "--tasks", "2", "--once", "--json"),
        ]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        # Each worker has copied: an application has a folder there for each executor.
        executors = list(tmp_path.glob("worker-*/app-*/*"))
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["records"] == RECORDS
    assert len({path.parents[1] for path in executors}) == 2, executors
    with RawCluster({"bootstrap_servers": one}, name="source") as source:
        target = RawCluster({"bootstrap_servers": two}, source.net, name="target")
        try:
            assert source.run(verify, source, target, "submitted").identical
        finally:
            target.close()
