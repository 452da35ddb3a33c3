"""Transactions whose requests lose their answers: what commit_transaction() said is what a committed reader finds.

Each transactional API, each kind of fault, once or for the rest of its connection.  What kafka-python makes of the
same fault is printed with TOLERANT_LONG=1, and judged by nothing.
"""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata, TopicPartition

import tolerant_client
from support.ended import end
from support.held_answers import HELD, RESET, HookedProxy, Link, cut, with_id
from support.long import LONG
from tolerant_client.errors import OutcomeUnknownError
from tolerant_client.testing import KafkaCluster

TRANSACTIONS = 5
ABORTED = {3}  # of them, on purpose
PATIENCE = 60.0
REQUEST_TIMEOUT_MS = 2_000
VERSIONS = ["4.2.0", "3.9.1"] if LONG else ["4.2.0"]

END_TXN = 26
APIS = {"InitProducerId": 22, "AddPartitionsToTxn": 24, "AddOffsetsToTxn": 25, "EndTxn": END_TXN, "TxnOffsetCommit": 28}

# What becomes of an answer, and whether it lasts for the rest of the connection.
FAULTS: dict[str, tuple[Callable[[bytes], list[bytes] | str], bool]] = {
    "lost": (lambda frame: [], False),
    "shifted": (lambda frame: [with_id(frame, 3)], False),
    "cut": (lambda frame: [cut(frame)], False),
    "bad length": (lambda frame: [struct.pack(">i", -7) + frame[4:]], False),
    "reset": (lambda frame: RESET, False),
    "silent": (lambda frame: [], True),
    "shifted for good": (lambda frame: [with_id(frame, 3)], True),
    "cut for good": (lambda frame: [cut(frame)], True),
}


@dataclass
class Report:
    """What a producer said of its transactions, by number; `errors` are those that it raised."""

    committed: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    offset: int | None = None
    seconds: float = 0.0


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest, start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    return start_cluster(request.param)


@pytest.fixture
def proxy(cluster: KafkaCluster) -> Iterator[HookedProxy]:
    with HookedProxy(cluster.proxied) as proxy:
        yield proxy


def run(client: Any, cluster: KafkaCluster, proxy: HookedProxy, start: Callable[[], None]) -> Report:
    """Transactions of a record and an offset each, with the fault that `start` sets up; then what is in the log."""
    topic = f"transactions-{uuid.uuid4().hex[:12]}"
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic(topic, 1, 1)])
    admin.close()
    partition, report = TopicPartition(topic, 0), Report()
    producer = client.KafkaProducer(
        bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic, request_timeout_ms=REQUEST_TIMEOUT_MS,
        delivery_timeout_ms=20_000,
    )  # fmt: skip
    start()
    began = time.monotonic()
    try:
        producer.init_transactions()
        for number in range(TRANSACTIONS):
            if not transact(producer, partition, number, report):
                break
    except Errors.KafkaError as error:
        report.errors.append(f"init: {error}")
    report.seconds = round(time.monotonic() - began, 2)
    proxy.answer = lambda link, api, frame: [frame]
    end(producer)
    read(cluster, partition, report)
    return report


def transact(producer: Any, partition: TopicPartition, number: int, report: Report) -> bool:
    """One transaction; False when the producer is of no more use."""
    try:
        producer.begin_transaction()
        producer.send(partition.topic, b"%d" % number, partition=0)
        producer.send_offsets_to_transaction({partition: OffsetAndMetadata(number, "", -1)}, partition.topic)
        if number in ABORTED:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            report.committed.append(number)
        return True
    except Errors.KafkaError as error:
        report.errors.append(f"{number}: {type(error).__name__}: {error}")
        if isinstance(error, OutcomeUnknownError):
            report.unknown.append(number)
    try:
        producer.abort_transaction()
    except Errors.KafkaError:
        return False
    return True


