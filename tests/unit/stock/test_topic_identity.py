"""Positions do not outlive the topic in which they were reached: the fetcher on kafka-python's own metadata and states."""

from __future__ import annotations

import types
import uuid
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import CompletedFetch
from kafka.consumer.subscription_state import SubscriptionState
from kafka.future import Future
from kafka.protocol.consumer import FetchResponse, OffsetResetStrategy
from kafka.protocol.metadata import MetadataResponse
from kafka.structs import OffsetAndMetadata, TopicPartition

from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.stock import topic_identity
from tolerant_client.stock.fetcher import TolerantFetcher
from tolerant_client.tracker.events import Event, OffsetOutOfRange, TopicRecreated

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
FORMER, NEW, NEWEST = (uuid.UUID(int=n) for n in (7, 8, 9))
NO_ID = uuid.UUID(int=0)
UNKNOWN_TOPIC, UNKNOWN_ID = 3, 100
SILENT = object()  # told by a broker that does not respond


class Rig:
    """A fetcher of A and B whose consumer has read up to offset 100 of both, in the topic FORMER."""

    def __init__(self, policy: str = "earliest", first_id: Any = FORMER) -> None:
        self.told: list[Event] = []
        self.cluster = ClusterMetadata()
        self.cluster.set_topics(["orders"])
        self.tells: dict[int, Any] = {}  # what the brokers tell that are asked for themselves
        self.asking: Any = None
        manager = SimpleNamespace(
            _net=SimpleNamespace(sleep=sleep), cluster=self.cluster, broker_version=(4, 2), call_soon=self.call_soon,
            connection_delay=lambda node_id: 0, recovery_event=lambda event, node_id: self.told.append(event),
            get_connection=lambda node_id: SimpleNamespace(send_request=lambda request: self.respond(node_id, request)),
            wait_for=wait_for,
        )  # fmt: skip
        self.subscriptions = SubscriptionState(policy)
        self.subscriptions.assign_from_user([A, B])
        client = SimpleNamespace(_manager=manager, throttle_delay=lambda node_id: 0)
        self.fetcher = TolerantFetcher(client, self.subscriptions)
        self.metadata(first_id)
        for tp in (A, B):
            self.subscriptions.seek(tp, 70)  # as a reset does
            self.fetcher._completed_fetches.append(fetched(tp, 70, batch(70)))
        assert len(self.poll()) == 60

    def call_soon(self, work: Any) -> None:
        self.asking = work()
        self.look()

    def look(self) -> None:
        """Has brokers asked until two of them agree, or until the next pause."""
        with suppress(StopIteration):
            self.asking.send(None)

    def respond(self, node_id: int, request: Any) -> Future:
        assert not request.allow_auto_topic_creation and [topic.name for topic in request.topics] == ["orders"]
        response, told = Future(), self.tells[node_id]
        if told is SILENT:
            return response
        return response.failure(told) if isinstance(told, Exception) else response.success(self.response(told))

    def metadata(self, topic_id: Any, cluster_id: str = "here", version: int = 12, tells: Any = None) -> None:
        """A Metadata response; brokers that are asked again tell `tells`, by default the same."""
        self.tells = dict.fromkeys((1, 2), topic_id) if tells is None else dict(enumerate(tells, 1))
        self.cluster.update_metadata(self.response(topic_id, cluster_id, version))

    def response(self, topic_id: Any, cluster_id: str = "here", version: int = 12) -> Any:
        """`topic_id` None: the topic is unknown."""
        topic = MetadataResponse.MetadataResponseTopic
        partitions = [
            topic.MetadataResponsePartition(
                error_code=0, partition_index=n, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
            )
            for n in range(2)
        ]
        brokers = [MetadataResponse.MetadataResponseBroker(n, "broker", 9092, None) for n in self.tells]
        error, parts = (UNKNOWN_TOPIC, []) if topic_id is None else (0, partitions)
        told = topic(
            error_code=error,
            name="orders",
            topic_id=topic_id or NO_ID,
            is_internal=False,
            partitions=parts,
            version=version,
        )
        response = MetadataResponse(
            brokers=brokers, cluster_id=cluster_id, controller_id=1, topics=[told], version=version
        )
        return MetadataResponse.decode(response.encode(version=version), version=version)

    def refuse(self, *partitions: TopicPartition) -> None:
        """The fetches in flight end as those of a deleted topic do."""
        self.fetcher._completed_fetches.extend(fetched(tp, 100, b"", UNKNOWN_TOPIC) for tp in partitions)
        assert self.poll() == []

    def poll(self) -> list[int]:
        return [record.offset for records in self.fetcher.fetched_records()[0].values() for record in records]

    def fetch_by_id(self, topic_id: Any, parts: dict[TopicPartition, bytes], meanwhile: Any = None) -> Any:
        """Sends the fetch that is due; a broker that has this topic responds, `meanwhile` after that.  Returns the request."""
        ((request, offsets),) = self.fetcher._create_fetch_requests().values()
        if meanwhile is not None:
            meanwhile()
        topics = []
        for asked in request.topics:
            found = [
                part_of(
                    part.partition,
                    parts.get(TopicPartition("orders", part.partition), b""),
                    0 if asked.topic_id == topic_id else UNKNOWN_ID,
                )
                for part in asked.partitions
            ]
            topics.append(FetchResponse.FetchableTopicResponse(topic_id=asked.topic_id, partitions=found))
        session = request.session_id or 5
        response = FetchResponse(
            throttle_time_ms=0, error_code=0, session_id=session, responses=topics, node_endpoints=[], version=13
        )
        self.fetcher._handle_fetch_response(1, offsets, 0.0, response)
        return request

    def recreated(self) -> set[tuple[int, int]]:
        return {(event.partition, event.offset) for event in self.told if isinstance(event, TopicRecreated)}

    def resets(self) -> set[TopicPartition]:
        return set(self.subscriptions.partitions_needing_reset())

    def asked(self) -> dict[int, int]:
        return {
            part.partition: part.fetch_offset
            for request, _ in self.fetcher._create_fetch_requests().values()
            for topic in request.topics
            for part in topic.partitions
        }


