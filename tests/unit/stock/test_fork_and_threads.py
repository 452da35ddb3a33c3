"""forking.py: a forked child leaves its parent's connections alone and rebuilds the clients that it inherited.

The forks happen in a separate process: pytest's own has threads that a fork would not copy.
"""

from __future__ import annotations

import os
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataResponse

from support.certificate import self_signed
from support.fake_broker import FakeBroker, serve

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")

# What every program below begins with; argv: mode, address, cafile or "".
COMMON = """\
import os, sys, threading, time
import kafka.errors as Errors
from kafka import TopicPartition

mode, address, cafile = sys.argv[1:]
import tolerant_client
if mode == "installed":
    tolerant_client.install()
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
else:
    from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer
options = {"bootstrap_servers": address}
if cafile:
    options.update(security_protocol="SSL", ssl_cafile=cafile)
ZERO, ONE = TopicPartition("topic", 0), TopicPartition("topic", 1)

def send(producer, value, partition=0):
    return producer.send("topic", value, partition=partition).get(timeout=60)

def refused(call, words):
    try:
        call()
    except Errors.IllegalStateError as error:
        return words in str(error)
    return False

def values(consumer, count):
    found, deadline = [], time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [r.value for records in consumer.poll(timeout_ms=1000).values() for r in records]
    return found

def in_child(work, *args):
    child = os.fork()
    if not child:
        work(*args)
        sys.exit(0)  # with exit handlers and finalizers, unlike multiprocessing
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""

BOTH_GO_ON = """\
producer = KafkaProducer(enable_idempotence=False, **options)
consumer = KafkaConsumer(**options)
consumer.assign([ZERO, ONE])
consumer.pause(ONE)
admin = KafkaAdminClient(**options)
clients = producer, consumer, admin

def work(who):
    send(producer, who)
    assert admin.list_topics() == ["topic"]
    assert consumer.end_offsets([ZERO])

for value in b"a", b"b", b"c":
    send(producer, value)
send(producer, b"behind the pause", partition=1)
consumer.seek(ZERO, 0)
assert values(consumer, 1)[0] == b"a"
consumer.seek(ZERO, 1)
work(b"parent")
manager = producer._sender._client._manager
before = dict(manager._conns)
assert before

def child(who, *more):
    assert refused(lambda: manager.bootstrap(timeout_ms=1000), "make a new client in the child")
    assert refused(lambda: manager._net.poll(timeout_ms=0), "make a new client in the child")
    if more:
        in_child(child, *more)  # before this one has used the clients
    work(who)
    assert consumer.paused() == {ONE}
    assert consumer.position(ZERO) == 1
    assert values(consumer, 2)[:2] == [b"b", b"c"]
    assert consumer.position(ZERO) > 2
    assert producer._sender._client._manager is not manager
    if more:
        consumer.seek(ZERO, 1)
        in_child(child, *more)  # and after
    for client in clients:
        client.close()

in_child(child, b"child", b"grandchild")
for _ in range(5):
    work(b"parent")
in_child(child, b"second child")
for _ in range(5):
    work(b"parent")
assert dict(manager._conns) == before, "the parent had to connect again"
assert consumer.position(ZERO) == 1
for kind in ("lost", "orphan", "retired", "failed"):
    assert manager.recovery_counters.of(kind) == 0, kind
for client in clients:
    client.close()
"""

AT_THE_SAME_TIME = """\
producer = KafkaProducer(enable_idempotence=False, **options)
children = []
for number in range(3):
    children.append(os.fork())
    if not children[-1]:
        for _ in range(20):
            send(producer, b"child %d" % number)
        producer.close()
        sys.exit(0)
for _ in range(20):
    send(producer, b"parent")
for child in children:
    assert os.waitpid(child, 0)[1] == 0
producer.close()
"""

WITH_MULTIPROCESSING = """\
import multiprocessing
producer = KafkaProducer(enable_idempotence=False, **options)
def child():
    send(producer, b"child")
