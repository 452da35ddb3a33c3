"""tolerant-kafka demo: a mirror between two real clusters under faults, with proof that nothing was lost.

It starts two clusters and fills topics; a mirror runs as a Spark job
through a proxy on each side that spoils every fourth response, each time in another
way; it is killed with kill -9 on the way and started again; then every record of both
clusters is compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition
from rich.console import Console

from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.mirror.verify.report import VerifyReport
from tolerant_client.mirror.verify.verification import verify
from tolerant_client.ops.printing import Table, echo, print_table
from tolerant_client.records import codecs
from tolerant_client.records.arrow import iter_arrow
from tolerant_client.records.record_batch import Record, encode_batch, iter_batches
from tolerant_client.testing import (
    Corrupt,
    Drop,
    Duplicate,
    ErrorCode,
    Fault,
    FaultProxy,
    KafkaCluster,
    Reorder,
    Reset,
    RewriteCorrelationId,
    Stale,
    Stall,
    Truncate,
)

TOPICS = {
    "orders": codecs.NONE,
    "payments": codecs.GZIP,
    "clicks": codecs.SNAPPY,
    "views": codecs.LZ4,
    "audit": codecs.ZSTD,
}
PARTITIONS = 3
_SPOILED_EVERY = 4  # responses: one carries thousands of records, so the whole copy takes only a few hundred
_RECORDS_PER_BATCH = 100
_KILL_AT = 0.3  # share of the records
_GIVE_UP_S = 300
_START_UP_S = 5.0  # a longer pause is Spark's start, not the survival of a fault
_OFFSET_OUT_OF_RANGE, _NOT_LEADER = 1, 6


@dataclass(frozen=True)
class DemoResult:
    """The result of the comparison; `seconds` is the time in which the target grew."""

    records: int
    seconds: float
    faults_injected: int
    duplicates: int
    missing: int
    identical: bool

    @property
    def is_proved(self) -> bool:
        return self.identical and self.duplicates == 0 and self.missing == 0 and self.faults_injected > 0


def run_demo(records: int, *, is_quiet: bool = False) -> DemoResult:
    """Runs the demo and prints a table, unless quiet; cleans up in every case.

    Raises ClusterStartError when Java, the registry or a port is missing.
    """
    say = Console(stderr=True, quiet=is_quiet).print
    say("Starting two Kafka clusters ...")
    with KafkaCluster() as source, KafkaCluster() as target:
        say(f"Filling {len(TOPICS)} topics with {records:,} records (none, gzip, snappy, lz4, zstd) ...")
        with Cluster({"bootstrap_servers": source.bootstrap_servers}, name="source") as cluster:
            written = cluster.run(_fill, cluster, records)
        with FaultProxy(source, _faults()) as before, FaultProxy(target, _faults()) as behind:
            links = (before.bootstrap_servers, behind.bootstrap_servers)
            with Cluster({"bootstrap_servers": target.bootstrap_servers}, name="target") as watched:
                say(
                    f"Mirroring through proxies that inject faults into 1 response in {_SPOILED_EVERY}; kill -9 on the way ..."
                )
                seconds, killed_at = _mirror_with_a_kill(links, watched, written)
            injected = before.injected + behind.injected
        say("Comparing every record of both clusters ...")
        with Cluster({"bootstrap_servers": source.bootstrap_servers}, name="source") as first:
            second = Cluster({"bootstrap_servers": target.bootstrap_servers}, first.net, name="target")
            report = first.run(verify, first, second, "|".join(TOPICS))
            total, distinct, size = first.run(_count, second)
            second.close()
    result = DemoResult(
        written, round(seconds, 3), injected.total(), total - distinct, written - distinct, report.identical
    )
    if not is_quiet:
        _print(result, report, dict(injected), killed_at, size)
    return result


async def _fill(cluster: Cluster, records: int) -> int:
    """Writes records with keys, headers, null values and null headers; every key occurs once."""
    await cluster.connect()
    await create_topics(cluster, [TopicSpec(topic, PARTITIONS, 1) for topic in TOPICS])
    chance = random.Random(1)
    per_partition = -(-records // (len(TOPICS) * PARTITIONS))
    now = int(time.time() * 1000)
    for first in range(0, per_partition, _RECORDS_PER_BATCH):
        numbers = range(first, min(first + _RECORDS_PER_BATCH, per_partition))
        for topic, codec in TOPICS.items():
            for index in range(PARTITIONS):
                partition = TopicPartition(topic, index)
                batch = [_record(f"{topic}-{index}-{number}", now + number, chance) for number in numbers]
                data = memoryview(bytearray(encode_batch(batch, codec=codec)))
                await cluster.insist(f"filling {topic}", partial(cluster.append, partition, data))
    return per_partition * len(TOPICS) * PARTITIONS


def _record(key: str, timestamp: int, chance: random.Random) -> Record:
    value = None if chance.random() < 0.05 else chance.randbytes(20).hex().encode() * 2
    headers = (("trace", chance.randbytes(4)), ("empty", None)) if chance.random() < 0.2 else ()
    return Record(0, timestamp, key.encode(), value, headers)


def _faults() -> list[Fault]:
    """Every kind of fault, in turn; together they spoil about every fourth response.

    Bytes and error codes are changed only where a checksum, or a comparison of both logs, detects it.
    """
    of_one_api: list[Fault] = [
        Corrupt(api="Fetch", after=1, every=10),
        ErrorCode(_OFFSET_OUT_OF_RANGE, api="Fetch", after=3, every=10),
        ErrorCode(_NOT_LEADER, api="Produce", after=1, every=10),
    ]
    kinds: tuple[Callable[..., Fault], ...] = (
        RewriteCorrelationId, Duplicate, Drop, Stale, Reorder, Truncate, partial(Stall, 0.2), Reset,
    )  # fmt: skip
    every = _SPOILED_EVERY * len(kinds)
    return [*of_one_api, *(kind(after=_SPOILED_EVERY * n, every=every) for n, kind in enumerate(kinds, 1))]


def _mirror_with_a_kill(links: tuple[str, str], target: Cluster, records: int) -> tuple[float, int]:
    """Mirrors everything, with one kill -9 on the way; returns (seconds in which the target grew, records at the kill)."""
    growing = 0.0
    killed_at = -1
    done = 0
    for attempt in ("killed", "finished"):
        with _mirror(links) as process:
            last_change = float("-inf")
            deadline = time.monotonic() + _GIVE_UP_S
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise TolerantClientError(
                        f"The mirror did not end within {_GIVE_UP_S} s; {done} of {records} are copied"
                    )
                before, done = done, target.run(_written, target)
                now = time.monotonic()
                if done > before:
                    if now - last_change < _START_UP_S:
                        growing += now - last_change
                    last_change = now
                if attempt == "killed" and done > _KILL_AT * records:
                    killed_at = done
                    break
                time.sleep(0.005)
        if attempt == "finished" and process.returncode != 0:
            raise TolerantClientError(f"The mirror ended with exit code {process.returncode}")
    return growing, killed_at


@contextlib.contextmanager
def _mirror(links: tuple[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `tolerant-kafka mirror --once` as a process; it is ended with kill -9 if it still runs."""
    source, target = links
    command = [sys.executable, "-m", "spark_integration.cli.app", "mirror", "--source", source, "--target", target]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, "--topics", "|".join(TOPICS), "--once", "--json"],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            if process.wait() > 0:
                errors.seek(0)
                sys.stderr.write(errors.read().decode(errors="replace")[-2000:])


