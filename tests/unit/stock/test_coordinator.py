"""coordinator_partition.py and coordinator.py: the hash, the diagnosis, and when it is given; on a fake broker."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.consumer.subscription_state import SubscriptionState
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse, MetadataResponse
from kafka.structs import MemberState, OffsetAndMetadata, TopicPartition

import tolerant_client
from support import fake_broker
from support.fake_broker import FakeBroker, serve
from tolerant_client.errors import CoordinatorUnavailableError, TolerantClientError
from tolerant_client.stock import group_commits, moved_member
from tolerant_client.stock.coordinator import TolerantCoordinator
from tolerant_client.stock.coordinator_partition import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    CoordinatorPartition,
    java_hash,
    partition_of,
)
from tolerant_client.stock.coordinator_watch import Absence, describe_coordinator
from tolerant_client.stock.manager import TolerantConnectionManager, TolerantNetClient
from tolerant_client.stock.moving import Destination, Move
from tolerant_client.stock.stock_names import Future
from tolerant_client.tracker.events import CoordinatorUnavailable, Event, Listener
from tolerant_client.tracker.policy import RecoveryPolicy

NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 15, 16, 25, 27, 79
GROUP_AUTHORIZATION_FAILED = 30
GROUP = "hello"  # belongs to partition 22 of 50


# -- the hash ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("\u00e9", 233),
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
    ],
)
def test_hash_is_that_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value


@pytest.mark.parametrize(
    ("name", "count", "partition"),
    [("hello", 50, 22), ("polygenelubricants", 50, 0), ("", 50, 0), ("hello", 1, 0), ("zzzzzzzz", 50, None)],
)
def test_partition_is_the_absolute_hash_modulo_the_count(name: str, count: int, partition: int | None) -> None:
    assert partition_of(name, count) == (abs(java_hash(name)) % count if partition is None else partition)


# -- the diagnosis -----------------------------------------------------------


def metadata(leader: int, replicas: list[int], isr: list[int], brokers: list[int], topic: str = OFFSETS_TOPIC) -> Any:
    """A response in which every partition of the internal topic is in the same state."""
    partitions = [
        SimpleNamespace(partition_index=n, leader_id=leader, replica_nodes=replicas, isr_nodes=isr) for n in range(50)
    ]
    return SimpleNamespace(
        brokers=[SimpleNamespace(node_id=n, host="b", port=9090 + n) for n in brokers],
        topics=[SimpleNamespace(name=topic, error_code=0, partitions=partitions)],
    )


def diagnosed(answer: Any, topic: str = OFFSETS_TOPIC) -> CoordinatorUnavailableError:
    return CoordinatorPartition.read(GROUP, topic, answer).error(31_000.0, "COORDINATOR_NOT_AVAILABLE")


def test_error_names_group_partition_leader_replicas_isr_time_and_the_broker_to_start() -> None:
    error = diagnosed(metadata(-1, [2, 3], [2], [1, 3]))
    assert (error.group, error.topic, error.partition) == (GROUP, OFFSETS_TOPIC, 22)
    assert (error.leader, error.replicas, error.isr, error.waited_ms) == (-1, (2, 3), (2,), 31_000.0)
    message = str(error)
    assert "Group 'hello' has had no coordinator for 31.0 s" in message
    assert "__consumer_offsets-22 (of 50 partitions), replicas 2, 3, in sync 2, and that partition has no" in message
    assert "Start broker 2; if that is impossible, reassign partition __consumer_offsets-22" in message
    assert "unclean election of broker 3 would lose" in message
    assert message.endswith("Last failure: COORDINATOR_NOT_AVAILABLE")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (metadata(-1, [2, 3], [], [1]), "Start one of the brokers 2, 3"),
        (metadata(-1, [2, 3], [2, 3], [1, 2, 3]), "check for an offline log directory"),
        (metadata(2, [2, 3], [2, 3], [2, 3]), "its leader, broker 2 at b:9092, does not serve it"),
        (metadata(2, [2, 3], [2, 3], [2, 3]), "move the leadership of __consumer_offsets-22 to broker 3"),
        (metadata(2, [2, 3], [2, 3], [3]), "broker 2 at an address that is not in the metadata"),
    ],
)
def test_remedy_fits_what_metadata_shows(answer: Any, says: str) -> None:
    assert says in str(diagnosed(answer))


@pytest.mark.parametrize(
    ("error_code", "says"),
    [
        (3, "offsets.topic.replication.factor is above the number of brokers (2 registered)"),
        (29, "DESCRIBE"),
        (5, "error 5"),
    ],
)
def test_internal_topic_that_cannot_be_seen_is_said_to_be_so(error_code: int, says: str) -> None:
    answer = metadata(1, [1], [1], [1, 2])
    answer.topics = [SimpleNamespace(name=OFFSETS_TOPIC, error_code=error_code, partitions=[])]
    error = diagnosed(answer)
    assert says in str(error)
    assert error.partition == -1


def test_transactional_id_belongs_to_the_other_topic() -> None:
    message = str(diagnosed(metadata(-1, [2], [2], [1], TRANSACTIONS_TOPIC), TRANSACTIONS_TOPIC))
    assert "Transactional id 'hello'" in message
    assert "__transaction_state-22" in message
    assert "transactional ids that belong to them" in message


def test_error_is_retriable_belongs_to_both_trees_and_pickles() -> None:
    error = diagnosed(metadata(-1, [2, 3], [2], [1, 3]))
    assert isinstance(error, TolerantClientError)
    assert isinstance(error, Errors.CoordinatorNotAvailableError)
    assert error.retriable
    assert isinstance(error, Errors.KafkaTimeoutError)  # as kafka-python's commit() raises
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


# -- how long ----------------------------------------------------------------


def test_absence_is_due_after_its_time_and_three_failures() -> None:
    absence = Absence(30.0)
    absence.failed("first", 0.0)
    absence.failed("second", 31.0)
    assert not absence.is_due(False)
    absence.failed("third", 32.0)
    assert absence.is_due(False)
    assert absence.waited_ms(32.0) == 32_000.0
    assert absence.last_failure == "third"


def test_absence_of_less_than_its_time_is_not_due_and_a_response_ends_it() -> None:
    absence = Absence(30.0)
    for now in range(30):
        absence.failed("", float(now))
    assert not absence.is_due(False)
    assert absence.left(29.0) == 1.0
    absence.answered()
    absence.failed("", 30.0)
    assert not absence.is_due(False)
    assert absence.left(30.0) == 30.0


def test_absence_may_be_due_sooner_for_the_first_time() -> None:
    absence = Absence(30.0, first=5.0)
    for now in range(6):
        absence.failed("", float(now))
    assert absence.is_due(False)
    absence.told(5.0)
    for now in range(6, 35):
        absence.failed("", float(now))
    assert not absence.is_due(False)
    absence.failed("", 35.0)
    assert absence.is_due(False)


def test_absence_that_was_told_is_due_again_after_as_long_and_counts_from_the_first_failure() -> None:
    absence = Absence(30.0)
    for now in range(31):
        absence.failed("", float(now))
    assert absence.is_due(False)
    absence.told(30.0)
    assert not absence.is_due(False)
    for now in range(31, 61):
        absence.failed("", float(now))
    assert absence.is_due(False)
    assert absence.waited_ms(60.0) == 60_000.0


def test_failures_far_apart_are_two_absences() -> None:
    absence = Absence(30.0)
    for now in (0.0, 1.0, 100.0, 101.0):
        absence.failed("", now)
    assert not absence.is_due(False)
    assert absence.waited_ms(101.0) == 1_000.0


def test_coordinator_that_was_just_named_gets_its_chance_unless_it_failed_last() -> None:
    absence = Absence(1.0)
    for now in (0.0, 1.0, 2.0):
        absence.failed("", now)
    assert absence.is_due(is_known=False)
    assert not absence.is_due(is_known=True)
    absence.failed("NOT_COORDINATOR", 2.5, is_known=True)
    assert absence.is_due(is_known=True)


# -- reading the metadata -----------------------------------------------------


class Brokers:
    """A manager of brokers 1, 2, 3, ... each of which responds as told, or breaks the connection."""

    closed = False

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = dict(enumerate(outcomes, 1))
        self.requests: list[Any] = []

    def best_node(self, but: Collection[int] = ()) -> int | None:
        return min(self.outcomes.keys() - set(but), default=None)

    async def send(self, request: Any, node_id: int) -> Any:
        self.requests.append(request)
        outcome = self.outcomes[node_id]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def wait_for(self, answer: Any, timeout_ms: float) -> Any:
        return await asyncio.wait_for(answer, timeout_ms / 1000)


DEAD = Errors.KafkaConnectionError("refused")


def test_the_next_broker_is_asked_where_the_first_ones_are_dead_each_with_a_request_of_its_own() -> None:
    """Sending sets a request's version to its broker's, which another broker may not know."""
    manager = Brokers(DEAD, DEAD, metadata(-1, [2, 3], [2], [1, 3]), DEAD)
    found = asyncio.run(describe_coordinator(manager, GROUP))
    assert found is not None and (found.partition, found.leader) == (22, -1)
    assert len(manager.requests) == len(set(map(id, manager.requests))) == 3


def test_each_broker_is_asked_once() -> None:
    manager = Brokers(DEAD, Errors.IncompatibleBrokerVersion("old"), DEAD)
    assert asyncio.run(describe_coordinator(manager, GROUP)) is None
    assert len(manager.requests) == 3


# -- on a fake broker --------------------------------------------------------


class GroupBroker(FakeBroker):
    """Names itself as every group's coordinator, unless told otherwise; every member is the only one of its group."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup_error: Callable[[], int] = lambda: 0
        self.fetch_error: Callable[[], int] = lambda: 0
        self.coordinator_port: int | None = None
        self.offsets_leader = -1
        self.committed: dict[tuple[str, int], tuple[int, int]] = {}
        self.commit_error = 0
        self.topics: dict[str, int] = {}  # how many partitions
        self.heartbeat_error: Callable[[], int] = lambda: 0
        self.generation = 0
        self.gives_ids = False  # to new members, which join with them (KIP-394)
        self.joins: list[Any] = []
        self.left: list[str] = []  # the ids of members that have left

    def _answer_FindCoordinator(self, request: Any, version: int) -> Any:
        port = self.port if self.coordinator_port is None else self.coordinator_port
        code = self.lookup_error()
        one = FindCoordinatorResponse.Coordinator(
            key=GROUP, node_id=-1 if code else 1, host=self.host, port=port, error_code=code, error_message=None
        )
        return FindCoordinatorResponse(version=version, coordinators=[one], throttle_time_ms=0)

    def _answer_OffsetFetch(self, request: Any, version: int) -> Any:
        group_class = OffsetFetchResponse.OffsetFetchResponseGroup
        topic_class = group_class.OffsetFetchResponseTopics
        part_class = topic_class.OffsetFetchResponsePartitions
        asked = {index for topic in request.groups[0].topics for index in topic.partition_indexes}
        topics = [
            topic_class(
                name=topic,
                partitions=[
                    part_class(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        metadata="m",
                        error_code=0,
                    )
                ],
            )
            for (topic, index), (offset, epoch) in self.committed.items()
            if index in asked
        ]
        group = group_class(group_id=GROUP, topics=topics, error_code=self.fetch_error())
        return OffsetFetchResponse(version=version, throttle_time_ms=0, groups=[group])

    def _answer_OffsetCommit(self, request: Any, version: int) -> Any:
        topic_class = OffsetCommitResponse.OffsetCommitResponseTopic
        part_class = topic_class.OffsetCommitResponsePartition
        topics = []
        for topic in request.topics:
            for part in topic.partitions if not self.commit_error else ():
                self.committed[topic.name, part.partition_index] = (part.committed_offset, part.committed_leader_epoch)
            parts = [
                part_class(partition_index=part.partition_index, error_code=self.commit_error)
                for part in topic.partitions
            ]
            topics.append(topic_class(name=topic.name, partitions=parts))
        return OffsetCommitResponse(version=version, throttle_time_ms=0, topics=topics)

    def _answer_JoinGroup(self, request: Any, version: int) -> Any:
        self.joins.append(request)
        if self.gives_ids and not request.member_id:
            return JoinGroupResponse(
                version=version, throttle_time_ms=0, error_code=MEMBER_ID_REQUIRED, generation_id=-1,
                protocol_name="", leader="", member_id="member", members=[],
            )  # fmt: skip
        self.generation += 1
        protocol = request.protocols[0]
        member = JoinGroupResponse.JoinGroupResponseMember(
            member_id="member", group_instance_id=None, metadata=protocol.metadata
        )
        return JoinGroupResponse(
            version=version, throttle_time_ms=0, error_code=0, generation_id=self.generation,
            protocol_name=protocol.name, leader="member", member_id="member", members=[member],
        )  # fmt: skip

    def _answer_LeaveGroup(self, request: Any, version: int) -> Any:
        self.left += [member.member_id for member in request.members]
        return LeaveGroupResponse(version=version, throttle_time_ms=0, error_code=0, members=[])

    def _answer_SyncGroup(self, request: Any, version: int) -> Any:
        assignment = request.assignments[0].assignment
        return SyncGroupResponse(version=version, throttle_time_ms=0, error_code=0, assignment=assignment)

    def _answer_Heartbeat(self, request: Any, version: int) -> Any:
        return HeartbeatResponse(version=version, throttle_time_ms=0, error_code=self.heartbeat_error())

    def _answer_Metadata(self, request: Any, version: int) -> Any:
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host=self.host, port=self.port, rack=None)
        topic_class = MetadataResponse.MetadataResponseTopic
        part_class = topic_class.MetadataResponsePartition
        topics = [
            topic_class(error_code=0, name=name, is_internal=False, partitions=[
                part_class(
                    error_code=0, partition_index=n, leader_id=1, leader_epoch=0,
                    replica_nodes=[1], isr_nodes=[1], offline_replicas=[],
                )
                for n in range(count)
            ])
            for name, count in self.topics.items()
        ]  # fmt: skip
        if any(topic.name == OFFSETS_TOPIC for topic in request.topics or []):
            partitions = [
                part_class(
                    error_code=0,
                    partition_index=n,
                    leader_id=self.offsets_leader,
                    leader_epoch=3,
                    replica_nodes=[2, 3],
                    isr_nodes=[2],
                    offline_replicas=[],
                )  # fmt: skip
                for n in range(50)
            ]
            topics += [topic_class(error_code=0, name=OFFSETS_TOPIC, is_internal=True, partitions=partitions)]
        return MetadataResponse(version=version, brokers=[broker], cluster_id="fake", controller_id=1, topics=topics)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> GroupBroker:
    for request, version in (
        (FindCoordinatorRequest, 4),
        (OffsetCommitRequest, 8),
        (OffsetFetchRequest, 8),
        (JoinGroupRequest, 5),
        (SyncGroupRequest, 3),
        (HeartbeatRequest, 3),
        (LeaveGroupRequest, 4),
    ):
        monkeypatch.setitem(fake_broker.API_VERSIONS, request.API_KEY, (version, version))
        monkeypatch.setitem(fake_broker._REQUESTS, request.API_KEY, request)
    return GroupBroker()