worker = multiprocessing.get_context("fork").Process(target=child)
worker.start()
worker.join()
assert worker.exitcode == 0
send(producer, b"parent")
producer.close()
"""

REFUSED = """\
clients = [
    KafkaProducer(transactional_id="t", api_version=(2, 8), **options),
    KafkaConsumer(group_id="g", group_instance_id="i", api_version=(2, 8), **options),
]
def child():
    producer, consumer = clients
    for _ in range(2):
        assert refused(producer.begin_transaction, "would fence the parent's")
        assert refused(lambda: producer.send("topic", b"lost"), "make a new client in the child")
        assert refused(lambda: consumer.poll(timeout_ms=10), "group_instance_id")
    producer.close()
    consumer.close()
in_child(child)
for client in clients:
    client.close()
"""

CLOSED = """\
producer = KafkaProducer(enable_idempotence=False, **options)
consumer = KafkaConsumer(**options)
closed = KafkaConsumer(**options)
closed.close()
def child():
    assert refused(closed.poll, "closed")
    producer.close()
    with consumer:
        made = consumer._manager
    consumer.close()
    assert refused(consumer.poll, "closed")
    assert made.closed
in_child(child)
def silent():
    producer.close()
    consumer.close()
in_child(silent)
send(producer, b"parent")
producer.close()
consumer.close()
"""

TRIED_AGAIN = """\
from kafka.net.compat import KafkaNetClient
from tolerant_client.stock.manager import TolerantNetClient
parent, failures = os.getpid(), []
def make_client(*args, **configs):
    if os.getpid() != parent and len(failures) < 2:
        failures.append(1)
        raise Errors.KafkaTimeoutError("brokers are down")
    return TolerantNetClient(*args, **configs)
producer = KafkaProducer(enable_idempotence=False, kafka_client=make_client, **options)
def child():
    for _ in range(2):
        try:
            send(producer, b"never")
        except Errors.KafkaTimeoutError as error:
            assert "brokers are down" in str(error)
        else:
            raise AssertionError("built without connections")
    send(producer, b"child")
    producer.close()
in_child(child)
send(producer, b"parent")
producer.close()
"""

LOOPS = """\
producer = KafkaProducer(enable_idempotence=False, **options)
for value in b"a", b"b", b"c":
    send(producer, value)
consumer = KafkaConsumer(**options)
consumer.assign([ZERO])
consumer.seek(ZERO, 0)
def child():
    assert refused(lambda: next(consumer), "the loop over this consumer began in the parent")
    for record in consumer:
        assert record.value == b"b", record.value
        break
    assert next(consumer).value == b"c"
    consumer.close()
for record in consumer:
    assert record.value == b"a"
    in_child(child)
    break
assert next(consumer).value == b"b"
consumer.close()
producer.close()
"""

MANY_THREADS = """\
producer = KafkaProducer(enable_idempotence=False, **options)
inherited = producer._sender
def child():
    senders = set()
    def use():
        send(producer, b"child")
        senders.add(producer._sender)
    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(senders) == 1 and inherited not in senders, senders
    assert producer.__class__ is KafkaProducer
    producer.close()
in_child(child)
producer.close()
"""

WITHOUT_A_GROUP = """\
from kafka.consumer.subscription_state import ConsumerRebalanceListener
producer = KafkaProducer(enable_idempotence=False, **options)
for value in b"a", b"b", b"c":
    send(producer, value)
class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked): pass
    def on_partitions_assigned(self, assigned): pass
listener = Listener()
def by_topic():
    return KafkaConsumer("topic", **options)
def by_pattern():
    consumer = KafkaConsumer(**options)
    consumer.subscribe(pattern="^top", listener=listener)
    return consumer
