"""Heartbeats and checkpoints, byte for byte, and which checkpoints are written."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.follow.checkpoints import KnownCheckpoints, due_checkpoints
from tolerant_client.mirror.follow.group_positions import GroupPosition
from tolerant_client.mirror.follow.mm2_records import (
    Checkpoint,
    Heartbeat,
    decode_checkpoint,
    encode_checkpoint,
    encode_heartbeat,
)

PLACE = TopicPartition("A.t", 7)


def test_a_heartbeat_is_what_mirrormaker_writes() -> None:
    key, value = encode_heartbeat(Heartbeat("A", "B2", 0x0102030405060708))
    assert key == bytes.fromhex("0001 41 0002 4232") and value == bytes.fromhex("0000 0102030405060708")


def test_a_checkpoint_is_what_mirrormaker_writes() -> None:
    checkpoint = Checkpoint("gr\u00fcn", PLACE, 5, 300, "m")
    key, value = encode_checkpoint(checkpoint)
    assert key == bytes.fromhex("0005 6772c3bc6e 0003 412e74 00000007")
    assert value == bytes.fromhex("0000 0000000000000005 000000000000012c 0001 6d")
    assert decode_checkpoint(key, value) == checkpoint


@pytest.mark.parametrize("cut", range(26))
def test_half_a_record_is_none(cut: int) -> None:
    key, value = encode_checkpoint(Checkpoint("g", PLACE, 5, 300, "metadata"))
    with pytest.raises(ValueError):
        decode_checkpoint(key, value[:cut])
    with pytest.raises(ValueError):
        decode_checkpoint(key[: min(cut, len(key) - 1)], value)


def test_another_version_is_refused() -> None:
    key, value = encode_checkpoint(Checkpoint("g", PLACE, 5, 300, ""))
    with pytest.raises(ValueError, match="version 1"):
        decode_checkpoint(key, b"\0\1" + value[2:])


def test_a_name_that_no_string_has_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_checkpoint(Checkpoint("g" * 32_768, PLACE, 5, 300, ""))


@pytest.mark.parametrize(
    ("last", "is_due"),
    [
        (None, True),
        (Checkpoint("g", PLACE, 50, 40, "m"), False),
        (Checkpoint("g", PLACE, 50, 30, "m"), True),  # more of it is on the target now
        (Checkpoint("g", PLACE, 90, 80, "m"), True),  # set back on the source
        (Checkpoint("g", PLACE, 50, 40, ""), True),
        (Checkpoint("h", PLACE, 50, 40, "m"), True),
    ],
)
def test_a_checkpoint_is_written_when_it_says_something_new(last: Checkpoint | None, is_due: bool) -> None:
    known = {} if last is None else {(last.group, last.partition): last}
    due, unchanged = due_checkpoints([GroupPosition("g", PLACE, 50, 40, "m", False)], known)
    assert due == ([Checkpoint("g", PLACE, 50, 40, "m")] if is_due else []) and unchanged == (not is_due)


def test_records_that_are_no_checkpoints_are_passed_over() -> None:
    known = KnownCheckpoints("A.checkpoints.internal")
    for key, value in ((None, None), (b"", b""), (b"\0\1g", b"x"), (b"\0\2\xff\xfe\0\1t\0\0\0\0", b"\0" * 20)):
        known._take(key, value)
    assert known.last == {}
    known._take(*encode_checkpoint(Checkpoint("g", PLACE, 5, 6, "")))
    known._take(*encode_checkpoint(Checkpoint("g", PLACE, 7, 8, "")))
    assert known.last == {("g", PLACE): Checkpoint("g", PLACE, 7, 8, "")}