async def wait_for(future: Future, timeout_ms: float) -> Any:
    if not future.is_done:
        raise Errors.KafkaTimeoutError()
    return future.value


@types.coroutine
def sleep(seconds: float) -> Any:
    yield


def batch(first: int, count: int = 30) -> bytes:
    records = [Record(0, 1_700_000_000_000, None, b"%d" % n) for n in range(first, first + count)]
    return encode_batch(records, base_offset=first, partition_leader_epoch=0)


def fetched(tp: TopicPartition, offset: int, data: bytes, error_code: int = 0) -> CompletedFetch:
    part = SimpleNamespace(
        error_code=error_code, high_watermark=1_000, last_stable_offset=500, records=memoryview(data), aborted_transactions=None,
        diverging_epoch=None, preferred_read_replica=-1, current_leader=None,
    )  # fmt: skip
    return CompletedFetch(tp, offset, 12, part, None)


def part_of(index: int, data: bytes, error_code: int) -> Any:
    return FetchResponse.FetchableTopicResponse.PartitionData(
        partition_index=index, error_code=error_code, high_watermark=1_000, last_stable_offset=500, log_start_offset=0,
        aborted_transactions=None, records=b"" if error_code else data, preferred_read_replica=-1,
    )  # fmt: skip


def test_positions_of_a_deleted_topic_are_reset_and_what_is_buffered_is_dropped() -> None:
    rig = Rig()
    rig.metadata(FORMER)
    rig.fetcher._completed_fetches.append(fetched(A, 100, batch(100)))
    rig.metadata(NEW)
    assert rig.asked() == {}, "the event loop sends no fetch at the former positions"
    assert rig.resets() == set(), "positions move in the polling thread, which decodes meanwhile"
    assert rig.poll() == []
    assert rig.resets() == {A, B}
    assert rig.recreated() == {(0, 100), (1, 100)} and len(rig.told) == 2
    for tp in (A, B):
        rig.subscriptions.seek(tp, 0)
    rig.metadata(NEW)
    rig.metadata(FORMER, tells=[NEW, NEW])  # of a broker that is behind
    rig.metadata(NEW)
    assert rig.poll() == [] and rig.resets() == set() and rig.asked() == {0: 0, 1: 0}
    rig.metadata(NEWEST)
    rig.poll()
    assert rig.resets() == {A, B} and len(rig.told) == 4


def test_a_topic_that_its_leader_does_not_know_is_not_fetched_before_metadata_has_told_which_one_there_is() -> None:
    """No Metadata came since the positions were set; it comes on the event loop, before B's refusal is read."""
    rig = Rig()
    assert rig.asked() == {0: 100, 1: 100}
    rig.refuse(A)
    assert rig.asked() == {1: 100}, (
        "a broker that starts does not know its partitions yet: the others do not wait for it"
    )
    rig.metadata(NEW)
    rig.poll()
    assert rig.resets() == {A, B}


