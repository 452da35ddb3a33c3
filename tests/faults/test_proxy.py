"""The fault proxy: what a client sees at the wire, from a fake server and from a real broker."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from tolerant_client.testing import (
    ClusterStartError,
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

FETCH = 1
BODY = bytes(range(256)) * 4
ProxyFactory = Callable[..., FaultProxy]


def read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class EchoServer:
    """Answers each request with `body`, in its own thread; as much of a broker as the proxy can see."""

    def __init__(self, body: bytes = BODY) -> None:
        self.body = body
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            while True:
                (size,) = struct.unpack(">i", read(connection, 4))
                (correlation_id,) = struct.unpack_from(">i", read(connection, size), 4)
                self.requests += 1
                connection.sendall(struct.pack(">ii", len(self.body) + 4, correlation_id) + self.body)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@contextlib.contextmanager
def client_of(proxy: FaultProxy) -> Iterator[socket.socket]:
    host, _, port = proxy.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        yield connection


def ask(connection: socket.socket, *correlation_ids: int, api_key: int = FETCH) -> None:
    for correlation_id in correlation_ids:
        connection.sendall(struct.pack(">ihhih", 10, api_key, 11, correlation_id, -1))


def answer(connection: socket.socket) -> tuple[int, bytes]:
    size, correlation_id = struct.unpack(">ii", read(connection, 8))
    return correlation_id, read(connection, size - 4)


def through(server: EchoServer, *faults: Fault, seed: int = 0) -> FaultProxy:
    return FaultProxy({0: ("127.0.0.1", server.port)}, faults, seed)


def test_without_faults_everything_passes(server: EchoServer) -> None:
    with through(server) as proxy, client_of(proxy) as client:
        ask(client, *range(50))
        assert [answer(client) for _ in range(50)] == [(n, BODY) for n in range(50)]
        assert proxy.responses == {"Fetch": 50}
        assert proxy.injected_total == 0


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Drop(count=1, after=1), [0, 2, 3]),
        (Duplicate(count=1, after=1), [0, 1, 1, 2, 3]),
        (Reorder(count=1, after=1), [0, 2, 1, 3]),
        (RewriteCorrelationId(count=1, after=1), [0, 2, 2, 3]),
        (Stale(count=1), [0, 0, 1, 2, 3]),
        (Truncate(count=1, after=1), [0, 1, 2, 3]),
        (Corrupt(count=1, after=1), [0, 1, 2, 3]),
        (Stall(0.01, count=1, after=1), [0, 1, 2, 3]),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_fault_at_the_wire(server: EchoServer, fault: Fault, expected: list[int]) -> None:
    with through(server, fault) as proxy, client_of(proxy) as client:
        ask(client, 0, 1, 2, 3)
        answers = [answer(client) for _ in expected]
        assert [correlation_id for correlation_id, _ in answers] == expected
        spoiled = [body for _, body in answers if body != BODY]
        if isinstance(fault, Truncate):
            assert spoiled == [BODY[:512]]
        elif isinstance(fault, Corrupt):
            assert [sum(a != b for a, b in zip(body, BODY, strict=True)) for body in spoiled] == [1]
        else:
            assert spoiled == []
        assert proxy.injected == {f"Fetch/{fault.name}": 1}
        assert proxy.responses == {"Fetch": 4}
        assert server.requests == 4


def test_reset_is_a_reset(server: EchoServer) -> None:
    with through(server, Reset(count=1, after=1)) as proxy:
        with client_of(proxy) as client:
            ask(client, 0)
            assert answer(client)[0] == 0
            ask(client, 1)
            with pytest.raises(ConnectionResetError):
                answer(client)
        with client_of(proxy) as client:
            ask(client, 2)
            assert answer(client)[0] == 2
        assert proxy.injected == {"Fetch/Reset": 1}


@pytest.mark.alone
def test_stall_holds_the_connection_but_no_other(server: EchoServer) -> None:
    with through(server, Stall(0.4, count=1)) as proxy, client_of(proxy) as stalled, client_of(proxy) as other:
        begin = time.monotonic()
        ask(stalled, 0, 1)
        while proxy.injected_total == 0:
            time.sleep(0.001)
        ask(other, 5)
        assert answer(other)[0] == 5
        assert time.monotonic() - begin < 0.3
        assert [answer(stalled)[0], answer(stalled)[0]] == [0, 1]
        assert time.monotonic() - begin >= 0.4


@pytest.mark.alone
def test_reordered_answer_without_a_successor_arrives_soon_and_is_not_counted(server: EchoServer) -> None:
    with through(server, Reorder(count=1)) as proxy, client_of(proxy) as client:
        begin = time.monotonic()
        ask(client, 0)
        assert answer(client)[0] == 0
        assert 0.04 <= time.monotonic() - begin < 1.0
        assert proxy.injected_total == 0


def test_seed_replays(server: EchoServer) -> None:
    def missing(seed: int) -> list[int]:
        with through(server, Drop(probability=0.2), seed=seed) as proxy, client_of(proxy) as client:
            ask(client, *range(100))
            # Spared, so it is the answer after all the others.
            ask(client, 1000, api_key=18)
            arrived = set(iter(lambda: answer(client)[0], 1000))
            lost = sorted(set(range(100)) - arrived)
            assert proxy.injected == {"Fetch/Drop": len(lost)}
            return lost

    assert missing(1) == missing(1)
    assert missing(1) != missing(2)


def test_faults_may_be_replaced_while_it_runs(server: EchoServer) -> None:
    with through(server) as proxy, client_of(proxy) as client:
        ask(client, 0)
        assert answer(client)[0] == 0
        proxy.faults = [Drop(count=1)]
        assert proxy.faults == (Drop(count=1),)
        ask(client, 1, 2)
        assert answer(client)[0] == 2
        proxy.faults = []
        ask(client, 3)
        assert answer(client)[0] == 3
        assert proxy.injected == {"Fetch/Drop": 1}


def test_big_answers_to_a_slow_client_are_not_hoarded() -> None:
    server = EchoServer(bytes(32 << 20))
    try:
        with through(server) as proxy, client_of(proxy) as client:
            ask(client, 0)
            time.sleep(0.2)
            assert answer(client) == (0, server.body)
            ask(client, *range(1, 6))
            assert [answer(client)[0] for _ in range(5)] == [1, 2, 3, 4, 5]
    finally:
        server.close()


def test_end_of_the_broker_is_the_end_for_the_client(server: EchoServer) -> None:
    with through(server) as proxy, client_of(proxy) as client:
        ask(client, 0)
        assert answer(client)[0] == 0
        server.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_broker_that_cannot_be_reached_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with FaultProxy({0: ("127.0.0.1", port)}) as proxy, pytest.raises(ConnectionError), client_of(proxy) as client:
        ask(client, 0)
        if client.recv(1) == b"":
            raise ConnectionResetError


def test_port_in_use_is_said(server: EchoServer) -> None:
    with pytest.raises(ClusterStartError, match=f"Port {server.port} is in use"):
        FaultProxy({server.port: ("127.0.0.1", 1)}).start()


def test_closed_proxy_leaves_no_thread_and_closes_once_more(server: EchoServer) -> None:
    proxy = through(server).start()
    with client_of(proxy) as client:
        ask(client, 0)
        assert answer(client)[0] == 0
        proxy.close()
        proxy.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tolerant-fault-proxy"]


@pytest.fixture(scope="module")
def topic(kafka_cluster: KafkaCluster) -> str:
    """A topic of one partition with 100 records."""
    name = "test-proxy"
    admin = KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=kafka_cluster.bootstrap_servers)
    for number in range(100):
        producer.send(name, b"%d" % number)
    producer.flush()
    producer.close()
    return name


@contextlib.contextmanager
def consumer_of(proxy: FaultProxy, topic: str) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        bootstrap_servers=proxy.bootstrap_servers, auto_offset_reset="earliest", request_timeout_ms=3000
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        yield consumer
    finally:
        consumer.close()


def values_within(consumer: KafkaConsumer, seconds: float, count: int = 100) -> list[bytes]:
    """The values that poll() brings, until there are `count`."""
    deadline = time.monotonic() + seconds
    values: list[bytes] = []
    while len(values) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=200).values():
            values += [record.value for record in records]
    return values


ALL = [b"%d" % number for number in range(100)]


def test_client_of_a_real_broker_stays_on_the_proxy(fault_proxy: ProxyFactory, topic: str) -> None:
    proxy = fault_proxy()
    with consumer_of(proxy, topic) as consumer:
        assert values_within(consumer, 10) == ALL
    assert {"ApiVersions", "Metadata", "ListOffsets", "Fetch"} <= set(proxy.responses)


@pytest.mark.parametrize(
    "fault",
    [
        Reset(api="Fetch", count=1),
        Stall(0.3, api="Fetch", count=1),
        ErrorCode(6, api="Fetch", count=1),
        ErrorCode(6, api="ListOffsets", count=1),
        ErrorCode(5, api="Metadata", count=1),
        RewriteCorrelationId(api="ListOffsets", count=1),
    ],
    ids=lambda fault: f"{fault.name}-{fault.api}",
)
def test_stock_client_gets_over_it(fault_proxy: ProxyFactory, topic: str, fault: Fault) -> None:
    proxy = fault_proxy([fault])
    with consumer_of(proxy, topic) as consumer:
        assert values_within(consumer, 20) == ALL
    assert proxy.injected == {f"{fault.api}/{fault.name}": fault.count}


def test_corrupt_records_are_noticed_by_their_checksum(fault_proxy: ProxyFactory, topic: str) -> None:
    # The body of this Fetch answer ends in tags and empty fields; the first poll may hit one of them.
    proxy = fault_proxy([Corrupt(api="Fetch", count=1)])
    with consumer_of(proxy, topic) as consumer:
        try:
            assert len(values_within(consumer, 10)) == 100
        except KafkaError:
            pass
    assert proxy.injected == {"Fetch/Corrupt": 1}


def test_error_code_of_produce_says_no_although_it_was_done(
    fault_proxy: ProxyFactory, kafka_cluster: KafkaCluster
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
    admin.create_topics([NewTopic("test-produce-error", 1, 1)])
    admin.close()
    proxy = fault_proxy([ErrorCode(10, api="Produce", count=1)])
    producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, enable_idempotence=False, retries=0)
    with pytest.raises(KafkaError, match="(?i)large"):
        producer.send("test-produce-error", b"x").get(10)
    producer.close()
    assert proxy.injected == {"Produce/ErrorCode": 1}
    with consumer_of(fault_proxy_of(kafka_cluster, proxy), "test-produce-error") as consumer:
        assert values_within(consumer, 10, count=1) == [b"x"]


def fault_proxy_of(cluster: KafkaCluster, proxy: FaultProxy) -> FaultProxy:
    """The same proxy without faults."""
    proxy.faults = []
    return proxy


def test_second_proxy_of_a_cluster_is_refused(fault_proxy: ProxyFactory) -> None:
    fault_proxy()
    with pytest.raises(ClusterStartError, match="close the other proxy"):
        fault_proxy()


def test_produce_without_acks_is_not_waited_for(fault_proxy: ProxyFactory, topic: str) -> None:
    proxy = fault_proxy([Drop(api="Produce")])
    producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, acks=0, enable_idempotence=False)
    for _ in range(10):
        producer.send(topic, b"no answer").get(10)
    producer.close()
    assert "Produce" not in proxy.responses and proxy.injected_total == 0
