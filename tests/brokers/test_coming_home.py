"""Clients that a promotion has moved go home when the way back is promoted, as often as the operators move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import kafka
import pytest
from kafka.structs import TopicPartition

from support.mirror_link import append_records, both, create_topic, delete_topic, failed_over, mirror, promoted
from tolerant_client import KafkaConsumer, KafkaProducer
from tolerant_client.errors import NotMirroredError
from tolerant_client.mirror.life.failback import failback
from tolerant_client.mirror.standby import follower
from tolerant_client.mirror.standby.link_watch import WRITTEN_S, LinkWatch
from tolerant_client.mirror.standby.way_back import WayBack
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.replication_policy import IdentityReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.stock.moving import manager_of
from tolerant_client.testing import FaultProxy, KafkaCluster, Stall
from tolerant_client.tracker.events import Event, Moved

WITHIN_S = 30.0
SESSION_MS = 6_000


class Pair:
    """Two clusters, a topic on both, and the links there (named like the topic) and back; each copies that topic, or what is given."""

    def __init__(self, a: str, b: str, topic: str, there: LinkTopics | str = "", back: LinkTopics | str = "") -> None:
        self.a, self.b, self.topic, self.back = a, b, topic, f"{topic}-back"
        self.topics_there, self.topics_back = LinkTopics.of(there or topic), LinkTopics.of(back or topic)
        create_topic(a, topic)
        append_records(a, topic, 5)
        mirror(a, b, self.topics_there, topic)

    def to_b(self) -> None:
        mirror(self.a, self.b, self.topics_there, self.topic)
        promoted(self.a, self.b, self.topic, self.topics_there.names)

    def to_a(self) -> None:
        mirror(self.b, self.a, self.topics_back, self.back)
        promoted(self.b, self.a, self.back, self.topics_back.names)

    def prepares(self, source: str, target: str, link: str, *, discards: bool = False) -> None:
        topics = self.topics_back if link == self.back else self.topics_there
        with both(source, target, names=topics.names) as (origin, copy):
            report: Any = origin.run(lambda: failback(origin, copy, link, topics, discards=discards))
        assert report.is_done, report

    def options(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.a, "standby": {"bootstrap_servers": self.b}, "link": self.topic}


def cluster_of(servers: str) -> str:
    with kafka.KafkaAdminClient(bootstrap_servers=servers) as admin:
        return str(admin.describe_cluster()["cluster_id"])


def is_at(client: Any, cluster_id: str) -> bool:
    return bool(manager_of(client).cluster.cluster_id == cluster_id)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("group", [None, "a group"])
def test_clients_go_there_and_back_without_a_restart_and_nothing_is_read_twice(
    source: str, target: str, stack: ExitStack, group: str | None
) -> None:
    pair = Pair(source, target, f"way-back-{'alone' if group is None else 'group'}")
    events: list[Event] = []
    producer = stack.enter_context(KafkaProducer(**pair.options()))
    options: Any = {"group_id": group and pair.topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    options |= {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 500}
    consumer = stack.enter_context(
        KafkaConsumer(pair.topic, recovery_listener=events.append, **options, **pair.options())
    )
    sent: list[int] = []
    read: list[int] = []

    def polls() -> None:
        for records in consumer.poll(100).values():
            read.extend(record.offset for record in records)
        if group is not None and read:
            consumer.commit()

    def outlasts_session() -> None:
        ends = time.monotonic() + (0 if group is None else SESSION_MS / 1000 + 1)
        while time.monotonic() < ends:
            polls()

    def sends_and_reads(cluster_id: str, moves: int) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not (
            is_at(consumer, cluster_id)
            and is_at(producer, cluster_id)
            and sum(isinstance(e, Moved) for e in events) == moves
        ):
            assert time.monotonic() < deadline, "they have not moved"
            polls()
        sent.extend(producer.send(pair.topic, b"x").get(WITHIN_S).offset for _ in range(5))
        while len(read) < len(sent) + 5:
            assert time.monotonic() < deadline, "not all is read"
            polls()

    a, b = cluster_of(source), cluster_of(target)
    sends_and_reads(a, 0)
    pair.to_b()
    sends_and_reads(b, 1)
    pair.prepares(target, source, pair.back)
    sends_and_reads(b, 1)
    outlasts_session()  # until then Kafka takes the member for one of the group on the cluster that it has left
    pair.to_a()
    sends_and_reads(a, 2)
    pair.prepares(source, target, pair.topic)
    sends_and_reads(a, 2)
    outlasts_session()
    pair.to_b()
    sends_and_reads(b, 3)
    time.sleep(1)  # the way back of the first time says still that it is promoted
    sends_and_reads(b, 3)
    assert read == [*range(5), *sent] and sent == sorted(set(sent))


def test_a_client_that_is_made_begins_where_the_last_promotion_led(
    source: str, target: str, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(source, target, "way-back-made")
    a, b = cluster_of(source), cluster_of(target)
    pair.to_b()
    early = stack.enter_context(KafkaProducer(**pair.options()))
    assert is_at(early, b)
    pair.prepares(target, source, pair.back)
    assert is_at(stack.enter_context(KafkaProducer(**pair.options())), b)
    pair.to_a()
    home = stack.enter_context(KafkaProducer(**pair.options()))
    assert is_at(home, a)
    deadline = time.monotonic() + WITHIN_S
    while not is_at(early, a):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pair.prepares(source, target, pair.topic)
    pair.to_b()
    while not (is_at(early, b) and is_at(home, b)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "does not follow" not in caplog.text


def with_mm2_names(topic: str, source: str, target: str) -> LinkTopics:
    return LinkTopics(TopicFilter((topic,)), TopicNames(IdentityReplicationPolicy(source_alias=source), source), target)


@pytest.mark.parametrize("other", ["deleted", "recreated", "heartbeats"])
def test_what_no_link_can_copy_back_holds_nobody(source: str, target: str, stack: ExitStack, other: str) -> None:
    topic = f"way-back-{other}-beside"
    more = "heartbeats" if other == "heartbeats" else f"{topic}-retired"
    create_topic(source, more)
    append_records(source, more, 5)
    if other == "heartbeats":
        stack.callback(delete_topic, source, more)
        pair = Pair(source, target, topic, with_mm2_names(topic, "x", "y"), with_mm2_names(topic, "y", "x"))
    else:
        pair = Pair(source, target, topic, there=f"{topic},{more}")
    a, b = cluster_of(source), cluster_of(target)
    early = stack.enter_context(KafkaProducer(**pair.options()))
    consumer = stack.enter_context(KafkaConsumer(topic, more, group_id=None, **pair.options()))
    pair.to_b()
    polls_until_at(consumer, b)
    arrives(early, b)
    if other != "heartbeats":
        delete_topic(source, more)
        delete_topic(target, more)
    if other == "recreated":
        create_topic(target, more)  # as a client that requests it does where auto.create.topics.enable is true
    pair.prepares(target, source, pair.back)
    pair.to_a()
    made = stack.enter_context(KafkaProducer(**pair.options()))
    assert is_at(made, a)
    polls_until_at(consumer, a)
    arrives(early, a)
    assert made.send(topic, b"x").get(WITHIN_S).offset < early.send(topic, b"y").get(WITHIN_S).offset


def test_nobody_is_led_home_onto_a_topic_that_was_deleted_there_since_or_that_another_link_fills(
    source: str, target: str, stack: ExitStack
) -> None:
    pair = Pair(source, target, "way-back-then-deleted")
    a, b = cluster_of(source), cluster_of(target)
    pair.to_b()
    pair.prepares(target, source, pair.back)
    pair.to_a()
    delete_topic(source, pair.topic)
    missing = stack.enter_context(KafkaProducer(**pair.options()))
    assert is_at(missing, b) and missing.send(pair.topic, b"x").get(WITHIN_S)
    again = f"{pair.topic}-again"
    pair.prepares(target, source, again)
    mirror(target, source, pair.topic, again)
    filled = stack.enter_context(KafkaProducer(**pair.options()))
    last = filled.send(pair.topic, b"y").get(WITHIN_S).offset
    assert is_at(filled, b) and is_at(missing, b)
    mirror(target, source, pair.topic, again)
    promoted(target, source, again)
    arrives(missing, a)
    arrives(filled, a)
    made = stack.enter_context(KafkaProducer(**pair.options()))
    assert is_at(made, a) and made.send(pair.topic, b"z").get(WITHIN_S).offset > last


def polls_until_at(consumer: KafkaConsumer, cluster_id: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_at(consumer, cluster_id):
        assert time.monotonic() < deadline
        consumer.poll(100)
    consumer.poll(100)  # its move ends in this one, or in the one before


def test_a_client_that_is_made_finds_the_last_of_more_promotions_whatever_their_links_are_called(
    source: str, target: str, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(source, target, "way-back-renamed")
    b = cluster_of(target)
    pair.to_b()
    pair.prepares(target, source, pair.back)
    pair.to_a()
    again = f"{pair.topic}-again"
    pair.prepares(source, target, again)
    mirror(source, target, pair.topic, again)
    promoted(source, target, again)
    caplog.clear()
    assert is_at(stack.enter_context(KafkaProducer(**pair.options())), b)
    time.sleep(1)
    assert [record.getMessage().partition(" from ")[0] for record in caplog.records] == [f"Link {again}"], (
        "or it has moved"
    )


def test_a_client_that_hears_late_of_a_promotion_that_was_undone_stays(
    source: str, target_cluster: KafkaCluster, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(source, target_cluster.bootstrap_servers, "way-back-unheard")
    a = cluster_of(source)
    pair.to_b()
    pair.prepares(pair.b, source, pair.back)
    pair.to_a()
    target_cluster.pause(1)
    stack.callback(target_cluster.resume, 1)
    late = stack.enter_context(KafkaProducer(acks="mirrored", mirrored_timeout_ms=60_000, **pair.options()))
    assert is_at(late, a) and "standby" in caplog.text
    waits = late.send(pair.topic, b"x")
    target_cluster.resume(1)
    deadline = time.monotonic() + WITHIN_S
    while not isinstance(late._link_watch, WayBack):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    assert is_at(late, a) and "moves from cluster" not in caplog.text
    assert waits.get(10).offset + 1 == late.send(pair.topic, b"x").get(10).offset, "as with acks=all"
    assert 'acks="mirrored" is "all" from now on' in caplog.text
    pair.prepares(source, pair.b, pair.topic)
    pair.to_b()
    arrives(late, cluster_of(pair.b))


def test_what_failback_has_discarded_is_acknowledged_to_nobody_who_hears_late(
    source: str, target: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, hears, follows = Pair(source, target, "way-back-discarded"), threading.Event(), LinkWatch.promoted

    async def late(watch: LinkWatch, follower: Any) -> Any:
        hears.wait(WITHIN_S)  # as in a process that is frozen
        return await follows(watch, follower)

    monkeypatch.setattr(LinkWatch, "promoted", late)
    stack.callback(hears.set)
    producer = stack.enter_context(KafkaProducer(acks="mirrored", mirrored_timeout_ms=60_000, **pair.options()))
    copied = producer.send(pair.topic, b"copied")
    acknowledged_until(producer, 1)
    mirror(source, target, pair.topic, pair.topic)
    discarded = []
    for n in range(8):
        discarded.append(producer.send(pair.topic, b"discarded"))
        acknowledged_until(producer, n + 2)
    failed_over(target, pair.topic)
    append_records(target, pair.topic, 3, first=100)
    pair.prepares(target, source, pair.back, discards=True)
    pair.to_a()
    append_records(source, pair.topic, 10, first=200)
    hears.set()
    assert copied.get(WITHIN_S).offset == 5
    for record in discarded:
        with pytest.raises(NotMirroredError, match="before the producer had heard of that"):
            record.get(WITHIN_S)
    assert producer.send(pair.topic, b"x").get(WITHIN_S).offset > 18


def test_a_client_that_was_frozen_for_one_round_trip_stays_though_its_cluster_is_slow_to_tell(
    source: str, target: str, kafka_cluster: KafkaCluster, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, wakes, changed = Pair(source, target, "way-back-frozen"), threading.Event(), LinkWatch._changed
    proxy = stack.enter_context(FaultProxy(kafka_cluster))
    events: list[Event] = []

    async def frozen(watch: LinkWatch) -> None:
        if watch.link == pair.topic:
            wakes.wait(WITHIN_S)  # it has seen the link unpromoted
        await changed(watch)

    monkeypatch.setattr(LinkWatch, "_changed", frozen)
    stack.callback(wakes.set)
    options: Any = {**pair.options(), "bootstrap_servers": proxy.bootstrap_servers}
    producer = stack.enter_context(KafkaProducer(recovery_listener=events.append, **options))
    pair.to_b()
    came = time.monotonic()
    pair.prepares(target, source, pair.back)
    pair.to_a()
    time.sleep(max(0.0, came + WRITTEN_S + 1 - time.monotonic()))
    proxy.faults = [Stall(seconds=0.1)]
    monkeypatch.setattr(follower, "FIRST_WORD_S", WITHIN_S)  # a busy machine is slow to tell
    wakes.set()
    deadline = time.monotonic() + WITHIN_S
    while not isinstance(producer._link_watch, WayBack):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    producer.send(pair.topic, b"x").get(WITHIN_S)
    assert is_at(producer, cluster_of(source)) and not [event for event in events if isinstance(event, Moved)]


def acknowledged_until(producer: KafkaProducer, count: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while producer._sender.held.record_count < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_is_made_while_its_cluster_is_lost_begins_at_the_standby_once_that_is_promoted(
    source: str, target: str, stack: ExitStack
) -> None:
    pair = Pair(source, target, "way-back-outage")
    lost: Any = {**pair.options(), "bootstrap_servers": "127.0.0.1:1", "bootstrap_timeout_ms": 10_000}
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(KafkaProducer, **lost)
        time.sleep(1)  # the standby has said by now that the link is not promoted
        failed_over(target, pair.topic)
        assert is_at(stack.enter_context(making.result(2 * WITHIN_S)), cluster_of(target))


def test_a_link_whose_control_was_lost_leads_there_as_before_and_nobody_to_and_fro(
    source: str, target: str, stack: ExitStack
) -> None:
    pair = Pair(source, target, "way-back-lost")
    a, b = cluster_of(source), cluster_of(target)
    events: list[Event] = []
    producer = stack.enter_context(KafkaProducer(recovery_listener=events.append, **pair.options()))
    pair.to_b()
    arrives(producer, b)
    pair.prepares(target, source, pair.back)
    pair.to_a()
    arrives(producer, a)
    for topic in (CONTROL_TOPIC, pair.topic):
        delete_topic(target, topic)
    pair.to_b()
    arrives(producer, b)
    assert is_at(stack.enter_context(KafkaProducer(**pair.options())), b)
    time.sleep(2)
    assert is_at(producer, b) and sum(isinstance(event, Moved) for event in events) == 3
    producer.send(pair.topic, b"x").get(WITHIN_S)


def arrives(client: Any, cluster_id: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_at(client, cluster_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_way_back_onto_a_cluster_that_has_lost_everything_needs_no_failback(
    source: str, target: str, stack: ExitStack
) -> None:
    pair = Pair(source, target, "way-back-anew")
    a, b = cluster_of(source), cluster_of(target)
    client = stack.enter_context(KafkaProducer(**pair.options()))
    pair.to_b()
    arrives(client, b)
    client.send(pair.topic, b"x").get(WITHIN_S)
    delete_topic(source, pair.topic)
    pair.to_a()
    arrives(client, a)
    assert client.send(pair.topic, b"y").get(WITHIN_S).offset > 5


def test_a_consumer_that_polls_after_both_moves_settles_each_of_them(
    source: str, target: str, stack: ExitStack
) -> None:
    """Its position lies after the copies of the first move: what only A had, and what others wrote at its offset on B."""
    pair = Pair(source, target, "way-back-late")
    place = TopicPartition(pair.topic, 0)
    a, b = cluster_of(source), cluster_of(target)
    append_records(source, pair.topic, 3, first=5)
    consumer = stack.enter_context(KafkaConsumer(auto_offset_reset="earliest", group_id=None, **pair.options()))
    consumer.assign([place])
    deadline = time.monotonic() + WITHIN_S
    while consumer.position(place) < 8:
        assert time.monotonic() < deadline
        consumer.poll(100)
    failed_over(target, pair.topic)
    arrives(consumer, b)
    append_records(target, pair.topic, 20, first=100)
    pair.prepares(target, source, pair.back, discards=True)
    pair.to_a()
    time.sleep(2)
    assert is_at(consumer, b), "it has not polled"
    read: list[int] = []
    while not is_at(consumer, a) or len(read) < 20:
        assert time.monotonic() < deadline
        for records in consumer.poll(100).values():
            read.extend(record.offset for record in records)
    assert read == sorted(set(read)) and len(read) == 20, read
