"""A running mirror keeps the clusters' passwords from everybody on its machine but its own user."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from support.mirror_link import copiers
from support.spark_blocks import broadcast_blocks, listening_ports

pytestmark = pytest.mark.spark

TOPIC, USER, PASSWORD = "kept", "alice", "canary-5e1f-password"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
RECORDS = 50


@pytest.fixture(scope="module")
def clusters(start_cluster: Callable[..., Any], kafka_cluster: Any) -> tuple[Any, Any]:
    config = {
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{LOGIN} required user_{USER}="{PASSWORD}";',
    }
    return start_cluster(broker_config=config, listeners={"SECURE": "SASL_PLAINTEXT"}, heap="256m"), kafka_cluster


@contextlib.contextmanager
def mirror(clusters: tuple[Any, Any], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    source, target = clusters
    admin = KafkaAdminClient(bootstrap_servers=source.bootstrap_servers)
    admin.create_topics([NewTopic(TOPIC, 1, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=source.bootstrap_servers)
    for number in range(RECORDS):
        producer.send(TOPIC, b"%d" % number)
    producer.close()
    properties = folder / "source.properties"
    properties.touch(mode=0o600)
    properties.write_text(
        f'security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={LOGIN} required username="{USER}"'
        f' password="{PASSWORD}";\n'
    )
    command = [
        *(sys.executable, "-m", "spark_integration.cli.app", "mirror", "--source", source.servers_of("SECURE")),
        *("--target", target.bootstrap_servers, "--topics", TOPIC, "--source-properties", str(properties)),
    ]
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        consumer = KafkaConsumer(bootstrap_servers=target.bootstrap_servers)
        deadline = time.monotonic() + 120
        while copied(consumer) < RECORDS or len(copiers(target.bootstrap_servers, TOPIC)) < 2:  # Spark's task is one
            assert process.poll() is None and time.monotonic() < deadline, (folder / "output").read_text()[-3000:]
            time.sleep(0.5)
        consumer.close()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def copied(consumer: KafkaConsumer) -> int:
    if TOPIC not in consumer.topics():
        return 0
    partitions = [TopicPartition(TOPIC, n) for n in consumer.partitions_for_topic(TOPIC) or ()]
    return sum(consumer.end_offsets(partitions).values())


def descendants(pid: int) -> list[int]:
    """The process and all that it has started."""
    found = [pid]
    for process in found:
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def test_nobody_reads_a_password_out_of_a_running_mirror(clusters: tuple[Any, Any], tmp_path: Path) -> None:
    with mirror(clusters, tmp_path) as process:
        processes = descendants(process.pid)
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes}
        (jvm,) = [pid for pid, command in commands.items() if b"org.apache.spark.deploy.SparkSubmit" in command]
        ports = listening_ports(jvm)
        assert len(ports) >= 2, "Spark's own port and that of its block manager"
        blocks = {(port, name): block for port in ports for name, block in broadcast_blocks(port, range(40)).items()}
        assert blocks == {}, "they hold what the tasks need: the clusters' passwords"
        for command in commands.values():
            assert PASSWORD.encode() not in command and b"spark.authenticate.secret" not in command
        assert b"spark.authenticate=true" in commands[jvm] and b"spark.network.crypto.enabled=true" in commands[jvm]
        for path in (tmp_path / "tmp").rglob("*"):
            with contextlib.suppress(OSError):  # a file that is gone already
                if path.is_file():
                    assert PASSWORD.encode() not in path.read_bytes(), path
    assert not re.search(PASSWORD, (tmp_path / "output").read_text())
