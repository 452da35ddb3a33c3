"""Fetch requests and responses against kafka-python's own classes, and the rules of fetch sessions (KIP-227)."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import READ_UNCOMMITTED
from tolerant_client.cluster.fetch import (
    FETCH_BY_ID_VERSION,
    MAX_FETCH_VERSION,
    MIN_FETCH_VERSION,
    FetchResult,
    RawFetch,
)
from tolerant_client.cluster.fetch_session import FetchSession
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames

BY_NAME = range(MIN_FETCH_VERSION, MAX_FETCH_VERSION + 1)
VERSIONS = [*BY_NAME, FETCH_BY_ID_VERSION]
IDS = {"a": uuid.UUID(int=2**127 + 5), "b-\u00fc": uuid.UUID(int=7), "c": uuid.UUID(int=9)}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-\u00fc", 0)


def frame(request: RawFetch, correlation_id: int = 7) -> bytes:
    return b"".join(request.frame_buffers(correlation_id, "me"))


def fetch(version: int, **options: Any) -> RawFetch:
    given: dict[str, Any] = {
        "positions": {A0: 5, B0: 2**40, A1: 0},
        "max_wait_ms": 250,
        "max_bytes": 1 << 24,
        "partition_max_bytes": 1 << 20,
    }
    if version == FETCH_BY_ID_VERSION:
        given["topic_ids"] = IDS
    return RawFetch(version, **{**given, **options})


def theirs(version: int, request: RawFetch) -> bytes:
    """The same request, encoded by kafka-python."""
    topics: dict[str, list[Any]] = {}
    for partition, offset in request.positions.items():
        topics.setdefault(partition.topic, []).append(
            FetchRequest.FetchTopic.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=-1,
                fetch_offset=offset,
                log_start_offset=-1,
                partition_max_bytes=request.partition_max_bytes,
            )
        )
    forgotten: dict[str, list[int]] = {}
    for partition in request.forgotten:
        forgotten.setdefault(partition.topic, []).append(partition.partition)
    encoded = FetchRequest[version](
        replica_id=-1,
        max_wait_ms=request.max_wait_ms,
        min_bytes=1,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            FetchRequest.FetchTopic(topic=name, topic_id=IDS[name], partitions=parts) for name, parts in topics.items()
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=name, topic_id=IDS[name], partitions=parts)
            for name, parts in forgotten.items()
        ],
        rack_id="",
    )
    encoded.with_header(correlation_id=7, client_id="me")
    return bytes(encoded.encode(framed=True, header=True))


def answer(
    version: int,
    *,
    error_code: int = 0,
    session_id: int = 0,
    partitions: dict[TopicPartition, Any] | None = None,
    log_start: int = 3,
) -> bytes:
    """A response's body, encoded by kafka-python."""
    topics: dict[str, list[Any]] = {}
    for partition, (code, records, aborted) in (partitions or {}).items():
        topics.setdefault(partition.topic, []).append(
            FetchResponse.FetchableTopicResponse.PartitionData(
                partition_index=partition.partition,
                error_code=code,
                high_watermark=100,
                last_stable_offset=90,
                log_start_offset=log_start,
                aborted_transactions=[
                    FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction(
                        producer_id=pid, first_offset=first
                    )
                    for pid, first in aborted
                ],
                preferred_read_replica=-1,
                records=records,
            )
        )
    response = FetchResponse[version](
        throttle_time_ms=12,
        error_code=error_code,
        session_id=session_id,
        responses=[
            FetchResponse.FetchableTopicResponse(topic=name, topic_id=IDS[name], partitions=parts)
            for name, parts in topics.items()
        ],
    )
    tags = b"\0" if version == FETCH_BY_ID_VERSION else b""  # of a flexible header, after its correlation id
    return tags + bytes(response.encode(header=False))


SOME = {A0: (0, b"records of a0", [(9, 4), (10, 5)]), A1: (1, b"", []), B0: (0, b"x" * 300, [])}


@pytest.mark.parametrize("version", VERSIONS[5:])
def test_a_last_stable_offset_in_the_batch_that_was_cut_at_the_log_start_is_that_start(version: int) -> None:
    for log_start, stable in ((3, 90), (95, 95)):
        found = fetch(version).decode_response(memoryview(answer(version, partitions=SOME, log_start=log_start)))
        assert [part.last_stable_offset for part in found.partitions] == [stable] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_request_bytes_are_those_of_kafka_python(version: int) -> None:
    request = fetch(version, isolation_level=1)
    assert frame(request) == theirs(version, request)


