"""How fast consumers read one real broker, side by side: ratios to stock kafka-python.

    python tests/bench/consume.py [--records N] [--rounds N] [--cases NAME ...] [--servers HOST:PORT] [--json FILE]

Laws:
- Contenders take turns on the same topic of the same broker, each run in a
  process of its own; its CPU time is that of all its threads.
- A run reads the whole topic once, which does not count, and then for some seconds.
- What is quoted is the median of the rounds, as a ratio to stock in the same rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka.codec
from figures import Figure, save
from kafka.structs import TopicPartition

from tolerant_client.records.codecs import CODEC_NAMES

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests/, for support

PARTITIONS = 2
BATCH_BYTES = 16384  # batch.size of Kafka's producers
_SECONDS = 3.0
T0 = 1_700_000_000_000
LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Case:
    """What the records of a topic look like."""

    name: str
    size: int
    codec: int = 0
    is_decorated: bool = False  # with keys and two headers


CASES = [
    Case("100 B", 100),
    Case("100 B, lz4", 100, 3),
    Case("100 B, zstd", 100, 4),
    Case("100 B, snappy", 100, 2),
    Case("100 B, gzip", 100, 1),
    Case("100 B, keys and headers", 100, 0, True),
    Case("1 KB", 1000),
    Case("1 KB, lz4", 1000, 3),
    Case("1 KB, keys and headers", 1000, 0, True),
]


# -- contenders ----------------------------------------------------------------


class Polled:
    """A consumer of kafka-python's kind, read with poll()."""

    def __init__(self, consumer: Any, topic: str) -> None:
        self.consumer = consumer
        self._partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        consumer.assign(self._partitions)

    def rewind(self) -> None:
        self.consumer.seek_to_beginning(*self._partitions)

    def read(self) -> int:
        return sum(map(len, self.consumer.poll(timeout_ms=1000).values()))

    def close(self) -> None:
        self.consumer.close()


class PolledArrow(Polled):
    def read(self) -> int:
        rows: int = self.consumer.poll_arrow(timeout_ms=1000).num_rows
        return rows


class Confluent:
    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._partitions = [TopicPartition(topic, n, 0) for n in range(PARTITIONS)]
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})

    def rewind(self) -> None:
        self._consumer.assign(self._partitions)

    def read(self) -> int:
        # kafka-python's records come with their values; librdkafka's are made when asked for.
        return len([message.value() for message in self._consumer.consume(num_messages=500, timeout=1.0)])

    def close(self) -> None:
        self._consumer.close()


def _stock(servers: str, topic: str) -> Polled:
    return Polled(kafka.KafkaConsumer(bootstrap_servers=servers), topic)


def _poll(servers: str, topic: str) -> Polled:
    from tolerant_client import KafkaConsumer

    return Polled(KafkaConsumer(bootstrap_servers=servers), topic)


def _untracked(servers: str, topic: str) -> Polled:
    """Ours on kafka-python's own connections: what the tracker and its transport cost or save."""
    from kafka.net.compat import KafkaNetClient

    from tolerant_client import KafkaConsumer

    return Polled(KafkaConsumer(bootstrap_servers=servers, kafka_client=KafkaNetClient), topic)


def _arrow(servers: str, topic: str) -> PolledArrow:
    from tolerant_client import KafkaConsumer

    return PolledArrow(KafkaConsumer(bootstrap_servers=servers), topic)


CONTENDERS: dict[str, Callable[[str, str], Any]] = {
    "stock": _stock,
    "confluent": Confluent,
    "poll": _poll,
    "untracked": _untracked,
    "arrow": _arrow,
}


def run_here(name: str, servers: str, topic: str, count: int) -> dict[str, float]:
    """One contender in this process: the whole topic once to warm up, then again and again for `_SECONDS`."""
    reader = CONTENDERS[name](servers, topic)

    def read_all() -> int:
        reader.rewind()
        read = 0
        while read < count:
            read += reader.read()
        return read

    read_all()
    wall, cpu, read = time.monotonic(), time.process_time(), 0
    while time.monotonic() - wall < _SECONDS:
        read += read_all()
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    reader.close()
    return {
        "records_s": read / wall,
        "records_cpu_s": read / cpu,
        "rss_mb": peak_memory_mb(),
    }


