"""The mirror under spark-submit, on a standalone cluster of two workers and on YARN, as the guide on running says: authenticated and encrypted."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from kafka import KafkaProducer

import spark_integration
from spark_integration.mirror.spark_traffic import SETTINGS
from support.spark_processes import standalone_cluster, yarn_cluster
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.mirror.verify.verification import verify

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
]

SparkCluster = Callable[[Path], contextlib.AbstractContextManager[tuple[list[str], dict[str, str]]]]

PARTITIONS, RECORDS = 4, 2_000
SUBMIT = Path(spark_integration.__file__).parent / "deployment" / "submit.py"


@contextlib.contextmanager
def on_standalone(folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Options and environment of spark-submit."""
    settings = folder / "spark-defaults.conf"
    settings.touch(mode=0o600)
    lines = [
        *(f"{name} {value}" for name, value in SETTINGS.items()),
        f"spark.authenticate.secret {secrets.token_hex()}",
    ]
    settings.write_text("\n".join(lines))
    with standalone_cluster(folder, workers=2, settings=settings) as master:
        yield ["--master", master, "--total-executor-cores", "2", "--properties-file", str(settings)], {}
        # An application has a folder there for each executor.
        executors = list(folder.glob("worker-*/app-*/*"))
        assert len({path.parents[1] for path in executors}) == 2, executors


@contextlib.contextmanager
def on_yarn(folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Options and environment of spark-submit."""
    with yarn_cluster(folder) as conf:
        executors = ["--master", "yarn", "--deploy-mode", "client", "--num-executors", "2", "--executor-cores", "1"]
        secured = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
        jars = f"spark.yarn.jars=local:{Path(pyspark.__file__).parent}/jars/*"
        yield [*executors, *secured, "--conf", jars], {"HADOOP_CONF_DIR": str(conf)}


@pytest.mark.parametrize("cluster_of", [on_standalone, on_yarn])
def test_executors_of_a_cluster_copy(
    cluster_of: SparkCluster, kafka_cluster: Any, start_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    name = f"submitted-{cluster_of.__name__}"
    one, two = kafka_cluster.bootstrap_servers, start_cluster(heap="384m").bootstrap_servers
    with Cluster({"bootstrap_servers": one}) as cluster:
        cluster.run(create_topics, cluster, [TopicSpec(name, PARTITIONS, 1)])
    producer = KafkaProducer(bootstrap_servers=one)
    for number in range(RECORDS):
        producer.send(name, b"%d" % number, partition=number % PARTITIONS)
    producer.close()
    home = Path(pyspark.__file__).parent
    with cluster_of(tmp_path) as (options, more):
        command = [
            *(str(home / "bin" / "spark-submit"), *options),
            *("--executor-memory", "512m", "--conf", "spark.task.maxFailures=8", "--conf", "spark.ui.enabled=false"),
            str(SUBMIT),
            *("mirror", "--source", one, "--target", two, "--topics", name, "--tasks", "2", "--once", "--json"),
        ]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **more,
        }
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "tolerant-kafka: warning" not in done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["offsets"] == RECORDS
    with Cluster({"bootstrap_servers": one}, name="source") as source:
        target = Cluster({"bootstrap_servers": two}, source.net, name="target")
        try:
            assert source.run(verify, source, target, name).identical
        finally:
            target.close()
