"""masking.py: no payload and no secret in any line that kafka-python or we log, at any level."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import kafka
import kafka.producer.kafka
import pytest
from kafka.admin import NewTopic
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaConnectionError
from kafka.protocol.consumer import JoinGroupRequest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

import tolerant_client
from support.canaries import Listener, listening
from support.fake_broker import FakeBroker, serve, set_correlation_id
from tolerant_client.errors import ClientMovesError
from tolerant_client.stock import masking

KEY, VALUE, HEADER, SECRET = "canary-key", "canary-value", "canary-header", "canary-password"
CANARIES = (KEY, VALUE, HEADER, SECRET)

# Most programs give it plain functions.
pytestmark = pytest.mark.filterwarnings("ignore:.* does not implement kafka.serializer.Serializer")


class BrokerWithTopic(FakeBroker):
    """Says that it leads topic-0."""

    def _answer_Metadata(self, request: Any, version: int) -> Any:
        response = super()._answer_Metadata(request, version)
        topic_class = MetadataResponse.MetadataResponseTopic
        partition = topic_class.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
        )
        response.topics = [topic_class(error_code=0, name="topic", is_internal=False, partitions=[partition])]
        return response


def hostile_answers(seed: int) -> Any:
    """Spoils some responses: cut, flipped, under a foreign id, doubled, or text with canaries that is no frame at all."""
    chance = random.Random(seed)

    def spoil(name: str, frame: bytes) -> list[bytes]:
        if name not in ("Produce", "Fetch", "ListOffsets") or chance.random() > 0.3:
            return [frame]
        cut = frame[: 8 + (len(frame) - 8) // 2]
        flipped = bytearray(frame)
        flipped[-1 - chance.randrange(len(frame) - 9)] ^= 0x41
        return chance.choice(
            [
                [struct.pack(">i", len(cut) - 4) + cut[4:]],
                [bytes(flipped)],
                [set_correlation_id(frame, 77), frame],
                [frame, frame],
                [f"HTTP/1.1 400 {VALUE} {SECRET}\r\n\r\n".encode()],
            ]
        )

    return spoil


def traffic(listener: Listener, broker: FakeBroker, clients: Any, **options: Any) -> None:
    """Produces, consumes and asks with all three clients; errors go to the listener."""
    address = {"bootstrap_servers": f"{broker.host}:{broker.port}", "request_timeout_ms": 10_000}
    errors = contextlib.suppress(Exception)
    producer = clients.KafkaProducer(
        enable_idempotence=False,
        retries=2,
        key_serializer=str.encode,
        value_serializer=lambda value: value["text"].encode(),
        sasl_plain_username="canary-user",
        sasl_plain_password=SECRET,
        **address,
        **options,
    )
    futures = [
        producer.send("topic", key=KEY, value={"text": VALUE}, headers=[("name", HEADER.encode())], partition=0)
        for _ in range(30)
    ]
    for future in futures:
        with errors:
            future.get(timeout=30)
        listener.error(future.exception)
    producer.close()
    consumer = clients.KafkaConsumer(auto_offset_reset="earliest", sasl_plain_password=SECRET, **address, **options)
    consumer.assign([TopicPartition("topic", 0)])
    for _ in range(20):
        try:
            consumer.poll(timeout_ms=50)
        except Exception as error:
            listener.error(error)
            consumer.seek_to_beginning()
    consumer.close()
    admin = clients.KafkaAdminClient(sasl_plain_password=SECRET, ssl_password=SECRET, **address, **options)
    try:
        admin.list_topics()
        admin.create_topics([NewTopic("topic", 1, 1, topic_configs={"canary.config": SECRET})])
    except Exception as error:
        listener.error(error)
    admin.close()


@pytest.fixture(autouse=True)
def producer_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python silences that module for good when the first producer is finalized."""
    gc.collect()
    monkeypatch.setattr(kafka.producer.kafka, "log", logging.getLogger("kafka.producer.kafka"))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = BrokerWithTopic()
    with serve(broker):
        yield broker


@pytest.fixture
def unmasked() -> Iterator[None]:
    """Removes every filter of ours, and restores it."""
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    masked = [logger for logger in loggers if masking._mask in logger.filters]
    assert len(masked) > 10
    for logger in masked:
        logger.removeFilter(masking._mask)
    yield
    masking.attach()
    assert all(masking._mask in logger.filters for logger in masked)


@pytest.mark.parametrize("is_hostile", [False, True], ids=["honest", "hostile"])
@pytest.mark.parametrize("way", ["drop-in", "installed"])
def test_no_canary_is_logged_raised_or_told(broker: FakeBroker, way: str, is_hostile: bool) -> None:
    if is_hostile:
        broker.spoil = hostile_answers(seed=5)
    with listening() as listener:
        if way == "installed":
            tolerant_client.install(recovery_listener=listener.event)
            try:
                traffic(listener, broker, kafka)
            finally:
                tolerant_client.uninstall()
        else:
            traffic(listener, broker, tolerant_client, recovery_listener=listener.event)
    assert any("Sending (key=<hidden> value=<hidden> headers=<hidden>) to" in line for line in listener.lines)
    assert "Produce" in broker.names() and "Fetch" in broker.names()
    assert listener.seen(*CANARIES) == []