def peak_memory_mb() -> float:
    """Of this process alone: getrusage() would tell its parent's peak, too, which a process keeps over exec()."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def run_apart(name: str, servers: str, topic: str, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--contender", name, servers, topic, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


# -- the benchmark -------------------------------------------------------------


def load(servers: str, topic: str, case: Case, count: int) -> None:
    """Fills a topic with batches as full as a producer's."""
    from support.mirror_link import append_batches, create_topic
    from tolerant_client.records.record_batch import Record, encode_batch

    create_topic(servers, topic, PARTITIONS)
    rng = random.Random(1)
    per_batch = max(1, BATCH_BYTES // case.size)
    texts = [bytes(rng.choices(LETTERS, k=case.size)) for _ in range(per_batch)]
    headers = (("trace", b"4bf92f3577b34da6"), ("source", b"shop")) if case.is_decorated else ()
    # The same records in every batch, as a broker numbers them.
    keys = [b"customer-%07d" % n if case.is_decorated else None for n in range(per_batch)]
    records = [Record(0, T0 + n, key, text, headers) for n, (key, text) in enumerate(zip(keys, texts))]
    batch = encode_batch(records, codec=case.codec)
    batches = -(-count // per_batch)
    append_batches(servers, ((TopicPartition(topic, n % PARTITIONS), batch) for n in range(batches)))


def stock_decompresses(codec: int) -> bool:
    return not codec or bool(getattr(kafka.codec, f"has_{CODEC_NAMES[codec]}")())


def compare(
    servers: str, case: Case, count: int, rounds: int, contenders: list[str]
) -> dict[str, list[dict[str, float]]]:
    topic = "consume-" + "".join(c if c.isalnum() else "-" for c in case.name)
    load(servers, topic, case, count)
    if not stock_decompresses(case.codec):
        print(f"\n{case.name}: kafka-python lacks its library for this codec here, so stock is left out")
        contenders = [name for name in contenders if name != "stock"]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in contenders:
            runs[name].append(run_apart(name, servers, topic, count))
    return runs


def figures_of(case: Case, runs: dict[str, list[dict[str, float]]]) -> Iterator[Figure]:
    units = {"records_s": "records/s", "records_cpu_s": "records per CPU-second", "rss_mb": "MB of memory"}
    for peer, own in runs.items():
        for name, unit in units.items():
            values = tuple(run[name] for run in own)
            is_cost = name == "rss_mb"
            yield Figure(table="consume", row=case.name, peer=peer, unit=unit, values=values, is_cost=is_cost)


def show(case: Case, runs: dict[str, list[dict[str, float]]]) -> None:
    print(f"\n{case.name}")
    found = {name: {key: statistics.median(run[key] for run in own) for key in own[0]} for name, own in runs.items()}
    base = found.get("stock")
    for name, run in found.items():
        wall, cpu = run["records_s"], run["records_cpu_s"]
        line = f"  {name:10} {wall:>11,.0f}/s {cpu:>11,.0f}/CPU-s {run['rss_mb']:>6,.0f} MB"
        if base is not None:
            line += f"   x{wall / base['records_s']:.1f}, x{cpu / base['records_cpu_s']:.1f} per CPU-second"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=400_000, help="of 100 B; a fourth of it where they are larger")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--servers", help="a broker that runs already; its topics consume-* must not exist")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--contender", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        name, servers, topic, count = options.contender
        print(json.dumps(run_here(name, servers, topic, int(count))))
        return
    from tolerant_client.testing import KafkaCluster

    with contextlib.ExitStack() as stack:
        servers = options.servers or stack.enter_context(KafkaCluster(heap="1g", java_options=())).bootstrap_servers
        results: list[Figure] = []
        for case in CASES:
            if case.name in options.cases:
                count = options.records if case.size <= 100 else options.records // 4
                runs = compare(servers, case, count, options.rounds, options.contenders)
                show(case, runs)
                results += figures_of(case, runs)
    save(options.json, results)


if __name__ == "__main__":
    main()
