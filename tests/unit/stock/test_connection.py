"""connection.py on a broker in memory, in simulated time; transport.py on a socket pair."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors as Errors
import kafka.net.connection
import pytest
from kafka.net.selector import NetworkSelector
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.sasl import SaslBytesRequest

import tolerant_client.stock.connection
from support.fake_broker import FakeBroker, batch, correlation_id_of, set_correlation_id
from support.messages import answer, asked, numbers
from support.simulated import Clock, SimulatedNet
from tolerant_client.errors import (
    ConnectionLostError,
    CorrelationIdMismatchError,
    FrameError,
    OutcomeUnknownError,
    RecoveryExhaustedError,
)
from tolerant_client.stock.connection import TolerantConnection
from tolerant_client.stock.probe_question import harmless_question
from tolerant_client.stock.transport import TolerantTCPTransport
from tolerant_client.tracker.events import Event
from tolerant_client.tracker.framing import FrameAssembler
from tolerant_client.tracker.inflight import InFlightRequests
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules.apis import OtherSubject


class MemoryTransport:
    """Bytes go to the broker at once; its responses wait until `deliver`."""

    host = "fake"

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.assembler: Any = None
        self.answers: list[bytes] = []
        self.written = bytearray()
        self.error: BaseException | None = None
        self._protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def resume_reading(self) -> None:
        pass

    def host_port(self) -> str:
        return "fake:9092"

    def writelines(self, buffers: list[Any]) -> None:
        data = b"".join(buffers)
        self.written += data
        self.answers += self.broker.receive(data)

    def abort(self, error: BaseException | None = None) -> None:
        protocol, self._protocol = self._protocol, None
        self.error = error
        if protocol is not None:
            protocol.connection_lost(error)

    close = abort

    def deliver(self, step: int | None = None) -> None:
        """Hands all waiting responses over, whole or in pieces of `step` bytes."""
        data = b"".join(self.answers)
        self.answers.clear()
        step = step or len(data) or 1
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            while piece and self._protocol is not None:
                room = self.assembler.writable()
                size = min(len(room), len(piece))
                room[:size] = piece[:size]
                piece = piece[size:]
                now = self._protocol.net.clock.now
                frames = self.assembler.received(size)
                self._protocol.bytes_received(now)
                if frames or self.assembler.error is not None:
                    self._protocol.frames_received(frames, now)


class Bench:
    """A connected connection with everything around it."""

    def __init__(self, clock: Clock, **configs: Any) -> None:
        self.clock = clock
        self.net = SimulatedNet(clock)
        self.broker = FakeBroker()
        self.transport = MemoryTransport(self.broker)
        self.events: list[Event] = []
        self.connection = TolerantConnection(
            self.net,
            node_id=1,
            recovery_listener=self.events.append,
            **{"client_id": "test", "receive_message_max_bytes": 1 << 20, **configs},
        )
        self.connection.connection_made(self.transport)

    def initialize(self) -> Bench:
        coroutine = self.connection.initialize()
        try:
            waiting_for = coroutine.send(None)
            while True:
                self.transport.deliver()
                assert waiting_for.is_done
                waiting_for = coroutine.send(None)
        except StopIteration:
            pass
        assert self.connection.connected
        self.broker.requests.clear()
        self.broker.frames.clear()
        self.events.clear()
        return self

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def run(self, seconds: float, step: float = 0.01) -> None:
        """Lets time pass and responses arrive."""
        for _ in range(round(seconds / step)):
            self.net.run(self.clock.now + step)
            self.transport.deliver()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tolerant_client.stock.connection, "time", clock)
    monkeypatch.setattr(kafka.net.connection, "time", clock)
    return clock


@pytest.fixture
def bench(clock: Clock) -> Bench:
    return Bench(clock).initialize()


def list_offsets() -> Any:
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = topic.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-1, max_num_offsets=1)
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic(name="t", partitions=[part])])


def fetch(session_id: int = 0, session_epoch: int = -1) -> Any:
    topic = FetchRequest.FetchTopic
    part = topic.FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[topic(topic="t", partitions=[part])],
        forgotten_topics_data=[],
        rack_id="",
        max_version=11,
    )


def produce(records: bytes, acks: int = -1, partition: int = 0) -> Any:
    topic = ProduceRequest.TopicProduceData
    part = topic.PartitionProduceData(index=partition, records=records)
    topics = [topic(name="t", partition_data=[part])]
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=topics, max_version=9)


class SpoilOnce:
    """Does something to the n-th response of an API."""

    def __init__(self, api: str, what: Callable[[bytes], list[bytes]], nth: int = 1) -> None:
        self.api, self.what, self.left = api, what, nth

    def __call__(self, name: str, frame: bytes) -> list[bytes]:
        if name == self.api:
            self.left -= 1
            if self.left == 0:
                return self.what(frame)
        return [frame]


def drop(frame: bytes) -> list[bytes]:
    return []


def test_reauthentication_begins_once_the_last_response_before_it_is_here(bench: Bench) -> None:
    bench.connection.send_request(list_offsets())
    renewal = bench.connection._reauth._do_reauth()
    drained = renewal.send(None)
    assert not drained.is_done
    bench.transport.deliver()
    assert drained.is_done
    renewal.close()


def test_reauthentication_begins_where_no_proof_comes_in_time_that_the_last_response_was_meant(bench: Bench) -> None:
    def spoil(name: str, frame: bytes) -> list[bytes]:
        return [] if name == "Metadata" else of_another_topic(name, frame)

    bench.broker.spoil = spoil
    future = bench.connection.send_request(list_offsets())
    renewal = bench.connection._reauth._do_reauth()
    drained = renewal.send(None)
    bench.transport.deliver()
    assert not drained.is_done
    bench.run(3.0)
    assert future.succeeded() and drained.is_done
    renewal.close()


def test_responses_complete_their_requests_bytewise_as_well_as_whole(bench: Bench) -> None:
    for step in (None, 1, 7):
        futures = [bench.connection.send_request(MetadataRequest(topics=[])) for _ in range(4)]
        bench.transport.deliver(step)
        assert [f.value.cluster_id for f in futures] == ["fake"] * 4
    assert bench.kinds() == ["completed"] * 12


def test_max_in_flight_pauses_and_resumes(bench: Bench) -> None:
    futures = [bench.connection.send_request(MetadataRequest(topics=[])) for _ in range(6)]
    assert isinstance(futures[5].exception, Errors.NodeNotReadyError)
    bench.transport.deliver()
    assert not bench.connection.paused
    assert bench.connection.send_request(MetadataRequest(topics=[])).exception is None


def test_lost_read_only_request_is_sent_again_with_the_same_bytes(bench: Bench) -> None:
    bench.broker.spoil = SpoilOnce("ListOffsets", drop)
    future = bench.connection.send_request(list_offsets())
    bench.run(1.0)
    assert future.value.topics[0].partitions[0].offset == 0
    first, second = (f for f in bench.broker.frames if f[:2] == struct.pack(">h", 2))
    assert first[4:8] != second[4:8]
    assert first[:4] + first[8:] == second[:4] + second[8:]
    assert bench.kinds() == ["probe", "lost", "requeued", "completed"]
    assert bench.connection.recovery_counters.of("requeued", "ListOffsets", 1) == 1


def test_unmatched_fetch_with_a_session_is_handed_up_as_retriable(bench: Bench) -> None:
    bench.broker.spoil = SpoilOnce("Fetch", drop)
    future = bench.connection.send_request(fetch(session_id=7, session_epoch=3))
    bench.run(1.0)
    assert isinstance(future.exception, Errors.KafkaConnectionError)
    assert future.exception.retriable
    assert bench.connection.connected


def test_unmatched_fetch_without_a_session_is_requeued_once(bench: Bench) -> None:
    bench.broker.spoil = SpoilOnce("Fetch", lambda frame: [set_correlation_id(frame, correlation_id_of(frame) + 1)])
    future = bench.connection.send_request(fetch())
    bench.run(0.2)
    assert future.succeeded()
    assert bench.kinds() == ["orphan", "probe", "lost", "requeued", "completed"]


def test_lost_plain_produce_says_that_its_outcome_is_unknown(bench: Bench) -> None:
    bench.broker.spoil = SpoilOnce("Produce", drop)
    future = bench.connection.send_request(produce(batch(-1, -1)))
    bench.connection.send_request(list_offsets())
    bench.run(1.0)
    assert isinstance(future.exception, OutcomeUnknownError)
    assert not getattr(future.exception, "retriable", False)
    assert len(bench.broker.logs["t", 0]) == 1


def test_plain_produce_in_flight_on_a_lost_connection_has_an_unknown_outcome(bench: Bench) -> None:
    bench.broker.spoil = SpoilOnce("Produce", drop)
    future = bench.connection.send_request(produce(batch(-1, -1)))
    cause = Errors.KafkaConnectionError("cut")
    bench.transport.abort(cause)
    assert isinstance(future.exception, OutcomeUnknownError)
    assert future.exception.__cause__ is cause


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("is_applied", [True, False], ids=["answer lost", "request lost"])
def test_idempotent_produce_is_written_once_and_in_order(bench: Bench, lost: int, is_applied: bool) -> None:
    counter = itertools.count(1)
    if is_applied:
        bench.broker.spoil = SpoilOnce("Produce", drop, nth=lost)
    else:
        bench.broker.ignore = lambda name, frame: name == "Produce" and next(counter) == lost
    settled: list[int] = []
    futures = []
    for sequence in range(5):
        future = bench.connection.send_request(produce(batch(9, sequence, payload=b"%d" % sequence)))
        future.add_callback(lambda _, n=sequence: settled.append(n))
        futures.append(future)
    bench.run(3.0)
    offsets = [f.value.responses[0].partition_responses[0].base_offset for f in futures]
    assert offsets == settled == [0, 1, 2, 3, 4]
    assert [r[-1:] for r in bench.broker.logs["t", 0]] == [b"0", b"1", b"2", b"3", b"4"]


def test_response_that_belongs_to_another_partition_is_not_delivered(bench: Bench) -> None:
    frames: list[bytes] = []

    def swap(name: str, frame: bytes) -> list[bytes]:
        if name != "Produce" or len(frames) == 2:
            return [frame]
        frames.append(frame)
        if len(frames) < 2:
            return []
        first, second = map(correlation_id_of, frames)
        return [set_correlation_id(frames[0], second), set_correlation_id(frames[1], first)]

    bench.broker.spoil = swap
    futures = [bench.connection.send_request(produce(batch(9, 0), partition=n)) for n in range(2)]
    bench.run(0.5)
    assert all(isinstance(f.exception, ConnectionLostError) for f in futures)
    assert [len(log) for log in bench.broker.logs.values()] == [1, 1]
    assert bench.connection.closed


def of_another_topic(name: str, frame: bytes) -> list[bytes]:
    """Names the topic u where it should name t (both names are compact strings)."""
    return [frame.replace(b"\x02t", b"\x02u")]


def test_odd_response_of_a_server_that_means_it_is_handed_up(bench: Bench) -> None:
    """It names another topic each time it is asked; stock hands that up, too."""
    bench.broker.spoil = of_another_topic
    for asked in range(1, 4):
        future = bench.connection.send_request(list_offsets())
        bench.run(0.1)
        assert future.value.topics[0].name == "u"
        assert bench.broker.names().count("ListOffsets") == 2 * asked
    assert not bench.connection.closed


@pytest.mark.parametrize("kind", [list_offsets, lambda: produce(batch(9, 0))])
def test_response_that_speaks_of_another_topic_once_is_asked_for_again(bench: Bench, kind: Callable[[], Any]) -> None:
    request = kind()
    name = str(request.name).removesuffix("Request")
    bench.broker.spoil = SpoilOnce(name, lambda frame: of_another_topic(name, frame))
    future = bench.connection.send_request(request)
    bench.run(0.1)
    (topic,) = future.value.topics if name == "ListOffsets" else future.value.responses
    assert topic.name == "t"
    assert bench.broker.names().count(name) == 2
    assert sum(len(log) for log in bench.broker.logs.values()) == (name == "Produce")


@pytest.mark.parametrize(
    ("retries", "error"), [(0, OutcomeUnknownError), (3, Errors.KafkaConnectionError)], ids=["no retries", "retries"]
)
def test_plain_produce_whose_response_names_another_topic_fails_as_a_lost_one(
    clock: Clock, retries: int, error: type[Exception]
) -> None:
    """kafka-python would fail on it with a KeyError, and leave the batch in flight until delivery.timeout.ms."""
    bench = Bench(clock, recovery_policy=RecoveryPolicy().for_retries(retries)).initialize()
    bench.broker.spoil = SpoilOnce("Produce", lambda frame: of_another_topic("Produce", frame))
    future = bench.connection.send_request(produce(batch(-1, -1)))
    bench.run(0.1)
    assert isinstance(future.exception, error)
    assert bench.broker.names().count("Produce") == 1
    assert not bench.connection.closed


def test_request_whose_responses_never_come_fails_before_its_deadline_is_long_gone(clock: Clock) -> None:
    bench = Bench(clock, recovery_policy=RecoveryPolicy(max_resends=2)).initialize()
    bench.broker.spoil = lambda name, frame: [] if name == "ListOffsets" else [frame]
    future = bench.connection.send_request(list_offsets())
    bench.run(5.0)
    assert isinstance(future.exception, RecoveryExhaustedError)
    assert len(future.exception.history) == 3


def test_request_that_waits_for_the_connection_to_be_ready_ends_by_its_deadline(clock: Clock) -> None:
    bench = Bench(clock)
    future = bench.connection.send_request(list_offsets(), request_timeout_ms=2000)
    bench.run(1.9)
    assert not future.is_done
    bench.run(0.2)
    assert isinstance(future.exception, Errors.KafkaTimeoutError)
    assert not bench.connection.closed


def test_outcome_unknown_says_how_to_check(bench: Bench) -> None:
    bench.broker.spoil = lambda name, frame: [] if name == "Produce" else [frame]
    future = bench.connection.send_request(produce(batch(-1, -1)))
    bench.connection.send_request(list_offsets())
    bench.run(3.0)
    assert isinstance(future.exception, OutcomeUnknownError)
    assert "enable_idempotence" in str(future.exception)


def test_dead_connection_times_out_as_before(bench: Bench) -> None:
    bench.broker.ignore = lambda name, frame: True
    futures = [bench.connection.send_request(list_offsets(), request_timeout_ms=5000) for _ in range(3)]
    bench.run(4.9)
    assert not any(f.is_done for f in futures)
    bench.run(0.2)
    assert all(isinstance(f.exception, Errors.RequestTimedOutError) for f in futures)
    assert bench.connection.closed
    assert bench.net.client_timers() == 0


def test_closing_connection_whose_last_bytes_nobody_reads_ends_by_the_deadline() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client = socket.create_connection(listener.getsockname())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    peer, _ = listener.accept()
    client.setblocking(False)
    net = NetworkSelector()
    connection = TolerantConnection(net, node_id=1, client_id="test", receive_message_max_bytes=1 << 20)
    transport = TolerantTCPTransport(net, client, host="fake")
    try:
        connection.connection_made(transport)
        connection._init_complete()
        request = produce(batch(9, 0, payload=b"x" * 500_000))
        request.API_VERSION = 9
        future = connection._send_request(request, timeout_at=time.monotonic() + 1.5)
        net.run(net.sleep, 0.1)
        connection.close()
        assert not connection.closed  # it still waits for its bytes to be read
        net.run(net.sleep, 3.0)
        assert connection.closed and future.is_done
    finally:
        for sock in (client, peer, listener):
            sock.close()
        net.close()


def test_throttle_that_no_broker_means_is_obeyed_for_a_bounded_time(clock: Clock) -> None:
    bench = Bench(clock, recovery_policy=RecoveryPolicy(max_throttle_ms=2_000)).initialize()
    bench.connection._maybe_throttle(MetadataResponse(version=9, throttle_time_ms=1 << 24))
    assert bench.connection.paused == {"throttle"}
    bench.run(1.9)
    assert bench.connection.paused == {"throttle"}
    bench.run(0.2)
    assert not bench.connection.paused
    future = bench.connection.send_request(list_offsets())
    bench.run(0.1)
    assert future.succeeded()


def test_throttle_is_obeyed_for_as_long_as_the_broker_does_not_respond(clock: Clock) -> None:
    """A large batch behind a small quota takes minutes: what is sent before would only wait in a buffer (KIP-219)."""
    bench = Bench(clock, recovery_policy=RecoveryPolicy(max_throttle_ms=2_000)).initialize()
    bench.broker.ignore = lambda *_: True
    bench.connection._maybe_throttle(MetadataResponse(version=9, throttle_time_ms=60_000))
    bench.run(50.0)
    assert bench.connection.paused == {"throttle"} and not bench.connection.closed
    assert bench.broker.names() == ["Metadata"], "it is asked once"
    bench.run(10.1)
    assert not bench.connection.paused
    bench.broker.ignore = lambda *_: False
    future = bench.connection.send_request(list_offsets())
    bench.run(0.1)
    assert future.succeeded()


def test_error_code_that_no_kafka_has_is_asked_about_again(bench: Bench) -> None:
    answer = struct.Struct(">ihq")  # of the partition: index, error code, base offset
    flip = SpoilOnce("Produce", lambda frame: [frame.replace(answer.pack(0, 0, 0), answer.pack(0, 256, 0))])
    bench.broker.spoil = flip
    future = bench.connection.send_request(produce(batch(9, 0)))
    bench.run(0.3)
    assert future.value.responses[0].partition_responses[0].error_code == 0
    assert "no Kafka has" in next(e.request.history[0] for e in bench.events if e.kind == "requeued")


def test_what_waits_for_the_connection_is_sent_before_what_its_callers_send_next(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with acks=0 ends as it is sent, and its caller sends the next: it would overtake those that wait."""
    bench = Bench(clock)
    first, second, third = (produce(batch(-1, -1), acks=0) for _ in range(3))
    sent: list[Any] = []
    real = TolerantConnection._send_request
    monkeypatch.setattr(
        TolerantConnection, "_send_request", lambda self, r, **how: (sent.append(r), real(self, r, **how))[1]
    )
    bench.connection.send_request(first).add_callback(lambda _: bench.connection.send_request(third))
    bench.connection.send_request(second)
    bench.initialize()
    wanted = [id(request) for request in (first, second, third)]  # their contents are equal
    assert [id(request) for request in sent if id(request) in wanted] == wanted


