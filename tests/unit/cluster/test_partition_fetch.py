"""A fetch of one partition alone, and where its records are (partition_fetch.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.cluster import EARLIEST_LOCAL
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.partition_fetch import fetch_alone, is_local
from tolerant_client.records.record_batch import Record, encode_batch

P = TopicPartition("orders", 0)


class Log(OneLog):
    """Its first offsets are only in remote storage."""

    has_tiers = True

    async def list_offsets(self, timestamps: Any) -> dict[TopicPartition, int]:
        assert timestamps == {P: EARLIEST_LOCAL}
        return {P: 10}


def log() -> Any:
    return Log([encode_batch([Record(0, 1, None, b"x")] * 10, base_offset=base) for base in (0, 10)])


def test_what_a_partition_has_comes_from_its_leader() -> None:
    part = asyncio.run(fetch_alone(log(), P, 15, 100))
    assert part.partition == P and len(part.records) == 100


def test_its_error_is_raised() -> None:
    with pytest.raises(Errors.OffsetOutOfRangeError, match="Fetch of orders-0"):
        asyncio.run(fetch_alone(log(), P, 21))


def test_a_response_without_the_partition_is_no_response() -> None:
    class Throttled(Log):
        async def fetch(self, *args: Any, **options: Any) -> list[FetchedPartition]:
            return []

    there: Any = Throttled([])
    with pytest.raises(Errors.UnknownTopicOrPartitionError, match="orders-0: missing in the response"):
        asyncio.run(fetch_alone(there, P, 0))


def test_what_lies_before_the_local_log_is_not_on_the_leaders_disks() -> None:
    there = log()
    assert [asyncio.run(is_local(there, P, offset)) for offset in (9, 10, 11)] == [False, True, True]
    there.has_tiers = False
    assert asyncio.run(is_local(there, P, 0))
