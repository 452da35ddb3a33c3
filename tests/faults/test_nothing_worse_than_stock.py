"""Nothing may be slower, or fail more often, than without us: stock kafka-python and ours through the same faults.

Each fault strikes once, twice or for good, on real brokers; new connections are fine.  Stock and ours run
the same program one after the other.  Ours has to lose and raise nothing that stock does not, and its longest
stall may be SLACK longer: a trial, and the noise of the machine.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

import tolerant_client
from support.beside_stock import LIBRARIES, SLACK, Run, new_topic, slow_for
from support.held_answers import HookedProxy, Link, with_id
from support.long import LONG
from tolerant_client.errors import OutcomeUnknownError
from tolerant_client.testing import (
    BadLength,
    Drop,
    Duplicate,
    Fault,
    FaultProxy,
    KafkaCluster,
    Reset,
    RewriteCorrelationId,
    Truncate,
)

TIMEOUT_MS = 3_000  # of a request: what stock waits for an answer that does not come
SHIFTS = (1, 3, 100, -1, -3) if LONG else (3, -1)

ONCE: dict[str, Callable[[str], Fault]] = {
    "drop": lambda api: Drop(api=api, after=3, count=1),
    "wrong id": lambda api: RewriteCorrelationId(3, api=api, after=3, count=1),
    "duplicate": lambda api: Duplicate(api=api, after=3, count=1),
    "truncate": lambda api: Truncate(api=api, after=3, count=1),
    "bad length": lambda api: BadLength(api=api, after=3, count=1),
    "reset": lambda api: Reset(api=api, after=3, count=1),
}
TWICE: dict[str, Callable[[str], Fault]] = {  # the second id is that of the request which the first one lost
    "ids -3, every other one": lambda api: RewriteCorrelationId(-3, api=api, after=3, every=2, count=2),
    "ids -2, one after the other": lambda api: RewriteCorrelationId(-2, api=api, after=3, count=2),
}
FOR_GOOD: dict[str, Callable[[str], Fault]] = {
    **{
        f"ids {shift:+d} for good": lambda api, shift=shift: RewriteCorrelationId(
            shift, api=api, after=3, count=1, lasts=True
        )
        for shift in SHIFTS
    },
    "no answer for good": lambda api: Drop(api=api, after=3, count=1, lasts=True),
    "truncated for good": lambda api: Truncate(api=api, after=3, count=1, lasts=True),
}
FAULTS = {**ONCE, **TWICE, **FOR_GOOD}


@pytest.fixture
def compare(kafka_cluster: KafkaCluster) -> Callable[..., dict[str, Run]]:
    """Runs a program with stock and with ours, each behind a proxy with the fault; (servers, library, topic) -> Run."""
    made = [0]

    def both(fault: Fault, program: Callable[[str, Any, str], Run]) -> dict[str, Run]:
        runs = {}
        for name, library in LIBRARIES.items():
            made[0] += 1
            topic = new_topic(kafka_cluster, f"beside-{name}-{made[0]}")
            with FaultProxy(kafka_cluster, faults=[fault]) as proxy:
                runs[name] = program(proxy.bootstrap_servers, library, topic)
                assert proxy.injected_total >= 1, f"{name}: the fault did not strike"
        return runs

    return both


def produce(servers: str, library: Any, topic: str, **options: Any) -> Run:
    run = Run()
    producer = library.KafkaProducer(bootstrap_servers=servers, request_timeout_ms=TIMEOUT_MS, **options)
    for n in range(12):
        run.timed(lambda n=n: producer.send(topic, b"%d" % n, partition=0).get(40))
    producer.close(timeout=5)
    return run


@pytest.mark.alone
@pytest.mark.parametrize("name", FAULTS)
def test_producer_is_no_slower_and_fails_no_more_often(name: str, compare: Callable[..., dict[str, Run]]) -> None:
    runs = compare(FAULTS[name]("Produce"), produce)
    runs["ours"].is_no_worse_than(runs["stock"])
    assert runs["ours"].errors == []


def consume(servers: str, library: Any, topic: str) -> Run:
    run = Run()
    producer = kafka.KafkaProducer(bootstrap_servers=servers, batch_size=1_000)
    for n in range(200):
        producer.send(topic, b"%08d" % n * 20, partition=0)
    producer.close()
    consumer = library.KafkaConsumer(
        bootstrap_servers=servers,
        group_id=None,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=2_000,
        fetch_max_bytes=2_000,
        request_timeout_ms=TIMEOUT_MS + 1,
    )
    consumer.assign([TopicPartition(topic, 0)])
    got: list[int] = []
    began = time.monotonic()
    while len(got) < 200 and time.monotonic() < began + 40:
        at = time.monotonic()

        def more(at: float = at) -> None:
            while time.monotonic() < at + 15:
                records = [r for rs in consumer.poll(200).values() for r in rs]
                if records:
                    got.extend(r.offset for r in records)
                    return

        run.timed(more)
    consumer.close(timeout_ms=1_000)
    assert got == list(range(200))
    run.done = 0  # how many polls it takes is not compared
    return run


@pytest.mark.alone
@pytest.mark.parametrize("name", FAULTS)
def test_consumer_is_no_slower_and_raises_no_more_often(name: str, compare: Callable[..., dict[str, Run]]) -> None:
    runs = compare(FAULTS[name]("Fetch"), consume)
    runs["ours"].is_no_worse_than(runs["stock"])
    assert runs["ours"].errors == []


def read_here_and_there(servers: str, library: Any, topic: str) -> Run:
    """A record here and a record there, near the log's end, as a handler does that seeks back to the record that failed."""
    run = Run()
    with kafka.KafkaProducer(bootstrap_servers=servers) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n, partition=0)
    consumer = library.KafkaConsumer(bootstrap_servers=servers, group_id=None, fetch_max_wait_ms=2_000)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    for n in range(12):
        offset = n * 61 % 100

        def read(offset: int = offset) -> None:
            consumer.seek(partition, offset)
            assert consumer.poll(10_000, max_records=1)[partition][0].offset == offset

        run.timed(read)
    consumer.close(timeout_ms=1_000)
    return run