@pytest.mark.parametrize("version", VERSIONS[7:])
def test_session_request_bytes_are_those_of_kafka_python(version: int) -> None:
    request = fetch(version, positions={A1: 8}, session_id=77, session_epoch=3, forgotten=[A0, B0])
    assert frame(request) == theirs(version, request)


@pytest.mark.parametrize("version", VERSIONS)
def test_response_is_decoded_as_kafka_python_encodes_it(version: int) -> None:
    body = memoryview(bytearray(answer(version, session_id=5, partitions=SOME)))
    decoded = fetch(version).decode_response(body)
    assert decoded.throttle_time_ms == (12 if version >= 1 else 0)
    assert decoded.session_id == (5 if version >= 7 else 0)
    parts = {part.partition: part for part in decoded.partitions}
    assert list(parts) == [A0, A1, B0]
    assert parts[A0].aborted == (((9, 4), (10, 5)) if version >= 4 else ())
    # Before 0.11 there are no transactions, so that everything is stable.
    assert (parts[A0].high_watermark, parts[A0].last_stable_offset) == (100, 90 if version >= 4 else 100)
    assert parts[A0].log_start_offset == (3 if version >= 5 else -1)
    assert parts[A1].error_code == 1
    assert [bytes(part.records) for part in parts.values()] == [b"records of a0", b"", b"x" * 300]


@pytest.mark.parametrize("version", BY_NAME)
def test_broker_is_asked_by_its_own_names_and_answers_by_the_targets(version: int) -> None:
    names = TopicNames(DefaultReplicationPolicy(), "west")
    session = FetchSession(version, READ_UNCOMMITTED, names)
    for partition, offset in {A0: 5, B0: 2**40, A1: 0}.items():
        session.seek(partition._replace(topic=f"west.{partition.topic}"), offset)
    plain = FetchSession(version, READ_UNCOMMITTED)
    for partition, offset in {A0: 5, B0: 2**40, A1: 0}.items():
        plain.seek(partition, offset)
    sizes = {"max_wait_ms": 250, "max_bytes": 1 << 24, "partition_max_bytes": 1 << 20}
    asked = session.request(**sizes)
    assert frame(asked) == frame(plain.request(**sizes))
    assert session.answered(
        asked.decode_response(memoryview(bytearray(answer(version, session_id=5, partitions=SOME))))
    )
    session.forget(A0._replace(topic="west.a"))
    body = memoryview(bytearray(answer(version, partitions=SOME)))
    assert [part.partition for part in asked.decode_response(body).partitions] == [
        partition._replace(topic=f"west.{partition.topic}") for partition in SOME
    ]
    plain.answered(FetchResult(0, 5 if version >= 7 else 0, 0, []))
    plain.forget(A0)
    assert frame(session.request(**sizes)) == frame(plain.request(**sizes)), "what is forgotten has its own name, too"


def test_records_are_views_of_the_frame_and_may_be_stamped_in_place() -> None:
    buffer = bytearray(answer(11, partitions=SOME))
    part = fetch(11).decode_response(memoryview(buffer)).partitions[0]
    part.records[:7] = b"RECORDS"
    assert b"RECORDS of a0" in buffer


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_and_leftover_bytes_raise(version: int) -> None:
    body = answer(version, partitions=SOME)
    request = fetch(version)
    for length in range(len(body)):
        with pytest.raises((ValueError, struct.error)):
            request.decode_response(memoryview(body)[:length])
    with pytest.raises(ValueError, match="Fetch response has"):
        request.decode_response(memoryview(body + b"\0"))


@pytest.mark.parametrize("version", VERSIONS)
def test_response_that_names_a_partition_twice_is_refused(version: int) -> None:
    """One flipped bit in the second one's number: its records would move the first one's position."""
    body = answer(version, session_id=5, partitions={A0: (0, b"", []), A1: (77, b"", [])})
    changed = body.replace(struct.pack(">ih", 1, 77), struct.pack(">ih", 0, 77))
    assert len(fetch(version).decode_response(memoryview(body)).partitions) == 2
    with pytest.raises(ValueError, match="names a partition twice"):
        fetch(version).decode_response(memoryview(changed))


@given(st.binary(max_size=200), st.sampled_from(VERSIONS))
def test_hostile_bytes_raise_nothing_but_decoding_errors(body: bytes, version: int) -> None:
    try:
        fetch(version).decode_response(memoryview(body))
    except (ValueError, struct.error):
        pass