for make in by_topic, by_pattern:
    consumer = make()  # begins at the latest record
    deadline = time.monotonic() + 60
    while consumer.assignment() != {ZERO, ONE}:
        assert time.monotonic() < deadline
        consumer.poll(timeout_ms=100)
    consumer.seek(ZERO, 1)
    consumer.pause(ONE)
    def child():
        assert consumer.subscription() == {"topic"}
        assert consumer._subscription.rebalance_listener is (listener if make is by_pattern else None)
        assert consumer.paused() == {ONE}
        assert values(consumer, 2) == [b"b", b"c"]
        consumer.close()
    in_child(child)
    assert consumer.position(ZERO) == 1
    consumer.close()
def unsubscribed():
    assert consumer.subscription() is None and not consumer.assignment()
    consumer.close()
consumer = by_topic()
consumer.unsubscribe()
in_child(unsubscribed)
consumer.close()
producer.close()
"""

COUNTED_ANEW = """\
heard = []
if mode == "installed":
    tolerant_client.install(recovery_listener=heard.append)
    producer = KafkaProducer(enable_idempotence=False, **options)
    counters = tolerant_client.stock.installation.recovery_counters
else:
    producer = KafkaProducer(enable_idempotence=False, recovery_listener=heard.append, **options)
    counters = lambda: producer.recovery_counters
send(producer, b"parent")
for _ in range(20):
    send(producer, b"parent")
def child():
    import gc
    heard.clear()
    send(producer, b"child")
    gc.collect()
    completed = [event for event in heard if event.kind == "completed"]
    assert 0 < counters().of("completed") <= len(completed) < 20, (counters().of("completed"), heard)
    producer.close()
in_child(child)
producer.close()
"""

LISTENER_CALLS = """\
def tell(event):
    for client in clients:
        client.metrics()
        client.config
clients, parent = [], os.getpid()
import logging
logging.disable()  # what the listener does to a client half made is its own fault, and is logged
if mode == "installed":
    tolerant_client.install(recovery_listener=tell)
else:
    options["recovery_listener"] = tell
clients = [KafkaConsumer(**options), KafkaAdminClient(**options)]
def child():
    assert clients[0].end_offsets([ZERO])
    assert clients[1].list_topics() == ["topic"]
    for client in clients:
        client.close()
in_child(child)
for client in clients:
    client.close()
"""

SUBCLASSED = """\
class Telling(KafkaProducer):
    def __init__(self, prefix):
        self.prefix, self.made_in = prefix, os.getpid()
        super().__init__(enable_idempotence=False, value_serializer=self.tell, **options)
    def tell(self, value):
        return self.prefix + value
    def say(self, value):
        return send(self, value)
producer = Telling(b"-> ")
def child():
    producer.say(b"child")
    assert type(producer) is Telling and producer.made_in == os.getppid()
    producer.close()
in_child(child)
producer.say(b"parent")
producer.close()
"""

UNINSTALLED = """\
producer = KafkaProducer(enable_idempotence=False, **options)
tolerant_client.uninstall()
def child():
    assert refused(producer.flush, "uninstall() was called since")
    producer.close()