def test_acks_0_is_not_tracked_and_a_response_to_it_is_dropped(bench: Bench) -> None:
    future = bench.connection.send_request(produce(batch(-1, -1), acks=0))
    assert future.succeeded()
    assert len(bench.connection.in_flight_requests) == 0
    correlation_id = bench.broker.requests[-1][2]
    bench.transport.answers.append(struct.pack(">iii", 8, correlation_id, 0))
    later = bench.connection.send_request(MetadataRequest(topics=[]))
    bench.run(0.1)
    assert later.succeeded()
    assert bench.kinds() == ["orphan", "probe", "completed"]


def test_good_frames_before_a_bad_one_reach_their_callers(bench: Bench) -> None:
    first = bench.connection.send_request(MetadataRequest(topics=[]))
    second = bench.connection.send_request(MetadataRequest(topics=[]))
    bench.transport.answers[1:] = [b"HTTP/1.1 400 secret"]
    bench.transport.deliver()
    assert first.succeeded()
    assert isinstance(second.exception, Errors.KafkaConnectionError)
    assert isinstance(second.exception.__cause__, FrameError)
    assert "secret" not in str(second.exception)


def test_response_with_bytes_left_over_is_dropped_and_asked_for_again(bench: Bench) -> None:
    first = bench.connection.send_request(list_offsets())
    second = bench.connection.send_request(list_offsets())
    frame = bench.transport.answers[1]
    bench.transport.answers[1] = struct.pack(">i", len(frame) - 4 + 1) + frame[4:] + b"\0"
    bench.transport.deliver()
    assert first.succeeded()
    assert not second.is_done
    bench.run(0.1, step=0.001)
    assert second.succeeded()
    assert bench.kinds() == ["completed", "orphan", "probe", "lost", "requeued", "completed"]