def test_negative_topic_name_length_cannot_lead_back_to_bytes_that_were_read() -> None:
    # A name of -6 bytes and no partitions end where they began, and would be read 2**31 times.
    body = struct.pack(">ihi", 0, 0, 0) + struct.pack(">i", 0x7FFFFFFF) + struct.pack(">hi", -6, 0)
    with pytest.raises(ValueError):
        fetch(11).decode_response(memoryview(body))


def test_only_a_request_outside_any_session_is_sent_again_as_it_stands() -> None:
    assert fetch(11).resend_safe
    assert not fetch(11, session_id=0, session_epoch=0).resend_safe
    assert not fetch(11, session_id=4, session_epoch=9).resend_safe


class Session:
    """A fetch session and the limits that do not matter here."""

    def __init__(self, version: int = 11) -> None:
        self.session = FetchSession(version, READ_UNCOMMITTED)

    def request(self) -> RawFetch:
        return self.session.request(max_wait_ms=1, max_bytes=2, partition_max_bytes=3)

    def answered(self, session_id: int = 9, error_code: int = 0) -> bool:
        return self.session.answered(FetchResult(error_code, session_id, 0, []))


@pytest.fixture
def opened() -> Session:
    """A session with A0 and B0 that the broker has opened as number 9."""
    session = Session()
    session.session.seek(A0, 1)
    session.session.seek(B0, 2)
    session.request()
    assert session.answered()
    return session


def test_first_request_of_a_session_is_full_and_asks_for_a_new_one() -> None:
    session = Session()
    session.session.seek(A0, 1)
    request = session.request()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert request.positions == {A0: 1}


def test_later_requests_carry_only_what_changed_and_the_epoch_moves_on(opened: Session) -> None:
    opened.session.seek(B0, 3)
    request = opened.request()
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert request.positions == {B0: 3}
    assert opened.answered()
    request = opened.request()
    assert (request.session_epoch, request.positions) == (2, {})
    assert opened.session.positions == {A0: 1, B0: 3}


def test_forgotten_partition_is_named_once(opened: Session) -> None:
    opened.session.forget(B0)
    opened.session.forget(A1)
    request = opened.request()
    assert request.forgotten == (B0,)
    assert opened.answered()
    assert opened.request().forgotten == ()
    assert opened.session.positions == {A0: 1}


def test_partition_forgotten_and_sought_again_is_not_in_both_lists(opened: Session) -> None:
    # A broker adds first and then removes: a partition in both lists would be gone.
    opened.session.forget(B0)
    opened.session.seek(B0, 7)
    request = opened.request()
    assert (request.positions, request.forgotten) == ({B0: 7}, ())
    opened.session.seek(B0, 8)
    opened.session.forget(B0)
    assert opened.answered()
    request = opened.request()
    assert (request.positions, request.forgotten) == ({}, (B0,))


@pytest.mark.parametrize("error_code", [70, 71])
def test_session_that_the_broker_does_not_know_is_opened_anew_with_all_partitions(
    opened: Session, error_code: int
) -> None:
    opened.session.seek(A0, 5)
    opened.session.forget(B0)
    opened.request()
    assert not opened.answered(error_code=error_code)
    opened.session.seek(A1, 6)
    request = opened.request()
    assert (request.session_epoch, request.forgotten) == (0, ())
    assert request.positions == {A0: 5, A1: 6}


def test_lost_request_starts_a_new_session_with_what_it_carried(opened: Session) -> None:
    opened.session.seek(A0, 5)
    opened.request()
    opened.session.failed()
    request = opened.request()
    assert (request.session_epoch, request.positions) == (0, {A0: 5, B0: 2})


def test_broker_without_room_for_sessions_gets_full_requests() -> None:
    session = Session()
    session.session.seek(A0, 1)
    for _ in range(3):
        request = session.request()
        assert (request.session_id, request.session_epoch, request.positions) == (0, 0, {A0: 1})
        assert session.answered(session_id=0)


def test_epoch_wraps_to_one_and_never_to_the_full_fetch_of_zero(opened: Session) -> None:
    opened.session._epoch = 0x7FFFFFFF
    assert opened.request().session_epoch == 0x7FFFFFFF
    assert opened.answered()
    assert opened.request().session_epoch == 1


def test_version_without_sessions_sends_all_positions_each_time() -> None:
    session = Session(6)
    session.session.seek(A0, 1)
    session.request()
    session.answered(session_id=0)
    request = session.request()
    assert request.positions == {A0: 1}
    assert request.resend_safe


def test_without_sessions_a_partition_whose_records_came_goes_behind_the_others() -> None:
    """A response has room for the first ones: each would wait until those before it had everything."""
    session = Session(6)
    session.session.seek(A0, 1)
    session.session.seek(B0, 2)
    assert list(session.request().positions) == [A0, B0]
    session.answered(session_id=0)
    session.session.seek(A0, 10)
    assert list(session.request().positions) == [B0, A0]


