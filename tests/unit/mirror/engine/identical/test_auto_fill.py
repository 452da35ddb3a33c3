"""Which way fills a gap by default: what brokers say of our rights, what they refuse, and what is still on its way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError, PartitionRefusedError
from tolerant_client.mirror.batches.gaps import Gap, GapFill
from tolerant_client.mirror.engine.identical import auto_fill
from tolerant_client.mirror.engine.identical.auto_fill import AutoFiller, gap_fillers
from tolerant_client.mirror.engine.identical.fill import fences_nobody

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
GAP = Gap(0, 3)


class FakeFiller:
    """Fills everything, or raises."""

    def __init__(self, way: str, filled: list[str]) -> None:
        self._way = way
        self._filled = filled
        self.error: Exception | None = None
        self.gaps: list[Gap] = []
        self.beyond = 0
        self.unanswered: set[TopicPartition] = set()

    def has_unanswered(self, partition: TopicPartition) -> bool:
        return partition in self.unanswered

    async def fill(self, partition: TopicPartition, gap: Gap, **_: Any) -> int:
        if self.error is not None:
            raise self.error
        self._filled.append(self._way)
        self.gaps.append(gap)
        return gap.until_offset + self.beyond


class World:
    """A filler that fills by default, and what the brokers say of its rights; time passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.filled: list[str] = []
        self.now = 0.0
        self.asked = 0
        self.may: bool | Exception = True
        self.markers = FakeFiller("markers", self.filled)
        self.transactions = FakeFiller("transactions", self.filled)
        target: Any = SimpleNamespace(
            net=SimpleNamespace(call_soon_with_future=lambda call: asyncio.ensure_future(call()))
        )
        transactions: Any = self.transactions
        markers: Any = self.markers
        self.filler = AutoFiller(target, transactions, markers, clock=lambda: self.now)
        monkeypatch.setattr(auto_fill, "may_write_markers", self._told)

    async def _told(self, _: Any) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(self.may, Exception):
            raise self.may
        return self.may

    def fill(self, *partitions: TopicPartition) -> None:
        async def run() -> None:
            await asyncio.gather(*(self.filler.fill(p, GAP, max_batch_bytes=1) for p in partitions or (P,)))

        asyncio.run(run())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def refusal() -> PartitionRefusedError:
    error = PartitionRefusedError("ClusterAction")
    error.__cause__ = Errors.ClusterAuthorizationFailedError()
    return error


def test_the_brokers_are_asked_once_a_minute_for_all_partitions(world: World) -> None:
    world.fill(P, Q)
    world.may, world.now = False, 59.0
    world.fill(P, Q)
    assert (world.filled, world.asked) == (["markers"] * 4, 1)
    world.now = 61.0
    world.fill(P, Q)
    assert (world.filled[4:], world.asked) == (["transactions"] * 2, 2)
    world.may, world.now = True, 122.0
    world.fill()
    assert (world.filled[6:], world.asked) == (["markers"], 3)


def test_brokers_that_cannot_be_asked_are_asked_for_the_next_gap(world: World) -> None:
    world.may = Errors.KafkaTimeoutError("nobody responds")
    with pytest.raises(Errors.KafkaTimeoutError):
        world.fill(P, Q)
    world.may = True
    world.fill()
    assert (world.filled, world.asked) == (["markers"], 2)


@pytest.mark.parametrize("error", [refusal(), OptionError("markers need Kafka 2.8")])
def test_law_b_refused_markers_are_passing_trouble_and_transactions_fill_after_it(
    world: World, error: Exception
) -> None:
    world.markers.error = error
    with pytest.raises(Errors.KafkaError, match="orders-0 are filled with transactions from here on") as raised:
        world.fill()
    assert raised.value.retriable, "the log is read again, and the partition goes on"
    world.markers.error = None
    world.fill()
    assert (world.filled, world.asked) == (["transactions"], 1), "law C: whatever the brokers say of our rights"
    world.now = 61.0
    world.fill()
    assert world.filled == ["transactions", "markers"]


def test_another_error_of_markers_stays_what_it_is(world: World) -> None:
    world.markers.error = Errors.NotLeaderForPartitionError("moved")
    with pytest.raises(Errors.NotLeaderForPartitionError):
        world.fill()
    world.markers.error = None
    world.fill()
    assert world.filled == ["markers"]


def test_law_d_who_has_markers_on_their_way_does_not_change_the_way(world: World) -> None:
    world.may, world.markers.unanswered = False, {P}
    world.fill(P, Q)
    assert sorted(world.filled) == ["markers", "transactions"]


@pytest.mark.parametrize(
    ("beyond", "marked", "end"),
    [(0, [Gap(9_900, 10_000)], 10_000), (1, [Gap(9_901, 10_000)], 10_000), (100, [], 10_000)],
)
def test_law_e_a_transaction_fills_a_long_gap_and_markers_its_end(
    world: World, beyond: int, marked: list[Gap], end: int
) -> None:
    """However often the coordinator writes the end of the transaction."""
    world.transactions.beyond = beyond
    assert asyncio.run(world.filler.fill(P, Gap(0, 10_000), max_batch_bytes=1)) == end
    assert (world.transactions.gaps, world.markers.gaps) == ([Gap(0, 9_900)], marked)


def test_every_way_to_fill_a_gap_has_a_filler_or_is_data() -> None:
    target: Any = SimpleNamespace()
    fillers = gap_fillers(target, "dr", fences_nobody, lambda partition: None, fences_nobody)  # type: ignore[arg-type]
    assert fillers.keys() | {GapFill.RECORDS} == set(GapFill)