def test_wrong_id_while_connecting_retires_at_once(clock: Clock) -> None:
    bench = Bench(clock)
    bench.broker.spoil = lambda name, frame: [set_correlation_id(frame, 5)]
    coroutine = bench.connection.initialize()
    coroutine.send(None)
    bench.transport.deliver()
    assert bench.connection.closed
    assert isinstance(bench.transport.error, CorrelationIdMismatchError)
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_nothing_is_probed_before_it_is_known_what_the_broker_understands(clock: Clock) -> None:
    bench = Bench(clock)
    bench.broker.spoil = SpoilOnce("ApiVersions", drop)
    coroutine = bench.connection.initialize()
    coroutine.send(None)
    bench.run(2.0)
    assert bench.broker.names() == ["ApiVersions"]
    coroutine.close()


@pytest.mark.parametrize(
    ("broker", "asked", "version"),
    [
        ((0, 8, 2), "ListOffsets", 0),
        ((0, 9), "ListOffsets", 0),
        ((0, 10, 0), "ListOffsets", 0),
        ((0, 10, 1), "Metadata", 1),
        ((0, 11), "Metadata", 2),
        ((2, 3), "Metadata", 2),
        ((2, 4), "Metadata", 8),
        ((4, 2), "Metadata", 8),
    ],
)
def test_probe_is_a_request_that_the_broker_knows_and_that_asks_for_nothing(
    broker: tuple[int, ...], asked: str, version: int
) -> None:
    question = harmless_question(BrokerVersionData(broker))
    assert question is not None
    assert (question.name, question.API_VERSION) == (asked, version)
    assert question._request.topics == []
    without_old = harmless_question(BrokerVersionData(api_versions={3: (9, 13)}, broker_version=(9, 0)))
    assert without_old is not None and without_old.API_VERSION == 10
    assert harmless_question(BrokerVersionData(api_versions={18: (0, 4)}, broker_version=(2, 0))) is None


