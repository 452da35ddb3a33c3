"""When a high watermark of the standby completes what a producer holds, and when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.mirror.standby import copy_watch
from tolerant_client.mirror.standby.copy_watch import CopyWatch
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.topic_filter import LinkTopics

PARTITION = TopicPartition("orders", 0)
LINKED = LinkControl(topics=LinkTopics.of("orders").to_json())


class Held:
    """One record that is held at offset 10."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def up_to(self, partition: TopicPartition, end: int) -> list[Any]:
        return [SimpleNamespace(batch=None, base_offset=10, log_append_time_ms=-1)] if end > 10 else []

    def passed(self, ends: Mapping[TopicPartition, int]) -> None:
        self.said.append(dict(ends))

    def refuse(self, partition: TopicPartition, why: str) -> None:
        self.said.append(why)


class Standby:
    """What the standby says; `ends` are the high watermarks of one look after the other, None is no leader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: list[int | None], control: LinkControl = LINKED) -> None:
        self.ends, self.compared = ends, 0
        self.there: Any = [10]
        monkeypatch.setattr(copy_watch, "list_led_offsets", self._offsets)
        monkeypatch.setattr(copy_watch, "find_copies", self._find)
        monkeypatch.setattr(copy_watch, "records_of", lambda batch: ())

        async def refresh() -> Any:
            return control

        async def is_not() -> bool:
            return False

        cluster: Any = SimpleNamespace(net=None, refresh=refresh)
        monkeypatch.setattr(copy_watch, "ledger_topic", lambda _: SimpleNamespace(exists=is_not))
        self._watch = CopyWatch(cluster, SimpleNamespace(refresh=refresh, link="A-B"), {})  # type: ignore[arg-type]

    def looks(self, partition: TopicPartition = PARTITION) -> list[Any]:
        """What is said of what is held of a partition, after all looks."""
        held = Held()

        async def look() -> None:
            for _ in range(len(self.ends)):
                await self._watch._look(held, {partition: 10})  # type: ignore[arg-type]

        asyncio.run(look())
        return held.said

    async def _offsets(self, cluster: Any, asked: Mapping[TopicPartition, int], **how: Any) -> LedOffsets:
        end = self.ends.pop(0)
        return (
            LedOffsets({}, dict.fromkeys(asked, "no leader"))
            if end is None
            else LedOffsets(dict.fromkeys(asked, end), {})
        )

    async def _find(self, net: Any, standby: Any, sought: Mapping[TopicPartition, Any], ends: Any, tell: Any) -> None:
        self.compared += 1
        assert [one.from_offset for one in sought.values()] == [10]
        for partition in sought:
            tell(partition, self.there)


def test_a_watermark_that_passes_a_record_completes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch, [10, None, 11])
    assert standby.looks() == [{PARTITION: 11}] and not standby.compared


def test_what_was_passed_when_it_was_first_seen_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch, [11])
    assert standby.looks() == [{PARTITION: 11}] and standby.compared == 1


def test_a_watermark_that_was_further_before_is_one_of_other_records_perhaps(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch, [11, 12])
    standby.there = TopicAuthorizationFailedError("Fetch of orders")
    assert standby.looks() == [] and standby.compared == 2


@pytest.mark.parametrize("there", [[], [11]])
def test_other_records_are_no_copy(monkeypatch: pytest.MonkeyPatch, there: list[int]) -> None:
    standby = Standby(monkeypatch, [11])
    standby.there = there
    assert standby.looks() == ["the standby has other records at its offset"]


@pytest.mark.parametrize("control", [replace(LINKED, is_promotion_begun=True), LinkControl()])
def test_once_a_promotion_has_begun_watermarks_may_be_of_others_records(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl
) -> None:
    assert Standby(monkeypatch, [10, 11], control).looks() == []


def test_a_topic_outside_the_link_is_told_though_the_standby_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Standby(monkeypatch, [11]).looks(TopicPartition("own", 0)) == ["the link does not copy own"]