class ByIds(Session):
    """A session with a broker that knows topic ids; `ids` maps topic names to them."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = dict(IDS)
        self.session = FetchSession(11, READ_UNCOMMITTED, topic_id=self.ids.get)


def test_topics_are_asked_for_by_id_where_all_have_one() -> None:
    opened = ByIds()
    opened.session.seek(A0, 1)
    request = opened.request()
    assert request.API_VERSION == FETCH_BY_ID_VERSION and request.topic_ids == {"a": IDS["a"]}
    opened.answered()
    opened.session.seek(B0, 2)
    later = opened.request()
    assert later.topic_ids
    assert (later.session_epoch, later.positions) == (1, {B0: 2})
    assert later.topic_ids == {name: IDS[name] for name in ("a", "b-\u00fc")}, (
        "the answer may speak of all of the session"
    )
    assert request.topic_ids == {"a": IDS["a"]}, "a request that is on its way stays as it is"


def test_topic_without_an_id_makes_the_whole_session_go_by_names() -> None:
    opened = ByIds()
    del opened.ids["b-\u00fc"]
    opened.session.seek(A0, 1)
    opened.session.seek(B0, 2)
    assert not opened.request().topic_ids
    opened.answered()
    opened.session.seek(A0, 3)
    request = opened.request()
    assert not request.topic_ids
    assert (request.session_epoch, request.positions) == (1, {A0: 3})
    opened.ids["b-\u00fc"] = IDS["b-\u00fc"]
    opened.session.failed()
    assert opened.request().topic_ids, "the next session sees that all have one"


def test_position_in_a_topic_that_was_made_anew_is_not_taken_for_one_in_the_new_topic() -> None:
    for loses_connection in (False, True):
        opened = ByIds()
        opened.session.seek(A0, 5)
        opened.session.seek(B0, 2)
        opened.request()
        opened.answered()
        assert opened.session.created_again() == []
        opened.ids["a"] = IDS["c"]
        if loses_connection:
            opened.session.failed()
        assert opened.session.created_again() == [A0]
        request = opened.request()
        assert request.topic_ids
        assert (request.session_epoch, request.positions, request.topic_ids) == (
            0,
            {B0: 2},
            {"b-\u00fc": IDS["b-\u00fc"]},
        )
        assert opened.session.created_again() == []


def test_partition_that_leaves_before_the_broker_was_told_of_its_topic() -> None:
    opened = ByIds()
    opened.session.seek(A0, 5)
    opened.request()
    opened.answered()
    opened.session.seek(B0, 2)
    opened.session.forget(B0)
    request = opened.request()
    assert (request.positions, request.forgotten) == ({}, ())
    assert frame(request)


def test_node_that_knows_no_ids_is_asked_by_names_from_then_on() -> None:
    opened = ByIds()
    opened.session.seek(A0, 5)
    assert opened.request().topic_ids
    opened.session.go_by_names()
    request = opened.request()
    assert not request.topic_ids
    assert (request.API_VERSION, request.session_epoch, request.positions) == (11, 0, {A0: 5})


def test_topic_made_anew_begins_a_new_session() -> None:
    opened = ByIds()
    opened.session.seek(A0, 5)
    opened.session.seek(B0, 2)
    opened.request()
    opened.answered()
    opened.ids["a"] = IDS["c"]
    opened.session.seek(A0, 0)
    request = opened.request()
    assert request.topic_ids
    assert (request.session_epoch, request.positions, request.topic_ids["a"]) == (0, {A0: 0, B0: 2}, IDS["c"])


def test_topic_that_the_metadata_has_lost_keeps_the_id_it_had_in_the_session() -> None:
    opened = ByIds()
    opened.session.seek(A0, 5)
    opened.session.seek(B0, 2)
    opened.request()
    opened.answered()
    del opened.ids["a"]
    opened.session.seek(A0, 6)
    opened.session.forget(B0)
    request = opened.request()
    assert request.topic_ids
    assert (request.session_epoch, request.positions, request.forgotten) == (1, {A0: 6}, (B0,))


def test_response_with_a_topic_id_that_was_not_asked_for_is_another_requests() -> None:
    body = answer(FETCH_BY_ID_VERSION, partitions=SOME)
    with pytest.raises(ValueError, match="not of its session"):
        fetch(FETCH_BY_ID_VERSION, topic_ids={"c": IDS["c"]}).decode_response(memoryview(body))
