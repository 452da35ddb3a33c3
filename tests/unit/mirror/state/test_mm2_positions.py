"""MirrorMaker 2's own notes of where it is, and its group."""

from __future__ import annotations

import json
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.state import mm2_positions
from tolerant_client.mirror.state.mm2_positions import (
    Mm2Position,
    decode_position,
    encode_position,
    offsets_topic,
    read_positions_of_mm2,
    whether_mm2_runs,
)
from tolerant_client.records.record_batch import Record

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


def drive(coroutine: Any) -> Any:
    """Runs what waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


class Target:
    """A target that has one partition of MirrorMaker 2's offsets."""

    def __init__(self, records: list[Record]) -> None:
        self.log = LogSlice(len(records), {record.offset: record for record in records})

    async def partitions(self, topics: list[str]) -> dict[str, list[int]]:
        return {topics[0]: [0]}

    async def list_offsets(
        self, wanted: dict[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        return {p: 0 if at == EARLIEST else self.log.until for p, at in wanted.items()}


def test_the_last_note_of_a_partition_counts_and_one_that_was_reset_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    other = KEY.replace(b'"partition":1', b'"partition":2')
    values = [(KEY, b'{"offset":41}'), (other, b'{"offset":7}'), (KEY, b'{"offset":43}'), (other, None)]
    target = Target([Record(n, 0, key, value) for n, (key, value) in enumerate(values)])

    async def read_slices(cluster: Target, ranges: Any, *, is_committed: bool) -> Any:
        assert is_committed
        return {p: cluster.log for p in ranges}

    monkeypatch.setattr(mm2_positions, "read_slices", read_slices)
    found = drive(read_positions_of_mm2(target, "A"))  # type: ignore[arg-type]
    assert found == {TopicPartition("orders", 1): Mm2Position(44, KEY, 0)}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("Stable", "has members (state Stable)"),
        ("Empty", None),
        ("Dead", None),
        (Errors.GroupAuthorizationFailedError("no"), "grant us Describe on group A-mm2 of the target"),
        (Errors.CoordinatorNotAvailableError("no"), "(CoordinatorNotAvailableError); run this again"),
    ],
)
def test_mirrormaker_2_runs_while_its_group_has_members_and_as_long_as_nobody_tells(
    monkeypatch: pytest.MonkeyPatch, told: str | Exception, words: str | None
) -> None:
    async def described_states(cluster: Any, groups: list[str]) -> Any:
        assert groups == ["A-mm2"]
        return ({}, {"A-mm2": told}) if isinstance(told, Exception) else ({"A-mm2": told}, {})

    monkeypatch.setattr(mm2_positions, "described_states", described_states)
    found = drive(whether_mm2_runs(None, "A"))  # type: ignore[arg-type]
    assert (words is None) == (found == ()) and (words or "") in "".join(found)
