"""One Kafka client in a process of its own: consumes or produces, and says how it went.

    python tests/bench/client_process.py JOB

JOB is a Job as JSON; the last line printed is a Result as JSON.  A client that hangs is
ended at the job's time limit by a thread, and its result is what it had done by then.

A record's value is crc32 of the rest (4 bytes), its number (8 bytes), filling.  Record n is in
partition n % partitions, so each partition holds ascending numbers.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CLIENTS = ("ours", "stock", "aiokafka", "confluent")
LAYER = "layer"  # stock kafka-python on our network layer, and nothing else of ours
_HEAD = struct.Struct(">IQ")
_FILLING = random.Random(1).randbytes(1 << 16)
_POLL_MS = 200
_MAX_ERRORS = 1000  # that consuming raises, before the client counts as stuck


@dataclass(frozen=True)
class Job:
    """`records` numbered from 0, of `sizes` [from, to] bytes; `options` are the client's own names.

    A consumer reads `records` of the `held` that the topic holds, so that no partition runs dry
    before the end: at the end of a log a Fetch waits for more, and all partitions with it.
    `is_bare`: the application only counts, so that the clients' own cost is not diluted.
    `acked`: a file for one byte per record, 1 where the client said that it was written.
    `trace`: a file for the recovery events of ours, one a line, each behind its time.
    """

    client: str
    do: str
    servers: str
    topic: str
    records: int
    held: int
    partitions: int = 4
    seconds: float = 20.0
    sizes: tuple[int, int] = (100, 1000)
    options: dict[str, Any] = field(default_factory=dict)
    is_bare: bool = False
    acked: str = ""
    trace: str = ""


@dataclass
class Result:
    """What the application saw; `longest_stall` is the longest time, in seconds, without a record or an ack."""

    records: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    longest_stall: float = 0.0
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    wrong: int = 0
    failed: int = 0
    is_complete: bool = False
    errors: dict[str, int] = field(default_factory=dict)

    def failure(self, error: BaseException | str) -> None:
        name = error if isinstance(error, str) else type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1


def values(job: Job) -> Iterator[bytes]:
    """The records' values, the same for every client; made before the time is taken."""
    draw = random.Random(7)
    low, high = job.sizes
    for number in range(job.held):
        size = low if low == high else draw.randint(low, high)
        start = draw.randrange(1 << 15)
        rest = number.to_bytes(8, "big") + _FILLING[start : start + size - _HEAD.size]
        yield zlib.crc32(rest).to_bytes(4, "big") + rest


