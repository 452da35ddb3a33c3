"""Spark's own Kafka source and sink (`kafka`) beside ours (`tolerantkafka`): one session, one broker, in turns.

    python tests/bench/spark_source.py [--do read,write,faults] [--cases NAME ...] [--rounds N] [--scale X] [--json FILE]

Laws:
- Both run in the same warm session, local[2], Python workers reused; a first run of each does not count.
- They take turns on the same topic; what is quoted is the median of the rounds, as a ratio in the same rounds.
- Beside the rate stands the cost: CPU seconds of session, Python workers and broker together.
- Reading goes to the noop sink, with all columns; what is written comes from a cached frame.
- With faults, one answer in --one-in of the API is spoiled by a proxy in another process; rows are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients import FAULTS, Proxy
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from figures import Figure, save
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from tolerant_client.testing import KafkaCluster
from tolerant_client.testing.artifacts import spark_kafka_jars

SOURCES = ("kafka", "tolerantkafka")
PARTITIONS = 4
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_POOL = 5000  # different values; the same ones come again and again, 5,000 records apart


@dataclass(frozen=True)
class Case:
    """Records of `size` bytes, `records` of them in all."""

    name: str
    size: int
    records: int
    codec: str = "none"
    has_keys: bool = False


CASES = (
    Case("100 B", 100, 6_000_000),
    Case("1 KB", 1000, 1_200_000),
    Case("100 B, lz4", 100, 6_000_000, "lz4"),
    Case("100 B, zstd", 100, 6_000_000, "zstd"),
    Case("100 B, snappy", 100, 6_000_000, "snappy"),
    Case("100 B, keys", 100, 6_000_000, "none", True),
)


@dataclass
class Runs:
    """Records per second, and per CPU-second, of every counted run, by source; a text where a run failed."""

    what: str
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SOURCES})
    cpu_rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SOURCES})
    failures: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def median(self, source: str) -> float | None:
        rates = self.rates[source]
        return statistics.median(rates) if rates else None

    @property
    def ratio(self) -> float | None:
        return _ratio(self.rates)

    @property
    def cpu_ratio(self) -> float | None:
        return _ratio(self.cpu_rates)


class Bench:
    """A broker, a session and what was measured."""

    def __init__(self, spark: SparkSession, cluster: KafkaCluster, options: argparse.Namespace) -> None:
        self.spark = spark
        self.servers = cluster.bootstrap_servers
        self.options = options
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        self.results: list[Runs] = []

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)

    def load(self, case: Case) -> tuple[str, int]:
        """A topic with the case's records; (its name, how many)."""
        topic = "read-" + "".join(c if c.isalnum() else "-" for c in case.name.lower())
        records = int(case.records * self.options.scale)
        self.create(topic)
        config = {
            "linger.ms": 100,
            "batch.size": 262_144,
            "compression.type": case.codec,
            "queue.buffering.max.messages": 500_000,
        }
        producer = Producer({"bootstrap.servers": self.servers, **config})
        rng = random.Random(1)
        values = [bytes(rng.choices(LETTERS, k=case.size)) for _ in range(_POOL)]
        for number in range(records):
            key = str(number).encode() if case.has_keys else None
            while True:
                try:
                    producer.produce(topic, values[number % _POOL], key, number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()
        return topic, records

    def frame(self, source: str, topic: str, servers: str | None = None) -> DataFrame:
        reader = self.spark.read.format(source).option("kafka.bootstrap.servers", servers or self.servers)
        return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()

    def measure(self, what: str, run: Callable[[str], int], warm: bool = True) -> Runs:
        """Runs both sources in turns; `run` returns how many records it handled."""
        runs = Runs(what)
        for number in range(-1 if warm else 0, self.options.rounds):
            for source in SOURCES if number % 2 else SOURCES[::-1]:
                if source in runs.failures:
                    continue
                started, cpu = time.monotonic(), tree_cpu(os.getpid())
                try:
                    records = run(source)
                except Exception as error:  # what a fault does to a job is a result
                    runs.failures[source] = _reason(error)
                    continue
                if number >= 0:
                    runs.rates[source].append(records / (time.monotonic() - started))
                    runs.cpu_rates[source].append(records / (tree_cpu(os.getpid()) - cpu))
        self.results.append(runs)
        print(
            what,
            {name: f"{runs.median(name) or 0:,.0f}" for name in SOURCES},
            runs.ratio,
            runs.cpu_ratio,
            runs.failures,
            flush=True,
        )
        return runs

    # -- what is measured -----------------------------------------------------

    def read(self, case: Case) -> None:
        topic, records = self.load(case)

        def run(source: str) -> int:
            self.frame(source, topic).write.format("noop").mode("overwrite").save()
            return records

        self.measure(f"read {case.name}", run)
        self.delete(topic)

    def write(self, case: Case) -> None:
        records = int(case.records * self.options.scale)
        rows = self.spark.range(0, records, 1, PARTITIONS)
        columns = [f"repeat(substr(sha2(cast(id as string), 512), 1, 100), {case.size // 100}) as value"]
        if case.has_keys:
            columns.append("cast(id as string) as key")
        frame = rows.selectExpr(*columns).persist()
        frame.count()
        counter = iter(range(10**6))

        def run(source: str) -> int:
            topic = f"written-{next(counter)}"
            self.create(topic)
            writer = frame.write.format(source).option("kafka.bootstrap.servers", self.servers).option("topic", topic)
            writer.option("kafka.compression.type", case.codec).mode("append").save()
            self.delete(topic)
            return records

        self.measure(f"write {case.name}", run)
        frame.unpersist()

    def faults(self, proxy: Proxy) -> None:
        """Reading behind a proxy that spoils one Fetch answer in --one-in."""
        case = Case("faulty 500 B", 500, 2_000_000)
        topic, records = self.load(case)
        spoiled: list[tuple[str, dict[str, Any]]] = []

        def run(source: str) -> int:
            proxy.set(spoiled)
            row = (
                self.frame(source, topic, proxy.servers)
                .selectExpr("count(*)", "count(distinct partition, offset)")
                .first()
            )
            if row is None or tuple(row) != (records, records):
                raise RuntimeError(f"{row} instead of {records} rows")
            return records

        self.measure("no fault", run)
        for name in self.options.faults.split(","):
            kind, arguments = FAULTS[name]
            chance = {"api": "Fetch", "probability": 1 / self.options.one_in, "seed": 7}
            spoiled[:] = [(kind, {**chance, **arguments})]
            runs = self.measure(name, run, warm=False)
            _, injected = proxy.set([])
            runs.note = f"{sum(injected.values())} faults in the last run"
        self.delete(topic)


def _ratio(rates: dict[str, list[float]]) -> float | None:
    pairs = [ours / theirs for theirs, ours in zip(rates["kafka"], rates["tolerantkafka"])]
    return statistics.median(pairs) if pairs else None


def tree_cpu(root: int) -> float:
    """CPU seconds of a process, of all that live below it, and of those below it that have ended (proc(5), stat)."""
    ticks: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    below = {root}
    for _ in ticks:
        more = {pid for pid, (parent, _) in ticks.items() if parent in below} | below
        if more == below:
            break
        below = more
    return sum(ticks[pid][1] for pid in below if pid in ticks) / os.sysconf("SC_CLK_TCK")


def _reason(error: Exception) -> str:
    text = str(error)
    for line in text.splitlines():
        if "rror" in line or "xception" in line:
            return line.strip()[:160]
    return text[:160]


def table(results: list[Runs]) -> Table:
    shown = Table("", "Spark's own kafka, records/s", "tolerantkafka, records/s", "ratio", "ratio per CPU-second")
    for runs in results:
        cells = []
        for name in SOURCES:
            median = runs.median(name)
            cells.append(f"FAILED: {runs.failures[name]}" if name in runs.failures else f"{median or 0:,.0f}")
        shown.add_row(runs.what, *cells, *(f"{ratio:.2f}" if ratio else "" for ratio in (runs.ratio, runs.cpu_ratio)))
    return shown


def figures_of(results: list[Runs]) -> Iterator[Figure]:
    for runs in results:
        for source in SOURCES:
            for unit, values in (("rows/s", runs.rates[source]), ("rows per CPU-second", runs.cpu_rates[source])):
                if values:
                    yield Figure(table="spark", row=runs.what, peer=source, unit=unit, values=tuple(values))


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.jars", ",".join(map(str, spark_kafka_jars())))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--do", default="read,write,faults")
    parser.add_argument("--cases", nargs="*", help=f"among {', '.join(case.name for case in CASES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--faults", default="id+1,drop,duplicate,truncate,corrupt,reset")
    parser.add_argument("--one-in", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [case for case in CASES if not options.cases or case.name in options.cases]
    with KafkaCluster(heap="1g", java_options=()) as cluster, session() as spark:
        bench = Bench(spark, cluster, options)
        if "read" in options.do:
            for case in cases:
                bench.read(case)
        if "write" in options.do:
            for case in cases:
                bench.write(case)
        if "faults" in options.do:
            with Proxy(cluster) as proxy:
                bench.faults(proxy)
        Console().print(table(bench.results))
        save(options.json, figures_of(bench.results))


if __name__ == "__main__":
    main()
