"""The proof that a source has no records keeps to the link's rate, like every fetch (emptiness.py)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition, FetchResult
from tolerant_client.mirror.engine.emptiness import EmptinessChecks
from tolerant_client.mirror.engine.throttle import BURST_S, TokenBucket

FIRST, SECOND = (TopicPartition("orders", number) for number in range(2))
RATE = 100_000


class Source:
    """A source whose partitions each have `size` bytes at the position; time passes only during sleeps."""

    has_tiers = False

    def __init__(self, size: int, rate: int | None = RATE) -> None:
        self.size = size
        self.now = 0.0
        self.asked: list[tuple[float, int]] = []  # when, and for how much
        self.in_flight = self.most_in_flight = 0
        self.net = SimpleNamespace(sleep=self._sleep)
        self.bucket = TokenBucket()
        self.bucket.set_rate(rate, 0.0)
        self.checks = EmptinessChecks(self, self.bucket, lambda: self.now)  # type: ignore[arg-type]
        self.is_wanted = True
        self.error: Exception | None = None

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    async def session(self, node: int, *, isolation_level: int) -> Any:
        positions: dict[TopicPartition, int] = {}

        def request(**limits: int) -> Any:
            assert limits["max_bytes"] == limits["partition_max_bytes"]
            return SimpleNamespace(positions=positions, **limits)

        return SimpleNamespace(seek=positions.__setitem__, request=request)

    async def send_fetch(self, node: int, request: Any) -> FetchResult:
        self.asked.append((self.now, request.max_bytes))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        for _ in range(10):
            await asyncio.sleep(0)
        self.in_flight -= 1
        if self.error is not None:
            raise self.error
        records = memoryview(bytes(self.size))
        return FetchResult(0, 0, 0, [FetchedPartition(p, 0, 50, 50, 0, (), records) for p in request.positions])

    def check(self, *partitions: TopicPartition) -> list[bool]:
        async def each() -> list[bool]:
            return await asyncio.gather(
                *(self.checks.has_no_records(p, 10, 50, lambda: self.is_wanted) for p in partitions)
            )

        return asyncio.run(each())


def test_two_empty_responses_for_the_partition_alone_show_that_there_is_nothing() -> None:
    source = Source(0)
    assert source.check(FIRST) == [True] and len(source.asked) == 2
    assert source.bucket.wait_s(source.now) == 0


def test_records_that_a_check_brings_are_owed() -> None:
    source = Source(3 * RATE)
    assert source.check(FIRST) == [False]
    assert source.bucket.wait_s(source.now) == pytest.approx(3)


def test_a_check_waits_until_nothing_is_owed_and_asks_for_as_little_as_it_can() -> None:
    source = Source(0)
    source.bucket.take(5 * RATE, 0.0)
    assert source.check(FIRST) == [True]
    assert source.asked[0][0] >= 5 - BURST_S
    assert {most for _, most in source.asked} == {1}, "a broker sends the first batch whole"


def test_checks_go_out_one_by_one_under_a_rate_and_together_without_one() -> None:
    """A response's size is owed once it arrives: other fetches in flight with it would exceed the rate."""
    partitions = [TopicPartition("orders", number) for number in range(20)]
    limited, unlimited = Source(RATE), Source(RATE, rate=None)
    assert limited.check(*partitions) == unlimited.check(*partitions) == [False] * 20
    assert limited.most_in_flight == 1 and unlimited.most_in_flight == 20
    times = [when for when, _ in limited.asked]
    assert len(times) == 20 and times[-1] >= 19 - BURST_S
    assert unlimited.now == 0.0


def test_what_nobody_wants_to_know_any_more_is_not_fetched() -> None:
    source = Source(0)
    source.bucket.take(5 * RATE, 0.0)
    asked_for = iter([True, True, False])
    wanted = asyncio.run(source.checks.has_no_records(FIRST, 10, 50, lambda: next(asked_for)))
    assert not wanted and source.asked == [] and source.now < 1.0


def test_a_partition_that_is_being_checked_is_not_checked_twice() -> None:
    source = Source(0)
    assert source.check(FIRST, FIRST, SECOND) == [True, False, True]
    assert len(source.asked) == 4


def test_a_check_that_failed_holds_up_no_other() -> None:
    source = Source(0)
    source.error = Errors.KafkaConnectionError("away")
    assert source.check(FIRST, SECOND) == [False, False]
    source.error = None
    assert source.check(FIRST, SECOND) == [True, True]
