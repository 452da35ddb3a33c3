"""tolerant-kafka as an operator runs it: real clusters, a real Spark job, exit codes and JSON."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka import errors as Errors

from support.mirror_link import copiers
from support.nasty_writer import delete_records
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics, describe_topics
from tolerant_client.records.record_batch import Record, encode_batch

PARTITIONS = 2
RECORDS = 2_000  # a topic
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def clusters(kafka_cluster: Any, start_cluster: Callable[..., Any]) -> tuple[str, str]:
    return kafka_cluster.bootstrap_servers, start_cluster().bootstrap_servers


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "spark_integration.cli.app", *arguments]


def run(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout)


def link(clusters: tuple[str, str], topics: str) -> list[str]:
    return ["--source", clusters[0], "--target", clusters[1], "--topics", topics]


def fill(servers: str, topic: str, first: int = 0, count: int = RECORDS, config: dict[str, str] | None = None) -> None:
    """Appends numbered records to every partition, creating the topic if need be."""

    async def append(cluster: Cluster) -> None:
        await create_topics(cluster, [TopicSpec(topic, PARTITIONS, 1, config or {})])
        for index in range(PARTITIONS):
            partition = TopicPartition(topic, index)
            batch = encode_batch(
                [Record(0, 1_700_000_000_000 + n, b"k%d" % n, b"v%d" % n) for n in range(first, first + count)]
            )

            async def once(partition: TopicPartition = partition, batch: bytes = batch) -> None:
                node = await cluster.leader(partition)
                produced = await cluster.produce(node, {partition: memoryview(bytearray(batch))})
                if produced[0].error_code:  # a topic that has just been created may have no leader yet: is retriable
                    raise Errors.for_code(produced[0].error_code)(partition)

            await cluster.insist("filling", once)

    with Cluster({"bootstrap_servers": servers}) as cluster:
        cluster.run(append, cluster)


def ends(servers: str, topic: str) -> list[int]:
    return bounds(servers, topic, LATEST)


def starts(servers: str, topic: str) -> list[int]:
    return bounds(servers, topic, EARLIEST)


def bounds(servers: str, topic: str, which: int) -> list[int]:
    with Cluster({"bootstrap_servers": servers}) as cluster:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        found = cluster.run(cluster.list_offsets, dict.fromkeys(partitions, which))
        return [found[partition] for partition in partitions]


def topics(servers: str) -> dict[str, list[int]]:
    with Cluster({"bootstrap_servers": servers}) as cluster:
        return cluster.run(cluster.partitions)


@pytest.fixture(scope="module")
def mirrored(clusters: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Two topics, mirrored once by the command; what it printed."""
    fill(clusters[0], "cmd-a", config={"retention.ms": "-1"})
    fill(clusters[0], "cmd-b")
    done = run("mirror", *link(clusters, "cmd-[ab]"), "--once", "--json")
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout)


def test_once_copies_up_to_the_ends_seen_at_the_start(clusters: tuple[str, str], mirrored: dict[str, Any]) -> None:
    assert mirrored["records"] == mirrored["offsets"] == 2 * PARTITIONS * RECORDS
    assert mirrored["topics"] == ["cmd-a", "cmd-b"]
    assert ends(clusters[1], "cmd-a") == [RECORDS, RECORDS]


def test_missing_topics_get_the_partitions_and_configuration_of_the_source(
    clusters: tuple[str, str], mirrored: dict[str, Any]
) -> None:
    with Cluster({"bootstrap_servers": clusters[1]}) as target:
        made = target.run(describe_topics, target, ["cmd-a"])["cmd-a"]
    assert made.partitions == PARTITIONS
    own = {"retention.ms": "-1", "message.timestamp.type": "CreateTime", "cleanup.policy": "delete"}
    assert made.config.items() >= own.items()


