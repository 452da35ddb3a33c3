"""How long whoever creates a topic waits for the leaders of its partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.admin.topics import still_missing, wait_for_leaders
from tolerant_client.errors import ClusterUnreachableError


class Busy(OneLog):
    """A broker that tells at once that it leads all partitions, and makes one log every `log_s`, up to the first `most`."""

    name = "target"

    def __init__(self, log_s: float, most: int) -> None:
        super().__init__([])
        self.slept = 0.0
        self._log_s, self._most = log_s, most

    async def refresh(self) -> None:
        pass

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds

    async def offsets_at(
        self, _: int, partitions: Iterable[TopicPartition], asked: Mapping[TopicPartition, int], *__: object
    ) -> dict[TopicPartition, Any]:
        made = min(self._most, int(self.slept / self._log_s))
        error = Errors.NotLeaderForPartitionError("orders")
        return {p: 0 if p.partition < made else error for p in partitions}


def waited_s(cluster: Any, monkeypatch: pytest.MonkeyPatch, partitions: int = 60) -> float:
    monkeypatch.setattr(time, "monotonic", lambda: cluster.slept)
    asyncio.run(wait_for_leaders(cluster, [SimpleNamespace(name="orders", partitions=partitions)]))  # type: ignore[list-item]
    slept: float = cluster.slept
    return slept


def test_new_partitions_are_waited_for_until_their_leaders_have_made_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 60 <= waited_s(Busy(1.0, 60), monkeypatch) < 64, (
        "longer than one election, since some more are led all the time"
    )
    assert waited_s(Busy(0.001, 60), monkeypatch) < 1


def test_new_partitions_of_which_no_more_are_led_are_left_to_their_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 30 < waited_s(Busy(1.0, 30), monkeypatch) < 55
    assert waited_s(Busy(1.0, 0), monkeypatch) < 12


def test_a_target_that_is_away_is_left_to_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Busy(1.0, 60)

    async def connect() -> None:
        raise ClusterUnreachableError("target")

    cluster.connect = connect  # type: ignore[method-assign]
    assert waited_s(cluster, monkeypatch) == 0


def test_topics_that_a_broker_shows_a_moment_later_are_not_missing() -> None:
    looks: list[set[str]] = [set(), {"orders"}, {"orders"}]

    class Restarted(Busy):
        async def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
            return {name: [0] for name in looks.pop(0) & set(topics)}

    cluster: Any = Restarted(1.0, 1)
    assert asyncio.run(still_missing(cluster, ["orders", "gone"])) == {"gone"} and not looks