@pytest.fixture
def make(broker: GroupBroker) -> Iterator[Callable[..., TolerantCoordinator]]:
    """Makes a coordinator on the served broker; `limit_ms` and `is_raising` stand for the policy."""
    net = NetworkSelector()
    made: list[TolerantConnectionManager] = []

    def coordinator(
        address: str, limit_ms: float, is_raising: bool = True, listener: Listener | None = None, **configs: Any
    ) -> TolerantCoordinator:
        policy = RecoveryPolicy(coordinator_timeout_ms=limit_ms, raise_coordinator_unavailable=is_raising)
        manager = TolerantConnectionManager(
            net,
            bootstrap_servers=address,
            reconnect_backoff_max_ms=200,
            recovery_policy=policy,
            recovery_listener=listener,
        )
        made.append(manager)
        manager.bootstrap(10_000)
        client = TolerantNetClient(net=net, manager=manager)
        return TolerantCoordinator(
            client,
            SubscriptionState(),
            group_id=GROUP,
            enable_auto_commit=False,
            api_version=manager.broker_version,
            retry_backoff_ms=20,
            request_timeout_ms=5_000,
            **configs,
        )

    yield coordinator
    for manager in made:
        manager.close()
    net.drain()
    net.close()


PARTITIONS = [TopicPartition("t", 0)]


