"""Several links in one process: each goes on by itself, a stop is clean, and a second process takes over without a gap."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition

from support.services import Service, wait_for
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.mirror.verify.verification import verify

pytestmark = pytest.mark.spark

PARTITIONS = 2
RECORDS = 2_000  # a topic
STOPPED_S = 15.0  # 10, and what a busy machine takes to end a process


@pytest.fixture(scope="module")
def clusters(kafka_cluster: Any, start_cluster: Callable[..., Any]) -> tuple[str, str]:
    return kafka_cluster.bootstrap_servers, start_cluster(heap="384m").bootstrap_servers


def fill(servers: str, topic: str, first: int = 0, count: int = RECORDS) -> None:
    """Appends numbered records to every partition, creating the topic if need be."""
    with Cluster({"bootstrap_servers": servers}) as cluster:
        cluster.run(create_topics, cluster, [TopicSpec(topic, PARTITIONS, 1)])
    producer = KafkaProducer(bootstrap_servers=servers)
    for number in range(first, first + count):
        producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    producer.close()


def ends(servers: str, topic: str) -> list[int]:
    with Cluster({"bootstrap_servers": servers}) as cluster:
        if topic not in cluster.run(cluster.partitions):
            return []
        partitions = {TopicPartition(topic, index): LATEST for index in range(PARTITIONS)}
        return [end for _, end in sorted(cluster.run(cluster.list_offsets, partitions).items())]


def is_identical(source: str, target: str, topic: str) -> bool:
    with Cluster({"bootstrap_servers": source}, name="source") as first:
        second = Cluster({"bootstrap_servers": target}, first.net, name="target")
        try:
            return bool(first.run(verify, first, second, topic).identical)
        finally:
            second.close()


def settings(source: str, target: str, topics: str, link: str, **more: Any) -> dict[str, Any]:
    both = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
    return {**both, "topics": topics, "link": link, "hold_ms": 2_000, **more}


def children(pid: int) -> list[int]:
    """Every living descendant of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(parents.get(pid, ()))
    for child in found:
        found += parents.get(child, [])
    return found


