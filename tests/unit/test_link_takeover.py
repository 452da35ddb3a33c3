"""Where MirrorMaker 2 is, read from its own records and found in the logs."""

from __future__ import annotations

import json

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.link.takeover import (
    TakenPartition,
    blockers,
    decode_position,
    encode_position,
    last_match,
    offsets_topic,
)
from tolerant_client.record_batch import Record

# As Kafka Connect 4.2 has written it (JsonConverter without schemas).
KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":1,"topic":"orders"}]'


def test_a_position_of_mirrormaker_2_is_the_offset_behind_the_last_record() -> None:
    assert decode_position(KEY, b'{"offset":41}') == ("A", TopicPartition("orders", 1), 42)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, None),  # a reset
        (b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A"}]', b'{"offset":1}'),
        (b'["MirrorCheckpointConnector",{"group":"g"}]', b'{"offset":0}'),
        (b'["MirrorSourceConnector",{"cluster":"A"}]', b'{"offset":1}'),
        (b"not JSON", b'{"offset":1}'),
        (None, b'{"offset":1}'),
    ],
)
def test_other_records_of_the_topic_are_no_positions(key: bytes | None, value: bytes | None) -> None:
    assert decode_position(key, value) is None


def test_what_is_written_is_what_mirrormaker_2_reads() -> None:
    assert json.loads(encode_position(42)) == {"offset": 41}
    told = decode_position(KEY, encode_position(42))
    assert told is not None and told[2] == 42
    assert offsets_topic("A") == "mm2-offsets.A.internal"


def records(*values: int, first: int = 0) -> list[Record]:
    return [Record(first + n, 1_700_000_000_000, b"k", b"%d" % value) for n, value in enumerate(values)]


def test_the_place_of_the_last_records_is_found_whatever_their_offsets() -> None:
    source = records(*range(100), first=1000)
    assert last_match(source, records(40, 41, 42, first=7)) == 1043


def test_offsets_without_a_record_do_not_matter() -> None:
    source = [record for record in records(*range(100)) if record.offset % 10]  # markers
    assert last_match(source, records(8, 9 + 2, first=500)) is None
    assert last_match(source, records(38, 39, 41, first=500)) == 42


def test_equal_records_are_told_apart_by_those_before_them() -> None:
    source = records(1, 7, 2, 7, 3, 7)
    assert last_match(source, records(2, 7)) == 4


def test_of_places_that_are_alike_the_first_one_counts() -> None:
    assert last_match(records(5, 5, 5, 5), records(5, 5)) == 2


def test_records_with_another_time_key_or_value_are_others() -> None:
    assert last_match(records(1, 2, 3), [Record(0, 1_700_000_000_001, b"k", b"2")]) is None
    assert last_match(records(1, 2, 3), [Record(0, 1_700_000_000_000, b"K", b"2")]) is None
    assert last_match(records(1, 2, 3), [Record(0, 1_700_000_000_000, b"k", b"2", (("h", b""),))]) is None


def partition(topic: str, *, is_identical: bool, position: int) -> TakenPartition:
    return TakenPartition(topic, 0, is_identical, -1, position, 100)


def test_identical_offsets_need_logs_that_are_identical() -> None:
    good = partition("good", is_identical=True, position=100)
    bad = partition("bad", is_identical=False, position=90)
    assert blockers([good], "identical") == ()
    (text,) = blockers([good, bad], "identical")
    assert "bad" in text and "good" not in text and "tolerant.offsets = translated" in text


def test_translated_offsets_need_a_position_that_the_logs_show() -> None:
    known = partition("known", is_identical=False, position=90)
    assert blockers([known], "translated") == ()
    (text,) = blockers([known, partition("lost", is_identical=False, position=-1)], "translated")
    assert "lost-0" in text
