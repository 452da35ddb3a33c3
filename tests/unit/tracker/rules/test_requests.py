"""kafka-python's requests as the tracker sees them: exact decoding, and whose response it is on the hot path."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, OffsetCommitRequest

from support.messages import answer, asked, batch, fetch, produce, tp
from tolerant_client.tracker.rules.apis import OtherSubject
from tolerant_client.tracker.rules.requests import with_correlation_id

ID = uuid.UUID(int=5)
PARTS = [{"partition_index": 0, "error_code": 0, "aborted_transactions": None}] * 2


def produced(*topics: str) -> list[dict[str, Any]]:
    return [{"name": t, "partition_responses": [{"index": 0, "error_code": 0, "base_offset": 1}]} for t in topics]


def test_produce_response_names_exactly_what_was_produced() -> None:
    request = produce(a=batch(5), b=batch(5))
    request.frame_buffers(1, "test")
    assert request.decode_response(answer("Produce", 9, responses=produced("b", "a"))) is not None
    for topics in (["a"], ["a", "c"], [], ["a", "b", "c"], ["a", "a"], ["a", "b", "a"]):
        with pytest.raises(OtherSubject, match="Produce response names something else") as raised:
            request.decode_response(answer("Produce", 9, responses=produced(*topics)))
        assert raised.value.names == {(topic, 0) for topic in topics}
        assert raised.value.response is None, "kafka-python leaves a batch in flight that is not named"


def fetched(session_id: int, *partitions: int, error_code: int = 0, topic: str = "a") -> memoryview:
    parts = [{"partition_index": p, "error_code": 0, "aborted_transactions": None} for p in partitions]
    responses = [{"topic": topic, "partitions": parts}] if partitions else []
    return answer("Fetch", 11, session_id=session_id, error_code=error_code, responses=responses)


@pytest.mark.parametrize("epoch", [-1, 0])
def test_response_to_a_full_fetch_names_some_of_its_partitions(epoch: int) -> None:
    request = fetch(11, 0, epoch)
    request.frame_buffers(1, "test")
    for own in (fetched(9, 0, 1), fetched(0, 1), fetched(0)):
        assert request.decode_response(own) is not None
    for foreign in (fetched(0, 2), fetched(0, 0, topic="b")):
        with pytest.raises(ValueError, match="Fetch response names something else"):
            request.decode_response(foreign)


def test_response_to_a_fetch_in_a_session_is_of_that_session_or_of_none() -> None:
    request = fetch(11, 9, 4)
    request.frame_buffers(1, "test")
    # The session holds partitions that this request does not name.
    for own in (fetched(9, 5), fetched(9), fetched(0, error_code=71), fetched(0, 0)):
        assert request.decode_response(own) is not None
    with pytest.raises(ValueError, match="Fetch response names something else"):
        request.decode_response(fetched(8, 0))


@pytest.mark.parametrize(("session_id", "epoch"), [(0, -1), (0, 0), (9, 4)])
def test_response_to_a_fetch_names_a_partition_once(session_id: int, epoch: int) -> None:
    request = fetch(11, session_id, epoch)
    request.frame_buffers(1, "test")
    assert request.decode_response(fetched(session_id, 0, 1)) is not None
    with pytest.raises(OtherSubject, match="Fetch response names something else") as raised:
        request.decode_response(fetched(session_id, 0, 0))
    assert raised.value.response is None, "one partition's records would move another one's position"


def test_response_to_a_fetch_by_id_names_a_partition_once() -> None:
    request = fetch(13, 9, 4)
    request.frame_buffers(1, "test")
    once, twice = (
        answer("Fetch", 13, session_id=9, responses=[{"topic_id": ID, "partitions": parts}])
        for parts in (PARTS[:1], PARTS)
    )
    assert request.decode_response(once) is not None
    with pytest.raises(OtherSubject, match="something else") as raised:
        request.decode_response(twice)
    assert raised.value.response is None


@pytest.mark.parametrize(("api", "version"), [("Heartbeat", 4), ("OffsetCommit", 8), ("ListGroups", 4)])
def test_response_with_a_byte_left_over_is_refused(api: str, version: int) -> None:
    request = asked(api, version, topics=[]) if api == "OffsetCommit" else asked(api, version)
    request.frame_buffers(1, "test")
    body = bytes(answer(api, version))
    assert request.decode_response(memoryview(body)) is not None
    with pytest.raises(ValueError, match=f"{api} response has {len(body) + 1} bytes, its fields {len(body)}"):
        request.decode_response(memoryview(body + b"\0"))


@pytest.mark.parametrize(("version", "keys"), [(0, 200_000), (3, 200_000), (0, 65_536), (3, 65_536)])
def test_a_response_before_the_login_that_no_broker_can_mean_is_not_decoded(version: int, keys: int) -> None:
    request = asked("ApiVersions", version)
    request.frame_buffers(1, "test")
    key = {"api_key": 3, "min_version": 0, "max_version": 9}
    body = answer("ApiVersions", version, error_code=0, api_keys=[key] * keys, throttle_time_ms=0)
    with pytest.raises(ValueError, match="nobody has proved who sends it") if keys > 65_536 else nullcontext():
        request.decode_response(body)


def test_requests_made_of_plain_tuples_are_read_like_objects() -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(partition_index=3)
    tuples = asked("OffsetCommit", 8, group_id="g", topics=[("a", [partition])])
    objects = asked("OffsetCommit", 8, group_id="g", topics=[tp("a", 3)])
    for request in (tuples, objects):
        request._request.with_header(correlation_id=1, client_id="test")
        assert request.decode_response(answer("OffsetCommit", 8, topics=[tp("a", 3, error_code=0)])) is not None
    partitions = FetchRequest.FetchTopic.FetchPartition(partition=0)
    fetch_of_tuples = asked("Fetch", 11, session_epoch=-1, topics=[("a", [partitions])])
    fetch_of_tuples._request.with_header(correlation_id=1, client_id="test")
    with pytest.raises(ValueError, match="something else"):
        fetch_of_tuples.decode_response(fetched(0, 1))


def test_metadata_without_a_broker_may_be_a_short_response_to_anything() -> None:
    metadata, brokers = asked("Metadata", 1), [{"node_id": 1, "host": "h", "port": 1, "rack": None}]
    metadata.frame_buffers(1, "test")
    for known, is_unmistakable in (([], False), (brokers, True)):
        response = metadata.decode_response(answer("Metadata", 1, brokers=known, controller_id=1, topics=[]))
        assert metadata.is_unmistakable(response) is is_unmistakable


def test_resends_share_all_bytes_but_the_correlation_id() -> None:
    request = produce(a=batch(5))
    (frame,) = request.frame_buffers(1, "test")
    other = b"".join(bytes(part) for part in with_correlation_id([frame], 99))
    assert (bytes(frame)[:8], bytes(frame)[12:]) == (other[:8], other[12:])
    assert other[8:12] == (99).to_bytes(4, "big")