def test_another_id_is_believed_when_two_brokers_tell_it_and_what_is_buffered_rests_until_then() -> None:
    rig = Rig()
    rig.metadata(FORMER)
    rig.fetcher._completed_fetches.extend([fetched(A, 100, batch(100)), fetched(B, 100, batch(100))])
    assert [record.offset for record in rig.fetcher.fetched_records(10)[0][A]] == list(range(100, 110))
    rig.metadata(NEW, tells=[FORMER, NEW])
    for tells in ({1: FORMER, 2: NEW}, {1: None, 2: NEW}, {1: Errors.KafkaTimeoutError(), 2: NEW}, {1: SILENT, 2: NEW}):
        rig.tells.update(tells)
        rig.look()
        assert rig.poll() == [] and rig.asked() == {} and rig.resets() == set() and not rig.told
    rig.tells[1] = NEW
    rig.look()
    rig.poll()
    assert rig.resets() == {A, B} and rig.recreated() == {(0, 110), (1, 100)}


@pytest.mark.parametrize("policy", ["latest", "none"])
@pytest.mark.parametrize("is_behind_at_first", [True, False])
def test_a_broker_that_is_behind_resets_no_healthy_partition(policy: str, is_behind_at_first: bool) -> None:
    """The consumer was started after the topic was created again: it has seen the former id nowhere."""
    rig = Rig(policy, NEW)
    rig.metadata(NEW)
    for _ in range(3):
        rig.metadata(FORMER, tells=[FORMER, NEW] if is_behind_at_first else [NEW, NEW])
        if is_behind_at_first:
            assert rig.poll() == [] and rig.asked() == {}
            rig.metadata(FORMER, tells=[FORMER, NEW, NEW])
            while B in rig.fetcher._topic_ids:
                rig.look()
        assert rig.poll() == [] and rig.resets() == set() and rig.asked() == {0: 100, 1: 100} and not rig.told
    rig.metadata(NEW)
    rig.metadata(NEWEST)
    with suppress(Errors.OffsetOutOfRangeError):
        rig.poll()
    assert rig.recreated() == {(0, 100), (1, 100)}


def test_where_brokers_without_ids_or_a_missing_topic_come_in_between_nothing_is_proved() -> None:
    for tells in ([None, None], [NEW, NO_ID]):
        rig = Rig()
        rig.metadata(FORMER)
        rig.metadata(NEW, tells=tells)
        assert rig.poll() == [] and rig.resets() == set() and rig.asked() == {0: 100, 1: 100}
        rig.metadata(NEW)
        rig.poll()
        assert rig.resets() == {A, B}


def test_the_only_broker_is_believed() -> None:
    rig = Rig()
    rig.metadata(FORMER)
    rig.metadata(NEW, tells=[NEW])
    rig.poll()
    assert rig.resets() == {A, B}


def test_brokers_that_disagree_are_asked_until_two_agree_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    rig, now = Rig(), [100.0]
    monkeypatch.setattr(topic_identity.time, "monotonic", lambda: now[-1])
    rig.metadata(FORMER)
    rig.metadata(NEW, tells=[FORMER, NEW])
    for _ in range(3):
        now.append(now[-1] + 60.0)
        rig.look()
        assert rig.poll() == [] and rig.resets() == set() and rig.asked() == {}
    assert caplog.text.count("Brokers do not agree") == 1
    rig.tells[2] = SILENT  # it has contradicted
    now.append(now[-1] + 1.5)
    rig.look()
    assert rig.poll() == [] and rig.resets() == set() and rig.asked() == {}
    rig.tells.update({1: NEW, 2: NEW})
    rig.look()
    rig.poll()
    assert rig.resets() == {A, B}