def sent(store: InFlightRequests, entry: Any, now: float) -> Any:
    """Encodes and sends a request of a bare tracker, which gets it back."""
    entry.request.frame_buffers(entry.correlation_id, "test")
    assert store.sent(entry, now) == []
    return entry


@pytest.fixture
def store() -> InFlightRequests:
    """A bare tracker whose question a broker of Kafka 4.2 knows."""
    return InFlightRequests(RecoveryPolicy(), 1, harmless_question(BrokerVersionData((4, 2))))


def test_server_that_names_all_its_topics_whatever_it_is_asked_is_kept(store: InFlightRequests) -> None:
    entry = sent(store, store.queue(asked("Metadata", 13, topics=[{"name": "a"}]), 30.0), 0.0)
    everything = answer("Metadata", 13, topics=[{"name": "a"}, {"name": "b"}])
    (probe,) = store.response(entry.correlation_id, everything, 0.1)
    sent(store, probe.request, 0.1)
    (requeued,) = store.response(probe.correlation_id, answer("Metadata", 8, topics=[{"name": "a"}]), 0.2)
    assert requeued.kind == "requeued"
    sent(store, entry, 0.2)
    (completed,) = store.response(entry.correlation_id, everything, 0.3)
    assert completed.request is entry


def test_exchanged_ids_of_a_probe_and_of_metadata_leave_nothing_to_believe(store: InFlightRequests) -> None:
    entry = sent(store, store.queue(asked("Metadata", 13, topics=[{"name": "a"}]), 30.0), 0.0)
    (probe,) = store.expired(2.0)
    sent(store, probe.request, 2.0)
    of_a = answer("Metadata", 13, topics=[{"name": "a"}])
    events = store.response(probe.correlation_id, of_a, 2.1)
    assert [event.kind for event in events] == ["orphan", "probe"]
    events = store.response(entry.correlation_id, answer("Metadata", 8, topics=[]), 2.1)
    assert [event.kind for event in events] == ["orphan", "retired"]