@pytest.mark.long
def test_two_directions_in_one_process_and_a_clean_stop(clusters: tuple[str, str], tmp_path: Path) -> None:
    one, two = clusters
    fill(one, "service-east")
    fill(two, "service-west")
    links = (settings(one, two, "service-east", "one-two"), settings(two, one, "service-west", "two-one"))
    with Service(tmp_path, *links) as service:
        for link in ("one-two", "two-one"):
            assert service.event("started", link).startswith("copying 1 topic with 2 partitions")
        copied = [RECORDS // PARTITIONS] * PARTITIONS
        wait_for(lambda: ends(two, "service-east") == copied and ends(one, "service-west") == copied)
        assert service.stop() < STOPPED_S
    assert is_identical(one, two, "service-east")
    assert is_identical(two, one, "service-west")


class Writer(threading.Thread):
    """Appends numbered records until it is ended, in a thread of its own."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = servers, topic
        self._end = threading.Event()
        self.written = 0

    def run(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._servers, linger_ms=5)
        while not self._end.wait(0.002):
            producer.send(self._topic, b"%d" % self.written, partition=self.written % PARTITIONS)
            self.written += 1
        producer.close()

    def end(self) -> list[int]:
        """What the partitions have now."""
        self._end.set()
        self.join()
        return ends(self._servers, self._topic)


@pytest.mark.long
def test_a_second_process_takes_over_while_the_first_still_runs(clusters: tuple[str, str], tmp_path: Path) -> None:
    one, two = clusters
    fill(one, "service-rolling")
    writer = Writer(one, "service-rolling")
    writer.start()
    link = settings(one, two, "service-rolling", "rolling")
    with Service(tmp_path, link) as first:
        first.event("started", "rolling")
        wait_for(lambda: sum(ends(two, "service-rolling")) > RECORDS)
        with Service(tmp_path, link) as second:
            assert "has only one writer" in second.event("failed", "rolling")
            first.stop()
            second.event("started", "rolling")
            reached = sum(ends(two, "service-rolling"))
            wait_for(lambda: sum(ends(two, "service-rolling")) > reached + 500)
            wanted = writer.end()
            wait_for(lambda: ends(two, "service-rolling") == wanted)
            second.stop()
    assert ends(two, "service-rolling") == wanted
    assert is_identical(one, two, "service-rolling")


@pytest.mark.long
def test_kill_minus_9_leaves_nothing_behind_and_the_next_process_goes_on(
    clusters: tuple[str, str], tmp_path: Path
) -> None:
    one, two = clusters
    fill(one, "service-killed")
    writer = Writer(one, "service-killed")
    writer.start()
    link = settings(one, two, "service-killed", "killed")
    with Service(tmp_path, link) as first:
        first.event("started", "killed")
        wait_for(lambda: sum(ends(two, "service-killed")) > RECORDS)
        started = children(first.child.pid)
        os.kill(first.child.pid, signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 30)
    with Service(tmp_path, link) as second:
        second.event("started", "killed")
        wanted = writer.end()
        wait_for(lambda: ends(two, "service-killed") == wanted)
        second.stop()
    assert is_identical(one, two, "service-killed")


@pytest.mark.long
def test_a_process_whose_jvm_is_dead_ends_with_an_error(clusters: tuple[str, str], tmp_path: Path) -> None:
    one, two = clusters
    fill(one, "service-jvm")
    with Service(tmp_path, settings(one, two, "service-jvm", "jvm")) as service:
        service.event("started", "jvm")
        (java,) = [pid for pid in children(service.child.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
        os.kill(java, signal.SIGKILL)
        assert "Spark died" in service.event("died", "")
        assert service.child.wait(15) == 1


@pytest.mark.long
def test_a_topic_with_records_of_somebody_else_stops_nothing_else(clusters: tuple[str, str], tmp_path: Path) -> None:
    one, two = clusters
    fill(one, "service-good")
    fill(one, "service-bad")
    fill(two, "service-bad", count=10)
    with Service(tmp_path, settings(one, two, "service-(good|bad)", "mixed")) as service:
        assert "service-bad" in service.event("blocked", "mixed")
        wait_for(lambda: sum(ends(two, "service-good")) == RECORDS)
        fill(one, "service-good", RECORDS, 100)
        wait_for(lambda: sum(ends(two, "service-good")) == RECORDS + 100)
        service.stop()
    assert is_identical(one, two, "service-good")
    assert sum(ends(two, "service-bad")) == 10


@pytest.mark.long
def test_a_promoted_link_is_left_alone_while_the_other_goes_on(clusters: tuple[str, str], tmp_path: Path) -> None:
    one, two = clusters
    fill(one, "service-lives")
    fill(one, "service-promoted")
    links = (settings(one, two, "service-lives", "lives"), settings(one, two, "service-promoted", "promoted"))
    with Service(tmp_path, *links) as service:
        wait_for(lambda: sum(ends(two, "service-lives") + ends(two, "service-promoted")) == 2 * RECORDS)
        with Cluster({"bootstrap_servers": two}) as target:
            target.run(update_control, target, "promoted", lambda control: replace(control, is_promotion_begun=True))
        assert "promoted" in service.event("promoted", "promoted")
        fill(one, "service-promoted", RECORDS, 100)
        fill(one, "service-lives", RECORDS, 100)
        wait_for(lambda: sum(ends(two, "service-lives")) == RECORDS + 100)
        assert sum(ends(two, "service-promoted")) == RECORDS
        service.stop()


@pytest.mark.long
def test_a_target_that_was_away_is_copied_to_again(
    kafka_cluster: Any, start_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    target = start_cluster(heap="384m")
    one, two = kafka_cluster.bootstrap_servers, target.bootstrap_servers
    fill(one, "service-away")
    with Service(tmp_path, settings(one, two, "service-away", "away")) as service:
        service.event("started", "away")
        wait_for(lambda: sum(ends(two, "service-away")) == RECORDS)
        target.kill(1)
        fill(one, "service-away", RECORDS, 100)
        time.sleep(20)
        assert service.child.poll() is None
        target.restart(1)
        wait_for(lambda: sum(ends(two, "service-away")) == RECORDS + 100)
        service.stop()
    assert is_identical(one, two, "service-away")