def test_verify_says_identical_with_exit_code_0(clusters: tuple[str, str], mirrored: dict[str, Any]) -> None:
    done = run("verify", *link(clusters, "cmd-[ab]"), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["identical"] is True
    assert len(report["partitions"]) == 2 * PARTITIONS
    assert (
        report["partitions"][0].items()
        >= {
            "topic": "cmd-a",
            "partition": 0,
            "source_start": 0,
            "source_end": RECORDS,
            "target_start": 0,
            "target_end": RECORDS,
            "identical_until": RECORDS,
            "first_difference": None,
        }.items()
    )


def test_a_stock_consumer_finds_every_record_at_its_offset(clusters: tuple[str, str], mirrored: dict[str, Any]) -> None:
    partition = TopicPartition("cmd-a", 1)
    consumer = KafkaConsumer(bootstrap_servers=clusters[1], auto_offset_reset="earliest", group_id=None)
    try:
        consumer.assign([partition])
        read: list[Any] = []
        deadline = time.monotonic() + 30
        while len(read) < RECORDS and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                read += records
    finally:
        consumer.close()
    assert [(r.offset, r.key, r.value) for r in read] == [(n, b"k%d" % n, b"v%d" % n) for n in range(RECORDS)]


def test_verify_names_the_first_difference_with_exit_code_1(clusters: tuple[str, str]) -> None:
    for servers, last in zip(clusters, (b"right", b"wrong")):
        fill(servers, "cmd-different", count=5)
        with Cluster({"bootstrap_servers": servers}) as cluster:

            async def append(last: bytes = last, cluster: Cluster = cluster) -> None:
                partition = TopicPartition("cmd-different", 1)
                batch = memoryview(bytearray(encode_batch([Record(0, 1, b"k", last)])))
                await cluster.produce(await cluster.leader(partition), {partition: batch})

            cluster.run(append)
    done = run("verify", *link(clusters, "cmd-different"), "--json")
    assert done.returncode == 1
    by_partition = {p["partition"]: p for p in json.loads(done.stdout)["partitions"]}
    assert by_partition[0]["first_difference"] is None
    assert by_partition[1]["first_difference"] == {"offset": 5, "reason": "value differs"}


def test_without_once_records_follow_within_a_second_until_it_is_told_to_stop(clusters: tuple[str, str]) -> None:
    fill(clusters[0], "cmd-tail", count=10)
    process = subprocess.Popen(
        command("mirror", *link(clusters, "cmd-tail")), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 240  # Spark starts, beside whatever else runs
        while "cmd-tail" not in topics(clusters[1]) or ends(clusters[1], "cmd-tail") != [10, 10]:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        while len(copiers(clusters[1], "cmd-tail")) < 2:
            assert process.poll() is None and time.monotonic() < deadline, "Spark's task takes over"
            time.sleep(0.2)
        assert copiers(clusters[1], "cmd-tail")[0] == process.pid, "it copies before Spark has started"
        for count in (20, 30, 40):
            fill(clusters[0], "cmd-tail", first=count - 10, count=10)
            appended = time.monotonic()
            while ends(clusters[1], "cmd-tail") != [count, count]:
                assert time.monotonic() < appended + 30
            time.sleep(0.3)
        assert python_workers(process.pid) == 1  # two would both copy all of it
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=240) == 0
    finally:
        process.kill()
        process.communicate()
    assert run("verify", *link(clusters, "cmd-tail")).returncode == 0


def test_a_copy_that_takes_longer_than_spark_to_start_is_handed_over_to_its_tasks(clusters: tuple[str, str]) -> None:
    fill(clusters[0], "cmd-slow")
    mirror = ("mirror", *link(clusters, "cmd-slow"), "--link", "slow", "--once", "--tasks", "2", "--json")
    assert run(*mirror).returncode == 0
    for first in range(RECORDS, 10 * RECORDS, RECORDS):
        fill(clusters[0], "cmd-slow", first=first)
    throttle = ("throttle", "--target", clusters[1], "--link", "slow")
    assert run(*throttle, "10000").returncode == 0
    process = subprocess.Popen(command(*mirror), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 240  # Spark starts, beside whatever else runs
        while len(copiers(clusters[1], "cmd-slow")) < 4:
            assert process.poll() is None and time.monotonic() < deadline, "Spark's tasks take over"
            time.sleep(0.5)
        assert run(*throttle, "off").returncode == 0
        told, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert json.loads(told)["records"] == PARTITIONS * 9 * RECORDS
    _, here, *tasks = copiers(clusters[1], "cmd-slow")
    assert len(tasks) == 2 and here == process.pid, "one for each task, after the process of the command"
    assert run("verify", *link(clusters, "cmd-slow")).returncode == 0


def test_a_copy_that_is_over_before_spark_would_have_started_needs_none(clusters: tuple[str, str]) -> None:
    fill(clusters[0], "cmd-short", count=10)
    process = subprocess.Popen(command("mirror", *link(clusters, "cmd-short"), "--once"), stdout=subprocess.PIPE)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and b"20 offsets" in told
    assert copiers(clusters[1], "cmd-short") == [process.pid]


def python_workers(pid: int) -> int:
    """Processes among the descendants of `pid` that run tasks: the children of Spark's daemon for them."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if (entry / "cmdline").read_bytes().endswith(b"pyspark.daemon\0pyspark.worker\0"):
                    daemons.add(int(entry.name))
            except OSError:
                continue

    def is_below(child: int) -> bool:
        return child == pid or child in parents and is_below(parents[child])

    return sum(parents[child] in daemons and is_below(child) for child in daemons)


# -- what waits for an operator -----------------------------------------------


@pytest.fixture(scope="module")
def narrow(clusters: tuple[str, str]) -> None:
    """Partition 1 of each cmd-narrow topic has a record at RECORDS that its target topic does not take."""
    for topic in ("cmd-narrow-i", "cmd-narrow-t"):
        fill(clusters[0], topic)
        append(clusters[0], TopicPartition(topic, 1), Record(0, 1_700_000_000_000, b"k", secrets.token_bytes(100_000)))
        with Cluster({"bootstrap_servers": clusters[1]}) as target:
            target.run(create_topics, target, [TopicSpec(topic, PARTITIONS, 1, {"max.message.bytes": "20000"})])


def append(servers: str, partition: TopicPartition, record: Record) -> None:
    async def produce(cluster: Cluster) -> None:
        batch = memoryview(bytearray(encode_batch([record])))
        (produced,) = await cluster.produce(await cluster.leader(partition), {partition: batch})
        assert produced.error_code == 0

    with Cluster({"bootstrap_servers": servers}) as cluster:
        cluster.run(produce, cluster)


@pytest.mark.long
def test_a_copy_that_an_open_transaction_holds_up_says_whose_it_is(clusters: tuple[str, str]) -> None:
    fill(clusters[0], "cmd-held", count=20)
    producer = kafka.KafkaProducer(
        bootstrap_servers=clusters[0], transactional_id="cmd-held-1", transaction_timeout_ms=600_000
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("cmd-held", b"open", partition=0).get(20)
        fill(clusters[0], "cmd-held", first=20, count=30)
        done = run("mirror", *link(clusters, "cmd-held"), "--once", "--json", "--link", "held", timeout=300)
        producer.abort_transaction()
    finally:
        producer.close()
    assert done.returncode == 3, done.stderr
    assert ends(clusters[1], "cmd-held") == [20, 50]
    (held,) = json.loads(done.stdout)["open_transactions"]
    assert (held["partition"], held["offsets"], held["transactional_id"]) == (0, 31, "cmd-held-1")
    (sentence,) = said(done.stderr)
    assert "copied up to the last stable offset; cmd-held-0: 31 offsets from 20 on wait" in sentence


@pytest.mark.long
def test_an_error_that_no_repeat_cures_ends_the_job_with_one_sentence(clusters: tuple[str, str], narrow: None) -> None:
    done = run("mirror", *link(clusters, "cmd-narrow-i"), "--once", "--json")
    (sentence,) = said(done.stderr)
    assert "cmd-narrow-i-1" in sentence and "max.message.bytes" in sentence
    assert json.loads(done.stdout) == {"error": sentence.removeprefix("tolerant-kafka: "), "exit_code": done.returncode}
    assert done.returncode == 1


@pytest.mark.long
def test_paused_partition_is_told_and_an_empty_log_is_begun_where_the_source_begins(
    clusters: tuple[str, str], narrow: None
) -> None:
    fill(clusters[0], "cmd-expired", count=30)
    with Cluster({"bootstrap_servers": clusters[0]}) as source:
        source.run(delete_records, source, {TopicPartition("cmd-expired", index): 30 for index in range(PARTITIONS)})
    done = run("mirror", *link(clusters, "cmd-(narrow-i|expired)"), "--once", "--json", "--on-oversized", "pause")
    assert done.returncode == 3, done.stderr
    assert ends(clusters[1], "cmd-expired") == starts(clusters[1], "cmd-expired") == [30, 30]
    assert ends(clusters[1], "cmd-narrow-i") == [RECORDS, RECORDS]
    assert_blocked(done, "cmd-narrow-i")


@pytest.mark.long
def test_paused_partition_of_a_translated_link_is_told(clusters: tuple[str, str], narrow: None) -> None:
    arguments = ["--link", "translated", "--offsets", "translated", "--on-oversized", "pause"]
    done = run("mirror", *link(clusters, "cmd-narrow-t"), *arguments, "--once", "--json")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert 0 < told["records"] < told["offsets"]  # those of transactions' markers, too
    assert told["offsets"] >= RECORDS  # what lies before the record may wait with it
    assert_blocked(done, "cmd-narrow-t")


@pytest.mark.long
def test_pause_is_told_while_the_mirror_runs(clusters: tuple[str, str], narrow: None) -> None:
    arguments = command("mirror", *link(clusters, "cmd-narrow-i"), "--on-oversized", "pause")
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any(line.startswith("tolerant-kafka: blocked: cmd-narrow-i-1: ") for line in process.stderr)
        time.sleep(20)  # other micro-batches follow, and say nothing more
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=240)
        assert (process.returncode, said(stderr)) == (3, [])
    finally:
        process.kill()
        process.communicate()


def assert_blocked(done: subprocess.CompletedProcess[str], topic: str) -> None:
    """Partition 1 is blocked, which standard error tells in one line, and JSON for programs."""
    (blocked,) = json.loads(done.stdout)["blocked"]
    assert (blocked["topic"], blocked["partition"]) == (topic, 1)
    assert "max.message.bytes" in blocked["reason"]
    assert blocked["reason"].startswith(f"{topic}-1: ")
    assert said(done.stderr) == [f"tolerant-kafka: blocked: {blocked['reason']}"]


def said(stderr: str) -> list[str]:
    """What the command says of the copying; the JVM's own lines and warnings of the start are left out."""
    return [line for line in stderr.splitlines() if line.startswith("tolerant-kafka: ") and " warning: " not in line]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--topics", "nothing-like-it"], "No topic of the source matches 'nothing-like-it'"),
        (["--topics", "["], "is not a regular expression"),
        (["--target", "SOURCE"], "are the same cluster"),
        (["--target", "127.0.0.1:1"], "could not be reached"),
    ],
)
def test_bad_input_gets_one_sentence_before_anything_is_written(
    clusters: tuple[str, str], mirrored: dict[str, Any], arguments: list[str], sentence: str
) -> None:
    before = topics(clusters[1])
    replaced = [clusters[0] if a == "SOURCE" else a for a in arguments]
    done = run("mirror", *link(clusters, "cmd-.*"), *replaced, "--once")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert topics(clusters[1]) == before


def test_verify_that_cannot_compare_ends_with_2(clusters: tuple[str, str]) -> None:
    done = run("verify", "--source", clusters[0], "--target", "127.0.0.1:1", "--topics", "cmd-a", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"] == 2 and "could not be reached" in told["error"]


@pytest.mark.long
def test_the_demo_proves_what_it_says() -> None:
    done = run("demo", "--records", "30000", "--json", timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["identical"] is True
    assert (result["duplicates"], result["missing"]) == (0, 0)
    assert result["faults_injected"] >= 10
    assert result["records"] >= 30000
