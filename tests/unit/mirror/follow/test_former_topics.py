"""former_topics.py without brokers: which maps are of topics, or logs, that are there no more, and where nothing tells."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.follow import former_topics
from tolerant_client.mirror.follow.former_topics import FormerTopics, find_former
from tolerant_client.mirror.state.offset_map import MapRow, OffsetMap, RowKey, Run
from tolerant_client.records.record_batch import Record

P = TopicPartition("orders", 0)
COPIED = Record(9, 1_000, b"k", b"v")  # the last one: offset 9 of the source, 104 of the target


@dataclass
class Log:
    """The topic orders of a cluster, with one log of one record."""

    id: str
    end: int
    record: Record | None
    epoch_ends: dict[TopicPartition, int] = field(default_factory=dict)
    vacant: tuple[range, ...] = ()
    stamped: tuple[range, ...] = ()
    is_there: bool = True
    is_replaced: bool = False
    is_readable: bool = True


def source(topic_id: str = "", **how: Any) -> Log:
    return Log(**{"id": topic_id, "end": 12, "record": COPIED, **how})


def target(topic_id: str = "t", **how: Any) -> Log:
    return Log(**{"id": topic_id, "end": 105, "record": COPIED._replace(offset=104), **how})


def found(origin: Log | None, there: Log, *, ids: tuple[str, str] = ("", "t")) -> FormerTopics:
    rows = [MapRow(RowKey(P, 0), P.topic, ids, 10, 3, (Run(5, 100, 5),))]
    return asyncio.run(find_former(origin, there, "dr", [OffsetMap(rows)]))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visible_topics(log: Log, names: Any) -> Any:
        return {name: [0] for name in names if log.is_there}, {}

    async def still_missing(_: Log, names: Any) -> Any:
        return names

    async def topic_ids(log: Log, names: Any) -> dict[str, str]:
        return {name: log.id for name in names if log.id}

    async def list_led_offsets(log: Log, wanted: Any) -> LedOffsets:
        return LedOffsets(dict.fromkeys(wanted, log.end), {})

    async def source_truncations(log: Log, asked: Any) -> dict[TopicPartition, int]:
        assert set(asked.values()) <= {(3, 10)}
        return log.epoch_ends

    async def read_slices(log: Log, ranges: Any, **_: Any) -> dict[TopicPartition, LogSlice]:
        if not log.is_readable:
            raise Errors.TopicAuthorizationFailedError("no")
        records = {} if log.record is None else {log.record.offset: log.record}
        return {p: LogSlice(until, records, [*log.vacant], [*log.stamped]) for p, (_, until) in ranges.items()}

    async def replaced(log: Log, last: Any) -> frozenset[TopicPartition]:
        assert not last or last == {P: 104}, "the last copy, where the log goes on behind its marker"
        return frozenset(last) if log.is_replaced else frozenset()

    monkeypatch.setattr(former_topics, "replaced", replaced)
    for function in (visible_topics, still_missing, topic_ids, list_led_offsets, source_truncations, read_slices):
        monkeypatch.setattr(former_topics, function.__name__, function)


def test_ids_of_both_clusters_decide_and_no_record_is_read() -> None:
    unread = {"is_readable": False}
    assert found(source("s", **unread), target(**unread), ids=("s", "t")) == ({}, {})
    assert found(None, target(**unread)) == ({}, {}), "the target's alone, where no source is asked"
    for asked, what in (
        ((source("s2"), target()), "created again on the source"),
        ((source("s"), target("t2")), "created again on the target"),
        ((source("s"), target(is_there=False)), "deleted on the target"),
    ):
        former = found(*asked, ids=("s", "t"))
        assert what in former.known[P] and not former.doubts


@pytest.mark.parametrize("topic_id", ["", "s"], ids=["without ids", "of the same id"])
def test_a_log_that_was_cut_is_not_the_one_that_was_copied(topic_id: str) -> None:
    ids = (topic_id, "t")
    for asked, told in (
        ((source(topic_id, end=9), target()), "the source has what was copied only up to 9"),
        ((source(topic_id, epoch_ends={P: 8}), target()), "the source has what was copied only up to 8"),
        ((source(topic_id), target(end=104)), "the target has its log only up to 104"),
        (
            (source(topic_id), target(end=107, is_replaced=True)),
            "to orders-0 up to offset 105, and others wrote in its place",
        ),
    ):
        former = found(*asked, ids=ids)
        assert told in former.known[P] and not former.doubts


def test_without_ids_the_last_record_that_was_copied_decides() -> None:
    assert found(source(), target()) == ({}, {})
    at = (range(104, 105),)
    assert found(source(), target(record=COPIED._replace(offset=104, timestamp=5), stamped=at)) == ({}, {})
    for asked in (
        (source(record=COPIED._replace(value=b"other")), target()),
        (source(record=COPIED._replace(timestamp=5)), target()),
        (source(), target("", record=COPIED._replace(offset=104, key=b"other"))),
        (source(record=None, vacant=(range(9, 10),)), target()),  # a marker
    ):
        former = found(*asked)
        assert "has at offset 9 another record than orders-0 on the target at 104" in former.known[P], former
        assert not former.doubts


def test_where_nothing_tells_that_is_said() -> None:
    for asked in (
        (source(record=None), target()),
        (source(), target(record=None)),
        (source(is_readable=False), target()),
        (source(is_there=False), target()),
        (None, target("")),
    ):
        former = found(*asked)
        assert not former.known and "created again since link dr copied it is unknown" in former.doubts[P], asked
