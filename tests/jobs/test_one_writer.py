"""One partition of a target has one writer: mirrors with two tasks, two mirrors, killed and frozen ones, on real brokers.

The records are old, and the target's brokers look each second which producers they may forget: a batch that came a
second time, or late, would be appended.  A mirror follows for TOLERANT_ONE_WRITER_S and 20 more (10, long 40).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.structs import TopicPartition

from support.claims import holders_of
from support.log_readers import read_with_confluent
from support.long import LONG
from support.mirror_link import append_records, create_topic, ends
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.claims import LEASE_MS
from tolerant_client.mirror.state.claims_topic import read_claims

pytestmark = pytest.mark.spark

SECONDS = float(os.environ.get("TOLERANT_ONE_WRITER_S", "40" if LONG else "10"))
PARTITIONS = 4
FORGETFUL = {"producer.id.expiration.check.interval.ms": "1000"}


@pytest.fixture(scope="module")
def clusters(kafka_cluster: Any, start_cluster: Callable[..., Any]) -> tuple[str, str]:
    return kafka_cluster.bootstrap_servers, start_cluster(broker_config=FORGETFUL).bootstrap_servers


class Mirror:
    """`tolerant-kafka mirror` of one topic, with what it says in files; a process group of its own, Spark and all."""

    def __init__(self, clusters: tuple[str, str], topic: str, folder: Path, name: str, *options: str) -> None:
        self.told = folder / f"{name}.err"
        command = [
            sys.executable,
            "-m",
            "spark_integration.cli.app",
            "mirror",
            "--source",
            clusters[0],
            "--target",
            clusters[1],
        ]
        with self.told.open("wb") as told, (folder / f"{name}.out").open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--topics", topic, *options], stdout=out, stderr=told, start_new_session=True
            )

    def signal(self, number: int) -> None:
        """To all its processes: Spark's Python workers are of a process group of their own."""
        for pid in family(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> int:
        """Its exit code, after a stop that an operator asked for."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait(30)


def family(pid: int) -> list[int]:
    """A process, and all that it and its children have started."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@contextmanager
def growing(servers: str, topic: str, write: Callable[[str, str, int], None]) -> Iterator[None]:
    """A topic that is written to, five times a second, until the end of the block."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        number = 0
        try:
            while not stop.is_set():
                write(servers, topic, number)
                number += 1
                stop.wait(0.2)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


def old_records(servers: str, topic: str, number: int) -> None:
    append_records(servers, topic, 200, partitions=PARTITIONS, first=200 * number, per_batch=20, size=1000)


def reached(clusters: tuple[str, str], topic: str, seconds: float = 300) -> bool:
    """Whether the target gets as far as the source is."""
    deadline = time.monotonic() + seconds
    while ends(clusters[1], topic, PARTITIONS) != ends(clusters[0], topic, PARTITIONS):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def require_identical(clusters: tuple[str, str], topic: str) -> int:
    """Compares record by record what both clusters show; how many there are."""
    partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
    source, target = (read_with_confluent(servers, partitions, committed=True) for servers in clusters)
    for partition in partitions:
        missing, more = (
            source[partition].keys() - target[partition].keys(),
            target[partition].keys() - source[partition].keys(),
        )
        other = [
            n
            for n in source[partition].keys() & target[partition].keys()
            if source[partition][n] != target[partition][n]
        ]
        assert not (missing or more or other), (
            f"{partition}: {len(missing)} missing, {len(more)} more, {len(other)} others"
        )
    return sum(len(source[partition]) for partition in partitions)


def follow(clusters: tuple[str, str], topic: str, mirror: Mirror, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert mirror.process.poll() is None, mirror.told.read_text()
        time.sleep(0.5)


def test_one_mirror_with_two_tasks_copies_old_records_once(clusters: tuple[str, str], tmp_path: Path) -> None:
    topic = "two-tasks"
    create_topic(clusters[0], topic, PARTITIONS)
    mirror = Mirror(clusters, topic, tmp_path, "one", "--tasks", "2")
    try:
        with growing(clusters[0], topic, old_records):
            follow(clusters, topic, mirror, 20 + SECONDS)
        assert reached(clusters, topic), mirror.told.read_text()
        assert mirror.stop() == 0, mirror.told.read_text()
    finally:
        mirror.kill()
    assert require_identical(clusters, topic) > 1_000


@pytest.mark.long
def test_one_mirror_with_two_tasks_fills_gaps_with_markers_once(clusters: tuple[str, str], tmp_path: Path) -> None:
    topic = "two-tasks-markers"
    create_topic(clusters[0], topic, PARTITIONS)
    producers = [
        kafka.KafkaProducer(bootstrap_servers=clusters[0], transactional_id=f"{topic}-{n}") for n in range(PARTITIONS)
    ]
    for producer in producers:
        producer.init_transactions()

    def commit_one_each(servers: str, topic: str, number: int) -> None:
        for n, producer in enumerate(producers):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=n)
            producer.commit_transaction()

    mirror = Mirror(clusters, topic, tmp_path, "markers", "--tasks", "2", "--gap-fill", "markers")
    try:
        with growing(clusters[0], topic, commit_one_each):
            follow(clusters, topic, mirror, 20 + SECONDS)
        assert reached(clusters, topic), mirror.told.read_text()
        assert mirror.stop() == 0, mirror.told.read_text()
    finally:
        mirror.kill()
        for producer in producers:
            producer.close()
    assert require_identical(clusters, topic) > 100


@pytest.mark.parametrize("links", [("one", "two"), pytest.param(("one", "one"), marks=pytest.mark.long)])
def test_of_two_mirrors_that_start_at_once_one_copies_and_the_other_names_it(
    clusters: tuple[str, str], tmp_path: Path, links: tuple[str, str]
) -> None:
    topic = f"at-once-{links[1]}"
    create_topic(clusters[0], topic, PARTITIONS)
    append_records(clusters[0], topic, 20_000, partitions=PARTITIONS, per_batch=50)
    names = [f"{topic}-{link}" for link in links]
    mirrors = [Mirror(clusters, topic, tmp_path, str(n), "--tasks", "2", "--link", names[n]) for n in range(2)]
    try:
        deadline = time.monotonic() + 240
        while all(mirror.process.poll() is None for mirror in mirrors):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        refused, other = sorted(mirrors, key=lambda mirror: mirror.process.poll() is None)
        assert refused.process.returncode == 2, refused.told.read_text()
        said = refused.told.read_text()
        assert f"process {other.process.pid}" in said or f"link {names[mirrors.index(other)]}" in said, said
        assert reached(clusters, topic), other.told.read_text()
        assert other.stop() == 0, other.told.read_text()
    finally:
        for mirror in mirrors:
            mirror.kill()
    assert require_identical(clusters, topic) == 20_000 * PARTITIONS


@pytest.mark.long
def test_a_mirror_that_was_killed_is_followed_once_its_lease_is_over(clusters: tuple[str, str], tmp_path: Path) -> None:
    topic = "killed"
    create_topic(clusters[0], topic, PARTITIONS)
    with growing(clusters[0], topic, old_records):
        first = Mirror(clusters, topic, tmp_path, "first", "--tasks", "2")
        try:
            while not sum(ends(clusters[1], topic, PARTITIONS)) > 0:
                follow(clusters, topic, first, 0.5)
        finally:
            first.kill()
        killed = time.monotonic()
        time.sleep(1.0)  # what was on its way
        before = sum(ends(clusters[1], topic, PARTITIONS))
        second = Mirror(clusters, topic, tmp_path, "second", "--tasks", "2")
        try:
            while sum(ends(clusters[1], topic, PARTITIONS)) <= before:
                assert second.process.poll() is None, second.told.read_text()
                time.sleep(0.1)
            waited = time.monotonic() - killed
            assert LEASE_MS / 1000 - 3 < waited
        except BaseException:
            second.kill()
            raise
    try:
        assert reached(clusters, topic), second.told.read_text()
        assert second.stop() == 0
    finally:
        second.kill()
    assert require_identical(clusters, topic) > 200


@pytest.mark.long
def test_a_mirror_that_was_frozen_through_its_lease_appends_nothing_more(
    clusters: tuple[str, str], tmp_path: Path
) -> None:
    topic = "frozen"
    create_topic(clusters[0], topic, PARTITIONS)
    with growing(clusters[0], topic, old_records):
        first = Mirror(clusters, topic, tmp_path, "first", "--tasks", "2")
        second = None
        try:
            while not sum(ends(clusters[1], topic, PARTITIONS)) > 0:
                follow(clusters, topic, first, 0.5)
            first.signal(signal.SIGSTOP)
            time.sleep(1.0)  # what was on its way
            before = sum(ends(clusters[1], topic, PARTITIONS))
            second = Mirror(clusters, topic, tmp_path, "second", "--tasks", "2")
            while sum(ends(clusters[1], topic, PARTITIONS)) <= before:
                assert second.process.poll() is None, second.told.read_text()
                time.sleep(0.1)
            first.signal(signal.SIGCONT)
            assert first.process.wait(60) == 1, first.told.read_text()
            said = first.told.read_text().splitlines()
            (why,) = (line for line in said if "has only one writer" in line)
            # Spark may log after it.
            assert why == [line for line in said if line.startswith("tolerant-kafka:")][-1], said
            assert re.search(
                rf" is written by a mirror of link \S+ on \S+ \(process {second.process.pid}\), since 20", why
            ), why
            follow(clusters, topic, second, 5)
        except BaseException:
            if second is not None:
                second.kill()
            raise
        finally:
            first.kill()
    try:
        assert reached(clusters, topic), second.told.read_text()
        assert second.stop() == 0
    finally:
        second.kill()
    assert require_identical(clusters, topic) > 200


@pytest.mark.long
def test_a_mirror_that_ends_leaves_nothing_to_wait_for(clusters: tuple[str, str], tmp_path: Path) -> None:
    topic = "ended"
    create_topic(clusters[0], topic, PARTITIONS)
    append_records(clusters[0], topic, 100, partitions=PARTITIONS)
    mirror = Mirror(clusters, topic, tmp_path, "ended", "--tasks", "2")
    try:
        assert reached(clusters, topic), mirror.told.read_text()
        with Cluster({"bootstrap_servers": clusters[1]}) as target:
            log = target.run(read_claims, target)
            assert {p for p in holders_of(log) if p.topic == topic} == {
                TopicPartition(topic, n) for n in range(PARTITIONS)
            }
            assert log.runs(log)[-1].pid == mirror.process.pid
            assert mirror.stop() == 0, mirror.told.read_text()
            log = target.run(read_claims, target)
            assert not [p for p in holders_of(log) if p.topic == topic]
            assert log.runs(log)[-1].is_ended
    finally:
        mirror.kill()