@pytest.mark.alone
def test_a_seek_among_buffered_records_waits_for_no_fetch_at_the_end_of_the_log(kafka_cluster: KafkaCluster) -> None:
    """Without a fault: a fetch that was sent ahead would hold up the one that the seek needs for `fetch_max_wait_ms`."""
    runs = {
        name: read_here_and_there(
            kafka_cluster.bootstrap_servers, library, new_topic(kafka_cluster, f"here-and-there-{name}")
        )
        for name, library in LIBRARIES.items()
    }
    runs["ours"].is_no_worse_than(runs["stock"])


def transact(servers: str, library: Any, topic: str) -> Run:
    run = Run()
    producer = library.KafkaProducer(
        bootstrap_servers=servers, transactional_id=f"id-of-{topic}", request_timeout_ms=TIMEOUT_MS
    )
    producer.init_transactions()

    def once() -> None:
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0)
        producer.commit_transaction()

    for _ in range(6):
        run.timed(once)
        if run.errors:
            break  # stock's producer is in its error state for good
    try:
        producer.close(timeout=5)
    except Errors.KafkaError:
        pass
    return run


@pytest.mark.alone
@pytest.mark.parametrize("name", FAULTS)
def test_transactions_are_no_slower_and_fail_no_more_often(name: str, compare: Callable[..., dict[str, Run]]) -> None:
    runs = compare(FAULTS[name]("EndTxn"), transact)
    if runs["stock"].errors:
        assert not runs["ours"].errors
    else:
        runs["ours"].is_no_worse_than(runs["stock"])
    assert runs["ours"].done == 6


def read_back(servers: str, topic: str) -> list[int]:
    return [int(record.value) for record in read_records(servers, topic)]


def read_records(servers: str, topic: str) -> list[Any]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=None, consumer_timeout_ms=1_500)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    records = list(consumer)
    consumer.close()
    return records


