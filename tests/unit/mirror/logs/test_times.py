"""The first record of a time or later, where brokers tell the offset of a marker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import kafka.errors as Errors
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.cluster import Cluster, OffsetAndEpoch
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.logs.times import first_records
from tolerant_client.records.record_batch import ABORT, Record, encode_batch

P = TopicPartition("orders", 0)
MARKER = encode_batch(
    [Record(0, 900, struct.pack(">hh", 0, ABORT), bytes(6))],
    base_offset=3,
    producer_id=7,
    producer_epoch=0,
    is_transactional=True,
    is_control=True,
)


def batch(at: int, *times: int, headers: tuple[tuple[str, bytes | None], ...] = ()) -> bytes:
    return encode_batch(
        [Record(0, time, None, None, headers) for time in times], base_offset=at, partition_leader_epoch=at
    )


LOG = [batch(0, 1, 2, 3), MARKER, batch(4, 800, headers=((FILLER, None),)), batch(5, 4, 5, 6, 4, 7), batch(10, 1, 8)]


def first(told: int, time_ms: int, end: int = 12) -> OffsetAndEpoch | None:
    cluster = cast(Cluster, OneLog(LOG))
    return asyncio.run(first_records(cluster, {P: OffsetAndEpoch(told, 99)}, {P: end}, time_ms)).get(P)


def test_what_the_broker_told_is_kept_if_it_is_a_record() -> None:
    assert first(1, 2) == OffsetAndEpoch(1, 99)
    assert first(6, 5) == OffsetAndEpoch(6, 99)


def test_a_marker_and_filler_are_passed_over() -> None:
    assert first(3, 6) == first(4, 6) == OffsetAndEpoch(7, 5)
    assert first(3, 8) == OffsetAndEpoch(11, 10)


def test_what_was_found_before_a_failure_is_kept() -> None:
    other = TopicPartition("orders", 1)

    class Failing(OneLog):
        async def insist(self, what: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return await attempt()
            except Errors.NotLeaderForPartitionError:
                return await attempt()

        async def fetch(self, node: int, positions: Mapping[TopicPartition, int], **how: Any) -> list[FetchedPartition]:
            parts = await super().fetch(node, positions, **how)
            failure = Errors.NotLeaderForPartitionError.errno if self.fetches == 1 else 0
            return [p._replace(error_code=failure) if p.partition == other else p for p in parts]

    cluster = cast(Cluster, Failing(LOG))
    told = OffsetAndEpoch(3, 99)
    found = asyncio.run(first_records(cluster, {P: told, other: told}, {P: 12, other: 12}, 6))
    assert found == {P: OffsetAndEpoch(7, 5), other: OffsetAndEpoch(7, 5)}


def test_there_may_be_none_before_the_end() -> None:
    assert first(3, 9) is None and first(3, 8, end=11) is None and first(3, 8, end=3) is None
