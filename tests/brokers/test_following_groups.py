"""Groups whose members follow a link: what is read and committed once, and what a move may never lose."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import MemberState, OffsetAndMetadata, TopicPartition

from support.mirror_link import (
    append_records,
    both,
    create_topic,
    delete_topic,
    ends,
    failed_over,
    mirror,
    promoted,
)
from support.settled import until
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.life.failback import failback
from tolerant_client.mirror.standby import way_back
from tolerant_client.mirror.standby.clients import KafkaConsumer
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.stock import group_commits, moved_member
from tolerant_client.stock.coordinator import TolerantCoordinator
from tolerant_client.testing import KafkaCluster
from tolerant_client.tracker.events import Event, Moved


class Member:
    """A consumer in a group, whose polls run in a thread of their own while `is_polling`."""

    def __init__(self, source: str, standby: str, name: str, **options: Any) -> None:
        self.events: list[Event] = []
        self.told: list[str] = []
        self.read: list[tuple[int, int]] = []
        self.wrong: list[BaseException] = []
        self.consumer = KafkaConsumer(
            bootstrap_servers=source,
            standby={"bootstrap_servers": standby},
            link=name,
            group_id=name,
            recovery_listener=self.events.append,
            **{
                "auto_offset_reset": "earliest",
                "max_poll_records": 10,
                "auto_commit_interval_ms": 60_000,
                **options,
            },
        )
        self._topic = name
        self.subscribe()

    def subscribe(self) -> None:
        self.consumer.subscribe([self._topic], listener=self._listener())

    def _listener(self) -> ConsumerRebalanceListener:
        told = self.told

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
            def on_partitions_revoked(self, revoked: Any) -> None:
                told.append("revoked")

            def on_partitions_assigned(self, assigned: Any) -> None:
                told.append("assigned")

            def on_partitions_lost(self, lost: Any) -> None:
                told.append("lost")

        return Listener()

    @property
    def has_moved(self) -> bool:
        return any(isinstance(event, Moved) for event in self.events)

    def poll(self) -> None:
        for partition, records in self.consumer.poll(1_000).items():
            self.read += [(partition.partition, record.offset) for record in records]

    @contextmanager
    def polling(self, commits: bool = False, step: Callable[[Member], None] | None = None) -> Iterator[None]:
        """Polls in another thread meanwhile, or takes this `step` again and again."""

        def run() -> None:
            try:
                while not is_over.is_set():
                    (step or Member.poll)(self)
                    if commits:
                        with suppress(Errors.RebalanceInProgressError):  # as kafka-python's; the next one commits it
                            self.consumer.commit()
            except BaseException as error:
                self.wrong.append(error)

        is_over = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            if self.wrong:
                raise self.wrong[0]  # which says more than what the test waited for in vain


def copied(source: str, target: str, name: str, partitions: int = 2, count: int = 100) -> None:
    create_topic(source, name, partitions)
    append_records(source, name, count, partitions=partitions)
    mirror(source, target, name, name)


def earlier_run(servers: str, name: str, offset: int) -> None:
    """Its group has committed this in both partitions."""
    with kafka.KafkaConsumer(bootstrap_servers=servers, group_id=name, enable_auto_commit=False) as consumer:
        places = [TopicPartition(name, number) for number in range(2)]
        consumer.assign(places)
        consumer.commit({tp: OffsetAndMetadata(offset, "", -1) for tp in places})


def committed(servers: str, name: str, partitions: int = 2) -> list[int | None]:
    with kafka.KafkaConsumer(bootstrap_servers=servers, group_id=name) as consumer:
        return [consumer.committed(TopicPartition(name, number)) for number in range(partitions)]


def polls_and_commits(member: Member) -> None:
    """A step of a program that commits what it has read, as far as it still may."""
    known = len(member.read)
    member.poll()
    if len(member.read) > known:
        with suppress(Errors.CommitFailedError, Errors.RebalanceInProgressError):
            member.consumer.commit()


def move_apart(monkeypatch: pytest.MonkeyPatch, *lateness_s: float) -> None:
    """From now on members move so much later, one after the other."""
    moving, lateness = moved_member.MovedMember.moved, iter(lateness_s)

    def moved(member: Any, move: Any) -> None:
        time.sleep(next(lateness))
        moving(member, move)

    monkeypatch.setattr(moved_member.MovedMember, "moved", moved)


@pytest.mark.parametrize("commits_itself", [False, True], ids=["by-hand", "auto"])
@pytest.mark.parametrize("count", [2, 3])
def test_each_record_is_read_and_committed_by_one_member(
    source: str, target: str, count: int, commits_itself: bool
) -> None:
    name = f"members-{count}-{commits_itself}".lower()
    copied(source, target, name, count)
    members = [Member(source, target, name, enable_auto_commit=commits_itself) for _ in range(count)]

    def read() -> list[tuple[int, int]]:
        return [place for member in members for place in member.read]

    try:
        threads = [member.polling(commits=not commits_itself) for member in members]
        for thread in threads:
            thread.__enter__()
        until(lambda: all(member.told[-1:] == ["assigned"] for member in members) and len(read()) == 100 * count)
        until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
        promoted(source, target, name)
        for first in range(100, 200, 10):  # they read on, commit, stop, and join
            append_records(target, name, 10, partitions=count, first=first)
            time.sleep(0.4)
        until(lambda: len(read()) >= 200 * count)
        until(lambda: all(member.consumer._coordinator.stable() for member in members))
        time.sleep(0.5)
        for thread in threads:
            thread.__exit__(None, None, None)
        assert {place: times for place, times in Counter(read()).items() if times != 1} == {}
        assert all(member.told[-2:] == ["revoked", "assigned"] for member in members)
        assert len({tp for member in members for tp in member.consumer.assignment()}) == count
    finally:
        for member in members:
            member.consumer.close()
    assert committed(target, name, count) == ends(target, name, count) == [201] * count


def test_what_a_lone_member_reads_before_it_joins_is_not_read_by_one_that_starts_then(source: str) -> None:
    name = "members-lone"

    def slow(member: Member) -> None:
        member.poll()
        time.sleep(0.02)

    with KafkaCluster(heap="320m", broker_config={"group.initial.rebalance.delay.ms": "3000"}) as standby:
        target = standby.bootstrap_servers
        copied(source, target, name, 2, 20_000)
        options: Any = {"enable_auto_commit": True, "auto_commit_interval_ms": 500, "max_poll_records": 50}
        member = Member(source, target, name, **options)
        other = None
        try:
            with member.polling(step=slow):
                until(lambda: len(member.read) >= 500)
                promoted(source, target, name)
                until(lambda: member.has_moved)
                time.sleep(1.2)  # it has stopped, and joins
                other = Member(source, target, name, **options)
                with other.polling(step=slow):
                    until(lambda: len(set(member.read + other.read)) == 40_000)
                    until(lambda: committed(target, name) == ends(target, name, 2))  # after the marker of the fence
            assert len(member.read) + len(other.read) == 40_000
            assert member.told[-2:] == ["revoked", "assigned"] and other.read
        finally:
            for one in (member, other):
                if one is not None:
                    one.consumer.close()


def test_a_member_that_comes_after_others_have_joined_has_lost_its_partitions(source: str, target: str) -> None:
    name = "members-late"
    copied(source, target, name)
    members = [Member(source, target, name, enable_auto_commit=True) for _ in range(2)]
    early, late = members
    try:
        with early.polling():
            with late.polling():
                until(lambda: sum(len(member.read) for member in members) == 200)
                until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
                time.sleep(0.3)
            promoted(source, target, name)
            until(lambda: all(member.has_moved for member in members))
            until(lambda: len(early.consumer.assignment()) == 2)
            append_records(target, name, 50, partitions=2, first=100)
            until(lambda: len(early.read) + len(late.read) >= 300)
            with late.polling():
                until(lambda: late.told[-2:] == ["lost", "assigned"])
                append_records(target, name, 50, partitions=2, first=150)
                until(lambda: len(set(early.read + late.read)) == 400)
    finally:
        for member in members:
            member.consumer.close()
    assert committed(target, name) == ends(target, name, 2)


class OneOther(RangePartitionAssignor):  # type: ignore[misc]  # kafka-python is untyped
    """Gives each member what the range assignor would give to the next one, once `is_on`."""

    name = "one-other"
    is_on = False

    @classmethod
    def assign(cls, cluster: Any, members: Any) -> dict[str, Any]:
        shares = super().assign(cluster, members)
        ids = sorted(shares)
        return {ids[n - cls.is_on]: shares[one] for n, one in enumerate(ids)}


@pytest.mark.parametrize("delay_ms", [0, 3_000])
def test_an_idle_partition_that_goes_to_another_member_is_read_from_where_it_was_left(
    source: str, target: str, delay_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"members-idle-{delay_ms}"
    with ExitStack() as stack:
        if delay_ms:
            config = {"group.initial.rebalance.delay.ms": str(delay_ms)}
            target = stack.enter_context(KafkaCluster(heap="320m", broker_config=config)).bootstrap_servers
        copied(source, target, name)
        options: Any = {"enable_auto_commit": False, "auto_offset_reset": "latest"}
        members = [
            Member(source, target, name, client_id=str(n), partition_assignment_strategy=[OneOther], **options)
            for n in range(2)
        ]

        def step(member: Member) -> None:
            known = len(member.read)
            member.poll()
            if len(member.read) > known:
                member.consumer.commit()

        def owned() -> list[set[TopicPartition]]:
            return [member.consumer.assignment() for member in members]

        try:
            with members[0].polling(step=step), members[1].polling(step=step):
                until(lambda: all(len(own) == 1 for own in owned()))
                before = owned()
                until(lambda: all(member.consumer.position(*own, 100) for member, own in zip(members, before)))
                monkeypatch.setattr(OneOther, "is_on", True)
                promoted(source, target, name)
                until(lambda: all(member.has_moved for member in members))
                time.sleep(1.2)  # they have stopped, and join
                append_records(target, name, 50, partitions=2, first=100)
                until(lambda: not any(member.consumer._coordinator.is_moving for member in members))
                until(lambda: owned() == before[::-1])
                append_records(target, name, 50, partitions=2, first=150)
                until(lambda: sum(len(member.read) for member in members) >= 200)
            read = sorted(members[0].read + members[1].read)
            assert read == [(number, offset) for number in range(2) for offset in range(101, 201)]
        finally:
            for member in members:
                member.consumer.close()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_what_was_committed_is_committed_on_a_standby_that_responds_long_after_the_move(
    source: str, target_cluster: KafkaCluster, reset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, target = f"members-frozen-{reset}", target_cluster.bootstrap_servers
    copied(source, target, name)
    earlier_run(source, name, 100)
    moving, have_left = moved_member.MovedMember.moved, threading.Barrier(2, lambda: target_cluster.pause(1))

    def moved(member: Any, move: Any) -> None:
        have_left.wait(10)
        moving(member, move)

    def step(member: Member) -> None:
        known = len(member.read)
        member.poll()
        if len(member.read) > known:
            member.consumer.commit()

    def read() -> list[tuple[int, int]]:
        return sorted(place for member in members for place in member.read)

    def owned() -> list[set[TopicPartition]]:
        return [member.consumer.assignment() for member in members]

    options: Any = {"enable_auto_commit": False, "partition_assignment_strategy": [OneOther]}
    members = [Member(source, target, name, client_id=str(n), auto_offset_reset=reset, **options) for n in range(2)]
    fails_over = threading.Thread(target=failed_over, args=(target, name))
    try:
        with members[0].polling(step=step), members[1].polling(step=step):
            until(lambda: all(len(own) == 1 for own in owned()))
            before = owned()
            append_records(source, name, 50, partitions=2, first=100)
            mirror(source, target, name, name)
            until(lambda: committed(source, name) == [150, 150])
            monkeypatch.setattr(moved_member.MovedMember, "moved", moved)
            monkeypatch.setattr(OneOther, "is_on", True)
            fails_over.start()
            until(lambda: have_left.broken or all(member.consumer._coordinator.is_moving for member in members))
            time.sleep(6.5)  # a broker that is away for 9 s loses its partitions (broker.session.timeout.ms)
            target_cluster.resume(1)
            with kafka.KafkaProducer(bootstrap_servers=target) as producer:  # it waits until the broker leads again
                for _ in range(5):
                    for partition in [0, 1] * 10:
                        producer.send(name, b"x", partition=partition)
                    producer.flush()
                    time.sleep(0.3)
            until(lambda: owned() == before[::-1])
            until(lambda: len(read()) >= 200)
            time.sleep(0.5)
        (end,) = set(ends(target, name, 2))
        fence = end - 51
        assert read() == [
            (number, offset) for number in range(2) for offset in range(100, end) if offset != fence or end == 200
        ]
        assert committed(target, name) == [end, end]
    finally:
        target_cluster.resume(1)
        fails_over.join()
        for member in members:
            member.consumer.close()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_what_was_committed_counts_also_of_members_that_come_seconds_after_another(
    source: str, target: str, reset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"members-apart-{reset}"
    copied(source, target, name, 3)
    options: Any = {"enable_auto_commit": False, "auto_offset_reset": reset, "heartbeat_interval_ms": 500}
    with ExitStack() as stack:
        members = [Member(source, target, name, **options) for _ in range(3)]

        def read() -> list[tuple[int, int]]:
            return [place for member in members for place in member.read]

        for member in members:
            stack.callback(member.consumer.close)
            stack.enter_context(member.polling(step=polls_and_commits))
        until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
        until(lambda: all(member.consumer.position(*member.consumer.assignment(), 100) for member in members))
        append_records(source, name, 50, partitions=3, first=100)
        mirror(source, target, name, name)
        until(lambda: committed(source, name, 3) == [150] * 3)
        move_apart(monkeypatch, 0.0, 4.0, 6.0)
        failed_over(target, name)
        for first in range(150, 200, 5):
            append_records(target, name, 5, partitions=3, first=first)
            time.sleep(0.5)
        until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
        until(lambda: len(set(read())) >= 300 + 300 * (reset == "earliest"))
        time.sleep(0.5)
        again = [place for place, times in Counter(read()).items() if times != 1]
        assert [offset for _, offset in again if offset < 150] == []  # of the others nothing was committed


@pytest.mark.parametrize("is_lost", [False, True], ids=["planned", "failover"])
def test_what_the_group_had_committed_before_it_left_a_cluster_does_not_count_when_it_comes_home(
    source: str, target_cluster: KafkaCluster, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, target = f"members-home-{is_lost}".lower(), target_cluster.bootstrap_servers
    back = f"{name}-back"
    copied(source, target, name)
    with ExitStack() as stack:
        options: Any = {"enable_auto_commit": False, "session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}
        members = [Member(source, target, name, max_poll_records=100, **options) for _ in range(2)]

        def are_joined(moves: int) -> bool:
            return all(
                sum(isinstance(event, Moved) for event in member.events) == moves
                and not member.consumer._coordinator.is_moving
                and len(member.consumer.assignment()) == 1
                for member in members
            )

        def read() -> Counter[tuple[int, int]]:
            return Counter(place for member in members for place in member.read)

        for member in members:
            stack.callback(member.consumer.close)
            stack.enter_context(member.polling(step=polls_and_commits))
        until(lambda: committed(source, name) == [100, 100] and are_joined(0))
        left = time.monotonic()
        promoted(source, target, name)
        until(lambda: are_joined(1))
        append_records(target, name, 100, partitions=2, first=100)
        until(lambda: committed(target, name) == ends(target, name, 2))
        with both(target, source) as (origin, copy):
            assert origin.run(lambda: failback(origin, copy, back, name)).is_done
        mirror(target, source, name, back)
        time.sleep(max(0.0, left + 8.0 - time.monotonic()))  # until then Kafka takes them for members of the group
        move_apart(monkeypatch, 0.0, 4.0)
        if is_lost:
            target_cluster.pause(1)
            stack.callback(target_cluster.resume, 1)
            failed_over(source, back)
        else:
            promoted(target, source, back)
        until(lambda: are_joined(2))
        append_records(source, name, 10, partitions=2, first=200)
        until(lambda: len(read()) == 420)
        assert {place: times for place, times in read().items() if times != 1} == {}


@pytest.mark.parametrize("is_late", [False, True], ids=["at-once", "long-after"])
def test_a_member_that_is_made_after_a_promotion_begins_where_the_group_was_on_the_cluster_that_it_has_left(
    source: str, target: str, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predecessor was killed before, and the promotion moves no groups."""
    name = f"members-made-{is_late}".lower()
    back = f"{name}-back"
    copied(source, target, name)
    monkeypatch.setattr(group_commits, "OWNERS_S", 3.0)

    def read() -> list[tuple[int, int]]:
        """What another one reads, and commits."""
        member = Member(source, target, name, enable_auto_commit=False)
        at = member.consumer.config["bootstrap_servers"]
        try:
            with member.polling(step=polls_and_commits):
                until(lambda: committed(at, name) == ends(at, name, 2))
        finally:
            member.consumer.close()
        return sorted(member.read)

    def numbers(first: int, last: int) -> list[tuple[int, int]]:
        return [(number, offset) for number in range(2) for offset in range(first, last)]

    assert read() == numbers(0, 100)
    promoted(source, target, name)
    if is_late:
        monkeypatch.setattr(way_back, "RECENT_S", 0.0)
    append_records(target, name, 50, partitions=2, first=100)
    # Long after, an operator may have set what is committed, or deleted it.
    assert read() == (numbers(101, 151) if not is_late else sorted(numbers(0, 100) + numbers(101, 151)))
    with both(target, source) as (origin, copy):
        assert origin.run(lambda: failback(origin, copy, back, name)).is_done
    mirror(target, source, name, back)
    promoted(target, source, back)
    append_records(source, name, 50, partitions=2, first=150)
    assert committed(source, name) == [100, 100]
    assert read() == numbers(152, 202) if not is_late else numbers(101, 202)