def produce_1000(servers: str, library: Any, topic: str, **options: Any) -> list[str]:
    producer = library.KafkaProducer(bootstrap_servers=servers, **options)
    sent = []
    for n in range(1_000):
        sent.append(producer.send(topic, b"%d" % n, partition=0))
        if n % 20 == 19:
            time.sleep(0.005)
    errors = []
    for future in sent:
        try:
            future.get(60)
        except Errors.KafkaError as error:
            errors.append(type(error).__name__)
    # A producer that was killed for good would fail these.
    for n in range(1_000, 1_005):
        producer.send(topic, b"%d" % n, partition=0).get(20)
    producer.close(timeout=5)
    return errors


def test_one_bad_length_fails_no_record_of_the_default_producer(
    kafka_cluster: KafkaCluster, fault_proxy: Callable[..., FaultProxy]
) -> None:
    proxy = fault_proxy(faults=[BadLength(api="Produce", after=4, count=1)])
    topic = new_topic(kafka_cluster, "bad-length")
    assert produce_1000(proxy.bootstrap_servers, tolerant_client, topic, linger_ms=0) == []
    assert proxy.injected_total == 1
    assert read_back(kafka_cluster.bootstrap_servers, topic) == list(range(1_005))


def test_at_least_once_stays_at_least_once(compare: Callable[..., dict[str, Run]], kafka_cluster: KafkaCluster) -> None:
    """acks=1 makes kafka-python drop idempotence; its `retries` are the consent to doubled records."""

    def program(servers: str, library: Any, topic: str) -> Run:
        run = Run(errors=produce_1000(servers, library, topic, acks=1))
        run.done = len(set(read_back(kafka_cluster.bootstrap_servers, topic)))
        return run

    runs = compare(Reset(api="Produce", after=4, every=15, count=2), program)
    assert runs["stock"].errors == runs["ours"].errors == []
    assert runs["stock"].done == runs["ours"].done == 1_005


@pytest.mark.parametrize("api", ["ListOffsets", "Metadata", "FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch"])
def test_bad_length_is_a_lost_connection_for_every_api(
    api: str, kafka_cluster: KafkaCluster, fault_proxy: Callable[..., FaultProxy]
) -> None:
    topic = new_topic(kafka_cluster, f"lengths-{api.lower()}")
    assert produce_1000(kafka_cluster.bootstrap_servers, kafka, topic) == []
    proxy = fault_proxy(faults=[BadLength(api=api, count=1)])
    # A member whose id is lost stays pending (KIP-394), and a second rebalance waits for it until its session is
    # over, with stock as well; there is one where the first join was quicker than the topic's metadata.
    consumer = tolerant_client.KafkaConsumer(
        topic,
        bootstrap_servers=proxy.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
    )
    got: list[int] = []
    deadline = time.monotonic() + 40
    while len(got) < 1_005 and time.monotonic() < deadline:
        got += [r.offset for records in consumer.poll(500).values() for r in records]
    consumer.close()
    assert proxy.injected_total == 1
    assert got == list(range(1_005))


PRODUCE, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, ADD_PARTITIONS_TO_TXN = 0, 2, 8, 9, 24
REFUSED, WRITTEN = b"A" * 9_000, b"B"


class ExchangeIds:
    """For a HookedProxy: the next two answers to Produce on one connection come under each other's ids."""

    def __init__(self) -> None:
        self.is_armed = False
        self.is_done = False
        self._ids: tuple[int, int] | None = None

    def __call__(self, link: Link, api_key: int, frame: bytes) -> list[bytes]:
        if api_key != PRODUCE or not self.is_armed or self.is_done:
            return [frame]
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        if self._ids is not None:
            self.is_done = True
            return [with_id(frame, self._ids[0] - correlation_id)]
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            waiting = [each for each, key in list(link.apis.items()) if key == PRODUCE]
            if waiting:
                self._ids = correlation_id, waiting[0]
                return [with_id(frame, waiting[0] - correlation_id)]
            time.sleep(0.002)
        return [frame]


