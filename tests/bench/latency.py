"""How long a record takes from its append on the source until it can be read on the target.

One process appends records that carry its own monotonic time and reads the
copies.  The peer "direct" is no mirror: the reader reads the source, which is
the floor that the clients and one broker set.
"""

from __future__ import annotations

import contextlib
import math
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from peers import BenchError, Pair, Running, Span

try:
    import confluent_kafka
except ImportError:
    confluent_kafka = None  # type: ignore[assignment]

PARTITIONS = 20
_VALUE = struct.Struct(">qq84x")  # number (negative: not counted) and monotonic ns of the append; 100 bytes
_READY_TIMEOUT_S = 120.0
_LATE_TIMEOUT_S = 30.0
_READ_ON_S = 1.0


@dataclass(frozen=True)
class LatencyRun:
    """One peer's latencies; `samples_ms` in the order of the appends."""

    peer: str
    repeat: int
    clients: str
    records: int
    duplicates: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    cpu_percent: float
    brokers_cpu_percent: float
    others_percent: float
    samples_ms: list[float]


class _Arrivals:
    """What the reading thread has seen: latency in ns by number, and the partitions that are live."""

    def __init__(self) -> None:
        self.latencies: dict[int, int] = {}
        self.duplicates = 0
        self.live: set[int] = set()

    def add(self, partition: int, value: bytes) -> None:
        now = time.monotonic_ns()
        number, appended = _VALUE.unpack(value)
        self.live.add(partition)
        if number >= 0:
            self.duplicates += number in self.latencies
            self.latencies.setdefault(number, now - appended)


def measure_latency(pair: Pair, name: str, repeat: int, rate: int, warm_up_s: float, seconds: float) -> LatencyRun:
    """Starts a peer in tail mode and measures it at `rate` records a second over 20 partitions.

    Raises BenchError if records do not arrive.
    """
    topic = f"latency-{name}-{repeat}"
    pair.create(topic, PARTITIONS)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # the reading thread may not wait 5 ms for the appending one
    arrivals, stop = _Arrivals(), threading.Event()
    try:
        with contextlib.ExitStack() as stack:
            peer, servers, read_topic = None, pair.source, topic
            if name != "direct":
                launch = pair.launch(
                    name, topic, 1_000_000 + repeat, tail_s=_READY_TIMEOUT_S + warm_up_s + seconds + 60
                )
                peer = stack.enter_context(Running(launch, pair.folder, 1_000_000 + repeat))
                servers, read_topic = pair.target, launch.target_topic
                _wait_for_topic(pair, read_topic, peer)
            reader = threading.Thread(target=_read, args=(servers, read_topic, stop, arrivals), daemon=True)
            reader.start()
            stack.callback(reader.join)
            stack.callback(stop.set)
            with _appender(pair.source, topic) as append:
                _wait_until_live(append, arrivals, peer)
                _append_at(append, rate, warm_up_s, is_counted=False)
                cpu, span = peer.cpu() if peer else 0.0, Span(pair)
                appended = _append_at(append, rate, seconds, is_counted=True)
            deadline = time.monotonic() + _LATE_TIMEOUT_S
            while len(arrivals.latencies) < appended and time.monotonic() < deadline:
                time.sleep(0.01)
            cpu = peer.cpu() - cpu if peer else 0.0
            wall, brokers_cpu, others = span.read(cpu)
            if len(arrivals.latencies) < appended:
                raise BenchError(f"{name}: {len(arrivals.latencies):,} of {appended:,} records arrived")
            time.sleep(_READ_ON_S)  # a record that comes twice
    finally:
        sys.setswitchinterval(switch_interval)
    samples = [arrivals.latencies[number] / 1e6 for number in range(appended)]
    ordered = sorted(samples)
    p50, p99, p999 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 0.999))
    clients = "kafka-python" if confluent_kafka is None else "confluent-kafka"
    return LatencyRun(
        peer=name,
        repeat=repeat,
        clients=clients,
        records=appended,
        duplicates=arrivals.duplicates,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=ordered[-1],
        cpu_percent=cpu / wall * 100,
        brokers_cpu_percent=brokers_cpu / wall * 100,
        others_percent=others * 100,
        samples_ms=samples,
    )


def _wait_for_topic(pair: Pair, topic: str, peer: Running) -> None:
    with pair.clusters() as (_, target):
        while len(target.run(target.partitions, [topic]).get(topic, ())) < PARTITIONS:
            _refuse_late(peer, f"{topic} was not created")
            time.sleep(0.1)


def _wait_until_live(append: Callable[[int, int], None], arrivals: _Arrivals, peer: Running | None) -> None:
    """Appends a record to each partition twice a second until one of each has been read."""
    began = time.monotonic()
    while len(arrivals.live) < PARTITIONS:
        for partition in range(PARTITIONS):
            append(partition, -1)
        time.sleep(0.5)
        if peer is not None:
            _refuse_late(peer, f"{len(arrivals.live)} of {PARTITIONS} partitions are live")
        elif time.monotonic() > began + _READY_TIMEOUT_S:
            raise BenchError("The source cannot be read")


def _refuse_late(peer: Running, what: str) -> None:
    if peer.is_over() or time.monotonic() > peer.started + _READY_TIMEOUT_S:
        raise BenchError(f"{peer.launch.name} is not live ({what}):\n{peer.tail()}")


def _append_at(append: Callable[[int, int], None], rate: int, seconds: float, *, is_counted: bool) -> int:
    """Appends records evenly, partition by partition; returns their number."""
    count, began = round(rate * seconds), time.monotonic()
    for number in range(count):
        delay = began + number / rate - time.monotonic()
        if delay > 0:
            time.sleep(delay)
        append(number % PARTITIONS, number if is_counted else -1)
    return count


# -- the clients: confluent-kafka if there is one, for it adds least of its own --


@contextlib.contextmanager
def _appender(servers: str, topic: str) -> Iterator[Callable[[int, int], None]]:
    """append(partition, number), which returns before the record has been sent."""
    producer: Any
    if confluent_kafka is None:
        producer = KafkaProducer(bootstrap_servers=servers, linger_ms=0)
    else:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "linger.ms": 0, "socket.nagle.disable": True}
        )

    def append(partition: int, number: int) -> None:
        value = _VALUE.pack(number, time.monotonic_ns())
        if confluent_kafka is None:
            producer.send(topic, value, partition=partition)
        else:
            producer.produce(topic, value, partition=partition)
            producer.poll(0)

    yield append
    producer.flush()
    if confluent_kafka is None:
        producer.close()


def _read(servers: str, topic: str, stop: threading.Event, arrivals: _Arrivals) -> None:
    """Reads a topic from its beginning until told to stop."""
    if confluent_kafka is None:
        reader = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None)
        reader.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        while not stop.is_set():
            for records in reader.poll(timeout_ms=100).values():
                for record in records:
                    arrivals.add(record.partition, record.value)
    else:
        config = {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
        reader = confluent_kafka.Consumer(config)
        earliest = confluent_kafka.OFFSET_BEGINNING
        reader.assign([confluent_kafka.TopicPartition(topic, number, earliest) for number in range(PARTITIONS)])
        while not stop.is_set():
            record = reader.poll(0.1)
            if record is not None and record.error() is None:
                arrivals.add(record.partition() or 0, record.value() or b"")
    reader.close()