def read(cluster: KafkaCluster, partition: TopicPartition, report: Report) -> None:
    """What a committed reader finds, once whatever is open has been ended by a new producer of the same id."""
    successor = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=partition.topic)
    successor.init_transactions()
    successor.begin_transaction()
    successor.send(partition.topic, b"end", partition=0)
    successor.commit_transaction()
    successor.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=partition.topic, isolation_level="read_committed",
        enable_auto_commit=False,
    )  # fmt: skip
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    while not report.visible or report.visible[-1] != -1:
        for records in consumer.poll(1_000).values():
            report.visible += [-1 if record.value == b"end" else int(record.value) for record in records]
    report.visible.pop()
    report.offset = consumer.committed(partition)
    consumer.close()


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_commit_said_is_what_a_committed_reader_finds(
    fault: str, api: str, cluster: KafkaCluster, proxy: HookedProxy, record_property: Callable[[str, object], None]
) -> None:
    spoil, is_lasting = FAULTS[fault]

    def begin() -> None:
        """The second answer of the API (the only one of InitProducerId) is hit, on whatever connection it comes."""
        seen = 0

        def answer(link: Link, api_key: int, frame: bytes) -> list[bytes] | str:
            nonlocal seen
            if link.note.get("is_spoiled"):
                return spoil(frame)
            if api_key != APIS[api]:
                return [frame]
            seen += 1
            if seen != (1 if api == "InitProducerId" else 2):
                return [frame]
            link.note["is_spoiled"] = is_lasting
            return spoil(frame)

        proxy.answer = answer

    if LONG:
        stock = run(kafka, cluster, proxy, begin)
        record_property("stock", stock)
        print(f"\n{fault} {api}: stock {stock}")
    ours = run(tolerant_client, cluster, proxy, begin)
    print(f"\n{fault} {api}: ours {ours}")
    wanted = [number for number in range(TRANSACTIONS) if number not in ABORTED]
    assert ours.errors == []
    assert ours.committed == ours.visible == wanted
    assert ours.offset == wanted[-1]


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_copy_of_a_commit_that_arrives_in_the_next_transaction_does_not_end_it(
    cluster: KafkaCluster, proxy: HookedProxy
) -> None:
    # KAFKA-17754: the copy is held on its way, its connection is gone, the repeat commits; the next one is to abort.
    found = {}
    for name, client in (("stock", kafka), ("ours", tolerant_client)):
        topic = f"late-commit-{name}-{uuid.uuid4().hex[:8]}"
        admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        admin.create_topics([NewTopic(topic, 1, 1)])
        admin.close()
        producer = client.KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"0", partition=0)
        proxy.request = lambda link, api, frame: HELD if api == END_TXN and not proxy.held else frame
        producer.commit_transaction()
        assert len(proxy.held) == 1
        proxy.request = lambda link, api, frame: frame
        producer.begin_transaction()
        producer.send(topic, b"1", partition=0).get(timeout=PATIENCE)
        is_done = threading.Event()

        def answer(link: Link, api: int, frame: bytes, is_done: threading.Event = is_done) -> list[bytes]:
            if api == END_TXN:
                is_done.set()
            return [frame]

        proxy.answer = answer
        proxy.let_go()
        assert is_done.wait(PATIENCE)
        try:
            producer.abort_transaction()
            said = "aborted"
        except Errors.KafkaError as error:
            said = type(error).__name__
        proxy.answer = lambda link, api, frame: [frame]
        end(producer)
        report = Report()
        read(cluster, TopicPartition(topic, 0), report)
        found[name] = said, report.visible
    print(f"\n{found}")
    assert found["ours"] == ("aborted", [0])


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_commit_ends_while_the_coordinator_is_frozen_and_the_same_call_commits_once_it_is_back(
    cluster: KafkaCluster, proxy: HookedProxy
) -> None:
    raised: dict[str, Errors.KafkaError] = {}
    for name, client in (("stock", kafka), ("ours", tolerant_client)):
        topic = f"frozen-{name}-{uuid.uuid4().hex[:8]}"
        admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        admin.create_topics([NewTopic(topic, 1, 1)])
        admin.close()
        producer = client.KafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic, request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_block_ms=REQUEST_TIMEOUT_MS,
        )  # fmt: skip
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"0", partition=0).get(timeout=PATIENCE)
        proxy.answer = lambda link, api, frame: []
        with pytest.raises(Errors.KafkaError) as caught:
            producer.commit_transaction()
        raised[name] = caught.value
        proxy.answer = lambda link, api, frame: [frame]
        if client is tolerant_client:
            producer.commit_transaction()
            report = Report()
            read(cluster, TopicPartition(topic, 0), report)
            assert report.visible == [0]
        end(producer)
    assert not raised["stock"].retriable  # its producer is of no more use
    assert isinstance(raised["ours"], Errors.KafkaTimeoutError)


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_commit_that_waits_ends_when_its_producer_is_closed(cluster: KafkaCluster, proxy: HookedProxy) -> None:
    topic = f"closed-{uuid.uuid4().hex[:8]}"
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic(topic, 1, 1)])
    admin.close()
    producer = tolerant_client.KafkaProducer(
        bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic, request_timeout_ms=REQUEST_TIMEOUT_MS
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"0", partition=0).get(timeout=PATIENCE)
    proxy.answer = lambda link, api, frame: []
    raised: list[Exception] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
        except Errors.KafkaError as error:
            raised.append(error)

    waiting = threading.Thread(target=commit)
    waiting.start()
    waiting.join(1.0)
    producer.close(timeout=1)
    waiting.join(PATIENCE / 2)
    assert not waiting.is_alive()
    assert isinstance(raised[0], OutcomeUnknownError)