@pytest.mark.parametrize("retries", [0, 10])
@pytest.mark.parametrize("library", LIBRARIES)
def test_exchanged_ids_tell_no_refused_record_as_written(
    library: str, retries: int, kafka_cluster: KafkaCluster
) -> None:
    """Both answers speak of one partition: only the order of ids says that they are exchanged."""
    topic = new_topic(kafka_cluster, f"exchanged-{library}-{retries}", **{"max.message.bytes": "5000"})
    exchange = ExchangeIds()
    said: dict[bytes, str] = {}
    with HookedProxy(kafka_cluster.proxied) as proxy:
        proxy.answer = exchange
        producer = LIBRARIES[library].KafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, acks=1, retries=retries, linger_ms=0, batch_size=1
        )
        producer.send(topic, b"first", partition=0).get(30)
        exchange.is_armed = True
        sent = {value: producer.send(topic, value, partition=0) for value in (REFUSED, WRITTEN)}
        for value, future in sent.items():
            try:
                said[value] = f"at {future.get(30).offset}"
            except Errors.KafkaError as error:
                said[value] = type(error).__name__
        producer.close(timeout=5)
    assert exchange.is_done or library == "stock"  # which may end the connection at the first of both
    log = {f"at {record.offset}": record.value for record in read_records(kafka_cluster.bootstrap_servers, topic)}
    for value, what in said.items():
        assert log.get(what, value) == value, said
    assert said[WRITTEN] != "MessageSizeTooLargeError"
    if retries:
        assert said[REFUSED] == "MessageSizeTooLargeError"
        assert said[WRITTEN] in log
    elif library == "ours":
        assert said == dict.fromkeys(said, "OutcomeUnknownError")


GATEWAY_TAKES = 4.0


@pytest.mark.alone
def test_slow_read_behind_a_gateway_is_waited_for_once(kafka_cluster: KafkaCluster) -> None:
    topic = new_topic(kafka_cluster, "gateway-read")
    runs = {name: Run() for name in LIBRARIES}
    for name, library in LIBRARIES.items():
        with HookedProxy(kafka_cluster.proxied) as proxy:
            consumer = library.KafkaConsumer(
                bootstrap_servers=proxy.bootstrap_servers, group_id=f"{topic}-{name}", enable_auto_commit=False
            )
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.position(partition)
            consumer.commit()
            proxy.answer = slow_for(OFFSET_FETCH, GATEWAY_TAKES)
            for _ in range(2):
                runs[name].timed(lambda consumer=consumer: consumer.committed(partition))
            consumer.close(timeout_ms=1_000)
    assert runs["stock"].errors == []
    assert runs["stock"].stall >= GATEWAY_TAKES
    runs["ours"].is_no_worse_than(runs["stock"])


@pytest.mark.alone
@pytest.mark.long
def test_slow_commit_behind_a_gateway_is_repeated_once_only(kafka_cluster: KafkaCluster) -> None:
    """The first commit ends with its repeat, which would rewind the group after a newer commit (law G): one repeat's
    time is what we are slower than stock, once for a node.
    """
    topic = new_topic(kafka_cluster, "gateway")
    runs = {name: Run() for name in LIBRARIES}
    again = Run()
    for name, library in LIBRARIES.items():
        with HookedProxy(kafka_cluster.proxied) as proxy:
            proxy.answer = slow_for(OFFSET_COMMIT, GATEWAY_TAKES)
            consumer = library.KafkaConsumer(
                bootstrap_servers=proxy.bootstrap_servers, group_id=f"{topic}-{name}", enable_auto_commit=False
            )
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.position(partition)
            runs[name].timed(lambda consumer=consumer: consumer.commit())
            if name == "ours":
                again.timed(lambda consumer=consumer: consumer.commit())
            assert consumer.committed(partition) == 0
            consumer.close(timeout_ms=1_000)
    assert runs["stock"].errors == runs["ours"].errors == again.errors == []
    assert runs["stock"].stall >= GATEWAY_TAKES
    assert runs["ours"].stall <= 2 * GATEWAY_TAKES + SLACK
    again.is_no_worse_than(runs["stock"])


