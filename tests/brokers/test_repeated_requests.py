"""What a broker answers to the same request bytes sent twice on one connection: records, groups, transactions.

Each test names its row of api_rows.py, so that a row and the broker cannot part;
where a row yields to newer requests, it also shows what a repeat behind one does.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DeleteRecordsRequest
from kafka.protocol.consumer import FetchRequest, LeaveGroupRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

from support.repeats import (
    PATIENCE,
    TIMEOUT_MS,
    Wire,
    assert_same,
    batch,
    code_of,
    codes_of,
    commit,
    committed,
    delete_offsets,
    error,
    find_coordinator,
    heartbeat,
    init,
    join,
    log_end,
    new,
    partition_code,
    produce,
    produced,
    sync,
)
from tolerant_client.tracker.rules import api_rows as rows

# -- records ------------------------------------------------------------------


def test_repeated_idempotent_batch_is_answered_with_its_offset_and_refused_when_it_is_old(
    wire: Wire, topic: str
) -> None:
    producer_id = wire.ready(lambda: init(None), error).producer_id
    first = produce(topic, batch(producer_id, 0, 0))
    answers = wire.twice(rows.PRODUCE_IDEMPOTENT, first, 9)
    assert produced(answers[0])[0] == 0
    assert produced(answers[0]) == produced(answers[1])
    for sequence in range(1, 5):
        assert produced(wire.ask(produce(topic, batch(producer_id, 0, sequence)), 9))[0] == 0
    assert produced(wire.ask(first, 9)) == produced(answers[0])
    wire.ask(produce(topic, batch(producer_id, 0, 5)), 9)
    assert produced(wire.ask(first, 9))[0] == code_of(rows.PRODUCE_IDEMPOTENT) == 45


def test_repeated_plain_batch_is_appended_again(wire: Wire, topic: str) -> None:
    first, second = map(produced, wire.twice(rows.PRODUCE_PLAIN, produce(topic, batch()), 9))
    assert second == (0, first[1] + 1)


def fetch(topic: str, session_id: int, epoch: int) -> Any:
    kind = FetchRequest.FetchTopic
    partition = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=10_000,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[kind(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )


def test_repeated_fetch_outside_a_session_is_answered_alike(wire: Wire, topic: str) -> None:
    wire.ask(produce(topic, batch()), 9)
    first, second = wire.twice(rows.FETCH_ALONE, fetch(topic, 0, -1), 11)
    assert_same(rows.FETCH_ALONE, (first, second))
    assert len(first.responses[0].partitions[0].records) > 0


def test_repeated_fetch_in_a_session_is_refused_and_one_that_opens_it_opens_another(wire: Wire, topic: str) -> None:
    first, second = wire.twice(rows.FETCH_IN_SESSION, fetch(topic, 0, 0), 11)
    assert 0 not in {first.session_id, second.session_id}
    assert first.session_id != second.session_id
    answers = wire.twice(rows.FETCH_IN_SESSION, fetch(topic, first.session_id, 1), 11)
    assert [error(answer) for answer in answers] == [0, code_of(rows.FETCH_IN_SESSION)]


def test_repeated_delete_of_records_ends_where_it_did_unless_it_means_the_end(wire: Wire, topic: str) -> None:
    def delete(offset: int) -> Any:
        return DeleteRecordsRequest(topics=[(topic, [(0, offset)])], timeout_ms=TIMEOUT_MS)

    wire.ask(produce(topic, batch()), 9)
    assert_same(rows.RECORDS_DELETE_TO_OFFSET, wire.twice(rows.RECORDS_DELETE_TO_OFFSET, delete(1)))
    first = wire.twice(rows.RECORDS_DELETE_TO_END, delete(-1))[1].topics[0].partitions[0]
    wire.ask(produce(topic, batch()), 9)
    again = wire.ask(delete(-1)).topics[0].partitions[0]
    assert "higher low_watermark" in rows.RECORDS_DELETE_TO_END.repeat_shows
    assert (again.error_code, again.low_watermark) == (0, first.low_watermark + 1)


def test_repeated_marker_takes_another_offset(wire: Wire, topic: str) -> None:
    kind = WriteTxnMarkersRequest.WritableTxnMarker
    marker = kind(
        producer_id=1 << 40,
        producer_epoch=0,
        transaction_result=False,
        topics=[kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        coordinator_epoch=-1,
    )
    before = log_end(wire, topic)
    answers = wire.twice(rows.MARKERS, WriteTxnMarkersRequest(markers=[marker]), 1)
    assert_same(rows.MARKERS, answers)
    assert log_end(wire, topic) == before + 2


# -- groups -------------------------------------------------------------------


@pytest.fixture
def member(wire: Wire, group: str) -> tuple[str, int]:
    """The only member of the stable group, and its generation."""
    member_id = wire.ask(join(group), 7).member_id
    generation = wire.ask(join(group, member_id), 7).generation_id
    assert error(wire.ask(sync(group, generation, member_id), 5)) == 0
    return member_id, generation


def test_repeated_commit_writes_the_same_and_rewinds_a_newer_one(wire: Wire, group: str, topic: str) -> None:
    assert_same(rows.COMMIT, wire.twice(rows.COMMIT, commit(group, topic, 5), 8))
    assert committed(wire, group) == 5
    wire.ask(commit(group, topic, 9), 8)
    wire.ask(commit(group, topic, 5), 8)
    assert rows.COMMIT.yields_to_newer and committed(wire, group) == 5


def test_repeated_commit_of_an_old_generation_is_refused(
    wire: Wire, group: str, member: tuple[str, int], topic: str
) -> None:
    member_id, generation = member
    request = commit(group, topic, 7, generation, member_id)
    assert_same(rows.COMMIT, wire.twice(rows.COMMIT, request, 8))
    wire.ask(join(group, member_id), 7)
    assert partition_code(wire.ask(request, 8)) in (22, 27)
    assert partition_code(wire.ask(commit(group, topic, 7, generation, "nobody"), 8)) == 25


def test_repeated_delete_of_offsets_may_miss_the_group_and_deletes_a_newer_commit(
    wire: Wire, group: str, topic: str
) -> None:
    first, second = wire.twice(rows.COMMIT_DELETE, delete_offsets(group, topic))
    assert partition_code(first) == 0
    if error(second) != code_of(rows.COMMIT_DELETE):  # Kafka 3 drops a group with its last offset
        assert_same(rows.COMMIT_DELETE, (first, second))
    wire.ask(commit(group, topic, 9), 8)
    wire.ask(delete_offsets(group, topic))
    assert committed(wire, group) == -1


def test_repeated_join_without_member_id_is_given_another_id(wire: Wire, group: str) -> None:
    first, second = wire.twice(rows.JOIN_NEW, join(group), 7)
    assert error(first) == error(second) == code_of(rows.JOIN_NEW) == 79
    assert first.member_id != second.member_id


def test_repeated_join_with_a_member_id_is_answered_with_the_same_generation(wire: Wire, group: str) -> None:
    member_id = wire.ask(join(group), 7).member_id
    first, second = wire.twice(rows.JOIN_KNOWN, join(group, member_id), 7)
    assert error(first) == 0 and first == second
    wire.ask(sync(group, first.generation_id, member_id), 5)
    assert wire.ask(join(group, member_id), 7).generation_id == first.generation_id + 1


def test_repeated_join_of_a_static_member_takes_its_place_under_another_id(wire: Wire, group: str) -> None:
    first, second = wire.twice(rows.JOIN_STATIC, join(group, instance="one"), 7)
    assert (error(first), error(second)) == (0, 0)
    assert second.generation_id == first.generation_id + 1
    assert [m.member_id for m in second.members] == [second.member_id] != [first.member_id]


def test_repeated_old_join_without_member_id_adds_a_member_and_waits_for_the_first(wire: Wire, group: str) -> None:
    start = time.monotonic()
    first, second = wire.twice(rows.JOIN_GHOST, join(group, rebalance_ms=1_000), 3)
    assert time.monotonic() - start >= 0.5
    assert (error(first), error(second)) == (0, 0)
    assert first.member_id not in [member.member_id for member in second.members]


def test_repeated_sync_is_given_the_same_assignment(wire: Wire, group: str) -> None:
    member_id = wire.ask(join(group), 7).member_id
    generation = wire.ask(join(group, member_id), 7).generation_id
    first, second = wire.twice(rows.SYNC, sync(group, generation, member_id), 5)
    assert first == second and (error(first), bytes(first.assignment)) == (0, b"mine")
    wire.ask(join(group, member_id), 7)
    assert error(wire.ask(sync(group, generation, member_id), 5)) == 22


def test_repeated_heartbeat_says_the_same_until_the_next_generation(
    wire: Wire, group: str, member: tuple[str, int]
) -> None:
    member_id, generation = member
    assert_same(rows.BEAT, wire.twice(rows.BEAT, heartbeat(group, generation, member_id), 4))
    newer = wire.ask(join(group, member_id), 7).generation_id
    wire.ask(sync(group, newer, member_id), 5)
    assert rows.BEAT.yields_to_newer and error(wire.ask(heartbeat(group, generation, member_id), 4)) == 22


def test_repeated_leave_says_that_the_member_is_gone(wire: Wire, group: str, member: tuple[str, int]) -> None:
    leaving = LeaveGroupRequest.MemberIdentity(member_id=member[0], group_instance_id=None, reason="test")
    first, second = wire.twice(rows.LEAVE, LeaveGroupRequest(group_id=group, members=[leaving]), 5)
    assert (error(first), error(second)) == (0, 0)
    assert [a.members[0].error_code for a in (first, second)] == [0, code_of(rows.LEAVE)]


def test_static_member_that_is_removed_by_its_instance_is_named_as_it_was_asked_for(wire: Wire, group: str) -> None:
    wire.ask(join(group, instance="one"), 7)
    leaving = LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="one", reason="test")
    (gone,) = wire.ask(LeaveGroupRequest(group_id=group, members=[leaving]), 5).members
    assert (gone.group_instance_id, gone.error_code) == ("one", 0)


def test_repeated_delete_of_a_group_says_that_it_was_not_there(wire: Wire, group: str) -> None:
    answers = wire.twice(rows.GROUP_DELETE, DeleteGroupsRequest(groups_names=[group]))
    assert [a.results[0].error_code for a in answers] == [0, code_of(rows.GROUP_DELETE)]


# -- transactions -------------------------------------------------------------


@pytest.fixture
def transaction(wire: Wire) -> tuple[str, int, int]:
    """transactional.id, producer id and epoch of a producer that may begin."""
    name = new("transactional")
    find_coordinator(wire, 1, name)
    answer = wire.ready(lambda: init(name), error, 4)
    assert error(answer) == 0
    return name, answer.producer_id, answer.producer_epoch


def add_partition(transaction: tuple[str, int, int], topic: str) -> Any:
    name, producer_id, epoch = transaction
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )


def added(answer: Any) -> int:
    return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def end(transaction: tuple[str, int, int], is_committed: bool = True) -> Any:
    name, producer_id, epoch = transaction
    return EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=is_committed)


def begin(wire: Wire, transaction: tuple[str, int, int], topic: str) -> None:
    assert added(wire.ready(lambda: add_partition(transaction, topic), added, 3)) == 0


def test_repeated_init_without_transactional_id_gives_another_producer_id(wire: Wire) -> None:
    wire.ready(lambda: init(None), error, 4)
    first, second = wire.twice(rows.INIT_IDEMPOTENT, init(None), 4)
    assert (error(first), error(second)) == (0, 0)
    assert first.producer_id != second.producer_id


def test_repeated_init_takes_the_next_epoch_and_with_producer_id_and_epoch_the_same(
    wire: Wire, transaction: tuple[str, int, int], topic: str
) -> None:
    name, producer_id, epoch = transaction
    answers = wire.twice(rows.INIT_NEXT_EPOCH, init(name), 4)
    assert [(error(a), a.producer_id, a.producer_epoch) for a in answers] == [
        (0, producer_id, epoch + 1),
        (0, producer_id, epoch + 2),
    ]
    answers = wire.twice(rows.INIT_SAME_EPOCH, init(name, producer_id, epoch + 2), 4)
    assert [(error(a), a.producer_id, a.producer_epoch) for a in answers] == [(0, producer_id, epoch + 3)] * 2
    begin(wire, (name, producer_id, epoch + 3), topic)
    assert error(wire.ask(init(name), 4)) == code_of(rows.INIT_NEXT_EPOCH) == 51


def test_repeated_requests_within_a_transaction_change_nothing(
    wire: Wire, transaction: tuple[str, int, int], group: str, topic: str
) -> None:
    name, producer_id, epoch = transaction
    assert_same(rows.TXN_ADD, wire.twice(rows.TXN_ADD, add_partition(transaction, topic), 3))
    records = batch(producer_id, epoch, 0, is_transactional=True)
    first, second = wire.twice(rows.PRODUCE_IDEMPOTENT, produce(topic, records, name), 9)
    assert produced(first)[0] == 0 and produced(first) == produced(second)
    offsets = AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )
    assert_same(rows.TXN_ADD, wire.twice(rows.TXN_ADD, offsets, 3))
    kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = kind.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=77, committed_leader_epoch=-1, committed_metadata=""
    )
    pending = TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[kind(name=topic, partitions=[partition])],
    )
    answers = wire.twice(rows.TXN_COMMIT, pending, 3)
    assert_same(rows.TXN_COMMIT, answers)
    assert partition_code(answers[0]) == 0
    assert error(wire.ask(end(transaction), 3)) == 0
    deadline = time.monotonic() + PATIENCE
    while committed(wire, group) != 77 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert committed(wire, group) == 77


def test_repeated_end_has_the_same_outcome_and_the_opposite_one_is_refused(
    wire: Wire, transaction: tuple[str, int, int], topic: str
) -> None:
    concurrent, opposite = codes_of(rows.END_BLIND)
    assert (concurrent, opposite) == (51, 48)
    begin(wire, transaction, topic)
    first, second = wire.twice(rows.END_BLIND, end(transaction), 3)
    assert error(first) == 0 and error(second) in (0, concurrent)
    assert error(wire.ready(lambda: end(transaction), error, 3)) == 0
    assert error(wire.ask(end(transaction, is_committed=False), 3)) == opposite


def test_repeats_behind_the_end_of_a_transaction_begin_and_end_the_next_one(
    wire: Wire, transaction: tuple[str, int, int], topic: str
) -> None:
    begin(wire, transaction, topic)
    assert error(wire.ask(end(transaction), 3)) == 0
    begin(wire, transaction, topic)  # the repeat of an old AddPartitionsToTxn is not told from a new one
    assert error(wire.ask(end(transaction, is_committed=False), 3)) == 0
    begin(wire, transaction, topic)
    assert error(wire.ask(end(transaction), 3)) == 0  # nor is the repeat of an old EndTxn
    assert rows.TXN_ADD.yields_to_newer and rows.TXN_COMMIT.yields_to_newer and rows.END_BLIND.yields_to_newer


def test_repeated_end_that_bumps_is_answered_with_its_epoch_and_fenced_by_the_next_transaction(
    wire: Wire, transaction: tuple[str, int, int], topic: str
) -> None:
    name, producer_id, epoch = transaction
    concurrent, opposite, fenced = codes_of(rows.END_KNOWN)
    assert (concurrent, opposite, fenced) == (51, 48, 90)
    assert produced(wire.ask(produce(topic, batch(producer_id, epoch, 0, is_transactional=True), name), 12))[0] == 0
    first, second = wire.twice(rows.END_KNOWN, end(transaction), 5)
    assert (error(first), first.producer_epoch) == (0, epoch + 1)
    assert error(second) in (0, concurrent)
    again = wire.ready(lambda: end(transaction), error, 5)
    assert (error(again), again.producer_epoch) == (0, epoch + 1)
    assert error(wire.ask(end(transaction, is_committed=False), 5)) == opposite
    records = batch(producer_id, epoch + 1, 0, is_transactional=True)
    assert produced(wire.ask(produce(topic, records, name), 12))[0] == 0
    assert error(wire.ask(end(transaction), 5)) == fenced