@pytest.mark.parametrize("records", [True, False])
def test_a_position_where_records_have_come_belongs_to_the_topic_that_is_believed(records: bool) -> None:
    """Metadata may be minutes old: without this the position would count as set in the new topic, and pass over its records."""
    rig = Rig()
    rig.metadata(FORMER)
    rig.subscriptions.seek(A, 130)
    rig.fetcher._completed_fetches.append(fetched(A, 100, batch(100)))  # of before the seek
    rig.fetcher._completed_fetches.append(fetched(A, 130, batch(130) if records else b""))
    assert len(rig.poll()) == (30 if records else 0)
    rig.metadata(NEW)
    rig.poll()
    assert rig.resets() == ({A, B} if records else {B})


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_position_that_was_set_in_the_new_topic_stays_and_nothing_of_that_topic_comes_before_it_is_believed(
    policy: str,
) -> None:
    """Metadata may be minutes old.  By name the records would come now, and again once it has told the new id."""
    rig = Rig(policy)
    rig.metadata(FORMER)
    rig.subscriptions.seek(A, 40)
    request = rig.fetch_by_id(NEW, {A: batch(40)})
    assert request.topics[0].topic_id == FORMER and request._max_version == 13
    assert rig.poll() == [] and rig.cluster.need_update and rig.asked() == {}, "they wait for Metadata"
    rig.metadata(NEW)
    with suppress(Errors.OffsetOutOfRangeError):  # for B
        rig.poll()
    assert rig.resets() == ({B} if policy == "earliest" else set()) and rig.recreated() == {(1, 100)}
    rig.subscriptions.assign_from_user([A])
    request = rig.fetch_by_id(NEW, {A: batch(40)})
    assert request.topics[0].topic_id == NEW and request.session_epoch == 0, (
        "a session of the former id is not continued"
    )
    assert rig.poll() == list(range(40, 70))
    rig.metadata(NEW)
    assert rig.poll() == [] and rig.resets() == set()


def test_a_fetch_by_id_shows_that_a_position_belongs_to_the_topic_even_if_it_brings_nothing() -> None:
    rig = Rig("latest")
    rig.metadata(FORMER)
    for tp in (A, B):
        rig.subscriptions.seek(tp, 130)
    rig.fetch_by_id(FORMER, {})
    assert rig.poll() == []
    rig.metadata(NEW)
    rig.poll()
    assert rig.resets() == {A, B} and rig.recreated() == {(0, 130), (1, 130)}


def test_what_was_fetched_of_the_former_topic_is_dropped_once_another_one_is_believed() -> None:
    """Buffered at a position that was set, and so stays, also while paused; or still on its way."""
    rig = Rig()
    rig.metadata(FORMER)
    for tp in (A, B):
        rig.subscriptions.seek(tp, 0)
    rig.fetch_by_id(FORMER, {A: batch(0), B: batch(0)})
    rig.subscriptions.pause(B)
    assert rig.poll() == list(range(30)) and list(rig.fetcher._paused_completed_fetches) == [B]
    rig.metadata(NEW)
    rig.subscriptions.resume(B)
    assert rig.poll() == [] and rig.resets() == {A} and rig.cluster.need_update
    rig.metadata(NEW)
    for tp in (A, B):
        rig.subscriptions.seek(tp, 0)
    rig.fetch_by_id(NEW, {A: batch(0), B: batch(0)}, meanwhile=lambda: rig.metadata(NEWEST))
    assert rig.poll() == []
    rig.metadata(NEWEST)
    request = rig.fetch_by_id(NEWEST, {A: batch(0), B: batch(0)})
    assert {part.fetch_offset for part in request.topics[0].partitions} == {0}
    assert sorted(rig.poll() + rig.poll()) == sorted(2 * list(range(30)))


def test_no_partition_rests_without_metadata_having_been_asked_for() -> None:
    """What is dropped, or refused, is of a position that the consumer has left: it fetches at the next one at once."""
    rig = Rig()
    rig.metadata(FORMER)
    for first in (0, 30):  # the second is a fetch ahead, which stays buffered
        for tp in (A, B):
            rig.subscriptions.seek(tp, first)
        rig.fetch_by_id(FORMER, {A: batch(first), B: batch(first)})
        assert first or len(rig.poll() + rig.poll()) == 60
    rig.fetcher._topic_ids.fetched(A, 30, True)
    rig.fetcher._topic_ids.fetched(B, 30, True)
    rig.metadata(NEW)
    assert rig.poll() == [] and rig.resets() == {A, B}
    for tp in (A, B):
        rig.subscriptions.seek(tp, 0)  # what the resets do
    assert rig.asked() == {0: 0, 1: 0}
    away = Rig()
    away.metadata(FORMER)
    away.fetch_by_id(NEW, {}, meanwhile=lambda: away.subscriptions.assign_from_user([]))
    assert away.poll() == []
    away.subscriptions.assign_from_user([A, B])
    for tp in (A, B):
        away.subscriptions.seek(tp, 0)
    assert away.asked() == {0: 0, 1: 0}