class NameAnother:
    """For a HookedProxy: the next response of one API that names the topic names another one, of the same length."""

    def __init__(self, api_key: int, topic: str) -> None:
        self.api_key, self.name = api_key, topic.encode()
        self.done = 0

    def __call__(self, link: Link, api_key: int, frame: bytes) -> list[bytes]:
        if api_key != self.api_key or self.name not in frame or self.done:
            return [frame]
        self.done += 1
        return [frame.replace(self.name, self.name[::-1])]


def commit(servers: str, library: Any, topic: str) -> Any:
    consumer = library.KafkaConsumer(bootstrap_servers=servers, group_id=topic, enable_auto_commit=False)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    with contextlib.closing(consumer):
        consumer.commit({partition: kafka.OffsetAndMetadata(7, "", -1)}, timeout_ms=10_000)
        return consumer.committed(partition, timeout_ms=10_000)


def end_offset(servers: str, library: Any, topic: str) -> Any:
    consumer = library.KafkaConsumer(bootstrap_servers=servers)
    with contextlib.closing(consumer):
        return consumer.end_offsets([TopicPartition(topic, 0)], timeout_ms=10_000)[TopicPartition(topic, 0)]


def poll_of_a_group(servers: str, library: Any, topic: str) -> Any:
    commit(servers, library, topic)
    consumer = library.KafkaConsumer(topic, bootstrap_servers=servers, group_id=topic)
    with contextlib.closing(consumer):
        deadline = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(200)
        return consumer.position(TopicPartition(topic, 0), timeout_ms=10_000)


def send_three(servers: str, library: Any, topic: str, **options: Any) -> Any:
    producer = library.KafkaProducer(bootstrap_servers=servers, linger_ms=0, request_timeout_ms=10_000, **options)
    with contextlib.closing(producer):
        return [producer.send(topic, b"x", partition=0).get(20).offset for _ in range(3)]


def send_in_a_transaction(servers: str, library: Any, topic: str) -> Any:
    producer = library.KafkaProducer(bootstrap_servers=servers, transactional_id=topic, request_timeout_ms=10_000)
    with contextlib.closing(producer):
        producer.init_transactions()
        producer.begin_transaction()
        offsets = [producer.send(topic, b"x", partition=0).get(20).offset for _ in range(3)]
        producer.commit_transaction()
        return offsets


NAMED: dict[str, tuple[int, Callable[[str, Any, str], Any], Any]] = {
    "commit": (OFFSET_COMMIT, commit, 7),
    "committed": (OFFSET_FETCH, commit, 7),
    "end_offsets": (LIST_OFFSETS, end_offset, 0),
    "poll of a starting group": (OFFSET_FETCH, poll_of_a_group, 7),
    "idempotent send": (PRODUCE, send_three, [0, 1, 2]),
    "send in a transaction": (PRODUCE, send_in_a_transaction, [0, 1, 2]),
    "first send in a transaction": (ADD_PARTITIONS_TO_TXN, send_in_a_transaction, [0, 1, 2]),
}


@pytest.mark.parametrize("name", NAMED)
def test_one_response_that_names_another_topic_is_asked_for_again(name: str, kafka_cluster: KafkaCluster) -> None:
    """Stock hands it up: a KeyError, no committed offset, a batch that waits for delivery.timeout.ms."""
    api_key, program, right = NAMED[name]
    topic = new_topic(kafka_cluster, "named")
    with HookedProxy(kafka_cluster.proxied) as proxy:
        proxy.answer = name_another = NameAnother(api_key, topic)
        assert program(proxy.bootstrap_servers, tolerant_client, topic) == right
    assert name_another.done == 1


def test_plain_send_whose_response_names_another_topic_is_unknown_at_once(kafka_cluster: KafkaCluster) -> None:
    topic = new_topic(kafka_cluster, "named-plain")
    with HookedProxy(kafka_cluster.proxied) as proxy:
        proxy.answer = NameAnother(PRODUCE, topic)
        with pytest.raises(OutcomeUnknownError):
            send_three(proxy.bootstrap_servers, tolerant_client, topic, acks=1, retries=0)
