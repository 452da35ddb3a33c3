"""Clients that follow a link: they move to its target when it is promoted, and keep their place."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka import ConsumerRebalanceListener
from kafka.structs import TopicPartition

from support.mirror_link import append_records, create_topic, delete_topic, ends, failed_over, mirror, promoted
from tolerant_client.errors import OptionError
from tolerant_client.mirror.standby import link_watch
from tolerant_client.mirror.standby.clients import KafkaAdminClient, KafkaConsumer
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.testing import KafkaCluster
from tolerant_client.tracker.events import Event, Moved

PARTITIONS = 2


class Reader:
    """A consumer that follows a link, what it has read, and what its listeners were told."""

    def __init__(self, source: str, standby: str, link: str, topic: str | None, **options: Any) -> None:
        self.events: list[Event] = []
        self.told: list[tuple[str, int]] = []
        self.read: list[tuple[int, int]] = []
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 25} | options
        self.consumer = KafkaConsumer(
            bootstrap_servers=source,
            standby={"bootstrap_servers": standby},
            link=link,
            recovery_listener=self.events.append,
            **options,
        )
        if topic is not None:
            self.consumer.subscribe([topic], listener=self.listener())

    def listener(self) -> ConsumerRebalanceListener:
        told = self.told

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
            def on_partitions_revoked(self, revoked: Any) -> None:
                told.append(("revoked", len(revoked)))

            def on_partitions_assigned(self, assigned: Any) -> None:
                told.append(("assigned", len(assigned)))

        return Listener()

    def reads(self, count: int, seconds: float = 60.0) -> None:
        """Polls until so many records are read."""
        ends = time.monotonic() + seconds
        while len(self.read) < count and time.monotonic() < ends:
            for partition, records in self.consumer.poll(200).items():
                self.read += [(partition.partition, record.offset) for record in records]
        assert len(self.read) == count

    def joins(self, seconds: float = 60.0) -> None:
        """Polls until it is a member on the next cluster; what it reads meanwhile counts."""
        ends = time.monotonic() + seconds
        while self.consumer._coordinator.is_moving or not self.consumer._coordinator.stable():
            assert time.monotonic() < ends, "it has not joined"
            self.polls()

    def polls(self) -> None:
        for partition, records in self.consumer.poll(100).items():
            self.read += [(partition.partition, record.offset) for record in records]

    @property
    def has_moved(self) -> bool:
        return any(isinstance(event, Moved) for event in self.events)

    def moves(self, seconds: float = 60.0) -> None:
        """Waits for the move, without a call of the application."""
        ends = time.monotonic() + seconds
        while not self.has_moved:
            assert time.monotonic() < ends, "it has not moved"
            time.sleep(0.02)

    def offsets(self) -> list[int]:
        """Read of each partition, none twice and in order."""
        found = []
        for number in range(PARTITIONS):
            offsets = [offset for partition, offset in self.read if partition == number]
            assert offsets == sorted(set(offsets))
            found.append(len(offsets))
        return found


@pytest.fixture
def reads(source: str, target: str) -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def reader(link: str, topic: str | None, **options: Any) -> Reader:
        made.append(Reader(source, target, link, topic, **options))
        return made[-1]

    yield reader
    for one in made:
        one.consumer.close()


def copied(source: str, target: str, name: str, count: int = 100) -> None:
    """A topic with `count` records in each partition, of which a link of the same name has copied all."""
    create_topic(source, name, PARTITIONS)
    append_records(source, name, count, partitions=PARTITIONS)
    mirror(source, target, name, name)


def wait_for_threads(before: set[threading.Thread]) -> None:
    """Until there are no others."""
    deadline = time.monotonic() + 60
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def committed(servers: str, group: str, topic: str) -> list[int | None]:
    with kafka.KafkaConsumer(bootstrap_servers=servers, group_id=group) as consumer:
        return [consumer.committed(TopicPartition(topic, number)) for number in range(PARTITIONS)]


def test_a_client_whose_api_version_is_given_follows_as_well(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    """kafka-python then asks no broker before it has to, so the client does not know yet which cluster is its own."""
    name = "following-version"
    copied(source, target, name)
    reader = reads(name, name, api_version=(3, 9), group_id=name)
    reader.reads(200)
    reader.consumer.commit()
    promoted(source, target, name)
    reader.moves()
    append_records(target, name, 10, partitions=PARTITIONS, first=100)
    reader.reads(220)
    assert reader.offsets() == [110, 110]


@pytest.mark.parametrize("commits_by_itself", [False, True])
def test_a_member_of_a_group_goes_on_at_its_place(
    source: str, target: str, reads: Callable[..., Reader], commits_by_itself: bool
) -> None:
    name = f"following-group-{commits_by_itself}".lower()
    copied(source, target, name)
    reader = reads(name, name, group_id=name, enable_auto_commit=commits_by_itself, auto_commit_interval_ms=60_000)
    reader.reads(100)
    if not commits_by_itself:
        reader.consumer.commit()
    append_records(source, name, 10, partitions=PARTITIONS, first=100)
    mirror(source, target, name, name)
    promoted(source, target, name)
    reader.moves()
    append_records(target, name, 10, partitions=PARTITIONS, first=110)
    reader.reads(240)
    assert reader.offsets() == [120, 120]
    reader.consumer.commit()
    assert committed(target, name, name) == [121, 121]  # one offset is the fence's
    # Of the former group the member was told nothing; on the next cluster its assignment begins again.
    reader.joins()
    assert reader.told[-3:] == [("assigned", 2), ("revoked", 2), ("assigned", 2)]
    assert reader.consumer.config["bootstrap_servers"] == target


def test_what_a_member_had_committed_is_committed_before_it_joins(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    """Else another member, to which a partition goes, would begin where an older round of the mirror had put the group."""
    name = "following-commit"
    copied(source, target, name)
    reader = reads(name, name, group_id=name)
    reader.reads(150)
    reader.consumer.commit()
    places = [reader.consumer.position(TopicPartition(name, number)) for number in range(PARTITIONS)]
    reader.reads(175)
    promoted(source, target, name)
    reader.moves()
    deadline = time.monotonic() + 60
    while (found := committed(target, name, name)) != places:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_records_that_were_not_copied_are_not_passed_over_by_what_others_write_there(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    name = "following-lost"
    copied(source, target, name)
    reader = reads(name, name, group_id=name)
    append_records(source, name, 20, partitions=PARTITIONS, first=100)  # lost with the source
    reader.reads(240)
    reader.consumer.commit()
    failed_over(target, name)
    reader.moves()
    append_records(target, name, 5, partitions=PARTITIONS, first=900)  # after the fence, which is at 100
    kept, reader.read = reader.read, []
    reader.reads(10)
    assert sorted(reader.read) == [(number, offset) for number in range(PARTITIONS) for offset in range(101, 106)]
    assert len(kept) == 240
    reader.consumer.commit()
    assert committed(target, name, name) == [106, 106]


def test_a_consumer_without_a_group_keeps_its_positions_and_pauses(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    name = "following-alone"
    copied(source, target, name)
    reader = reads(name, None)
    first, second = (TopicPartition(name, number) for number in range(PARTITIONS))
    reader.consumer.assign([first, second])
    reader.consumer.seek(first, 40)
    reader.consumer.seek(second, 90)
    reader.consumer.pause(second)
    reader.reads(25)
    promoted(source, target, name)
    reader.moves()
    reader.reads(60)
    assert reader.consumer.paused() == {second}
    reader.consumer.resume(second)
    reader.reads(70)
    assert sorted(reader.read) == [(0, at) for at in range(40, 100)] + [(1, at) for at in range(90, 100)]


def test_a_loop_and_tables_of_arrow_go_on(source: str, target: str) -> None:
    name = "following-loop"
    copied(source, target, name)
    options: Any = {
        "bootstrap_servers": source,
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": 5_000,
        "max_poll_records": 7,
        "standby": {"bootstrap_servers": target},
        "link": name,
    }
    with KafkaConsumer(name, **options) as loop, KafkaConsumer(name, **options) as tables:
        found = [next(loop) for _ in range(31)]
        rows = tables.poll_arrow(timeout_ms=5_000, max_records=31).num_rows
        promoted(source, target, name)
        append_records(target, name, 10, partitions=PARTITIONS, first=100)
        found += list(loop)
        deadline = time.monotonic() + 60
        while rows < 220 and time.monotonic() < deadline:
            rows += tables.poll_arrow(timeout_ms=500).num_rows
    assert len(found) == len({(record.partition, record.offset) for record in found}) == 220
    assert rows == 220


def test_a_position_in_a_topic_that_was_not_copied_is_reset(
    source: str, target: str, reads: Callable[..., Reader], caplog: pytest.LogCaptureFixture
) -> None:
    name, other = "following-scope", "following-scope-not"
    copied(source, target, name)
    for servers, count in ((source, 50), (target, 80)):
        create_topic(servers, other, PARTITIONS)
        append_records(servers, other, count, partitions=PARTITIONS)
    reader = reads(name, other)
    reader.reads(100)
    promoted(source, target, name)
    reader.moves()
    reader.reads(100 + 160)
    assert f"{other}-0 was not copied: its position 50 is reset" in caplog.text


def test_a_client_that_is_made_after_the_promotion_begins_at_the_standby(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    name = "following-late"
    copied(source, target, name)
    promoted(source, target, name)
    append_records(target, name, 10, partitions=PARTITIONS, first=100)
    reader = reads(name, name)
    reader.reads(220)
    assert reader.consumer.config["bootstrap_servers"] == target and not reader.has_moved


def test_a_client_that_is_made_after_the_promotion_takes_no_login_of_its_own_cluster_there(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    name = "following-login"
    copied(source, target, name)
    promoted(source, target, name)
    own: Any = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "of-the-source",
        "proxy_url": "socks5://127.0.0.1:1",
        "api_version": (1, 0),
        "bootstrap_timeout_ms": 5_000,
    }
    reader = reads(name, name, **own)
    reader.reads(200)
    standby: Any = {"standby": {"bootstrap_servers": target}, "link": name}
    with KafkaAdminClient(bootstrap_servers=source, **own, **standby) as admin:
        assert admin.describe_cluster()["cluster_id"]
        for config in (reader.consumer.config, admin.config):
            assert config["security_protocol"] == "PLAINTEXT" and config["api_version"] != (1, 0)
            assert config["sasl_plain_password"] is None and config["proxy_url"] is None


def test_an_admin_client_moves(source: str, target: str) -> None:
    name = "following-admin"
    copied(source, target, name)
    events: list[Event] = []
    with KafkaAdminClient(
        bootstrap_servers=source,
        standby={"bootstrap_servers": target},
        link=name,
        recovery_listener=events.append,
    ) as admin:
        former = admin.describe_cluster()["cluster_id"]
        promoted(source, target, name)
        deadline = time.monotonic() + 60
        while not any(isinstance(event, Moved) for event in events):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert admin.describe_cluster()["cluster_id"] not in (None, former)


def test_a_standby_that_does_not_respond_is_followed_once_it_does(
    source: str, target: str, reads: Callable[..., Reader], caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(source, "127.0.0.1:1", "nowhere", None)
    try:
        assert "Whether link nowhere is promoted is unknown yet: the standby at" in caplog.text
        assert reader.consumer.config["bootstrap_servers"] == source
    finally:
        reader.consumer.close()


def test_a_standby_whose_name_resolves_slowly_holds_up_nothing(
    source: str, target: str, reads: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "following-names"
    copied(source, target, name)
    resolve, is_over = socket.getaddrinfo, threading.Event()

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if host == "standby.test":
            is_over.wait(120)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    began = time.monotonic()
    reader = Reader(source, "standby.test:9092", name, name, group_id=name)
    try:
        reader.reads(200)
        for _ in range(50):
            reader.consumer.poll(50)
            reader.consumer.commit()
    finally:
        reader.consumer.close()
        took = time.monotonic() - began
        is_over.set()
    assert took < 60


@pytest.mark.parametrize("kind", [KafkaConsumer, KafkaAdminClient])
def test_a_client_whose_cluster_is_lost_begins_at_a_standby_that_tells_of_the_promotion_late(
    source: str, target: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"following-late-{kind.__name__}"
    copied(source, target, name)
    failed_over(target, name)
    resolve = socket.getaddrinfo

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if host == "standby.test":
            time.sleep(3)
        return resolve("127.0.0.1" if host == "standby.test" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    standby = {"bootstrap_servers": f"standby.test:{target.rpartition(':')[2]}"}
    before = set(threading.enumerate())
    client = kind(bootstrap_servers="127.0.0.1:2", bootstrap_timeout_ms=4_000, standby=standby, link=name)
    try:
        assert client.config["bootstrap_servers"] == standby["bootstrap_servers"]
        if kind is KafkaConsumer:
            assert name in client.topics()
    finally:
        client.close()
    wait_for_threads(before)


@pytest.mark.parametrize("group", [None, "following-never"])
def test_a_consumer_that_never_reached_its_cluster_moves_to_a_standby_that_tells_of_the_promotion_late(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    name = f"following-never-{group}".lower()
    copied(source, target, name)
    failed_over(target, name)
    monkeypatch.setattr(link_watch, "FIRST_WORD_S", 0.0)
    standby = {"bootstrap_servers": target}
    options: Any = {"bootstrap_servers": "127.0.0.1:2", "api_version": (3, 9), "auto_offset_reset": "earliest"}
    with KafkaConsumer(name, group_id=group, standby=standby, link=name, **options) as consumer:
        read, ends = 0, time.monotonic() + 30
        while read < 200 and time.monotonic() < ends:
            read += sum(map(len, consumer.poll(200).values()))
        assert read == 200


def test_a_link_of_another_cluster_is_refused(source: str, target: str) -> None:
    name = "following-other"
    copied(source, target, name)
    before = set(threading.enumerate())
    with pytest.raises(
        OptionError, match=f"Link {name} copies from cluster .*, and the client's cluster is .*: give the link"
    ):
        KafkaConsumer(bootstrap_servers=target, standby={"bootstrap_servers": target}, link=name)
    wait_for_threads(before)


def test_a_client_begins_at_the_standby_though_its_own_cluster_was_made_anew(
    source: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = "following-other-promoted"
    warning = f"Link {name} copied from cluster "
    copied(source, target, name)
    promoted(source, target, name)
    standby: dict[str, Any] = {"standby": {"bootstrap_servers": target}, "link": name}
    for kind in (KafkaAdminClient, KafkaConsumer):
        for own, is_warned in ((source, False), ("127.0.0.1:1", False), (target, True)):  # the last one stands for it
            caplog.clear()
            before = set(threading.enumerate())
            with kind(bootstrap_servers=own, **standby) as client:
                assert client.config["bootstrap_servers"] == target
                for thread in set(threading.enumerate()) - before:
                    if thread.name == "kafka-own-id":
                        thread.join()
            assert (warning in caplog.text) == is_warned


def test_clients_that_are_closed_at_once_log_nothing(
    source: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = "following-short"
    copied(source, target, name)
    before = set(threading.enumerate())
    caplog.clear()
    options: Any = {"bootstrap_servers": source, "standby": {"bootstrap_servers": target}, "link": name}
    for pause_s in (0.0, 0.005, 0.02, 0.1) * 5:
        for kind in (KafkaAdminClient, KafkaConsumer):
            with kind(**options):
                time.sleep(pause_s)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("tolerant_client.mirror")] == []
    wait_for_threads(before)


def test_a_seek_after_the_move_is_one_on_the_next_cluster(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    name = "following-seek"
    copied(source, target, name)
    reader, tp = reads(name, None), TopicPartition(name, 0)
    append_records(source, name, 20, partitions=PARTITIONS, first=100)  # lost with the source
    reader.consumer.assign([tp])
    reader.reads(120)
    failed_over(target, name)
    reader.moves()
    append_records(target, name, 50, partitions=PARTITIONS, first=900)  # 101 to 150
    reader.consumer.seek(tp, 130)
    reader.read.clear()
    reader.reads(21)
    assert reader.read[0] == (0, 130)


def test_every_seek_before_the_next_poll_may_name_an_offset_of_the_former_cluster(
    source: str, target: str, reads: Callable[..., Reader]
) -> None:
    name = "following-seeks"
    copied(source, target, name)
    reader, partitions = reads(name, None), [TopicPartition(name, n) for n in range(PARTITIONS)]
    append_records(source, name, 20, partitions=PARTITIONS, first=100)  # lost with the source
    reader.consumer.assign(partitions)
    reader.reads(120 * PARTITIONS)
    failed_over(target, name)
    reader.moves()
    append_records(target, name, 50, partitions=PARTITIONS, first=900)  # 101 to 150
    for tp in partitions:  # what it had read and could not work on
        reader.consumer.position(tp)
        reader.consumer.seek(tp, 105)
    reader.read.clear()
    reader.reads(50 * PARTITIONS)
    assert sorted(reader.read) == [(n, offset) for n in range(PARTITIONS) for offset in range(101, 151)]


FORKS = """\
import os, sys, threading
from kafka import TopicPartition
from tolerant_client import KafkaConsumer

