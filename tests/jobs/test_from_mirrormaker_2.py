"""From MirrorMaker 2 to this mirror and back, on the same target topics: the real one is stopped, ours goes on, it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.services import Service, wait_for
from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED, Cluster
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.testing import KafkaCluster
from tolerant_client.testing.artifacts import TOOLS_MODULES, jars, java_executable

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
]

PARTITIONS = 2
VERSION = "4.2.0"


@pytest.fixture(scope="module")
def clusters(kafka_cluster: KafkaCluster, start_cluster: Callable[..., KafkaCluster]) -> tuple[str, str]:
    return kafka_cluster.bootstrap_servers, start_cluster(heap="384m").bootstrap_servers


def write(servers: str, topic: str, first: int, count: int, *, transactions: bool) -> None:
    """Numbered records; in transactions of 50, each third one aborted and written again."""
    producer = KafkaProducer(
        bootstrap_servers=servers, **({"transactional_id": f"writer-{topic}"} if transactions else {})
    )
    if not transactions:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, key=b"k", partition=number % PARTITIONS)
    else:
        producer.init_transactions()
        for start in range(first, first + count, 50):
            for is_aborted in (True, False) if start % 150 == 0 else (False,):
                producer.begin_transaction()
                for number in range(start, min(start + 50, first + count)):
                    producer.send(topic, b"%d" % number, key=b"k", partition=number % PARTITIONS)
                producer.flush()
                producer.abort_transaction() if is_aborted else producer.commit_transaction()
    producer.close()


def read(servers: str, topic: str) -> dict[int, list[int]]:
    """What a read_committed consumer finds in each partition."""
    with Cluster({"bootstrap_servers": servers}) as cluster:
        if topic not in cluster.run(cluster.partitions):
            return {}

        async def ask() -> dict[TopicPartition, int]:
            wanted = {TopicPartition(topic, n): LATEST for n in range(PARTITIONS)}
            return await cluster.list_offsets(wanted, isolation_level=READ_COMMITTED)

        ends = cluster.run(ask)
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest", group_id=None
    )
    try:
        consumer.assign(list(ends))
        found: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
        while any(consumer.position(p) < end for p, end in ends.items()):
            for partition, records in consumer.poll(timeout_ms=500).items():
                found[partition.partition] += [int(record.value) for record in records]
        return found
    finally:
        consumer.close()


def numbers(count: int) -> dict[int, list[int]]:
    return {n: list(range(n, count, PARTITIONS)) for n in range(PARTITIONS)}


@contextmanager
def mirrormaker_2(file: Path) -> Iterator[None]:
    """The real one; stopped cleanly at the end."""
    log = file.with_suffix(f".{time.monotonic_ns()}.log")
    classpath = os.pathsep.join(map(str, jars(VERSION, TOOLS_MODULES)))
    command = [java_executable(), "-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "org.apache.kafka.connect.mirror.MirrorMaker", str(file)], stdout=out, stderr=out
        )
    try:
        yield
        process.terminate()
        process.wait(120)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("offsets", ["identical", "translated"])
def test_there_and_back_without_a_record_lost_or_seen_twice(
    offsets: str, clusters: tuple[str, str], tmp_path: Path
) -> None:
    one, two = clusters
    topic, alias = f"moved-{offsets}", f"from-{offsets}"
    has_transactions = offsets == "translated"
    file = tmp_path / "mm2.properties"
    settings = {
        "clusters": f"{alias}, to",
        f"{alias}.bootstrap.servers": one,
        "to.bootstrap.servers": two,
        f"{alias}->to.enabled": "true",
        f"{alias}->to.topics": topic,
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        f"{alias}.consumer.isolation.level": "read_committed",
        f"{alias}->to.tolerant.offsets": offsets,
        **dict.fromkeys(("replication.factor", "offset-syncs.topic.replication.factor"), "1"),
        **dict.fromkeys(("checkpoints.topic.replication.factor", "heartbeats.topic.replication.factor"), "1"),
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
        "emit.heartbeats.enabled": "false",
    }
    file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    with Cluster({"bootstrap_servers": one}) as source:
        source.run(create_topics, source, [TopicSpec(topic, PARTITIONS, 1)])

    write(one, topic, 0, 1000, transactions=has_transactions)
    with mirrormaker_2(file):
        wait_for(lambda: read(two, topic) == numbers(1000))

    dry = CliRunner().invoke(app, ["take-over", "--config", str(file), "--dry-run", "--json"], catch_exceptions=False)
    told = json.loads(dry.stdout)
    assert dry.exit_code == 0 and not told["is_done"], told
    assert {p["is_identical"] for p in told["partitions"]} == {offsets == "identical"}
    plan = CliRunner().invoke(app, ["plan", "--config", str(file), "--json"], catch_exceptions=False)
    refusals = json.loads(plan.stdout)["refusals"]
    if offsets == "translated":  # it would copy all of it again
        assert plan.exit_code == 3 and len(refusals) == PARTITIONS
        assert all(f"mm2-offsets.{alias}.internal of the target says" in text for text in refusals)
        assert all("Stop MirrorMaker 2, and run tolerant-kafka take-over --config" in text for text in refusals)
    else:
        assert plan.exit_code == 0 and not refusals, "equal offsets are a copy"
    write(one, topic, 1000, 500, transactions=has_transactions)
    assert CliRunner().invoke(app, ["take-over", "--config", str(file)], catch_exceptions=False).exit_code == 0
    with Service(tmp_path, file) as service:
        service.event("started", f"{alias}-to")
        wait_for(lambda: read(two, topic) == numbers(1500))
        service.stop()

    back = CliRunner().invoke(app, ["hand-back", "--config", str(file), "--json"], catch_exceptions=False)
    assert back.exit_code == 0 and len(json.loads(back.stdout)["partitions"]) == PARTITIONS
    write(one, topic, 1500, 300, transactions=has_transactions)
    with mirrormaker_2(file):
        wait_for(lambda: sum(map(len, read(two, topic).values())) >= 1800)
        time.sleep(5)  # what it would copy twice
    assert read(two, topic) == numbers(1800)


@pytest.mark.long
def test_topics_with_other_offsets_are_named_and_nothing_is_written(clusters: tuple[str, str], tmp_path: Path) -> None:
    one, two = clusters
    file = tmp_path / "mm2.properties"
    file.write_text(
        f"clusters = A, B\nA.bootstrap.servers = {one}\nB.bootstrap.servers = {two}\nA->B.enabled = true\n"
        "A->B.topics = shifted\n"
        "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
    )
    for servers in clusters:
        with Cluster({"bootstrap_servers": servers}) as cluster:
            cluster.run(create_topics, cluster, [TopicSpec("shifted", PARTITIONS, 1)])
    write(one, "shifted", 0, 100, transactions=False)
    write(two, "shifted", 10, 90, transactions=False)
    done = CliRunner().invoke(app, ["take-over", "--config", str(file)], catch_exceptions=False)
    assert done.exit_code == 3
    assert "shifted" in done.stderr and "tolerant.offsets = translated" in done.stderr