in_child(child)
send(producer, b"parent")
producer.close()
"""


class BrokerWithTopic(FakeBroker):
    """Leads the two partitions of a topic; the record of a one-record batch gets its position in the log as its offset."""

    def _answer_Metadata(self, request: Any, version: int) -> Any:
        response = super()._answer_Metadata(request, version)
        topic_class = MetadataResponse.MetadataResponseTopic
        partitions = [
            topic_class.MetadataResponsePartition(
                error_code=0, partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
            )
            for index in range(2)
        ]
        response.topics = [topic_class(error_code=0, name="topic", is_internal=False, partitions=partitions)]
        return response

    def append(self, partition: tuple[str, int], records: bytes) -> tuple[int, int]:
        """As a leader, which writes the base offset into the batch."""
        return super().append(partition, struct.pack(">q", len(self.logs[partition])) + records[8:])

    def record_count(self) -> int:
        """Records of topic-0, as the headers of the batches count them."""
        return sum(struct.unpack_from(">i", batch, 57)[0] for batch in self.logs["topic", 0])


@pytest.fixture
def broker() -> BrokerWithTopic:
    return BrokerWithTopic()


def run(program: str, *arguments: str, folder: Path) -> None:
    """Runs it to its end, and checks that it prints nothing."""
    (folder / "program.py").write_text(COMMON + program)
    command = [sys.executable, "-W", "ignore", "program.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def address(broker: BrokerWithTopic) -> Iterator[str]:
    with serve(broker) as where:
        yield where


@pytest.fixture(params=["drop-in", "installed"])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_parent_child_and_grandchild_go_on_with_one_set_of_clients(
    mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path
) -> None:
    run(BOTH_GO_ON, mode, address, "", folder=tmp_path)
    # Four before the forks; one from the child, two from grandchildren, one from the second child; ten from the parent.
    assert broker.record_count() == 3 + 1 + 3 + 1 + 10


def test_a_fork_under_tls_ends_no_tls_connection(broker: BrokerWithTopic, tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with serve(broker, context) as where:
        run(BOTH_GO_ON, "drop-in", where, str(pem), folder=tmp_path)


def test_three_children_and_their_parent_use_one_producer_at_the_same_time(
    mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path
) -> None:
    run(AT_THE_SAME_TIME, mode, address, "", folder=tmp_path)
    assert broker.record_count() == 80


def test_an_inherited_client_works_in_a_process_of_multiprocessing(
    mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path
) -> None:
    run(WITH_MULTIPROCESSING, mode, address, "", folder=tmp_path)
    assert broker.record_count() == 2


def test_an_identity_that_one_process_may_have_is_not_taken_from_the_parent(
    mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path
) -> None:
    run(REFUSED, mode, address, "", folder=tmp_path)
    assert broker.record_count() == 0


def test_closing_an_inherited_client_asks_no_broker(
    mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path
) -> None:
    run(CLOSED, mode, address, "", folder=tmp_path)
    # Only the parent produced; the consumer that the first child entered asked as much as one of the parent's.
    assert broker.record_count() == 1


def test_building_anew_that_failed_is_raised_and_tried_again(
    mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path
) -> None:
    run(TRIED_AGAIN, mode, address, "", folder=tmp_path)
    assert broker.record_count() == 2


def test_a_loop_over_a_consumer_does_not_go_on_in_the_child(mode: str, address: str, tmp_path: Path) -> None:
    run(LOOPS, mode, address, "", folder=tmp_path)


def test_threads_of_a_child_get_one_client(mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path) -> None:
    run(MANY_THREADS, mode, address, "", folder=tmp_path)
    assert broker.record_count() == 8


def test_a_consumer_without_a_group_keeps_its_subscription_place_and_pauses(
    mode: str, address: str, tmp_path: Path
) -> None:
    run(WITHOUT_A_GROUP, mode, address, "", folder=tmp_path)


def test_a_child_counts_from_zero_and_tells_the_same_listener(mode: str, address: str, tmp_path: Path) -> None:
    run(COUNTED_ANEW, mode, address, "", folder=tmp_path)


def test_a_listener_that_calls_the_client_does_not_stop_it_from_being_built(
    mode: str, address: str, tmp_path: Path
) -> None:
    run(LISTENER_CALLS, mode, address, "", folder=tmp_path)


def test_a_subclass_keeps_what_is_its_own(mode: str, address: str, broker: BrokerWithTopic, tmp_path: Path) -> None:
    run(SUBCLASSED, mode, address, "", folder=tmp_path)
    assert broker.record_count() == 2


def test_a_stock_client_is_not_built_anew_after_uninstall(
    address: str, broker: BrokerWithTopic, tmp_path: Path
) -> None:
    run(UNINSTALLED, "installed", address, "", folder=tmp_path)
    assert broker.record_count() == 1