@pytest.mark.parametrize("broker", [(0, 10, 0), (0, 10, 1), (0, 11), (1, 0), (2, 3), (2, 4), (4, 2)])
def test_the_probes_response_is_that_of_no_metadata_request(broker: tuple[int, ...]) -> None:
    """A gateway that loses one response and shifts the others brings it under a request's id, where it says: no topics."""
    versions = BrokerVersionData(broker)
    question = harmless_question(versions)
    assert question is not None
    newest = versions.api_version(MetadataRequest)
    for node_id, host, names in itertools.product([0, 1, 1 << 24], ["b", "localhost"], [None, [], [{"name": "a"}]]):
        node = {"node_id": node_id, "host": host, "port": 9092, "rack": None}
        metadata = {"brokers": [node], "cluster_id": "x" * 22, "controller_id": node_id, "topics": []}
        body = answer(
            question.name, question.API_VERSION, **(metadata if question.name == "Metadata" else {"topics": []})
        )
        request = asked("Metadata", newest, topics=names)
        request.frame_buffers(1, "test")
        assert request.decode_response(answer("Metadata", newest, **metadata | {"topics": names or []})) is not None
        with pytest.raises((ValueError, IndexError, struct.error)) as refused:
            request.decode_response(body)
        assert not isinstance(refused.value, OtherSubject)


