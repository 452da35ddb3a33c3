"""Resting logs are checked, all of a node at once, and only differences are trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.appendable import AppendRules, AppendState
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.identical.resting import LOOK_S, RestingLogs

RULES = AppendRules(False, False, 1 << 20, remembered_ms=3_600_000, filler=GapFill.TRANSACTIONS)


class Target:
    """Two nodes that lead the even and the odd partitions; all logs end at 100, except those in `ends`."""

    def __init__(self) -> None:
        self.ends: dict[int, Any] = {}
        self.asked: list[tuple[int, int]] = []  # node, partitions
        self.leaderless: set[int] = set()
        self.error: Exception | None = None
        self.while_asked: Callable[[], None] = lambda: None
        self.updates = 0
        self.manager = SimpleNamespace(cluster=SimpleNamespace(request_update=self._update))

    def _update(self) -> None:
        self.updates += 1

    def known_leader(self, partition: TopicPartition) -> int | None:
        return None if partition.partition in self.leaderless else 1 + partition.partition % 2

    async def offsets_at(self, node_id: int, partitions: Iterable[TopicPartition], asked: Any, isolation: int) -> Any:
        members = list(partitions)
        self.asked.append((node_id, len(members)))
        self.while_asked()
        if self.error is not None:
            raise self.error
        return {p: self.ends.get(p.partition, 100) for p in members}


class Rig:
    def __init__(self, partitions: int = 4) -> None:
        self.now, self.target, self.troubled = 0.0, Target(), list[int]()
        self.copies = [PartitionCopy(TopicPartition("orders", n), 0.0) for n in range(partitions)]
        for copy in self.copies:
            copy.resume(AppendState(100, 4711, 0, 100), RULES, 0.0)
        target: Any = self.target
        self.logs = RestingLogs(
            target, lambda: self.now, self._spawn, lambda copy: self.troubled.append(copy.partition.partition)
        )

    def _spawn(self, function: Callable[..., Any], *args: Any) -> None:
        asyncio.run(function(*args))

    def look(self, after_s: float = LOOK_S) -> list[int]:
        self.now += after_s
        self.logs.look(self.copies)
        return self.troubled


def test_ten_thousand_logs_that_rest_are_one_request_a_node_every_half_minute() -> None:
    rig = Rig(10_000)
    for _ in range(70):
        assert rig.look(after_s=1.0) == []
    assert sorted(rig.target.asked) == [(1, 5_000), (1, 5_000), (2, 5_000), (2, 5_000)]


@pytest.mark.parametrize(
    "end", [0, 99, 101, Errors.UnknownTopicOrPartitionError(), Errors.NotLeaderForPartitionError(), None]
)
def test_a_log_that_ends_elsewhere_or_tells_no_end_is_placed_again(end: Any) -> None:
    rig = Rig()
    rig.target.ends[2] = end
    assert rig.look() == [2]
    assert [copy.phase for copy in rig.copies] == [Phase.COPYING, Phase.COPYING, Phase.DRAINING, Phase.COPYING]


def test_a_log_without_a_leader_is_placed_again() -> None:
    rig = Rig()
    rig.target.leaderless = {1}
    assert rig.look() == [1]


def test_a_node_that_does_not_respond_says_nothing_of_its_logs() -> None:
    rig = Rig()
    rig.target.error = Errors.KafkaConnectionError("reset")
    assert rig.look() == [] and rig.target.updates == 2
    rig.target.error = None
    rig.target.ends[3] = 0
    assert rig.look() == [3]


def test_what_is_appended_to_meanwhile_is_no_trouble() -> None:
    rig = Rig()
    rig.target.ends = {0: 101, 2: 101}

    def append() -> None:
        rig.copies[0].in_flight = 1
        rig.copies[2].acked = 101

    rig.target.while_asked = append
    assert rig.look() == []


def test_what_does_not_rest_is_not_asked_for() -> None:
    rig = Rig()
    rig.copies[0].in_flight = 1
    rig.copies[1].stop(Errors.KafkaError())  # type: ignore[arg-type]
    rig.copies[2].trouble("append failed", 1.0)
    rig.look()
    assert rig.target.asked == [(2, 1)]


def test_a_look_that_finds_the_log_as_it_was_left_ends_the_trouble_of_the_one_before() -> None:
    rig = Rig(1)
    (copy,) = rig.copies
    copy.last_stable_offset = 100
    rig.target.leaderless = {0}
    assert rig.look() == [0]
    copy.resume(AppendState(100, 4711, 0, 100), RULES, rig.now)
    rig.target.leaderless = set()
    assert rig.look() == [0], "no more trouble than before"
    copy.last_stable_offset = 500  # hours later
    rig.now += 10_000.0
    copy.give_up_after(120.0, rig.now)
    assert copy.error is None and copy.waits(10.0, rig.now) is None