def test_brokers_without_ids_are_asked_by_name_and_a_session_is_not_continued_in_the_other_way() -> None:
    rig = Rig(first_id=NO_ID)
    ((request, _),) = rig.fetcher._create_fetch_requests().values()
    assert request._max_version == 12 and request.topics[0].topic == "orders"
    rig.metadata(NEW)  # the last broker is upgraded
    request = rig.fetch_by_id(NEW, {A: batch(100)})
    assert request._max_version == 13 and request.session_epoch == 0
    assert len(rig.poll()) == 30
    rig.subscriptions.assign_from_user([B])
    rig.subscriptions.seek(B, 100)
    request = rig.fetch_by_id(NEW, {})
    assert request.session_epoch == 1 and [topic.topic_id for topic in request.forgotten_topics_data] == [NEW]


def test_a_broker_that_never_responds_keeps_no_topic_resting_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, now = Rig(), [100.0]
    monkeypatch.setattr(topic_identity.time, "monotonic", lambda: now[-1])
    rig.metadata(FORMER)
    rig.metadata(NEW, tells=[Errors.KafkaTimeoutError(), NEW])
    for later, is_believed in ((100.5, False), (101.5, True)):
        now.append(later)
        rig.look()
        rig.poll()
        assert rig.resets() == ({A, B} if is_believed else set())


@pytest.mark.parametrize("policy", ["latest", "none"])
def test_at_offset_0_nothing_was_read_so_the_first_record_is_next(policy: str, caplog: Any) -> None:
    rig = Rig(policy)
    rig.subscriptions.seek(A, 0)
    rig.metadata(FORMER)
    rig.metadata(NEW)
    if policy == "none":
        with pytest.raises(Errors.OffsetOutOfRangeError) as raised:
            rig.poll()
        assert raised.value.args == ({B: 100},)
    else:
        rig.poll()
        assert rig.subscriptions.assignment[B].reset_strategy == OffsetResetStrategy.EARLIEST, "all its records are new"
    assert rig.subscriptions.assignment[A].reset_strategy == OffsetResetStrategy.EARLIEST
    assert "the first record of the new one comes next" in caplog.text


@pytest.mark.parametrize("missing", [1, 3])
def test_a_topic_that_was_missing_for_a_while_is_another_one_if_its_id_is(missing: int) -> None:
    rig = Rig()
    for _ in range(missing):
        rig.metadata(None)
    rig.metadata(NEW)
    rig.poll()
    assert rig.resets() == {A, B}
    same = Rig()
    for _ in range(missing):
        same.metadata(None)
    same.metadata(FORMER)
    assert same.poll() == [] and same.resets() == set() and same.asked() == {0: 100, 1: 100}


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_position_that_an_interrupt_has_put_back_belongs_to_the_topic_in_which_it_was_reached(when: str) -> None:
    rig = Rig()
    rig.metadata(FORMER)

    def taken(*_: Any) -> Any:
        if when == "during":
            rig.metadata(NEW)
        raise KeyboardInterrupt

    rig.fetcher._completed_fetches.extend([fetched(A, 100, batch(100)), fetched(B, 100, batch(100))])
    with pytest.MonkeyPatch.context() as within:
        give_out = rig.fetcher._give_out
        within.setattr(
            rig.fetcher, "_give_out", lambda drained, part, *_: taken() if drained else give_out(drained, part, *_)
        )
        with pytest.raises(KeyboardInterrupt):
            rig.fetcher.fetch_records()
    rig.metadata(NEW)
    rig.poll()
    assert rig.resets() == {A, B} and {partition for partition, _ in rig.recreated()} == {0, 1}


@pytest.mark.parametrize("when", ["before", "missing", "told"])
def test_a_seek_wins(when: str) -> None:
    rig = Rig()
    rig.metadata(FORMER)
    if when == "missing":
        rig.metadata(None)
    if when == "told":
        rig.metadata(NEW)
    rig.subscriptions.seek(A, 5)
    if when == "missing":
        rig.metadata(None)
    rig.metadata(NEW)
    rig.metadata(NEW)
    rig.poll()
    assert rig.resets() == {B} and rig.asked() == {0: 5}


