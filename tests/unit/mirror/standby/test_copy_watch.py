"""When a high watermark of the standby completes what a producer holds, and when it does not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.errors import OptionError
from tolerant_client.mirror.standby import copy_watch
from tolerant_client.mirror.standby.copy_watch import CopyWatch
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.topic_filter import LinkTopics

PARTITION = TopicPartition("orders", 0)
LINKED = LinkControl(topics=LinkTopics.of("orders").to_json())


class Held:
    """One record that is held at offset 10."""

    def __init__(self) -> None:
        self.said: list[str | None] = []
        self._one = SimpleNamespace(base_offset=10)

    def up_to(self, partition: TopicPartition, end: float = math.inf) -> list[Any]:
        return [self._one] if end > 10 else []

    def end(self, ended: Sequence[tuple[Any, str | None]]) -> None:
        self.said += [why for _, why in ended]


class Standby:
    """What the standby says; `ends` are the high watermarks of one look after the other, None is no leader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: list[int | None], control: LinkControl = LINKED) -> None:
        self.ends, self.compared = ends, 0
        self.there: Any = [10]
        monkeypatch.setattr(copy_watch, "list_led_offsets", self._offsets)
        monkeypatch.setattr(copy_watch, "find_copies_in", self._find)
        monkeypatch.setattr(copy_watch, "sought_at", lambda batches: batches)

        async def refresh() -> Any:
            return control

        cluster: Any = SimpleNamespace(net=None, refresh=refresh, manager=SimpleNamespace(closed=False))
        self._watch = CopyWatch(cluster, SimpleNamespace(refresh=refresh), self._check)  # type: ignore[arg-type]

    def _check(self, control: LinkControl) -> None:
        if control.source_cluster_id == "other":
            raise OptionError("Link A-B copies from cluster other")

    def looks(self, partition: TopicPartition = PARTITION) -> list[Any]:
        """What is said of what is held of a partition, after all looks."""
        held = Held()

        async def look() -> None:
            for _ in range(len(self.ends)):
                await self._watch._look(held, {partition})  # type: ignore[arg-type]

        asyncio.run(look())
        return held.said

    async def _offsets(self, cluster: Any, asked: Mapping[TopicPartition, int], **how: Any) -> LedOffsets:
        end = self.ends.pop(0)
        if end is None:
            return LedOffsets({}, dict.fromkeys(asked, "no leader"))
        return LedOffsets(dict.fromkeys(asked, end), {})

    async def _find(self, cluster: Any, sought: Mapping[TopicPartition, Any], ends: Any, tell: Any) -> None:
        self.compared += 1
        for partition in sought:
            tell(partition, self.there)


def test_what_a_watermark_has_passed_is_complete_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch, [10, None, 11])
    assert standby.looks() == [None] and standby.compared == 1


def test_what_cannot_be_read_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch, [11, 12])
    standby.there = TopicAuthorizationFailedError("Fetch of orders")
    assert standby.looks() == [] and standby.compared == 2


def test_something_else_at_its_offset_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch, [11])
    standby.there = []
    (why,) = standby.looks()
    assert why.startswith("the standby has something else at its offset: filler")


@pytest.mark.parametrize("control", [replace(LINKED, is_promotion_begun=True), LinkControl()])
def test_once_a_promotion_has_begun_the_move_decides(monkeypatch: pytest.MonkeyPatch, control: LinkControl) -> None:
    standby = Standby(monkeypatch, [10, 11], control)
    assert standby.looks() == [] and not standby.compared


def test_the_link_of_another_cluster_acknowledges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = Standby(monkeypatch, [11], replace(LINKED, source_cluster_id="other"))
    with pytest.raises(OptionError, match="copies from cluster other"):
        standby.looks()
    assert not standby.compared


def test_a_topic_outside_the_link_is_told_though_the_standby_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Standby(monkeypatch, [11]).looks(TopicPartition("own", 0)) == ["the link does not copy own"]
