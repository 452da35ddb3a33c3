"""Whether a name still stands for the topic that was copied, if a source is asked by names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.engine.witnesses import UNSEEN_S, UNSHOWN_S, Witnesses
from tolerant_client.records.record_batch import Record, encode_batch

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
A_MOMENT = 0.05


def batch(base_offset: int, value: bytes, size: int = 0) -> bytes:
    return encode_batch([Record(0, 1, None, value + b"." * size)] * 10, base_offset=base_offset)


def fetched(partition: TopicPartition, data: bytes = b"", error_code: int = 0) -> FetchedPartition:
    return FetchedPartition(partition, error_code, 100, 100, 0, (), memoryview(data))


class Source:
    """Logs of one batch each, on a node that exceeds a limit only for the first partition of a request."""

    def __init__(self, logs: Mapping[TopicPartition, bytes]) -> None:
        self.logs = dict(logs)
        self.is_away = False
        self.fetches = 0

    async def fetch(
        self, node: int, positions: Mapping[TopicPartition, int], *, partition_max_bytes: int, **_: Any
    ) -> list[FetchedPartition]:
        self.fetches += 1
        if self.is_away:
            raise Errors.KafkaConnectionError("away")
        first = next(iter(positions))
        return [
            fetched(p, data if p == first or len(data) <= partition_max_bytes else b"")
            if (data := self.logs.get(p)) is not None
            else fetched(p, error_code=Errors.OffsetOutOfRangeError.errno)
            for p in positions
        ]


def witnesses(source: Source, *seen: tuple[TopicPartition, bytes]) -> Witnesses:
    known = Witnesses(cast(Cluster, source))
    for partition, data in seen:
        known.saw(fetched(partition, data))
    return known


def missing(known: Witnesses) -> set[TopicPartition]:
    return asyncio.run(known.missing(1, [FIRST, SECOND]))


def test_records_that_come_at_once_are_believed_and_later_ones_are_looked_at_again() -> None:
    known = witnesses(Source({}), (FIRST, batch(0, b"old")))
    assert not known.doubt(FIRST, A_MOMENT, is_compared=False)
    assert known.doubt(FIRST, UNSEEN_S + A_MOMENT, is_compared=False)
    assert known.doubt(FIRST, A_MOMENT, is_compared=True), "the comparison may be old"


def test_without_a_witness_only_the_first_records_after_a_comparison_are_believed_however_late() -> None:
    known = witnesses(Source({}))
    assert not known.doubt(FIRST, 60.0, is_compared=True)
    assert known.doubt(FIRST, UNSHOWN_S + A_MOMENT, is_compared=False)


@pytest.mark.parametrize("size", [0, 10_000])
def test_topic_that_still_has_the_batch_is_the_same_and_one_with_another_is_not(size: int) -> None:
    old = batch(0, b"old", size)
    source = Source({FIRST: old, SECOND: old})
    known = witnesses(source, (FIRST, old), (SECOND, old))
    assert missing(known) == set()
    source.logs[SECOND] = batch(0, b"new", size)
    assert missing(known) == {SECOND}
    source.logs[SECOND] = old
    assert missing(known) == {SECOND}, "a witness that was not shown once is read again"


@pytest.mark.parametrize("now", [None, b"", batch(10, b"old")], ids=["error", "empty", "cleaned"])
def test_source_that_does_not_show_the_batch_shows_nothing(now: bytes | None) -> None:
    old = batch(0, b"old")
    source = Source({FIRST: old} if now is None else {FIRST: old, SECOND: now})
    assert missing(witnesses(source, (FIRST, old), (SECOND, old))) == {SECOND}


def test_node_that_does_not_answer_shows_nothing() -> None:
    source = Source({})
    source.is_away = True
    assert missing(witnesses(source, (FIRST, batch(0, b"old")))) == {FIRST, SECOND} and source.fetches == 1


def test_after_a_fetch_that_failed_whatever_comes_is_looked_at_once_also_where_ids_tell_the_topic() -> None:
    old = batch(0, b"old")
    source = Source({FIRST: old, SECOND: old})
    known = Witnesses(cast(Cluster, source), of_names=False)
    known.saw(fetched(FIRST, old))
    assert not known.doubt(FIRST, 60.0, is_compared=True), "it is not fetched by name, or that does not matter"
    known.suspect([FIRST, SECOND])
    assert known.doubt(FIRST, 0.0, is_compared=False, is_named=False)
    assert known.doubt(SECOND, 0.0, is_compared=True, is_named=False), "there is no witness: both logs are compared"
    assert missing(known) == {SECOND}
    assert not any(known.doubt(p, 60.0, is_compared=False, is_named=False) for p in (FIRST, SECOND))


def test_the_witness_is_the_last_whole_batch_so_that_a_log_that_was_cut_behind_the_first_one_is_another() -> None:
    first, last, part = batch(0, b"a"), batch(10, b"b"), batch(20, b"c")[:90]
    source = Source({FIRST: last, SECOND: batch(10, b"other")})
    known = witnesses(source, *((p, first + last + part) for p in (FIRST, SECOND)))
    assert missing(known) == {SECOND}