def test_without_a_reset_policy_every_poll_raises_until_a_seek() -> None:
    rig = Rig("none")
    rig.metadata(FORMER)
    rig.metadata(NEW)
    for _ in range(2):
        with pytest.raises(Errors.OffsetOutOfRangeError) as raised:
            rig.poll()
        assert raised.value.args == ({A: 100, B: 100},)
    rig.subscriptions.seek(A, 0)
    rig.subscriptions.assign_from_user([A])
    rig.fetcher._completed_fetches.append(fetched(A, 0, batch(0)))
    assert rig.poll() == list(range(30))
    assert len(rig.told) == 2


@pytest.mark.parametrize(("former", "now"), [(NO_ID, NO_ID), (NO_ID, NEW), (FORMER, NO_ID)])
def test_brokers_without_ids_prove_nothing(former: Any, now: Any) -> None:
    rig = Rig(first_id=former)
    rig.metadata(former)
    rig.metadata(now)
    assert rig.poll() == [] and rig.resets() == set() and not rig.told and rig.asked() == {0: 100, 1: 100}
    if former == NO_ID:
        rig.refuse(A)
        assert rig.asked() == {0: 100, 1: 100} or now == NEW


def test_another_cluster_under_the_same_addresses_proves_nothing() -> None:
    """A consumer that is moved to a copy with the same offsets reads on there."""
    rig = Rig()
    rig.metadata(FORMER)
    rig.metadata(NEW, cluster_id="there")
    assert rig.poll() == [] and rig.resets() == set() and rig.asked() == {0: 100, 1: 100}


def test_partitions_that_are_assigned_anew_belong_to_the_topic_that_is_there() -> None:
    rig = Rig()
    rig.metadata(FORMER)
    rig.subscriptions.assign_from_user([])
    rig.subscriptions.assign_from_user([A])
    rig.subscriptions.seek(A, OffsetAndMetadata(40, "", 0))  # its committed offset
    rig.metadata(NEW)
    rig.poll()
    assert rig.resets() == set() and rig.asked() == {0: 40}


def told_of_epoch(end: int, epoch: int = 0) -> Any:
    """Where the epoch of the position ends."""
    part = SimpleNamespace(partition=0, error_code=0, end_offset=end, leader_epoch=epoch)
    return SimpleNamespace(topics=[SimpleNamespace(topic="orders", partitions=[part])])


@pytest.mark.parametrize("policy", ["latest", "none"])
@pytest.mark.parametrize(("end", "epoch"), [(50, 0), (-1, -1)])
def test_a_truncation_is_told_and_is_no_seek(policy: str, end: int, epoch: int, caplog: Any) -> None:
    rig = Rig(policy)
    state = rig.subscriptions.assignment[A]
    position = state.position
    rig.subscriptions.request_position_validation(A)
    rig.fetcher._handle_offset_for_leader_epoch_response(told_of_epoch(150), {A: position})
    assert state.position.offset == 100 and not rig.told
    rig.subscriptions.request_position_validation(A)
    position = state.position
    assert not rig.fetcher._handle_offset_for_leader_epoch_response(told_of_epoch(end, epoch), {A: position})
    assert not rig.told and rig.resets() == set() and state.position is position, "one response proves nothing"
    rig.fetcher._handle_offset_for_leader_epoch_response(told_of_epoch(end - 1, epoch), {A: position})
    rig.fetcher._handle_offset_for_leader_epoch_response(told_of_epoch(end, epoch), {A: position})
    assert not rig.told and state.position is position, "nor do two that differ"
    truncations = rig.fetcher._handle_offset_for_leader_epoch_response(told_of_epoch(end, epoch), {A: position})
    assert rig.told == [OffsetOutOfRange("OffsetForLeaderEpoch", -1, "orders", 0, 100, -1, end, True)]
    assert (A in truncations) == (policy == "none")
    assert "orders-0: the log was truncated below position 100" in caplog.text or policy == "none"
    if policy == "latest" and end == 50:
        assert state.position.offset == 50
        rig.metadata(NEW)
        rig.poll()
        assert A in rig.resets(), "where two topics differ is no position in either"


def test_a_position_that_was_confirmed_is_told_by_nobody() -> None:
    rig = Rig()
    position = rig.subscriptions.position(A)
    rig.subscriptions.request_position_validation(A)
    response = told_of_epoch(150)
    assert rig.fetcher._handle_offset_for_leader_epoch_response(response, {A: position}) == {}
    assert not rig.told