def test_the_same_traffic_shows_every_canary_without_the_masks(broker: FakeBroker, unmasked: None) -> None:
    with listening() as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "attach", lambda: None)
        traffic(listener, broker, tolerant_client)
    assert all(listener.seen(canary) for canary in CANARIES)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (VALUE.encode(), "<12 bytes>"),
        (bytearray(b"123"), "<3 bytes>"),
        (memoryview(b"123"), "<3 bytes>"),
        (ProduceRequest(version=9, acks=1), "<ProduceRequest v9>"),
        (MetadataRequest(topics=[]), "<MetadataRequest>"),
        (
            JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=VALUE.encode()),
            "<JoinGroupRequestProtocol>",
        ),
        ([{1: deque([b"123"])}], "[{1: [<3 bytes>]}]"),
        (
            {"sasl_plain_password": SECRET, "ssl_password": None},
            "{'sasl_plain_password': <hidden>, 'ssl_password': None}",
        ),
        (UnicodeDecodeError("utf-8", VALUE.encode(), 0, 1, "bad"), "<UnicodeDecodeError>"),
        (
            ConsumerRecord("topic", 0, -1, 5, 0, 0, KEY, VALUE, [], None, 1, 1, -1),
            "<ConsumerRecord topic-0 at offset 5>",
        ),
    ],
)
def test_what_carries_payload_is_described_instead(value: Any, shown: str) -> None:
    assert str(masking.masked(value)) == shown


def test_metadata_of_a_committed_offset_is_hidden_and_its_offset_stays() -> None:
    offsets = {TopicPartition("topic", 0): OffsetAndMetadata(5, VALUE, 1)}
    (shown,) = masking.masked(offsets).values()
    assert (shown.offset, shown.leader_epoch) == (5, 1)
    assert VALUE not in repr(shown)


@pytest.mark.parametrize(
    "value",
    [None, 5, 1.5, "text", b"\x05", TopicPartition("topic", 0), ["a", 1], {"a": (1, 2)}, {"b"}, OSError(5, "no route")],
)
def test_ordinary_arguments_stay_as_they_are(value: Any) -> None:
    assert masking.masked(value) == value
    assert str(masking.masked(value)) == str(value)


def test_a_container_that_holds_itself_is_cut() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "<list of 1>" in str(masking.masked(loop))


def test_levels_handlers_and_foreign_loggers_stay_untouched() -> None:
    mine, theirs = logging.getLogger("kafka.mine"), logging.getLogger("kafka.net.connection")
    before = theirs.level, list(theirs.handlers), theirs.propagate, theirs.disabled
    masking.attach()
    masking.attach()
    assert theirs.filters.count(masking._mask) == 1
    assert mine.filters == []
    assert before == (theirs.level, list(theirs.handlers), theirs.propagate, theirs.disabled)


def test_a_disabled_level_never_reaches_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("kafka.producer.kafka")
    asked: list[logging.LogRecord] = []
    logger.addFilter(asked.append)
    try:
        logger.setLevel(logging.INFO)
        logger.debug("%s: Sending (key=%r value=%r headers=%r) to %s", 1, 2, 3, 4, 5)
        assert asked == []
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeFilter(asked.append)


class Unready:
    """What tracing agents and mocks may look like."""

    @property
    def headers(self) -> Any:
        raise RuntimeError("not ready")


@pytest.mark.parametrize(
    "args", [(Unready(),), ({"a": Unready()},), (frozenset({frozenset({1})}),), ({frozenset({1}): 1},)]
)
def test_a_line_that_cannot_be_looked_at_is_logged_and_nothing_is_raised(args: tuple[Any, ...]) -> None:
    record = logging.LogRecord("kafka.cluster", logging.INFO, "", 0, "state: %s", args, None)
    assert masking._mask(record)
    assert record.getMessage().startswith("state: ")


def test_frozen_sets_stay_frozen() -> None:
    shown = masking.masked({frozenset({frozenset({1})}): {2}})
    assert shown == {frozenset({frozenset({1})}): {2}}


def test_a_dictionary_that_another_thread_changes_is_logged() -> None:
    logger = logging.getLogger("kafka.cluster")
    changing = {n: n for n in range(20_000)}
    is_over = threading.Event()

    def change() -> None:
        n = 20_000
        while not is_over.is_set():
            changing[n] = n
            changing.pop(n - 5, None)
            n += 1

    thread = threading.Thread(target=change)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(30):
            record = logger.makeRecord(logger.name, logging.INFO, "", 0, "state: %s", (changing,), None)
            assert logger.filter(record)
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()


@pytest.mark.parametrize("level, logged", [(logging.INFO, ["INFO"]), (logging.WARNING, [])])
def test_the_connections_that_a_moving_client_leaves_are_no_errors(
    level: int, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    masking.attach()
    logger = logging.getLogger("kafka.net.connection")
    with caplog.at_level(level, logger.name):
        logger.error("%s: Connection lost: %s", "node 1", ClientMovesError("the client moves to another cluster"))
        assert [record.levelname for record in caplog.records] == logged
        logger.error("%s: Connection lost: %s", "node 1", KafkaConnectionError("socket disconnected"))
        assert [record.levelname for record in caplog.records] == [*logged, "ERROR"]


@pytest.mark.parametrize(
    "url",
    [f"socks5://user:{SECRET}/x@host:1080", f"http://user:{SECRET}[@h:1", f"{SECRET}@host", f"nope://{SECRET}@h:1", 5],
)
@pytest.mark.parametrize("client", [tolerant_client.KafkaProducer, tolerant_client.KafkaConsumer])
def test_a_proxy_that_cannot_be_used_is_refused_at_once_and_its_password_not_shown(
    client: Any, url: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(tolerant_client.OptionError, match="takes no user or password with") as refused,
    ):
        client(bootstrap_servers="127.0.0.1:1", proxy_url=url)
    assert SECRET not in f"{refused.value}{caplog.text}"


@pytest.mark.parametrize("name", ["sasl_plain_pasword", "ssl_passwd", "keystore_pwd"])
def test_a_password_of_a_mistyped_option_is_masked(name: str) -> None:
    assert SECRET not in repr(masking.masked({name: SECRET}))
