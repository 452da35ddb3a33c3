"""Where a link begins that gets a start time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, OffsetAndEpoch
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine import time_range
from tolerant_client.mirror.engine.time_range import identical_starts
from tolerant_client.mirror.state.link_control import LinkControl

FIRST, SECOND = (TopicPartition("orders", n) for n in range(2))
TIME = 1_763_775_000_000
FOUND, END = OffsetAndEpoch(40, 2), OffsetAndEpoch(90, 3)  # the offset of the time now, and the log end


@pytest.fixture(autouse=True)
def all_are_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async def first_records(_: object, told: Any, *__: object) -> Any:
        return told

    monkeypatch.setattr(time_range, "first_records", first_records)


def started(control: LinkControl, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndEpoch]:
    """What identical_starts returns for a source with id "s2"; `ends` are the target's."""

    async def of_source(asked: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAndEpoch]:
        return {p: {EARLIEST: OffsetAndEpoch(0, 0), LATEST: END, TIME: FOUND}[at] for p, at in asked.items()}

    async def of_target(asked: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {p: ends[p] for p in asked}

    async def partitions(_: Collection[str]) -> dict[str, list[int]]:
        return {"orders": [p.partition for p in ends]}

    source: Any = SimpleNamespace(list_offsets_and_epochs=of_source)
    target: Any = SimpleNamespace(list_offsets=of_target, partitions=partitions)
    return asyncio.run(identical_starts(source, target, [FIRST, SECOND], TIME, control, {"orders": "s2"}))


def test_a_time_is_asked_for_anew_of_empty_logs_whose_source_was_made_anew() -> None:
    given = LinkControl().with_starts({FIRST: OffsetAndEpoch(500, 1), SECOND: OffsetAndEpoch(600, 1)}, {"orders": "s1"})
    assert started(given, {}) == {FIRST: FOUND, SECOND: FOUND}
    assert started(given, {FIRST: 700, SECOND: 0}) == {SECOND: FOUND}, "what was begun at a time before continues"
    assert (
        started(given.with_starts({FIRST: OffsetAndEpoch(30, 1), SECOND: OffsetAndEpoch(30, 1)}, {"orders": "s2"}), {})
        == {}
    )


def test_a_log_that_has_records_cannot_begin_at_a_time() -> None:
    with pytest.raises(OptionError, match="only an empty log can begin at a time .1 of 2"):
        started(LinkControl(), {FIRST: 1, SECOND: 0})