def nodes(*hosts: str) -> list[dict[str, Any]]:
    return [{"node_id": n + 1, "host": host, "port": 9092, "rack": None} for n, host in enumerate(hosts)]


@pytest.mark.parametrize(
    ("api", "version", "of_request"),
    [
        ("EndTxn", 3, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True}),
        ("Heartbeat", 4, {"group_id": "g", "generation_id": 1, "member_id": "m"}),
    ],
)
def test_a_probes_response_is_nobody_elses_whatever_else_it_decodes_as(
    store: InFlightRequests, api: str, version: int, of_request: dict[str, Any]
) -> None:
    """Three brokers called localhost look like no error and three tagged fields, of which the last runs past the end."""
    body = answer("Metadata", 8, brokers=nodes(*["localhost"] * 3), cluster_id="x" * 22, controller_id=1, topics=[])
    request = asked(api, version, **of_request)
    request.frame_buffers(1, "test")
    with pytest.raises(ValueError, match="its fields"):
        request.decode_response(body)
    entry = sent(store, store.queue(request, 30.0), 0.0)
    (probe,) = store.expired(2.0)
    sent(store, probe.request, 2.0)
    events = store.response(entry.correlation_id, body, 2.1)
    assert [event.kind for event in events] == ["orphan", "probe"]


