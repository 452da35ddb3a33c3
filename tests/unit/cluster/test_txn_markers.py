"""WriteTxnMarkers on the wire: version 1 of WriteTxnMarkersRequest.json, and answers as brokers write them."""

from __future__ import annotations

import struct

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.txn_markers import WriteTxnMarkers

P = TopicPartition("orders", 3)
MARKERS = [(1 << 62, 5), (1 << 62, 6), ((1 << 62) + 1, 0)]
REQUEST = bytes.fromhex(
    "00000069"
    "001b0001"
    "0000002a"
    "0002"
    "6d65"
    "00"  # size, api key and version, correlation id, client id, no tags
    "04"
    "4000000000000000"
    "0005"
    "00"
    "02"
    "07"
    "6f7264657273"
    "02"
    "00000003"
    "00"
    "00000000"
    "00"
    "4000000000000000"
    "0006"
    "00"
    "02"
    "07"
    "6f7264657273"
    "02"
    "00000003"
    "00"
    "00000000"
    "00"
    "4000000000000001"
    "0000"
    "00"
    "02"
    "07"
    "6f7264657273"
    "02"
    "00000003"
    "00"
    "00000000"
    "00"
    "00"
)


def answer(*producers: tuple[int, int], topic: bytes = b"orders", partition: int = 3) -> bytes:
    body = b"\0" + bytes([len(producers) + 1])
    for producer_id, code in producers:
        body += struct.pack(">q", producer_id) + b"\2" + bytes([len(topic) + 1]) + topic + b"\2"
        body += struct.pack(">ih", partition, code) + b"\0\0\0"
    return body + b"\0"


def request() -> WriteTxnMarkers:
    return WriteTxnMarkers(P, MARKERS)


def test_a_request_is_written_as_the_message_definition_says() -> None:
    assert b"".join(bytes(buffer) for buffer in request().frame_buffers(42, "me")) == REQUEST


def test_an_answer_tells_the_error_codes() -> None:
    assert request().decode_response(memoryview(answer((1 << 62, 0), ((1 << 62) + 1, 0)))) == set()
    assert request().decode_response(memoryview(answer((1 << 62, 47), ((1 << 62) + 1, 0)))) == {47}


def test_an_answer_of_a_broker_that_was_captured_is_read() -> None:
    # Kafka 4.2.0, one marker for partition 0 of topic "wtm".
    captured = bytes.fromhex("00024000000000000016020477746d0200000000000000000000")
    marker = WriteTxnMarkers(TopicPartition("wtm", 0), [(0x4000000000000016, 0)])
    assert marker.decode_response(memoryview(captured)) == set()


def test_every_cut_and_every_byte_too_many_is_refused() -> None:
    whole = answer((1 << 62, 0), ((1 << 62) + 1, 0))
    for size in range(len(whole)):
        with pytest.raises((ValueError, struct.error)):
            request().decode_response(memoryview(whole[:size]))
    with pytest.raises(ValueError, match="its fields"):
        request().decode_response(memoryview(whole + b"\0"))


@pytest.mark.parametrize(
    "body",
    [
        answer((1 << 62, 0)),
        answer((1 << 62, 0), (7, 0)),
        answer((1 << 62, 0), ((1 << 62) + 1, 0), topic=b"others"),
        answer((1 << 62, 0), ((1 << 62) + 1, 0), partition=4),
        b"\0\xff\xff\xff\xff\xff\x01",
    ],
)
def test_an_answer_to_another_request_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        request().decode_response(memoryview(body))


def test_tags_that_are_not_known_are_passed_over() -> None:
    body = answer((1 << 62, 0), ((1 << 62) + 1, 0))
    assert request().decode_response(memoryview(body[:-1] + b"\1\7\2ab")) == set()