def test_what_was_committed_on_the_cluster_that_was_left_says_nothing_of_a_topic_that_was_created_again(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "members-created-again"
    copied(source, target, name)
    monkeypatch.setattr(group_commits, "OWNERS_S", 3.0)
    earlier_run(source, name, 90)
    promoted(source, target, name)
    delete_topic(target, name)
    create_topic(target, name, 2)
    append_records(target, name, 200, partitions=2, first=500)
    member = Member(source, target, name, enable_auto_commit=False, max_poll_records=100)
    try:
        with member.polling(step=polls_and_commits):
            until(lambda: len(member.read) == 400)
    finally:
        member.consumer.close()
    assert sorted(member.read) == [(number, offset) for number in range(2) for offset in range(200)]


def test_nothing_is_passed_over_while_the_former_owner_of_a_partition_without_commits_may_come(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "members-owners"
    copied(source, target, name)
    monkeypatch.setattr(group_commits, "OWNERS_S", 8.0)
    options: Any = {"enable_auto_commit": False, "auto_offset_reset": "latest"}
    members = [
        Member(source, target, name, client_id=str(n), partition_assignment_strategy=[OneOther], **options)
        for n in range(2)
    ]

    def owned() -> list[set[TopicPartition]]:
        return [member.consumer.assignment() for member in members]

    try:
        with members[0].polling(), members[1].polling():
            until(lambda: all(len(own) == 1 for own in owned()))
            before = owned()
            until(lambda: all(member.consumer.position(*own, 100) for member, own in zip(members, before)))
            append_records(source, name, 10, partitions=2, first=100)
            mirror(source, target, name, name)
            until(lambda: sum(len(member.read) for member in members) == 20)
            monkeypatch.setattr(OneOther, "is_on", True)
            promoted(source, target, name)
            until(lambda: owned() == before[::-1])
            until(lambda: all(member.consumer._coordinator._ends for member in members))
            append_records(target, name, 50, partitions=2, first=110)
            until(lambda: sum(len(member.read) for member in members) == 120)
    finally:
        for member in members:
            member.consumer.close()


def test_what_another_member_has_read_while_one_was_joining_is_not_read_again(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "members-slow-join"
    copied(source, target, name)
    process, slow = TolerantCoordinator._process_join_group_response, list[Any]()

    def processed(this: Any, response: Any, send_time: float) -> Any:
        if response.error_code == Errors.MemberIdRequiredError.errno and this in slow:
            slow.remove(this)
            time.sleep(2.0)  # the response is late
        return process(this, response, send_time)

    def step(member: Member) -> None:
        known = len(member.read)
        member.poll()
        if len(member.read) > known:
            member.consumer.commit()

    options: Any = {"enable_auto_commit": False, "partition_assignment_strategy": [RangePartitionAssignor]}
    # Partitions are assigned by the order of member ids, which begin with the client's: so each keeps its own.
    members = [Member(source, target, name, client_id=str(n), **options) for n in range(2)]
    try:
        with members[0].polling(step=step), members[1].polling(step=step):
            until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
            until(lambda: committed(source, name) == [100, 100])
            slow.append(members[1].consumer._coordinator)
            monkeypatch.setattr(TolerantCoordinator, "_process_join_group_response", processed)
            promoted(source, target, name)
            for first in range(100, 200, 5):
                append_records(target, name, 5, partitions=2, first=first)
                time.sleep(0.3)
            until(lambda: sum(len(member.read) for member in members) >= 400)
            until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
            time.sleep(0.5)
        assert any(number == 1 and offset > 100 for number, offset in members[0].read) and not slow
        times = Counter(members[0].read + members[1].read)
        assert {place: count for place, count in times.items() if count != 1} == {}
    finally:
        for member in members:
            member.consumer.close()


def test_what_the_group_has_committed_stays_where_a_member_has_sought_and_read_nothing(
    source: str, target: str
) -> None:
    name = "members-elsewhere"
    copied(source, target, name)
    earlier_run(source, name, 60)
    earlier_run(target, name, 60)
    member = Member(source, target, name, enable_auto_commit=False, auto_offset_reset="latest")

    class Seeks(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            for tp in assigned:
                member.consumer.seek(tp, 100)

    member.consumer.subscribe([name], listener=Seeks())
    try:
        until(lambda: member.poll() or len(member.consumer.assignment()) == 2)
        promoted(source, target, name)
        until(lambda: member.has_moved and (member.poll() or not member.consumer._coordinator.is_moving))
        assert not member.read and committed(target, name) == [60, 60]
    finally:
        member.consumer.close()


def test_what_a_listener_commits_at_the_revocation_is_not_read_again(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "members-revoked"
    copied(source, target, name)
    options: Any = {"enable_auto_commit": False, "partition_assignment_strategy": [OneOther]}
    members = [Member(source, target, name, client_id=str(n), **options) for n in range(2)]
    results: list[Any] = []

    class Commits(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
        def __init__(self, member: Member) -> None:
            self.member = member

        def on_partitions_revoked(self, revoked: Any) -> None:
            if revoked:
                self.member.consumer.commit_async(callback=lambda offsets, result: results.append(result))

        def on_partitions_assigned(self, assigned: Any) -> None:
            pass

    def owned() -> list[set[TopicPartition]]:
        return [member.consumer.assignment() for member in members]

    for member in members:
        member.consumer.subscribe([name], listener=Commits(member))
    try:
        with members[0].polling(), members[1].polling():
            until(lambda: all(len(own) == 1 for own in owned()))
            until(lambda: sum(len(member.read) for member in members) >= 200)
            before = owned()
            results.clear()
            for member in members:
                member.read.clear()
            append_records(source, name, 50, partitions=2, first=100)
            mirror(source, target, name, name)
            until(lambda: sum(len(member.read) for member in members) == 100)
            monkeypatch.setattr(OneOther, "is_on", True)
            promoted(source, target, name)
            until(lambda: owned() == before[::-1])
            append_records(target, name, 50, partitions=2, first=150)
            until(lambda: sum(len(member.read) for member in members) >= 200)
        read = sorted(members[0].read + members[1].read)
        assert read == [(number, offset) for number in range(2) for offset in [*range(100, 150), *range(151, 201)]]
        assert [result for result in results if isinstance(result, Exception)] == []
    finally:
        for member in members:
            member.consumer.close()


def test_members_do_not_come_after_one_that_was_still_joining_at_the_move(source: str, target: str) -> None:
    name = "members-joining"
    copied(source, target, name, 3)
    members = [Member(source, target, name, client_id=f"{n}", enable_auto_commit=False) for n in range(3)]
    joining = members[2]
    with ExitStack() as stack:
        for member in members:
            stack.callback(member.consumer.close)
        for member in members[:2]:
            stack.enter_context(member.polling(commits=True))
        until(lambda: sorted(len(member.consumer.assignment()) for member in members) == [0, 1, 2])
        until(lambda: committed(source, name, 3) == [100] * 3)
        for member in members[:2]:  # so they do not learn that another one joins, and it waits for them
            member.consumer._coordinator._disable_heartbeat()
        stack.enter_context(joining.polling(commits=True))
        until(lambda: joining.consumer._coordinator.rebalance_in_progress())
        promoted(source, target, name)
        for first in range(100, 200, 10):
            append_records(target, name, 10, partitions=3, first=first)
            time.sleep(0.4)
        until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
        until(lambda: sum(len(member.read) for member in members) >= 600)
        assert [member.told.count("lost") for member in members] == [0, 0, 0]
        times = Counter(place for member in members for place in member.read)
        assert len(times) == 600 and {place for place, count in times.items() if count > 1} == set()


@pytest.mark.parametrize("is_made_before", [False, True], ids=["is made", "subscribes"])
def test_members_do_not_come_after_one_that_starts_right_after_the_promotion(
    source: str, target: str, is_made_before: bool
) -> None:
    name = f"members-starting-{is_made_before}"
    copied(source, target, name, 3)
    members = [Member(source, target, name, client_id=f"{n}", enable_auto_commit=False) for n in range(2)]
    with ExitStack() as closes, ExitStack() as polls:
        for member in members:
            closes.callback(member.consumer.close)
            polls.enter_context(member.polling(commits=True))
        until(lambda: sorted(len(member.consumer.assignment()) for member in members) == [1, 2])
        until(lambda: committed(source, name, 3) == [100] * 3)
        if is_made_before:
            third = Member(source, target, name, client_id="2", enable_auto_commit=False)
            third.consumer.unsubscribe()
        promoted(source, target, name)
        if is_made_before:
            until(lambda: third.has_moved)
            third.subscribe()
        else:
            third = Member(source, target, name, client_id="2", enable_auto_commit=False)  # which begins there
        members.append(third)
        closes.callback(third.consumer.close)
        polls.enter_context(third.polling(commits=True))
        for first in range(100, 200, 10):
            append_records(target, name, 10, partitions=3, first=first)
            time.sleep(0.4)
        until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
        until(lambda: sum(len(member.read) for member in members) >= 600)
        assert [member.told.count("lost") for member in members] == [0, 0, 0]
        times = Counter(place for member in members for place in member.read)
        assert len(times) == 600 and {place for place, count in times.items() if count > 1} == set()


def test_a_cooperative_group_whose_members_come_after_another_one_reads_all_partitions(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "members-cooperative"
    monkeypatch.setattr(moved_member, "READS_ON_S", 600.0)
    options: Any = {"enable_auto_commit": False, "partition_assignment_strategy": [CooperativeStickyAssignor]}
    with ExitStack() as stack:
        config = {"group.initial.rebalance.delay.ms": "4000"}
        target = stack.enter_context(KafkaCluster(heap="320m", broker_config=config)).bootstrap_servers
        copied(source, target, name, 4)
        members = [Member(source, target, name, **options) for _ in range(2)]

        def owned() -> list[int]:
            return sorted(tp.partition for member in members for tp in member.consumer.assignment())

        def read() -> set[tuple[int, int]]:
            return {place for member in members for place in member.read}

        for member in members:
            stack.callback(member.consumer.close)
            stack.enter_context(member.polling())
        until(lambda: all(len(member.consumer.assignment()) == 2 for member in members) and len(read()) == 400)
        for member in members:
            member.consumer.commit()
        moved = [member.consumer._coordinator for member in members]
        # One that is joining would wait for READS_ON_S, without its partitions.
        until(lambda: all(one.state is MemberState.STABLE and one._assigned is None for one in moved))
        promoted(source, target, name)
        until(lambda: all(one._move and one._first_commit.is_done for one in moved))
        assert all(one.is_moving for one in moved)
        third = Member(source, target, name, **options)  # which begins there
        until(lambda: third.consumer._coordinator._first_commit.is_done)
        third.consumer._coordinator._stops_at = 0.0  # and joins at once, as one without a standby
        members.append(third)
        stack.callback(third.consumer.close)
        stack.enter_context(third.polling())
        with kafka.KafkaAdminClient(bootstrap_servers=target) as admin:
            until(lambda: admin.describe_groups([name])[name]["members"])
        for one in moved:  # now they stop, too
            one._stops_at = 0.0
        until(
            lambda: any("lost" in member.told for member in members)
        )  # one that has nothing to commit may be told nothing
        append_records(target, name, 50, partitions=4, first=100)
        until(lambda: owned() == [0, 1, 2, 3] and third.consumer.assignment())
        until(lambda: len(read()) == 600)


def test_an_idle_member_that_comes_after_others_reads_nothing_that_they_have_read(source: str, target: str) -> None:
    name = "members-idle-late"
    copied(source, target, name)
    earlier_run(source, name, 100)
    members = [Member(source, target, name, client_id=f"{n}", enable_auto_commit=False) for n in range(2)]
    early, late = members
    try:
        with early.polling(commits=True):
            with late.polling():
                until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
                time.sleep(0.3)
            promoted(source, target, name)
            until(lambda: len(early.consumer.assignment()) == 2)
            append_records(target, name, 50, partitions=2, first=100)
            until(lambda: len(early.read) >= 100)
            with late.polling():
                until(lambda: late.told[-2:] == ["lost", "assigned"])
                append_records(target, name, 50, partitions=2, first=150)
                until(lambda: len(early.read) + len(late.read) >= 200)
        assert len(set(early.read + late.read)) == len(early.read + late.read) == 200
    finally:
        for member in members:
            member.consumer.close()


def test_records_that_are_not_processed_yet_are_not_committed_by_a_move(source: str, target: str) -> None:
    name = "members-auto"
    copied(source, target, name)
    member = Member(source, target, name, enable_auto_commit=True)
    try:
        until(lambda: member.poll() or member.read)
        given = len(member.read)
        promoted(source, target, name)
        until(lambda: member.has_moved)
        time.sleep(1)
        assert committed(target, name) == [None, None]
        member.poll()  # so they are processed
        until(lambda: sum(offset or 0 for offset in committed(target, name)) == given)
    finally:
        member.consumer.close(autocommit=False)


def test_a_late_commit_of_a_lost_record_passes_over_nothing_that_others_write(source: str, target: str) -> None:
    name = "members-workers"
    copied(source, target, name)
    append_records(source, name, 20, partitions=2, first=100)  # lost with the source
    member = Member(source, target, name, enable_auto_commit=False)
    try:
        until(lambda: member.poll() or len(member.read) == 240)
        failed_over(target, name)
        until(lambda: member.has_moved)
        append_records(target, name, 30, partitions=2, first=900)
        until(lambda: member.poll() or len(member.read) == 300)  # given out, and not processed
        until(lambda: member.poll() or not member.consumer._coordinator.is_moving)
        first, second = (TopicPartition(name, number) for number in range(2))
        for offset in (115, 120):  # what was read on the source is processed now
            member.consumer.commit({first: OffsetAndMetadata(offset, "", -1)})
            assert committed(target, name)[0] == 100
        member.consumer.commit({second: OffsetAndMetadata(125, "", -1)})
        assert committed(target, name) == [100, 125]
        member.consumer.commit()
        assert committed(target, name) == [131, 131]
    finally:
        member.consumer.close()


def test_a_client_that_has_read_nothing_commits_what_it_is_told(source: str, target: str) -> None:
    name, events = "members-tool", list[Event]()
    copied(source, target, name)
    standby: Any = {"standby": {"bootstrap_servers": target}, "link": name}
    with KafkaConsumer(bootstrap_servers=source, group_id=name, recovery_listener=events.append, **standby) as tool:
        failed_over(target, name)
        until(lambda: any(isinstance(event, Moved) for event in events))  # a slow machine brings others, too
        append_records(target, name, 30, partitions=2, first=900)
        found = tool.end_offsets([TopicPartition(name, number) for number in range(2)])
        tool.commit({tp: OffsetAndMetadata(end, "", -1) for tp, end in found.items()})
    assert committed(target, name) == ends(target, name, 2)


@pytest.mark.parametrize("is_after", [False, True], ids=["before-the-move", "after-the-move"])
def test_a_seek_back_is_not_undone(source: str, target: str, is_after: bool) -> None:
    name = f"members-replay-{is_after}".lower()
    copied(source, target, name)
    earlier_run(source, name, 100)
    earlier_run(target, name, 100)
    options: Any = {"enable_auto_commit": False, "max_poll_records": 5}
    # Partitions are assigned by the order of member ids, which begin with the client's: so each keeps its own.
    members = [Member(source, target, name, client_id=f"{number}", **options) for number in range(2)]
    seeks: set[Member] = set()

    def step(member: Member) -> None:
        if member in seeks:
            seeks.remove(member)
            for tp in member.consumer.assignment():
                member.consumer.seek(tp, 0)
        member.poll()
        time.sleep(0.2)

    try:
        with members[0].polling(step=step), members[1].polling(step=step):
            until(lambda: all(len(member.consumer.assignment()) == 1 for member in members))
            if not is_after:
                seeks.update(members)
                until(lambda: all(len(member.read) >= 10 for member in members))
            promoted(source, target, name)
            if is_after:
                until(lambda: all(member.has_moved for member in members))
                seeks.update(members)
            until(lambda: not any(member.consumer._coordinator.is_moving for member in members))
            until(lambda: all(len(member.read) >= 100 for member in members))
        for number, member in enumerate(members):
            assert member.read == [(number, offset) for offset in range(100)]
    finally:
        for member in members:
            member.consumer.close()


def test_what_was_committed_on_the_lost_cluster_is_not_read_again_by_a_member_that_comes_after_another(
    source: str, target: str
) -> None:
    name = "members-beside"
    copied(source, target, name)
    member = Member(source, target, name, enable_auto_commit=False)
    with KafkaConsumer(
        name, bootstrap_servers=target, group_id=name, auto_offset_reset="latest", enable_auto_commit=False
    ) as other:
        try:
            until(lambda: member.poll() or len(member.read) == 200)
            member.consumer.commit()
            until(lambda: other.poll(100) or len(other.assignment()) == 2)
            promoted(source, target, name)
            until(lambda: member.has_moved)
            with member.polling():
                until(lambda: other.poll(100) or len(other.assignment()) == 1)
                until(lambda: len(member.consumer.assignment()) == 1)
                append_records(target, name, 10, partitions=2, first=100)
                until(lambda: other.poll(100) or len(member.read) >= 210)
            assert len(member.read) == len(set(member.read)) == 210
            lost = member.told.index("lost")  # a slow machine may make the group rebalance once more
            assert member.told[lost : lost + 2] == ["lost", "assigned"] and member.told.count("lost") == 1
        finally:
            member.consumer.close()


def test_an_iterator_that_commits_each_record_passes_over_nothing_that_others_write(source: str, target: str) -> None:
    name = "members-iterator"
    copied(source, target, name)
    append_records(source, name, 20, partitions=2, first=100)  # lost with the source
    member = Member(source, target, name, enable_auto_commit=False, max_poll_records=500, consumer_timeout_ms=5_000)
    keys = []
    try:
        for record in member.consumer:
            keys.append(record.key)
            member.consumer.commit()
            if len(keys) == 215:  # the rest is in hand
                failed_over(target, name)
                until(lambda: member.has_moved)
                append_records(target, name, 30, partitions=2, first=900)
            if len(keys) == 230:
                places = [member.consumer.position(TopicPartition(name, number)) for number in range(2)]
                assert committed(target, name) == [100, 100], places
        assert Counter(key for key in keys if int(key) >= 900) == {b"%d" % n: 2 for n in range(900, 930)}
    finally:
        member.consumer.close()
    assert committed(target, name) == [131, 131]


def test_commits_in_flight_at_the_move_succeed(source: str, target: str) -> None:
    name = "members-commits"
    copied(source, target, name)
    member = Member(source, target, name, enable_auto_commit=False)
    try:
        until(lambda: member.poll() or len(member.read) == 200)
        with_move = threading.Thread(target=promoted, args=(source, target, name))
        with_move.start()
        while not member.has_moved:
            member.consumer.commit()
        with_move.join()
        for _ in range(100):
            member.consumer.commit()
        assert committed(target, name) == [100, 100]
        member.poll()
        member.consumer.commit()  # while it joins
        until(lambda: member.poll() or not member.consumer._coordinator.is_moving)
        member.consumer.commit()
    finally:
        member.consumer.close()


def test_a_commit_that_is_refused_while_a_member_joins_does_not_cost_its_member_id(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "members-refused"
    copied(source, target, name)
    member = Member(source, target, name, enable_auto_commit=False)
    coordinator = member.consumer._coordinator

    def commit(_: Member) -> None:
        with suppress(Errors.CommitFailedError):  # of a partition that the other one has got
            member.consumer.commit()

    options: Any = {"group_id": name, "heartbeat_interval_ms": 500, "enable_auto_commit": False}
    with KafkaConsumer(name, bootstrap_servers=target, **options) as other:
        try:
            until(lambda: member.poll() or len(member.read) == 200)
            monkeypatch.setattr(moved_member, "LATEST_S", 3.0)  # so the other one can come first
            promoted(source, target, name)
            until(lambda: member.has_moved)
            until(lambda: member.consumer.poll(100) or coordinator._stage is moved_member.Stage.STOPPED)
            monkeypatch.undo()
            until(lambda: other.poll(100) or len(other.assignment()) == 2)
            until(lambda: coordinator._generation.has_member_id())
            given = coordinator._generation.member_id
            with member.polling(step=commit):
                until(lambda: other.poll(100) or coordinator.stable())
            assert coordinator._generation.member_id == given
        finally:
            member.consumer.close()


def test_a_later_generation_that_is_not_promoted_leaves_a_client_where_it_is(source: str, target: str) -> None:
    name = "members-generation"
    copied(source, target, name)
    member = Member(source, target, name)
    try:
        until(lambda: member.poll() or len(member.read) == 200)
        with Cluster({"bootstrap_servers": target}, name="target") as cluster:
            cluster.run(update_control, cluster, name, lambda now: replace(now, generation=now.generation + 1))
        time.sleep(2)
        assert not member.has_moved and member.consumer.config["bootstrap_servers"] == source
        promoted(source, target, name)
        until(lambda: member.has_moved)
    finally:
        member.consumer.close()


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, CooperativeStickyAssignor])
@pytest.mark.parametrize("after_s", [0.0, 0.4, 1.2])
def test_what_a_listener_commits_at_a_close_right_after_the_move_is_committed(
    source: str, target: str, assignor: Any, after_s: float
) -> None:
    name = f"members-closing-{assignor.__name__}-{after_s}".lower()
    copied(source, target, name)
    told: list[str] = []

    class Commits(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is untyped
        def on_partitions_revoked(self, revoked: Any) -> None:
            if revoked:
                told.append("revoked")
                member.consumer.commit_async()

        def on_partitions_lost(self, lost: Any) -> None:
            told.append("lost")

        def on_partitions_assigned(self, assigned: Any) -> None:
            pass

    options: Any = {"enable_auto_commit": False, "partition_assignment_strategy": [assignor]}
    member = Member(source, target, name, **options)
    member.consumer.subscribe([name], listener=Commits())
    until(lambda: member.poll() or len(member.read) == 200)
    promoted(source, target, name)
    until(lambda: member.has_moved)
    ends = (
        member.consumer._coordinator._stops_at - moved_member.READS_ON_S + after_s
    )  # since it has moved; it joins after 1.5 s
    while time.monotonic() < ends:
        member.consumer.poll(20)
    began = time.monotonic()
    member.consumer.close()
    assert time.monotonic() - began < 20
    assert set(told) == {"revoked"}, "once more if it was assigned anew before"
    found = committed(target, name)
    assert all(at in (100, 101) for at in found), (found, time.monotonic() - began)


def test_a_close_right_after_the_move_commits_and_takes_no_join(source: str, target: str) -> None:
    name = "members-close"
    copied(source, target, name)
    member = Member(source, target, name, enable_auto_commit=True)
    until(lambda: member.poll() or len(member.read) == 200)
    promoted(source, target, name)
    until(lambda: member.has_moved)
    told = len(member.told)
    member.consumer.close()
    assert "assigned" not in member.told[told:]
    assert committed(target, name) == [100, 100]