def test_a_probes_response_of_an_old_broker_under_the_id_of_a_request_is_not_what_the_server_means() -> None:
    """It asks for no offsets, and four zero bytes are also the response to many requests that ask for something."""
    store = InFlightRequests(RecoveryPolicy(), 1, harmless_question(BrokerVersionData((0, 9))))
    entry = sent(
        store,
        store.queue(asked("OffsetFetch", 1, group_id="g", topics=[numbers("t", 0, inner="partition_indexes")]), 30.0),
        0.0,
    )
    (first,) = store.expired(2.0)
    sent(store, first.request, 2.0)
    nothing = answer("ListOffsets", 0, topics=[])
    (orphan, second) = store.response(entry.correlation_id, nothing, 2.1)
    sent(store, second.request, 2.1)
    assert orphan.kind == "orphan"
    assert [event.kind for event in store.response(first.correlation_id, nothing, 2.2)] == ["orphan"]
    assert "completed" not in [event.kind for event in store.expired(20.0)]


CAUSES = [
    FrameError("a length that cannot be one"),
    CorrelationIdMismatchError("out of step"),
    Errors.RequestTimedOutError("30 s"),
    ConnectionResetError("reset"),
    Errors.KafkaTimeoutError("not ready"),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_request_whose_connection_ends_gets_a_connection_error_with_the_cause(
    bench: Bench, cause: BaseException
) -> None:
    futures = [bench.connection.send_request(list_offsets()), bench.connection.send_request(produce(batch(9, 0)))]
    bench.transport.abort(cause)
    for future in futures:
        assert isinstance(future.exception, Errors.KafkaConnectionError)
        assert future.exception.retriable
        assert future.exception.__cause__ is cause
        assert isinstance(future.exception, Errors.RequestTimedOutError) is isinstance(
            cause, Errors.RequestTimedOutError
        )


def test_refused_credentials_are_told_as_such(bench: Bench) -> None:
    future = bench.connection.send_request(list_offsets())
    refused = Errors.SaslAuthenticationFailedError("no")
    bench.transport.abort(refused)
    assert future.exception is refused


def test_find_coordinator_of_0_8_2_is_answered_under_id_zero(clock: Clock) -> None:
    bench = Bench(clock, broker_version_data=BrokerVersionData((0, 8, 2)))
    bench.connection._init_complete()
    answer = b"\0\0" + struct.pack(">ih4si", 1, 4, b"fake", 9092)
    bench.broker.receive = lambda data: [struct.pack(">ii", 4 + len(answer), 0) + answer]  # type: ignore[method-assign]
    future = bench.connection.send_request(FindCoordinatorRequest(key="g"))
    bench.transport.deliver()
    assert future.value.port == 9092


def test_plain_produce_of_which_no_byte_has_left_is_not_unknown(bench: Bench) -> None:
    bench.broker.ignore = lambda name, frame: True
    first = bench.connection.send_request(produce(batch(-1, -1)))
    bench.transport.sent_bytes = bench.connection._written_bytes - 1
    second = bench.connection.send_request(produce(batch(-1, -1)))
    bench.transport.abort(Errors.KafkaConnectionError("cut"))
    assert isinstance(first.exception, OutcomeUnknownError)
    assert isinstance(second.exception, Errors.KafkaConnectionError)


def test_raw_sasl_token_is_matched_by_its_place(bench: Bench) -> None:
    bench.broker.ignore = lambda name, frame: True
    bench.broker.receive = lambda data: [struct.pack(">i", 0)]  # type: ignore[method-assign]
    future = bench.connection._send_request(SaslBytesRequest(b"\0user\0secret"))
    bench.transport.deliver()
    assert future.value.auth_bytes == b""


def test_nothing_secret_is_logged_at_any_level(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    bench = Bench(clock).initialize()
    canary = b"canary-in-the-records"
    bench.connection.send_request(produce(batch(9, 0, payload=canary)))
    bench.connection.send_request(fetch())
    bench.transport.deliver()
    bench.transport.answers.append(b"\0\0\0\x20" + canary + b"." * 11)
    bench.transport.deliver()
    bench.broker.receive = lambda data: [struct.pack(">i", 4) + b"cana"]  # type: ignore[method-assign]
    bench.connection._send_request(SaslBytesRequest(b"\0user\0canary-token"))
    bench.transport.abort(Errors.KafkaConnectionError("end"))
    assert caplog.records
    assert "canary" not in caplog.text
    assert "canary" not in repr(bench.events)


def test_listener_that_raises_does_no_harm(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(clock).initialize()

    def listener(event: Event) -> None:
        raise RuntimeError("listener")

    bench.connection._listener = listener
    future = bench.connection.send_request(MetadataRequest(topics=[]))
    bench.transport.deliver()
    assert future.succeeded()
    assert "recovery_listener failed" in caplog.text


# -- the transport on a real socket pair --------------------------------------


class Protocol:
    """Collects what the transport hands over."""

    _sensors = None

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.lost: list[Any] = []

    def bytes_received(self, now: float) -> None:
        pass

    def frames_received(self, frames: list[memoryview], now: float) -> None:
        self.frames += [bytes(f) for f in frames]

    def connection_lost(self, error: Any) -> None:
        self.lost.append(error)


@pytest.fixture
def wire() -> Iterator[tuple[NetworkSelector, TolerantTCPTransport, Protocol, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    net = NetworkSelector()
    transport = TolerantTCPTransport(net, ours, host="here")
    transport.assembler = FrameAssembler(1 << 26)
    protocol = Protocol()
    transport.set_protocol(protocol)
    transport.resume_reading()
    yield net, transport, protocol, theirs
    transport.abort(None)
    theirs.close()
    net.drain()
    net.close()


def test_transport_receives_large_and_small_frames(wire: Any) -> None:
    net, _, protocol, theirs = wire
    bodies = [b"small" * n for n in range(1, 50)] + [bytes(range(256)) * 30_000, b"last one"]
    data = memoryview(b"".join(struct.pack(">i", len(b)) + b for b in bodies))
    while len(protocol.frames) < len(bodies):
        try:
            data = data[theirs.send(data) :] if data else data
        except BlockingIOError:
            pass
        net.poll(timeout_ms=10)
    assert protocol.frames == bodies


def test_transport_sends_many_buffers_from_where_they_are(wire: Any) -> None:
    net, transport, _, theirs = wire
    buffers = [memoryview(bytes([n % 256]) * (n * 37 % 5000 + 1)) for n in range(3000)]
    transport.writelines(buffers)
    received = bytearray()
    expected = b"".join(buffers)
    while len(received) < len(expected):
        net.poll(timeout_ms=10)
        try:
            received += theirs.recv(1 << 20)
        except BlockingIOError:
            pass
    assert received == expected


def test_transport_delivers_frames_that_precede_the_end(wire: Any) -> None:
    net, _, protocol, theirs = wire
    theirs.send(struct.pack(">i", 5) + b"hello" + b"\0\0")
    theirs.close()
    for _ in range(5):
        net.poll(timeout_ms=10)
    assert protocol.frames == [b"hello"]
    assert len(protocol.lost) == 1


def test_requests_that_waited_for_the_connection_are_all_sent_within_the_limit(clock: Clock) -> None:
    bench = Bench(clock)
    futures = [bench.connection.send_request(MetadataRequest(topics=[])) for _ in range(23)]
    bench.initialize()
    while bench.transport.answers:
        assert len(bench.transport.answers) <= 5
        bench.transport.deliver()
    assert all(f.succeeded() for f in futures)


def test_resend_overtakes_what_waits_for_the_limit(clock: Clock) -> None:
    # 1. a and b are in flight, c and d wait for the limit of 2.  2. a's response is lost, so b's is held.
    # 3. If a waited behind c, c's response would be held too, and nothing would ever leave the limit.
    bench = Bench(clock, max_in_flight_requests_per_connection=2)
    bench.broker.spoil = SpoilOnce("Produce", drop)
    futures = [bench.connection.send_request(produce(batch(9, n))) for n in range(4)]
    bench.initialize()
    bench.run(2.0)
    assert [f.value.responses[0].partition_responses[0].base_offset for f in futures] == [0, 1, 2, 3]