async def _written(target: Cluster) -> int:
    present = await target.partitions(TOPICS)
    partitions = [TopicPartition(topic, index) for topic, indexes in present.items() for index in indexes]
    return sum((await target.list_offsets(dict.fromkeys(partitions, LATEST))).values())


async def _count(target: Cluster) -> tuple[int, int, int]:
    """(records, distinct keys, bytes of the batches) that a reader finds on the target."""
    total, distinct, size = 0, 0, 0
    ends = await target.list_offsets({TopicPartition(t, i): LATEST for t in TOPICS for i in range(PARTITIONS)})
    for partition, end in ends.items():
        keys = []
        position = 0
        while position < end:
            for header, batch in iter_batches((await fetch_alone(target, partition, position)).records):
                for rows in iter_arrow([(header, batch)], partition.topic, partition.partition, position, end):
                    keys.append(rows.column("key"))
                position = header.next_offset
                size += header.size
        column = pa.chunked_array(keys)
        total += len(column)
        distinct += pc.count_distinct(column).as_py()
    return total, distinct, size


def _print(result: DemoResult, report: VerifyReport, injected: dict[str, int], killed_at: int, size: int) -> None:
    topics = Table("topic", "codec", "records", "on the target", title="Every record at the same offset")
    for topic, codec in TOPICS.items():
        parts = [p for p in report.partitions if p.topic == topic]
        same = all(p.first_difference is None for p in parts)
        topics.add_row(
            topic,
            codecs.CODEC_NAMES[codec],
            f"{sum(p.held for p in parts):,}",
            "identical" if same else "DIFFERENT",
        )
    print_table(topics)
    for name, value in _facts(result, injected, killed_at, size):
        echo(f"{name}: {value}")


def _facts(result: DemoResult, injected: dict[str, int], killed_at: int, size: int) -> Iterator[tuple[str, str]]:
    yield "records", f"{result.records:,}"
    seconds = max(result.seconds, 1e-3)
    yield (
        "speed",
        f"{result.records / seconds:,.0f} records/s, {size / seconds / 1e6:.1f} MB/s in the {seconds:.1f} s in which the target"
        " grew, faults included",
    )
    yield "mirror killed with -9", f"after {killed_at:,} records" if killed_at >= 0 else "no: it finished before"
    yield (
        "faults injected",
        f"{result.faults_injected}, all survived" if result.is_proved else f"{result.faults_injected}",
    )
    kinds: dict[str, int] = {}
    for name, count in injected.items():
        kind = name.rsplit("/", 1)[-1]
        kinds[kind] = kinds.get(kind, 0) + count
    yield "of which", json.dumps(dict(sorted(kinds.items()))).strip("{}").replace('"', "")
    yield "duplicates", str(result.duplicates)
    yield "missing", str(result.missing)
    yield "identical", "yes" if result.identical else "NO"
