"""Produce requests and responses against kafka-python's own classes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.structs import TopicPartition

from tolerant_client.cluster.produce import (
    MAX_PRODUCE_VERSION,
    MIN_PRODUCE_VERSION,
    PRODUCE_BY_ID_VERSION,
    ProducedPartition,
    RawProduce,
)
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.tracker.rules.apis import Action, action_for

VERSIONS = (*range(MIN_PRODUCE_VERSION, MAX_PRODUCE_VERSION + 1), PRODUCE_BY_ID_VERSION)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-\u00fc", 0)
BATCHES = {
    partition: encode_batch(
        [Record(0, 5, None, b"value %d" % n)] * (n + 1), producer_id=4, producer_epoch=0, base_sequence=n
    )
    for n, partition in enumerate((A0, B0, A1))
}
TOPIC_IDS = {"a": uuid.UUID(int=7), "b-\u00fc": uuid.UUID(int=2**127 + 1), "c": uuid.UUID(int=9)}


def produce(
    version: int, batches: dict[TopicPartition, bytes] = BATCHES, transactional_id: str | None = None
) -> RawProduce:
    views = {p: memoryview(b) for p, b in batches.items()}
    ids = {p: TOPIC_IDS[p.topic] for p in batches} if version == PRODUCE_BY_ID_VERSION else None
    return RawProduce(version, views, 30_000, transactional_id=transactional_id, topic_ids=ids)


def theirs(version: int, transactional_id: str | None) -> bytes:
    topics: dict[str, list[Any]] = {}
    for partition, batch in BATCHES.items():
        topics.setdefault(partition.topic, []).append(
            ProduceRequest.TopicProduceData.PartitionProduceData(index=partition.partition, records=batch)
        )
    encoded = ProduceRequest[version](
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(name=name, topic_id=TOPIC_IDS[name], partition_data=parts)
            for name, parts in topics.items()
        ],
    )
    encoded.with_header(correlation_id=7, client_id="me")
    return bytes(encoded.encode(framed=True, header=True))


def answer(
    version: int,
    partitions: dict[TopicPartition, tuple[int, int]],
    named: Sequence[tuple[int, str | None]] = ((7, None), (1, "bad"), (1, "worse")),
) -> bytes:
    topics: dict[str, list[Any]] = {}
    for partition, (code, offset) in partitions.items():
        topics.setdefault(partition.topic, []).append(
            ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
                index=partition.partition,
                error_code=code,
                base_offset=offset,
                log_append_time_ms=-1,
                log_start_offset=0,
                record_errors=[_RecordError(batch_index=at, batch_index_error_message=why) for at, why in named],
                error_message=None if code == 0 else "refused",
            )
        )
    response = ProduceResponse[version](
        responses=[
            ProduceResponse.TopicProduceResponse(name=name, topic_id=TOPIC_IDS[name], partition_responses=parts)
            for name, parts in topics.items()
        ],
        throttle_time_ms=3,
    )
    header_tags = b"\0" if version == PRODUCE_BY_ID_VERSION else b""
    return header_tags + bytes(response.encode(header=False))


_RecordError = ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
GOOD = {A0: (0, 100), A1: (45, -1), B0: (0, 2**40)}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "gap-\u00fc"])
def test_request_bytes_are_those_of_kafka_python(version: int, transactional_id: str | None) -> None:
    ours = produce(version, transactional_id=transactional_id).frame_buffers(7, "me")
    assert b"".join(ours) == theirs(version, transactional_id)


def test_partitions_of_one_name_may_be_of_two_topics() -> None:
    """One whose log was read before its topic was created again, and one whose log was read after."""
    ids = {A0: uuid.UUID(int=1), A1: uuid.UUID(int=2)}
    request = RawProduce(7, {p: memoryview(BATCHES[p]) for p in ids}, 30_000, topic_ids=ids)
    frame = b"".join(request.frame_buffers(7, "me"))
    assert all(topic_id.bytes in frame for topic_id in ids.values())


def test_batches_are_sent_from_where_they_are() -> None:
    batch = bytearray(BATCHES[A0])
    buffers = RawProduce(7, {A0: memoryview(batch)}, 1).frame_buffers(1, "me")
    batch[-1] ^= 1
    assert bytes(buffers[-1]) == batch


@pytest.mark.parametrize("version", VERSIONS)
def test_response_is_decoded_as_kafka_python_encodes_it(version: int) -> None:
    decoded = produce(version).decode_response(memoryview(answer(version, GOOD)))
    said: tuple[int | None, str] = (1, "bad") if version == PRODUCE_BY_ID_VERSION else (None, "")
    assert decoded == [ProducedPartition(p, code, offset, -1, *said) for p, (code, offset) in GOOD.items()]


@pytest.mark.parametrize(
    ("named", "index", "reason"),
    [
        ([], None, "refused"),
        ([(3, None)], 3, "refused"),
        ([(-1, "\x1b[31mno\r\n\u2028 key\n")], -1, "\x1b[31mno key"),  # escaped where it is printed
        ([(3, "\u00fc" * 10_000), (9, "x")], 3, "\u00fc" * 200),
        ([(3, "x" + "\u00fc" * 10_000)], 3, "x" + "\u00fc" * 199 + "\ufffd"),
    ],
)
def test_the_first_record_that_is_refused_and_the_start_of_the_reason_are_told(
    named: list[tuple[int, str | None]], index: int | None, reason: str
) -> None:
    body = answer(PRODUCE_BY_ID_VERSION, {A0: (87, -1)}, named)
    (part,) = produce(PRODUCE_BY_ID_VERSION, {A0: BATCHES[A0]}).decode_response(memoryview(body))
    assert part == ProducedPartition(A0, 87, -1, -1, index, reason)


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_and_leftover_bytes_raise(version: int) -> None:
    body = answer(version, GOOD)
    for length in range(len(body)):
        with pytest.raises((ValueError, struct.error)):
            produce(version).decode_response(memoryview(body)[:length])
    with pytest.raises(ValueError, match="Produce response has"):
        produce(version).decode_response(memoryview(body + b"\0"))


@pytest.mark.parametrize("version", [7, PRODUCE_BY_ID_VERSION])
@pytest.mark.parametrize("partitions", [{A0: (0, 1)}, {**GOOD, TopicPartition("c", 0): (0, 1)}, {}])
def test_response_about_other_partitions_raises(
    version: int, partitions: dict[TopicPartition, tuple[int, int]]
) -> None:
    with pytest.raises(ValueError, match="other partitions"):
        produce(version).decode_response(memoryview(answer(version, partitions)))


@given(st.binary(max_size=150), st.sampled_from(VERSIONS))
def test_hostile_bytes_raise_nothing_but_decoding_errors(body: bytes, version: int) -> None:
    with pytest.raises((ValueError, struct.error)):
        produce(version).decode_response(memoryview(body))


def test_negative_topic_name_length_raises_at_once() -> None:
    body = struct.pack(">ihi", 0x7FFFFFFF, -6, 0)
    with pytest.raises(ValueError, match="topic name of -6 bytes"):
        produce(7).decode_response(memoryview(body))


def test_lost_response_is_never_sent_again_below_the_mirror() -> None:
    assert action_for(produce(7)) is not Action.RESEND


def test_only_batches_with_a_producer_id_may_be_sent_again_by_their_owner() -> None:
    assert produce(MAX_PRODUCE_VERSION).is_repeated_above
    plain = encode_batch([Record(0, 5, None, b"plain")])
    assert not produce(MAX_PRODUCE_VERSION, {**BATCHES, A1: plain}).is_repeated_above