class Tally:
    """Compares what arrives with what was written; shared with the thread that ends a hanging client."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.result = Result()
        self.marks = bytearray(job.held)  # seen, or acknowledged
        self._next = list(range(job.partitions))
        self._began = self._last = time.monotonic()
        self._cpu = time.process_time()

    def start(self) -> None:
        """The measured time begins."""
        self._began = self._last = time.monotonic()
        self._cpu = time.process_time()

    def tick(self) -> None:
        """A record or an ack reached the application."""
        now = time.monotonic()
        if now - self._last > self.result.longest_stall:
            self.result.longest_stall = now - self._last
        self._last = now

    def see(self, partition: int, batch: Iterable[bytes]) -> None:
        """Takes consumed values of one partition, in their order."""
        result, marks, step = self.result, self.marks, self.job.partitions
        for value in batch:
            crc, number = _HEAD.unpack_from(value)
            if number >= len(marks) or zlib.crc32(memoryview(value)[4:]) != crc or number % step != partition:
                result.wrong += 1
                continue
            if number == self._next[partition]:
                self._next[partition] = number + step
            elif number > self._next[partition]:
                self._next[partition] = number + step
            elif not marks[number]:
                result.out_of_order += 1
            if marks[number]:
                result.doubled += 1
            else:
                marks[number] = 1
                result.records += 1
        self.tick()

    @property
    def is_enough(self) -> bool:
        """Whether as many records have been seen as were to be read."""
        return self.result.records >= self.job.records

    def acked(self, number: int) -> None:
        """Takes one acknowledgement."""
        self.marks[number] = 1
        self.result.records += 1
        self.tick()

    def finish(self) -> Result:
        """The result as it stands now."""
        result = self.result
        now = time.monotonic()
        result.seconds = now - self._began
        result.cpu = time.process_time() - self._cpu
        if not result.is_complete:
            self.tick()
        if self.job.do == "consume":
            missing = (self.marks[p : self._next[p] : self.job.partitions].count(0) for p in range(self.job.partitions))
            result.lost = sum(missing)
        if self.job.acked:
            Path(self.job.acked).write_bytes(self.marks)
        return result


# -- consuming ----------------------------------------------------------------


def _consume_kafka(job: Job, tally: Tally, make: Callable[..., Any], extra: dict[str, Any]) -> None:
    from kafka.structs import TopicPartition

    consumer = make(bootstrap_servers=job.servers, group_id=None, auto_offset_reset="earliest", **extra, **job.options)
    partitions = [TopicPartition(job.topic, n) for n in range(job.partitions)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    tally.start()
    while job.is_bare and not tally.is_enough:
        tally.result.records += sum(map(len, consumer.poll(timeout_ms=_POLL_MS).values()))
    while not tally.is_enough:
        try:
            polled = consumer.poll(timeout_ms=_POLL_MS)
        except Exception as error:
            _count(tally, error)
            continue
        for partition, records in polled.items():
            tally.see(partition.partition, [r.value for r in records])
    tally.result.is_complete = True
    tally.finish()


def _consume_confluent(job: Job, tally: Tally) -> None:
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": job.servers, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**config, "auto.offset.reset": "earliest", "log_level": 0, **job.options})
    consumer.assign([TopicPartition(job.topic, n, 0) for n in range(job.partitions)])
    tally.start()
    while not tally.is_enough:
        by_partition: dict[int, list[bytes]] = {}
        for message in consumer.consume(500, _POLL_MS / 1000):
            if message.error() is not None:
                _count(tally, message.error().name())
            else:
                by_partition.setdefault(message.partition(), []).append(message.value())
        for partition, batch in by_partition.items():
            tally.see(partition, batch)
    tally.result.is_complete = True
    tally.finish()


async def _consume_aiokafka(job: Job, tally: Tally) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=job.servers, enable_auto_commit=False, auto_offset_reset="earliest", **job.options
    )
    tally.start()
    await consumer.start()
    consumer.assign([TopicPartition(job.topic, n) for n in range(job.partitions)])
    while not tally.is_enough:
        try:
            polled = await consumer.getmany(timeout_ms=_POLL_MS, max_records=500)
        except Exception as error:
            _count(tally, error)
            continue
        for partition, records in polled.items():
            tally.see(partition.partition, [r.value for r in records])
    tally.result.is_complete = True
    tally.finish()


def _count(tally: Tally, error: BaseException | str) -> None:
    """An application that goes on polling after an error, up to a point."""
    tally.result.failure(error)
    if sum(tally.result.errors.values()) > _MAX_ERRORS:
        raise SystemExit("consuming raises for ever")


# -- producing ----------------------------------------------------------------


def _produce_kafka(job: Job, tally: Tally, make: Callable[..., Any], extra: dict[str, Any]) -> None:
    producer = make(bootstrap_servers=job.servers, **extra, **job.options)
    producer.partitions_for(job.topic)
    made = list(values(job))
    tally.start()
    if job.is_bare:
        send, topic, partitions = producer.send, job.topic, job.partitions
        for number, value in enumerate(made):
            send(topic, value, partition=number % partitions)
        made.clear()
    for number, value in enumerate(made):
        future = producer.send(job.topic, value, partition=number % job.partitions)
        future.add_callback(lambda _, n=number: tally.acked(n))
        future.add_errback(lambda error: _failed(tally, error))
    producer.flush()
    if job.is_bare:
        tally.result.records = job.records
    tally.result.is_complete = True
    tally.finish()


def _produce_confluent(job: Job, tally: Tally) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": job.servers, "acks": "all", "log_level": 0, **job.options})

    def report(number: int) -> Callable[[Any, Any], None]:
        return lambda error, _: tally.acked(number) if error is None else _failed(tally, error.name())

    producer.list_topics(job.topic, timeout=10)
    made = list(values(job))
    tally.start()
    for number, value in enumerate(made):
        while True:
            try:
                producer.produce(job.topic, value, partition=number % job.partitions, on_delivery=report(number))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    tally.result.is_complete = True
    tally.finish()


async def _produce_aiokafka(job: Job, tally: Tally) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=job.servers, acks="all", **job.options)
    await producer.start()
    await producer.partitions_for(job.topic)

    def settled(future: Any, number: int) -> None:
        error = future.exception()
        if error is None:
            tally.acked(number)
        else:
            _failed(tally, error)

    made = list(values(job))
    tally.start()
    for number, value in enumerate(made):
        future = await producer.send(job.topic, value, partition=number % job.partitions)
        future.add_done_callback(lambda done, n=number: settled(done, n))
    await producer.flush()
    tally.result.is_complete = True
    tally.finish()


def _failed(tally: Tally, error: BaseException | str) -> None:
    tally.result.failed += 1
    tally.result.failure(error)


# -- the process --------------------------------------------------------------


def run(job: Job, tally: Tally) -> None:
    """Does the job; returns when it is done or raises what the client raised."""
    if job.client == "confluent":
        (_consume_confluent if job.do == "consume" else _produce_confluent)(job, tally)
    elif job.client == "aiokafka":
        asyncio.run((_consume_aiokafka if job.do == "consume" else _produce_aiokafka)(job, tally))
    else:
        import kafka

        import tolerant_client
        from tolerant_client.stock.manager import TolerantNetClient

        module = tolerant_client if job.client == "ours" else kafka
        extra: dict[str, Any] = {"kafka_client": TolerantNetClient} if job.client == LAYER else {}
        if job.trace and job.client == "ours":
            out = open(job.trace, "w", buffering=1)  # noqa: SIM115  # written until the process ends
            extra["recovery_listener"] = lambda event: out.write(f"{time.monotonic():.6f} {event}\n")
        if job.do == "consume":
            _consume_kafka(job, tally, module.KafkaConsumer, extra)
        else:
            _produce_kafka(job, tally, module.KafkaProducer, extra)


def main() -> None:
    warnings.simplefilter("ignore")
    parts = json.loads(sys.argv[1])
    job = Job(**{**parts, "sizes": tuple(parts.get("sizes", (100, 1000)))})
    tally = Tally(job)
    lock = threading.Lock()

    def end() -> None:
        # No clean end: closing a client that hangs may hang too, and what it costs is not measured.
        with lock:
            result = tally.result if tally.result.is_complete else tally.finish()
            print(json.dumps(asdict(result)), flush=True)
            os._exit(0)

    limit = threading.Timer(job.seconds, end)
    limit.daemon = True
    limit.start()
    try:
        run(job, tally)
    except BaseException as error:
        tally.result.failure(error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    end()


if __name__ == "__main__":
    main()
