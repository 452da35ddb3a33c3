"""Ten mirrors of one link, killed and frozen at random, over nasty topics that grow: the copy is identical.

TOLERANT_RACE_MINUTES is how long it goes on (default: 5), TOLERANT_RACE_MIRRORS,
TOLERANT_RACE_TOPICS and TOLERANT_RACE_SEED change the rest:

    TOLERANT_LONG=1 TOLERANT_RACE_MINUTES=30 pytest -s tests/brokers/test_ten_mirrors.py
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka.structs import TopicPartition

from support.log_readers import Logs, read_bounds, read_with_confluent, read_with_kafka_python, show_log
from support.mirror_link import create_topic
from support.nasty_oracle import Judgement, judge, judge_bounds, judge_topics
from support.nasty_topics import NastyTopic, Step, growing_topic
from support.nasty_writer import BROKER_CONFIG, CLEANER_CONFIG, append_steps, create_nasty_topics
from support.tree import SUPPORT
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.records.record_batch import Record
from tolerant_client.testing import KafkaCluster

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

# A broker forgets a producer by the times of its records, which are years old here, each time it looks: a batch that came a
# second time, or late, would be appended.  So that is for one writer at every moment alone.
TARGET_CONFIG = {**CLEANER_CONFIG, "producer.id.expiration.check.interval.ms": "3000"}
MINUTES = float(os.environ.get("TOLERANT_RACE_MINUTES", "5"))
MIRRORS = int(os.environ.get("TOLERANT_RACE_MIRRORS", "10"))
SEED = int(os.environ.get("TOLERANT_RACE_SEED", str(random.SystemRandom().randrange(10**6))))
WRITER = SUPPORT / "mirror_process.py"
TOPICS = int(os.environ.get("TOLERANT_RACE_TOPICS", "16"))
ROUNDS_A_SECOND = 1.0
APPEND_LEASE_MS = 3000  # longer than a look at both logs takes on a busy machine, or nobody ever appends
HOLD_MS = LEASE_MS = 500
PAUSES_S = (1.0, 15.0)  # some are longer than the lease of a claim
DRAIN_S = 180 + 20 * MINUTES
OPTIONS = {
    "gap_fill": ["auto", "growing-records.*=records"],
    "append_lease_ms": APPEND_LEASE_MS,
    "hold_ms": HOLD_MS,
    "lease_ms": LEASE_MS,
    "run": "ten",  # one mirror, of whose processes several want the same partitions
    "tasks": 3,
}
REAL = "growing-real"  # written by librdkafka through a coordinator
REAL_PARTITIONS = 3


@pytest.fixture(scope="module")
def pair(start_cluster: Callable[..., KafkaCluster]) -> tuple[KafkaCluster, KafkaCluster]:
    source, target = (start_cluster(broker_config=config, heap="512m") for config in (BROKER_CONFIG, TARGET_CONFIG))
    return source, target


class Growth(threading.Thread):
    """Writes the plans of all topics, a few steps of each partition a second."""

    def __init__(self, servers: str, topics: list[NastyTopic], rng: random.Random, until: float) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.todo: dict[TopicPartition, deque[Step]] = {
            partition: deque(log.steps) for topic in topics for partition, log in topic.by_partition.items()
        }
        self.rng = rng
        self.until = until
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Cluster({"bootstrap_servers": self.servers}, name="growth") as raw:
                raw.run(self._write, raw)
        except BaseException as error:  # raised where the thread is joined
            self.error = error

    async def _write(self, raw: Cluster) -> None:
        await raw.connect()
        while any(self.todo.values()):
            left = self.until - time.monotonic()
            rounds_left = max(1.0, left * ROUNDS_A_SECOND)
            steps = {}
            for partition, todo in self.todo.items():
                count = len(todo) if left <= 0 else min(len(todo), self._count(len(todo) / rounds_left))
                steps[partition] = [todo.popleft() for _ in range(count)]
            await append_steps(raw, steps)
            if left > 0:
                await raw.net.sleep(1 / ROUNDS_A_SECOND)

    def _count(self, mean: float) -> int:
        """Bursts, and nothing in between."""
        return int(mean * self.rng.choice((0, 0.5, 1, 1, 2.5)) + self.rng.random())


class RealTransactions(threading.Thread):
    """One transactional librdkafka producer: commits, aborts, and at times it is left with an open transaction."""

    def __init__(self, servers: str, number: int, rng: random.Random, until: float) -> None:
        super().__init__(daemon=True)
        self.config = {
            "bootstrap.servers": servers,
            "transactional.id": f"{REAL}-{number}",
            "transaction.timeout.ms": 5000,
            "compression.type": rng.choice(("none", "lz4", "zstd")),
            "log_level": 2,
        }
        self.rng = rng
        self.until = until
        self.outcomes: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                producer = confluent_kafka.Producer(self.config)
                producer.init_transactions(60)
                try:
                    while time.monotonic() < self.until and self._transaction(producer):
                        pass
                except confluent_kafka.KafkaException:
                    self.outcomes["timed out"] += 1  # the coordinator has aborted it
            confluent_kafka.Producer(self.config).init_transactions(60)  # ends what was left open
        except BaseException as error:  # raised where the thread is joined
            self.error = error

    def _transaction(self, producer: Any) -> bool:
        producer.begin_transaction()
        for _ in range(self.rng.choice((0, 1, 5, 40))):
            producer.produce(
                REAL, self.rng.randbytes(self.rng.choice((0, 50, 2000))), partition=self.rng.randrange(REAL_PARTITIONS)
            )
            producer.poll(0)
            if self.rng.random() < 0.05:
                time.sleep(0.1)
        outcome = self.rng.choices(("commit", "abort", "left open"), (6, 3, 0.3))[0]
        self.outcomes[outcome] += 1
        if outcome == "commit":
            producer.commit_transaction(60)
        elif outcome == "abort":
            producer.abort_transaction(60)
        else:
            producer.flush(10)
        time.sleep(self.rng.uniform(0, 1.2))  # ten mirrors that fence each other fill a few markers a second
        return outcome != "left open"


class Mirrors:
    """The processes, and what is done to them."""

    def __init__(self, source: str, target: str, folder: Path, rng: random.Random) -> None:
        self.servers = source, target
        self.command = [sys.executable, str(WRITER), source, target, "growing-.*", "ten", json.dumps(OPTIONS)]
        self.folder = folder
        self.rng = rng
        self.running: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.frozen: dict[int, float] = {}  # process id -> when it goes on
        self.were_frozen: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def start(self) -> None:
        log = self.folder / f"mirror-{self.counts['started']}.log"
        with log.open("wb") as output:
            self.running.append((subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT), log))
        self.counts["started"] += 1

    def trouble_one(self) -> None:
        """Kills or freezes one, or leaves all alone."""
        process, log = self.rng.choice(self.running)
        what = self.rng.random()
        if what < 0.4:
            self.kill(process, log)
            self.counts["killed"] += 1
            self.start()
        elif what < 0.8 and process.pid not in self.frozen and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            self.frozen[process.pid] = time.monotonic() + self.rng.uniform(*PAUSES_S)
            self.were_frozen.add(process.pid)
            self.counts["frozen"] += 1

    def look_after(self, *, thaw: bool = False) -> None:
        """Lets frozen ones go on, and starts again what ended by itself, which is a failure."""
        for process, log in list(self.running):
            if self.frozen.get(process.pid, 0) and (thaw or self.frozen[process.pid] < time.monotonic()):
                process.send_signal(signal.SIGCONT)
                del self.frozen[process.pid]
            if process.poll() is not None:
                said = log.read_text()
                if process.pid in self.were_frozen and "copying" not in said and "could not be reached" in said:
                    self.counts["frozen for longer than it may take to connect"] += 1
                else:
                    self.failures.append(f"exit code {process.returncode}: {said[-1500:]}{self.shown(said)}")
                self.kill(process, log)
                self.start()

    def shown(self, error: str) -> str:
        """The ends of both logs of the partition that an error names."""
        named = re.search(r"(growing-\S+?)-(\d+)[,: ]", error)
        if named is None:
            return ""
        partition = TopicPartition(named[1], int(named[2]))
        ends = re.search(r"log ends at (\d+)", error)
        first = max(0, int(ends[1]) - 60) if ends else 0
        return "".join(
            f"\n{partition} of {servers}:\n{show_log(servers, partition, first)[:4000]}" for servers in self.servers
        )

    def kill(self, process: subprocess.Popen[bytes], log: Path) -> None:
        process.kill()
        process.wait()
        self.frozen.pop(process.pid, None)
        self.running.remove((process, log))
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                self.counts.update(json.loads(line))

    def kill_all(self) -> None:
        for process, log in list(self.running):
            self.kill(process, log)


def as_written(records: Mapping[int, Any]) -> dict[int, Record]:
    return {offset: Record(offset, r.timestamp, r.key, r.value, r.headers) for offset, r in records.items()}


@pytest.mark.long
def test_ten_mirrors_killed_and_frozen_copy_growing_topics_identically(
    pair: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    source, target = (cluster.bootstrap_servers for cluster in pair)
    rng = random.Random(SEED)
    print(f"TOLERANT_RACE_SEED={SEED} TOLERANT_RACE_MINUTES={MINUTES:g} TOLERANT_RACE_MIRRORS={MIRRORS}")
    steps = int(60 * MINUTES * 2 * ROUNDS_A_SECOND)
    names = ("growing-auto", "growing-auto", "growing-records")
    topics = [growing_topic(SEED + n, names[n % 3], steps) for n in range(TOPICS)]
    create_nasty_topics(source, topics)
    create_topic(source, REAL, REAL_PARTITIONS)
    until = time.monotonic() + 60 * MINUTES
    writers: list[Growth | RealTransactions] = [Growth(source, topics, random.Random(SEED), until)]
    writers += [RealTransactions(source, n, random.Random(SEED + n), until) for n in range(2)]
    mirrors = Mirrors(source, target, tmp_path, rng)
    partitions = [p for topic in topics for p in topic.by_partition]
    real = [TopicPartition(REAL, n) for n in range(REAL_PARTITIONS)]
    try:
        for writer in writers:
            writer.start()
        for _ in range(MIRRORS):
            mirrors.start()
        while any(writer.is_alive() for writer in writers):
            time.sleep(rng.uniform(0.1, 1.2))
            mirrors.trouble_one()
            mirrors.look_after()
            assert len(mirrors.failures) < 3, "\n".join(mirrors.failures)
        for writer in writers:
            if writer.error is not None:
                raise writer.error
        mirrors.kill_all()  # the race is over; one of them copies what is left
        mirrors.start()
        written = time.monotonic()
        wanted = read_bounds(source, partitions + real)
        while any((now := read_bounds(target, wanted))[p].end < wanted[p].stable for p in wanted):
            mirrors.look_after(thaw=True)
            behind = {p: (now[p].end, wanted[p].stable) for p in wanted if now[p].end < wanted[p].stable}
            assert time.monotonic() - written < DRAIN_S, (
                f"not drained after {DRAIN_S} s: {behind}; {mirrors.failures[:3]}"
            )
            time.sleep(0.5)
        drained = time.monotonic() - written
        time.sleep(2)  # a late write of anybody would show
    finally:
        mirrors.kill_all()
    judgement = compare(topics, source, target, partitions, real)
    outcomes = sum((w.outcomes for w in writers if isinstance(w, RealTransactions)), Counter())
    print(
        f"{judgement.records} records read, {judgement.fillers} filler, {judgement.cleaned_away} cleaned away on one side;"
        f" drained {drained:.1f} s after the last write; {dict(mirrors.counts)}; real transactions {dict(outcomes)}"
    )
    assert not judgement.differences, "\n".join(judgement.differences[:40])
    assert not mirrors.failures, "\n".join(mirrors.failures)
    assert mirrors.counts["killed"] and mirrors.counts["frozen"] and judgement.records and judgement.fillers


def compare(
    topics: list[NastyTopic], source: str, target: str, partitions: list[TopicPartition], real: list[TopicPartition]
) -> Judgement:
    """Both isolation levels of the target, one with each reader, against what was written."""
    bounds = read_bounds(source, partitions + real), read_bounds(target, partitions + real)
    left = read_with_confluent(source, partitions + real, committed=True)
    found: list[Logs] = [
        read_with_confluent(target, partitions + real, committed=True),
        read_with_kafka_python(target, partitions + real, committed=False),
    ]
    total = Judgement([])
    for logs in found:
        total += judge_topics(topics, *bounds, left, logs)
        for p in real:
            name = f"{p.topic}-{p.partition}"
            total += judge(name, as_written(left[p]), left[p], logs[p], is_compacted=False)
            total.differences.extend(judge_bounds(name, bounds[0][p], bounds[1][p], is_compact_only=False))
    return total