def test_no_coordinator_for_ever_raises_what_is_wrong_and_the_next_call_looks_again(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    broker.lookup_error = lambda: NOT_AVAILABLE
    with serve(broker) as address:
        coordinator = make(address, limit_ms=300)
        with pytest.raises(CoordinatorUnavailableError, match="no leader.*COORDINATOR_NOT_AVAILABLE") as first:
            coordinator.poll(timeout_ms=None)
        before = broker.names().count("FindCoordinator")
        with pytest.raises(CoordinatorUnavailableError) as second:
            coordinator.poll(timeout_ms=None)
        assert broker.names().count("FindCoordinator") >= before + 1
        broker.lookup_error = lambda: 0
        assert coordinator.poll(timeout_ms=10_000)
        assert coordinator.fetch_committed_offsets(PARTITIONS) == {}
    assert (first.value.partition, first.value.replicas, first.value.isr) == (22, (2, 3), (2,))
    assert first.value.waited_ms >= 300
    assert second.value.waited_ms >= first.value.waited_ms + 300


def test_short_polls_add_up_and_each_is_as_silent_as_before(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    broker.lookup_error = lambda: NOT_AVAILABLE
    silent = 0
    with serve(broker) as address:
        coordinator = make(address, limit_ms=400)
        with pytest.raises(CoordinatorUnavailableError):
            while silent < 10_000:
                assert coordinator.poll(timeout_ms=10) is False
                silent += 1
    assert silent >= 5


def test_poll_goes_on_as_stock_and_says_what_is_wrong_in_the_log_and_to_the_listener(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator], caplog: pytest.LogCaptureFixture
) -> None:
    broker.lookup_error = lambda: NOT_AVAILABLE
    seen: list[Event] = []
    with serve(broker) as address:
        coordinator = make(address, limit_ms=400, is_raising=False, listener=seen.append)
        ends = time.monotonic() + 10
        while time.monotonic() < ends and not any(isinstance(event, CoordinatorUnavailable) for event in seen):
            assert coordinator.poll(timeout_ms=50) is False
        with pytest.raises(Errors.KafkaTimeoutError, match="that partition has no leader"):
            coordinator.fetch_committed_offsets(PARTITIONS, timeout_ms=500)
        broker.lookup_error = lambda: 0
        assert coordinator.poll(timeout_ms=10_000)
    (told,) = [event for event in seen if isinstance(event, CoordinatorUnavailable)][:1]
    assert (told.name, told.topic, told.partition, told.leader) == (GROUP, OFFSETS_TOPIC, 22, -1)
    assert any("__consumer_offsets-22" in record.getMessage() for record in caplog.records)


def test_poll_takes_no_longer_than_it_may_while_nobody_says_what_is_wrong(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    broker.lookup_error = lambda: NOT_AVAILABLE
    with serve(broker) as address:
        coordinator = make(address, limit_ms=100, is_raising=True)
        broker.ignore = lambda name, frame: name == "Metadata"
        longest = 0.0
        for _ in range(20):
            began = time.monotonic()
            assert coordinator.poll(timeout_ms=100) is False
            longest = max(longest, time.monotonic() - began)
    assert longest < 0.6  # before, a lookup took its full 5 s


def test_unavailability_shorter_than_the_policy_allows_is_not_told(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    errors = iter([NOT_AVAILABLE] * 6)
    broker.lookup_error = lambda: next(errors, 0)
    with serve(broker) as address:
        coordinator = make(address, limit_ms=60_000)
        assert coordinator.poll(timeout_ms=None)
        assert coordinator.fetch_committed_offsets(PARTITIONS) == {}
    assert coordinator._absence.failures == 0


def test_lookups_come_further_and_further_apart(broker: GroupBroker, make: Callable[..., TolerantCoordinator]) -> None:
    broker.lookup_error = lambda: NOT_AVAILABLE
    with serve(broker) as address:
        coordinator = make(address, limit_ms=60_000)
        assert coordinator.poll(timeout_ms=1_500) is False
    # Every 20 ms at first, as configured: 75 in this time without the growing pauses.
    assert 3 <= broker.names().count("FindCoordinator") <= 12


def test_coordinator_whose_node_cannot_be_reached_is_told(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    broker.coordinator_port = closed.getsockname()[1]
    closed.close()
    broker.offsets_leader = 1
    with serve(broker) as address:
        coordinator = make(address, limit_ms=500)
        with pytest.raises(CoordinatorUnavailableError, match="leader, broker 1 .* does not serve it") as caught:
            coordinator.fetch_committed_offsets(PARTITIONS, timeout_ms=20_000)
    assert "coordinator-1" in str(caught.value)
    assert caught.value.leader == 1
    # kafka-python alone asks again at once, more than a thousand times a second.
    assert broker.names().count("FindCoordinator") < 40


def test_coordinator_that_denies_it_for_ever_is_told(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    broker.fetch_error = lambda: NOT_COORDINATOR
    broker.offsets_leader = 1
    with serve(broker) as address:
        coordinator = make(address, limit_ms=400)
        with pytest.raises(CoordinatorUnavailableError, match="NOT_COORDINATOR"):
            coordinator.fetch_committed_offsets(PARTITIONS, timeout_ms=20_000)


def test_call_that_times_out_first_raises_the_cause_instead_of_a_timeout(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    broker.lookup_error = lambda: NOT_AVAILABLE
    with serve(broker) as address:
        coordinator = make(address, limit_ms=60_000)
        with pytest.raises(CoordinatorUnavailableError) as caught:
            coordinator.fetch_committed_offsets(PARTITIONS, timeout_ms=800)
    assert isinstance(caught.value.__cause__, Errors.KafkaTimeoutError)


def test_cluster_that_is_away_altogether_is_survived_in_silence(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator], caplog: pytest.LogCaptureFixture
) -> None:
    with serve(broker) as address:
        coordinator = make(address, limit_ms=300)
    began = time.monotonic()
    assert coordinator.poll(timeout_ms=3_000) is False
    assert time.monotonic() - began >= 2.9
    assert any("no broker responds to Metadata" in record.getMessage() for record in caplog.records)


def test_a_call_without_an_end_says_that_nobody_can_be_connected_to_and_one_with_an_end_waits(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    with serve(broker) as address:
        coordinator = make(address, limit_ms=60_000)
    for _ in range(2):  # at once, and while the client backs off
        with pytest.raises(Errors.KafkaConnectionError, match="no broker can be connected to: .*ECONNREFUSED"):
            coordinator.fetch_committed_offsets(PARTITIONS)
    what = f"group {GROUP}: the request for committed offsets did not end in time: .*(ECONNREFUSED|NodeNotReady)"
    with pytest.raises(Errors.KafkaTimeoutError, match=what):
        coordinator.fetch_committed_offsets(PARTITIONS, timeout_ms=1_500)


def test_a_broker_that_throttles_every_connection_is_not_one_that_cannot_be_connected_to(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.committed = {("t", 0): (5, 2)}
    with serve(broker) as address:
        coordinator = make(address, limit_ms=60_000)
        coordinator.fetch_committed_offsets(PARTITIONS)
        assert coordinator._manager.is_connected
        coordinator.coordinator_dead("moved")
        until = time.monotonic() + 1.5
        best_node = coordinator._manager.best_node
        monkeypatch.setattr(
            coordinator._manager, "best_node", lambda: best_node() if time.monotonic() > until else None
        )
        assert list(coordinator.fetch_committed_offsets(PARTITIONS)) == PARTITIONS
        assert time.monotonic() >= until


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # stock leaves sockets that were refused
def test_a_close_whose_broker_has_gone_takes_no_longer_than_stocks(broker: GroupBroker) -> None:
    broker.topics = {"t": 1}
    seconds = {}
    for library in (kafka, tolerant_client):
        with serve(broker) as address:
            consumer = library.KafkaConsumer("t", bootstrap_servers=address, group_id=GROUP, request_timeout_ms=11_000)
            while not consumer.assignment():
                consumer.poll(100)
        began = time.monotonic()
        consumer.close()
        seconds[library] = time.monotonic() - began
    assert seconds[tolerant_client] <= seconds[kafka] + 3  # two lookups, and the noise of the machine


def test_position_taken_from_a_commit_keeps_its_leader_epoch_so_that_truncation_shows(
    broker: GroupBroker, make: Callable[..., TolerantCoordinator]
) -> None:
    broker.committed = {("t", 0): (5, 2)}
    with serve(broker) as address:
        coordinator = make(address, limit_ms=60_000)
        coordinator._subscription.assign_from_user(PARTITIONS)
        assert coordinator.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    state = coordinator._subscription.assignment[PARTITIONS[0]]
    assert state.position.offset == 5
    assert state.position.leader_epoch == 2
    assert coordinator._subscription.maybe_validate_position_for_current_leader(PARTITIONS[0], 3)
    assert coordinator._subscription.partitions_needing_validation()


# -- joining, with polls that are shorter than a join ------------------------


@pytest.fixture
def member(broker: GroupBroker, make: Callable[..., TolerantCoordinator]) -> Iterator[TolerantCoordinator]:
    """Has subscribed to "t"; between two polls, only `until` lets anything happen."""
    with serve(broker) as address:
        coordinator = make(address, limit_ms=60_000, heartbeat_interval_ms=50)
        coordinator._subscription.subscribe(topics=["t"])
        coordinator._cluster.set_topics(["t"])
        yield coordinator
        coordinator._close_heartbeat()


def until(member: TolerantCoordinator, is_true: Callable[[], Any]) -> None:
    """Lets time pass on the event loop, as its thread does between two polls."""
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen within 60 s"
        member._net.poll(timeout_ms=10)


def knows(member: TolerantCoordinator, broker: GroupBroker, partitions: int) -> None:
    """Its metadata shows the topic with this many partitions."""
    broker.topics = {"t": partitions}

    def is_told() -> bool:
        if not member._cluster.metadata_refresh_in_progress:  # one that is may be older, and counts as the update
            member._cluster.request_update()
        return len(member._cluster.partitions_for_topic("t") or ()) == partitions

    until(member, is_told)


def join_between_polls(member: TolerantCoordinator) -> None:
    """Polls as briefly as possible until a join is under way, and lets it end."""
    while member._join_task is None:
        assert member.poll(timeout_ms=0) is False
    until(member, lambda: member._join_task.is_done)


def assigned(member: TolerantCoordinator) -> set[int]:
    return {partition.partition for partition in member._subscription.assigned_partitions()}


def test_join_that_ends_between_two_polls_is_taken_over_by_the_next_one(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    knows(member, broker, 2)
    join_between_polls(member)
    assert member.poll(timeout_ms=0)
    assert (member.state, assigned(member)) == (MemberState.STABLE, {0, 1})
    # kafka-python alone joins once more in every poll, and never has a partition.
    assert broker.names().count("JoinGroup") == 1


def test_topic_that_appears_after_the_assignment_is_assigned_though_the_next_join_ends_between_polls(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    assert member.poll(timeout_ms=10_000)
    assert (member.state, assigned(member)) == (MemberState.STABLE, set())
    knows(member, broker, 2)
    join_between_polls(member)
    # By now the assignment agrees with the metadata, which is all that kafka-python checks.
    assert member.need_rejoin()
    assert member.poll(timeout_ms=0)
    assert (member.state, assigned(member)) == (MemberState.STABLE, {0, 1})
    assert not member.need_rejoin()


def test_heartbeats_keep_the_place_of_a_member_whose_join_ended_between_polls(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    knows(member, broker, 1)
    join_between_polls(member)
    until(member, lambda: broker.names().count("Heartbeat") >= 2)
    assert member.poll(timeout_ms=0)
    assert broker.names().count("JoinGroup") == 1


def test_member_that_its_group_forgets_before_the_next_poll_joins_anew(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    knows(member, broker, 1)
    broker.heartbeat_error = lambda: UNKNOWN_MEMBER_ID
    join_between_polls(member)
    until(member, lambda: member.state is MemberState.UNJOINED)
    broker.heartbeat_error = lambda: 0
    assert member.poll(timeout_ms=10_000)
    assert (member.state, assigned(member)) == (MemberState.STABLE, {0})
    assert broker.names().count("JoinGroup") == 2


def test_member_that_leaves_while_it_joins_takes_no_assignment_over(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    knows(member, broker, 1)

    def leave(name: str, frame: bytes) -> list[bytes]:
        if name == "SyncGroup":
            member.reset_generation()
        return [frame]

    broker.spoil = leave
    join_between_polls(member)
    assert not member.stable()
    broker.spoil = lambda name, frame: [frame]
    assert member.poll(timeout_ms=10_000)
    assert (member.state, assigned(member)) == (MemberState.STABLE, {0})
    assert broker.names().count("JoinGroup") == 2


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "on its way"])
def test_an_id_that_was_given_and_is_not_used_is_left(
    broker: GroupBroker, member: TolerantCoordinator, is_given: bool
) -> None:
    broker.gives_ids = True
    knows(member, broker, 1)
    if is_given:
        join_between_polls(member)
    else:
        while not member.rebalance_in_progress():
            assert member.poll(timeout_ms=0) is False
    assert member._generation.has_member_id() is is_given
    member.close()
    assert (broker.left, len(broker.joins)) == (["member"], 1)


def test_a_member_that_was_given_no_id_leaves_nothing(broker: GroupBroker, member: TolerantCoordinator) -> None:
    broker.gives_ids = True
    broker.spoil = lambda name, frame: [] if name == "JoinGroup" else [frame]
    knows(member, broker, 1)
    while not member.rebalance_in_progress():
        assert member.poll(timeout_ms=0) is False
    began = time.monotonic()
    member.close()
    assert broker.left == [] and time.monotonic() < began + 1.0


@pytest.mark.parametrize("how", ["closed", "moved"])
def test_a_join_that_has_not_been_sent_yet_is_not_sent_once_nobody_wants_it(
    broker: GroupBroker, member: TolerantCoordinator, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    knows(member, broker, 1)
    member._stage, member._stops_at = moved_member.Stage.OUTSIDE, time.monotonic() + 600.0
    is_over, sleep = Future(), member._net.sleep
    monkeypatch.setattr(member._net, "sleep", lambda s: is_over if s > 300 else sleep(s))
    while member._join_task is None:
        assert member.poll(timeout_ms=0) is False
    joining = member._join_task
    if how == "closed":
        member.close()
    else:
        member._join_task = None
    is_over.success(None)
    until(member, lambda: joining.is_done)
    assert joining.failed() and not broker.joins


def test_rejoin_that_lost_its_connection_is_begun_again(broker: GroupBroker, member: TolerantCoordinator) -> None:
    knows(member, broker, 1)
    assert member.poll(timeout_ms=10_000)
    assert assigned(member) == {0}
    knows(member, broker, 2)
    syncs = broker.names().count("SyncGroup")

    def lose_the_first(name: str, frame: bytes) -> list[bytes]:
        if name == "SyncGroup" and broker.names().count(name) == syncs + 1:
            raise ConnectionResetError
        return [frame]

    broker.spoil = lose_the_first
    assert member.poll(timeout_ms=10_000)
    # kafka-python alone has assigned by the new metadata, and so believes that it has joined.
    assert (member.state, assigned(member)) == (MemberState.STABLE, {0, 1})


@pytest.mark.parametrize("assignor", [StickyPartitionAssignor, CooperativeStickyAssignor])
def test_a_member_claims_what_it_owns_and_nothing_that_it_has_lost(
    broker: GroupBroker,
    make: Callable[..., TolerantCoordinator],
    monkeypatch: pytest.MonkeyPatch,
    assignor: type[StickyPartitionAssignor],
) -> None:
    claimed: list[set[int]] = []

    def join(request: Any, version: int) -> Any:
        metadata = ConsumerProtocolSubscription.decode(request.protocols[0].metadata)
        claimed.append({tp.partition for tp in assignor.parse_member_metadata(metadata).partitions})
        return GroupBroker._answer_JoinGroup(broker, request, version)

    monkeypatch.setattr(broker, "_answer_JoinGroup", join)
    with serve(broker) as address:
        member = make(address, limit_ms=60_000, assignors=(assignor,))
        member._subscription.subscribe(topics=["t"])
        member._cluster.set_topics(["t"])
        knows(member, broker, 2)
        assert member.poll(timeout_ms=10_000)
        member.request_rejoin()
        assert member.poll(timeout_ms=10_000)
        member.reset_generation()  # its session has expired
        assert member.poll(timeout_ms=10_000)
        assert (assigned(member), claimed) == ({0, 1}, [set(), {0, 1}, set()])
        member._close_heartbeat()


# -- a move to another cluster --------------------------------------------------


def test_what_was_committed_of_a_partition_is_forgotten_with_it(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    knows(member, broker, 2)
    assert member.poll(timeout_ms=10_000)
    first, second = (TopicPartition("t", number) for number in (0, 1))
    member._committed = {first: OffsetAndMetadata(5, "", 1), second: OffsetAndMetadata(6, "", 1)}
    knows(member, broker, 1)  # so the other partition is lost
    assert member.poll(timeout_ms=10_000)
    assert member._committed.keys() == {first}
    member.reset_generation()
    assert not member._committed


def moves(member: TolerantCoordinator, stage: moved_member.Stage) -> None:
    """It is at this stage of a move, and may join now."""
    member._stage, member._stops_at = stage, time.monotonic() - moved_member.LATEST_S


class Reader(SimpleNamespace):
    """A consumer, as far as a move settles it."""


def test_a_poll_at_any_instant_of_a_move_does_not_go_on_to_join(
    broker: GroupBroker, member: TolerantCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(member, broker, 1)
    assert member.poll(timeout_ms=10_000)
    reader = Reader(_fetcher=SimpleNamespace(settle=lambda to: {}), _iterator=None)
    move = Move(Destination({}, {}, lambda topic: True), reader)
    knew: list[bool] = []
    monkeypatch.setattr(
        ConsumerCoordinator, "coordinator_dead", lambda *_: knew.append(member._move is None or member._is_reading_on)
    )
    member._is_polling = True  # since before the move
    member.moved(move)
    assert knew == [True] and member._is_reading_on
    move.settle()  # by the fetcher, which knew earlier
    assert member._ends_poll
    assert member.poll(timeout_ms=0) and not member._ends_poll


@pytest.mark.parametrize("others", [0, 1])
def test_a_join_that_ends_at_once_counts_if_nobody_else_joins_soon(
    broker: GroupBroker, member: TolerantCoordinator, others: int
) -> None:
    kept = TopicPartition("t", 0)
    knows(member, broker, 2)
    member._subscription.assign_from_subscribed([kept])
    member._subscription.seek(kept, 5)
    moves(member, moved_member.Stage.READS_ON)
    member._first_commit = Future().success(None)
    refusals = [REBALANCE_IN_PROGRESS] * others
    broker.heartbeat_error = lambda: refusals.pop() if refusals else 0
    began = time.monotonic()
    assert member.poll(timeout_ms=10_000)
    assert (assigned(member), broker.names().count("JoinGroup")) == ({0, 1}, 1 + others)
    assert member._subscription.position(kept).offset == 5
    assert time.monotonic() - began >= moved_member.LATEST_S


@pytest.mark.parametrize("gives_ids", [False, True])
def test_a_commit_that_is_refused_before_there_is_a_membership_does_not_end_the_join(
    broker: GroupBroker, member: TolerantCoordinator, gives_ids: bool
) -> None:
    broker.gives_ids = gives_ids
    knows(member, broker, 1)
    moves(member, moved_member.Stage.STOPPED)
    refused = SimpleNamespace(topics=[("t", [(0, UNKNOWN_MEMBER_ID)])])
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(5, "", -1)}

    def refuse() -> None:
        with pytest.raises(Errors.CommitFailedError):
            member._handle_offset_commit_response(offsets, time.monotonic(), refused)

    def while_joining(name: str, frame: bytes) -> list[bytes]:
        if name == "JoinGroup":
            refuse()
        return [frame]

    broker.spoil = while_joining
    join_between_polls(member)
    refuse()
    assert member.poll(timeout_ms=0) or member.poll(timeout_ms=10_000)
    joins = [request.member_id for request in broker.joins]
    assert (member.state, assigned(member), joins) == (MemberState.STABLE, {0}, ["", "member"][: 1 + gives_ids])


@pytest.mark.parametrize(
    ("stage", "error", "then"),
    [
        ("READS_ON", "CommitFailedError", "OUTSIDE"),
        ("STOPPED", "RebalanceInProgressError", "STOPPED"),
        ("INSIDE", "CommitFailedError", "INSIDE"),
    ],
)
def test_a_refused_commit_tells_that_others_have_joined_only_before_the_member_has_stopped(
    member: TolerantCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stage: str,
    error: str,
    then: str,
) -> None:
    async def refuse(*_: Any) -> None:
        raise Errors.CommitFailedError

    monkeypatch.setattr(ConsumerCoordinator, "_send_offset_commit_request", refuse)
    member._subscription.subscribe(topics=["t"])
    moves(member, moved_member.Stage[stage])
    with pytest.raises(getattr(Errors, error)):
        member._net.run(member._send_offset_commit_request, {})
    assert member._stage is moved_member.Stage[then]
    assert ("or this client's former membership until its session ends" in caplog.text) == (then == "OUTSIDE")


def test_a_member_reads_on_until_its_former_commits_are_made_and_joins_when_others_may_have_stopped(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    knows(member, broker, 1)
    moves(member, moved_member.Stage.READS_ON)
    member._first_commit = Future()
    assert member.poll(timeout_ms=1_000) and "JoinGroup" not in broker.names()
    member._first_commit.success(None)
    began = time.monotonic()
    while "JoinGroup" not in broker.names():
        member.poll(timeout_ms=50)
    assert time.monotonic() >= began + moved_member.LATEST_S


def test_a_close_waits_for_the_former_commits_no_longer_than_it_may(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    knows(member, broker, 1)
    moves(member, moved_member.Stage.READS_ON)
    member._first_commit = Future()  # of a coordinator that is away
    member._uncommitted = {TopicPartition("t", 0): OffsetAndMetadata(5, "", -1)}
    began = time.monotonic()
    member.close(timeout_ms=200)
    assert time.monotonic() < began + 0.2 + moved_member.LAST_COMMIT_MS / 2_000


def test_a_commit_waits_for_the_former_ones_no_longer_than_for_a_response(member: TolerantCoordinator) -> None:
    moves(member, moved_member.Stage.READS_ON)
    member.config["request_timeout_ms"] = 300
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(5, "", -1)}

    async def tries() -> None:
        while not member._first_commit.is_done:
            await member._net.sleep(0.1)
            tried, member._tried = member._tried, Future()
            tried.success(None)

    member._first_commit, ends = Future(), time.monotonic() + 0.3
    trying = member._manager.call_soon(tries)
    with pytest.raises(Errors.KafkaTimeoutError, match="took no commits for 300 ms"):
        member._net.run(member._send_offset_commit_request, offsets)
    assert time.monotonic() >= ends and not member._committing
    member._first_commit.success(None)
    until(member, lambda: trying.is_done)


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (Errors.CoordinatorLoadInProgressError, 3),
        (Errors.KafkaTimeoutError, 3),
        (Errors.GroupAuthorizationFailedError, 1),
        (Errors.UnknownTopicOrPartitionError, 1),
    ],
)
def test_the_former_commits_wait_for_a_coordinator_and_what_is_refused_is_committed_before_the_join(
    broker: GroupBroker, member: TolerantCoordinator, monkeypatch: pytest.MonkeyPatch, error: Any, tries: int
) -> None:
    tried: list[Any] = []
    refusals = [error(), error()]
    first, read = TopicPartition("t", 0), TopicPartition("t", 1)

    async def send(this: Any, offsets: Any) -> None:
        tried.append({tp.partition: offset.offset for tp, offset in offsets.items()})
        if refusals:
            raise refusals.pop()
        for tp in offsets:
            this._uncommitted.pop(tp, None)

    monkeypatch.setattr(ConsumerCoordinator, "_send_offset_commit_request", send)
    monkeypatch.setattr(moved_member, "_REFUSED_S", 0.0)
    knows(member, broker, 2)
    member._subscription.assign_from_subscribed([first, read])
    moves(member, moved_member.Stage.READS_ON)
    member._stops_at = (began := time.monotonic()) + moved_member.READS_ON_S
    member._uncommitted = {first: OffsetAndMetadata(50, "", -1)}
    member._committed = {read: OffsetAndMetadata(60, "", -1)}
    member._net.run(member._commit_first)
    assert tried == [{0: 50}] * tries and 0 < member._waits_s <= time.monotonic() - began
    refusals.clear()
    member._net.run(member._commit_last)
    assert tried[tries:] == [{0: 50}] * (tries == 1) + [{1: 60}] and not member._uncommitted


def test_what_its_group_has_committed_is_known_of_a_member_only(
    broker: GroupBroker, member: TolerantCoordinator, make: Callable[..., TolerantCoordinator]
) -> None:
    broker.committed = {("t", 0): (10, -1)}
    knows(member, broker, 2)
    assert member.poll(timeout_ms=10_000)
    assert member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    assert {tp.partition: offset.offset for tp, offset in member._last_commits().items()} == {0: 10}
    other = make(f"{broker.host}:{broker.port}", limit_ms=60_000)
    other._subscription.assign_from_user(PARTITIONS)
    assert other.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    assert not other._last_commits()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_member_that_came_too_late_commits_what_it_had_once_it_has_joined_unless_the_group_is_further_on(
    broker: GroupBroker, member: TolerantCoordinator, is_refused: bool
) -> None:
    first, second, third = (TopicPartition("t", number) for number in range(3))
    broker.committed = {("t", 0): (10, -1), ("t", 1): (60, -1)}
    broker.commit_error = GROUP_AUTHORIZATION_FAILED if is_refused else 0
    knows(member, broker, 3)
    moves(member, moved_member.Stage.OUTSIDE)
    elsewhere = TopicPartition("t", 3)  # which another member has got
    member._uncommitted = {tp: OffsetAndMetadata(50, "", -1) for tp in (first, second, third, elsewhere)}

    def begins() -> list[int | None]:
        assert member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
        positions = [member._subscription.position(tp) for tp in (first, second, third)]
        return [position and position.offset for position in positions]

    assert member.poll(timeout_ms=10_000)
    assert begins() == [50, 60, 50]
    member._subscription.assign_from_subscribed([])
    member._subscription.assign_from_subscribed([first, second, third])
    assert begins() == ([10, 60, None] if is_refused else [50, 60, 50])
    assert broker.committed.get(("t", 3)) == (None if is_refused else (50, -1))


def test_a_partition_of_which_nothing_is_committed_is_not_begun_while_its_former_owner_may_come(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    first, second = (TopicPartition("t", number) for number in range(2))
    broker.committed = {("t", 0): (10, -1)}
    knows(member, broker, 2)
    assert member.poll(timeout_ms=10_000)
    member._owners_until = time.monotonic() + 1.0
    assert not member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    assert member._subscription.position(first).offset == 10
    asked = broker.names().count("OffsetFetch")
    assert not member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    assert broker.names().count("OffsetFetch") == asked, "it asks again in a moment"
    until(member, lambda: time.monotonic() > member._owners_until)
    assert member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    assert member._subscription.position(second) is None  # auto_offset_reset decides


FIRST, SECOND = (TopicPartition("t", number) for number in range(2))


@pytest.mark.parametrize(
    ("former", "left_at", "before", "at_once", "at_last"),
    [
        ({FIRST: 50, SECOND: 60}, 0, 10, [None, 60], [50, 60]),
        (None, 20, 10, [None, 60], [10, 60]),
        (None, 20, None, [None, 60], [10, 60]),  # whether others have committed since is unknown
        ({FIRST: 50}, 20, 5, [10, 60], [10, 60]),  # others have committed since
        ({}, 20, 10, [10, 60], [10, 60]),
        (None, 0, 10, [10, 60], [10, 60]),
    ],
)
def test_what_the_group_had_committed_before_it_went_elsewhere_counts_only_if_its_owner_does_not_come(
    broker: GroupBroker,
    member: TolerantCoordinator,
    former: dict[TopicPartition, int] | None,
    left_at: int,
    before: int | None,
    at_once: list[int | None],
    at_last: list[int],
) -> None:
    broker.committed = {("t", 0): (10, -1), ("t", 1): (60, -1)}
    knows(member, broker, 2)
    assert member.poll(timeout_ms=10_000)
    ends = {FIRST: 100, SECOND: 100}
    member._to = Destination({}, ends, lambda topic: True, {FIRST: left_at}, lambda: former)
    member._before = None if before is None else {FIRST: OffsetAndMetadata(before, "", -1)}
    member._owners_until = time.monotonic() + 1.0

    def begins() -> list[int | None]:
        positions = [member._subscription.position(tp) for tp in (FIRST, SECOND)]
        return [position and position.offset for position in positions]

    assert member.refresh_committed_offsets_if_needed(timeout_ms=10_000) == (None not in at_once)
    assert begins() == at_once and member._last_commits().keys() == {tp for tp, at in zip(ends, at_once) if at}
    until(member, lambda: time.monotonic() > member._owners_until)
    assert member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    assert begins() == at_last
    assert broker.committed["t", 0][0] == at_last[0], "who comes later begins there, too"


def test_what_was_committed_elsewhere_says_nothing_of_a_topic_that_was_created_again_since(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    broker.committed = {("t", 0): (10, -1)}
    knows(member, broker, 2)
    assert member.poll(timeout_ms=10_000)
    former, asked = {FIRST: 50, SECOND: 60}, list[tuple[TopicPartition, str]]()

    def was_created_again(partition: TopicPartition, topic_id: str) -> bool:
        asked.append((partition, topic_id))
        return bool(topic_id)

    member._to = Destination(
        {}, {FIRST: 100, SECOND: 100}, lambda topic: True, former, lambda: former, was_created_again
    )
    member._before = {FIRST: OffsetAndMetadata(10, "", -1)}

    def begins() -> list[int | None]:
        assert member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
        positions = [member._subscription.position(tp) for tp in (FIRST, SECOND)]
        return [position and position.offset for position in positions]

    now = uuid.uuid4()
    member._cluster._topic_ids = {"t": now}
    assert begins() == [10, None]  # of the second one auto_offset_reset decides
    assert set(asked) == {(FIRST, str(now)), (SECOND, str(now))}
    member._subscription.assign_from_subscribed([])
    member._subscription.assign_from_subscribed([FIRST, SECOND])
    member._cluster._topic_ids = {"t": uuid.UUID(int=0)}  # a broker without ids
    assert begins() == [50, 60]


def test_one_that_is_made_beside_members_that_move_begins_as_one_of_them(
    broker: GroupBroker, member: TolerantCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.committed = {("t", 0): (10, -1), ("t", 2): (70, -1)}
    knows(member, broker, 3)
    monkeypatch.setattr(group_commits, "OWNERS_S", 60.0)
    partitions = [TopicPartition("t", number) for number in range(3)]
    former = dict(zip(partitions, [50, 60, 70]))
    reader = Reader()
    to = Destination({}, dict.fromkeys(partitions, 100), lambda topic: True, {}, lambda: former)
    began = time.monotonic()
    member.begins_beside_movers(Move(to, reader))
    assert member.poll(timeout_ms=10_000)
    assert time.monotonic() - began >= moved_member.READS_ON_S

    def begins() -> list[int | None]:
        positions = [member._subscription.position(tp) for tp in partitions]
        return [position and position.offset for position in positions]

    assert not member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    assert begins() == [None, None, 70]
    member._owners_until = 0.0  # nobody has come
    until(member, lambda: member.refresh_committed_offsets_if_needed(timeout_ms=10_000))
    assert begins() == [50, 60, 70] == [broker.committed["t", number][0] for number in range(3)]


def test_what_the_owner_of_a_partition_commits_meanwhile_counts_at_once(
    broker: GroupBroker, member: TolerantCoordinator
) -> None:
    broker.committed = {("t", 0): (10, -1)}
    knows(member, broker, 1)
    assert member.poll(timeout_ms=10_000)
    member._to = Destination({}, {FIRST: 100}, lambda topic: True, {}, lambda: {FIRST: 50})
    member._net.run(member._find_former)
    member._owners_until = time.monotonic() + 60.0
    assert not member.refresh_committed_offsets_if_needed(timeout_ms=10_000)
    broker.committed = {("t", 0): (30, -1)}  # where it has gone back to
    until(member, lambda: member.refresh_committed_offsets_if_needed(timeout_ms=10_000))
    assert member._subscription.position(FIRST).offset == 30


@pytest.mark.parametrize(("then", "at"), [(20, 20), (10, 5)], ids=["others have read on", "it has gone back"])
def test_a_member_that_keeps_a_partition_goes_on_after_what_others_have_committed_meanwhile(
    broker: GroupBroker, member: TolerantCoordinator, then: int, at: int
) -> None:
    kept = TopicPartition("t", 0)
    knows(member, broker, 1)
    member._subscription.assign_from_subscribed([kept])
    member._subscription.seek(kept, 5)
    member._committed = {kept: OffsetAndMetadata(10, "", -1)}
    moves(member, moved_member.Stage.STOPPED)

    def while_joining(name: str, frame: bytes) -> list[bytes]:
        if name == "JoinGroup":
            broker.committed = {("t", 0): (then, -1)}
        return [frame]

    broker.spoil = while_joining
    assert member.poll(timeout_ms=10_000)
    assert member._subscription.position(kept).offset == at


def test_a_forked_child_of_a_member_that_has_moved_commits_nothing_of_the_former_cluster(
    member: TolerantCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    async def send(_: Any, offsets: Any) -> None:
        sent.append({tp.partition: offset.offset for tp, offset in offsets.items()})

    monkeypatch.setattr(ConsumerCoordinator, "_send_offset_commit_request", send)
    tp = TopicPartition("t", 0)
    member._subscription.subscribe(topics=["t"])
    member._subscription.assign_from_subscribed([tp])
    member._subscription.seek(tp, 115)
    parent = Move(Destination({}, {tp: 100}, lambda topic: True), Reader())
    parent.is_settled, parent._read = True, {tp: 120}
    member.inherits(None)
    member.inherits(parent)
    for offsets in ({tp: OffsetAndMetadata(110, "", -1)}, member._subscription.all_consumed_offsets()):
        member._net.run(member._send_offset_commit_request, offsets)
    assert sent == [{0: 100}, {0: 115}]


@pytest.mark.parametrize(("is_settled", "committed"), [(False, 100), (True, 120)])
def test_until_positions_are_settled_nothing_is_committed_after_the_copies(
    member: TolerantCoordinator, is_settled: bool, committed: int
) -> None:
    tp, other = TopicPartition("t", 0), TopicPartition("u", 0)
    member._subscription.subscribe(topics=["t"])
    member._subscription.assign_from_subscribed([tp])
    member._subscription.seek(tp, 110)
    member._move = Move(Destination({}, {tp: 100}, lambda topic: topic == "t"), Reader())
    member._move.is_settled, member._move.may_have_read = is_settled, {tp, other}
    member._move._read = {tp: 110, other: 3}
    asked = {tp: OffsetAndMetadata(120, "m", 7), other: OffsetAndMetadata(3, "", 7)}
    assert member._as_copied(asked) == {tp: OffsetAndMetadata(committed, "m", -1)}
