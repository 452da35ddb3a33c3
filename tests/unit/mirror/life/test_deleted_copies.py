"""deleted_copies.py: which copied records a promotion calls deleted on the target."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.structs import TopicPartition

from support.promotion_world import ORDERS, World
from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import EARLIEST
from tolerant_client.mirror.life import deleted_copies
from tolerant_client.mirror.life.deleted_copies import Deleted, deleted_of
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.promotion_view import PromotedLink
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import DescribedTopics

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.mark.parametrize(
    ("source_start", "bounds", "control", "is_translated", "expected"),
    [
        (0, (101, 101), LinkControl(), False, Deleted(0, 101, True)),
        (0, (101, 102), LinkControl(), False, Deleted(0, 101, True)),  # the fence's marker, or applications' records
        (0, (40, 101), LinkControl(), False, Deleted(0, 40, False)),
        (40, (40, 101), LinkControl(), False, None),  # the source's retention took them, too
        (0, (40, 101), LinkControl(log_starts={P: 40}), False, None),  # where an operator had the copy begin
        (0, (40, 101), LinkControl(starts={P: 40}), False, None),
        (101, (101, 101), LinkControl(), False, None),
        (0, (70, 70), LinkControl(), True, Deleted(0, 101, True)),
        (0, (40, 70), LinkControl(), True, None),  # at which source offset that is, only the map knows
        (0, (0, 0), LinkControl(), True, None),
    ],
)
def test_what_the_target_has_deleted_of_a_copy(
    source_start: int, bounds: tuple[int, int], control: LinkControl, is_translated: bool, expected: Deleted | None
) -> None:
    found = deleted_of(
        [PartitionLag(P, 101, 101, 101, source_start)], {P: bounds}, control, is_translated=is_translated
    )
    assert found.get(P) == expected


@pytest.mark.parametrize(
    ("start", "limits", "has_source", "text"),
    [
        (10, {"retention.ms": "1000"}, True, "0 to 10 of orders-0, which the source has"),
        (10, {}, True, ""),  # whole segments: both logs keep as much
        (101, {}, True, "check retention.ms, retention.bytes and cleanup.policy of topic orders on"),
        (101, {}, False, "any record of orders-0, such as offsets 0 to 101 of orders-0; whether the source still"),
        (10, {}, False, ""),
    ],
)
def test_a_promotion_warns_of_what_the_targets_own_settings_have_deleted(
    start: int, limits: dict[str, str], has_source: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = object()
    target: Any = object()

    async def list_led_offsets(_: Any, wanted: Any) -> LedOffsets:
        return LedOffsets({p: start if at == EARLIEST else 101 for p, at in wanted.items()}, {})

    async def describe_each_topic(cluster: Any, topics: list[str]) -> DescribedTopics:
        config = {"retention.ms": "604800000", **(limits if cluster is target else {})}
        return DescribedTopics({name: TopicSpec(name, 1, 1, {}, config) for name in topics}, {})

    monkeypatch.setattr(deleted_copies, "list_led_offsets", list_led_offsets)
    monkeypatch.setattr(deleted_copies, "describe_each_topic", describe_each_topic)
    of = PromotedLink("dr", target, ORDERS, False, None)
    ends = [PartitionLag(P, 101, 101, 101, 0), PartitionLag(Q, 101, None, None)]  # Q is not on the source any more
    ends = ends if has_source else [PartitionLag(P, 101)]
    found = asyncio.run(deleted_copies.deleted_warnings(of, LinkControl(), ends, source if has_source else None))
    assert len(found) == bool(text) and all(text in one for one in found)
    if limits:
        assert "check retention.ms=1000 (the source's: 604800000) of topic orders on the target" in found[0]


def test_what_the_target_has_deleted_is_a_warning_and_blocks_no_promotion(world: World) -> None:
    world.deleted = ["the target no longer has offsets 0 to 10"]
    assert world.deleted[0] in world.promote(is_dry_run=True).warnings
    report = world.promote()
    assert report.is_done and report.exit_code == 0 and world.deleted[0] in report.warnings