source, standby, name = sys.argv[1:]
moved = threading.Event()
consumer = KafkaConsumer(
    bootstrap_servers=source, standby={"bootstrap_servers": standby}, link=name, enable_auto_commit=False,
    auto_offset_reset="earliest", recovery_listener=lambda event: event.kind == "moved" and moved.set(),
)
consumer.assign([TopicPartition(name, 0)])

def first_of(count):
    found = []
    while len(found) < count:
        found += [r.offset for records in consumer.poll(timeout_ms=1000).values() for r in records]
    return found[0]

first_of(120)
print("read", flush=True)
sys.stdin.readline()
assert moved.wait(20)
for who in ("child", "child that seeks"):
    child = os.fork()
    if not child:
        if who != "child":
            consumer.seek(TopicPartition(name, 0), 105)  # where it was on the lost cluster
        print(who, first_of(1), flush=True)
        consumer.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("parent", first_of(1), flush=True)
consumer.close()
"""


def test_a_child_of_a_client_that_has_moved_begins_where_the_copies_end(source: str, target: str) -> None:
    name = "following-fork"
    copied(source, target, name)
    append_records(source, name, 20, partitions=PARTITIONS, first=100)  # lost with the source
    program = [sys.executable, "-c", FORKS, source, target, name]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "read\n"
        failed_over(target, name)
        append_records(target, name, 50, partitions=PARTITIONS, first=900)  # 101 to 150
        told, _ = process.communicate("go on\n", timeout=240)
    assert told.splitlines() == ["child 101", "child that seeks 101", "parent 101"] and process.returncode == 0


def test_a_pattern_finds_what_only_the_next_cluster_has(source: str, target: str, reads: Callable[..., Reader]) -> None:
    name = "following-pattern"
    copied(source, target, name)
    create_topic(target, f"{name}-there", PARTITIONS)
    append_records(target, f"{name}-there", 10, partitions=PARTITIONS)
    reader = reads(name, None, group_id=name)
    reader.consumer.subscribe(pattern=f"^{name}.*")
    reader.reads(200)
    promoted(source, target, name)
    reader.moves()
    reader.reads(220)


def test_a_client_that_has_moved_and_is_dropped_is_collected(source: str, target: str) -> None:
    name = "following-dropped"
    copied(source, target, name)
    reader = Reader(source, target, name, name, group_id=name)
    reader.reads(200)
    promoted(source, target, name)
    reader.moves()
    reader.joins()
    # Its threads would go on: nobody can close it then, so the test keeps what ends them.
    kept, dropped = reader.consumer._client, weakref.ref(reader.consumer)
    try:
        del reader
        deadline = time.monotonic() + 60
        while gc.collect() and dropped() or dropped() is not None:
            assert time.monotonic() < deadline, "it is still there"
            time.sleep(0.1)
    finally:
        kept.close()


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (
            "following-typo",
            r"The standby at \S+ knows no link following-typo; its links are|knows no link following-typo; it has no link: check link",
        ),
        ("following-translated", "has translated offsets"),
        ("following-renamed", "gives topics other names on the standby"),
    ],
)
def test_a_link_that_cannot_be_followed_is_refused(source: str, target: str, link: str, message: str) -> None:
    names = TopicNames(DefaultReplicationPolicy(), "A") if "renamed" in link else None
    if "typo" not in link:
        create_topic(source, link)
        append_records(source, link, 10)
        topics = LinkTopics(TopicFilter((link,)), names)
        mirror(source, target, topics, link, is_translated="translated" in link)
    with pytest.raises(OptionError, match=message):
        KafkaConsumer(bootstrap_servers=source, standby={"bootstrap_servers": target}, link=link)


def test_a_dead_cluster_is_left_at_the_failover(
    target: str, kafka_cluster_factory: Callable[..., KafkaCluster]
) -> None:
    name = "following-dead"
    with KafkaCluster(heap="320m") as lost:
        source = lost.bootstrap_servers
        copied(source, target, name)
        reader = Reader(source, target, name, name, group_id=name, enable_auto_commit=True)
        try:
            reader.reads(150)
            lost.kill(1)
            time.sleep(2)  # it looks for its brokers
            failed_over(target, name)
            append_records(target, name, 10, partitions=PARTITIONS, first=100)
            reader.reads(220)
            assert reader.offsets() == [110, 110]
        finally:
            reader.consumer.close()
        assert committed(target, name, name) == ends(target, name, PARTITIONS) == [111, 111]
    delete_topic(target, name)
