"""Which positions groups have on the target."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from spark_integration.writing.exactly_once import SinkBatch
from support.group_brokers import PLACE
from tolerant_client.cluster.admin.groups import CommittedOffset, GroupsHome, ListedGroup
from tolerant_client.mirror.follow import group_positions
from tolerant_client.mirror.follow.group_positions import (
    GroupPosition,
    GroupPositions,
    SharedPositions,
    TargetLog,
    place_groups,
    position_of,
    read_positions,
)
from tolerant_client.mirror.life import promotion_view
from tolerant_client.mirror.state.offset_map import MapRow, OffsetMap, Place, RowKey, Run, Translation
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter


def translated(end: int, offset: int, found: int, place: Place = Place.RECORD, start: int = 0) -> TargetLog:
    return TargetLog(start, end, {offset: Translation(offset, found, place, 0)})


@pytest.mark.parametrize(
    ("committed", "log", "offset", "is_behind"),
    [
        (50, TargetLog(0, 100), 50, False),
        (100, TargetLog(0, 100), 100, False),
        (130, TargetLog(0, 100), 100, True),  # not copied yet
        (5, TargetLog(40, 100), 40, False),  # deleted by the target's retention
        (0, TargetLog(0, 0), 0, False),
        (7, TargetLog(0, 0), 0, True),
        (900, translated(100, 900, 45), 45, False),
        (999, translated(100, 999, 100, Place.NOT_COPIED), 100, True),
        (1, translated(100, 1, 12, start=40), 40, False),
        (900, translated(30, 900, 45), 30, False),
    ],
)
def test_an_offset_is_kept_within_what_the_target_has(
    committed: int, log: TargetLog, offset: int, is_behind: bool
) -> None:
    position = position_of("g", PLACE, CommittedOffset(committed, "m"), log)
    assert position == GroupPosition(
        "g", PLACE, committed, offset, "m", is_behind, is_deleted=offset == log.start == 40
    )


def test_a_group_stays_where_it_is_if_nobody_knows_where_its_next_records_are() -> None:
    """1. MirrorMaker 2 copies source offsets up to 200, 2. the link takes over, 3. the map loses its row of those from 210 to 220."""
    rows = [
        MapRow(RowKey(PLACE, 0), "A.orders", ("", ""), 210, 0, (Run(200, 61, 10),)),
        MapRow(RowKey(PLACE, 1), "A.orders", ("", ""), 230, 0, (Run(220, 91, 10),)),
    ]
    offset_map = OffsetMap(rows, 200)
    offsets = {"old": 150, "new": 203, "lost": 210}
    log = TargetLog(0, 101, {offset: offset_map.translate(offset) for offset in offsets.values()})
    wanted = {group: {PLACE: CommittedOffset(offset, "")} for group, offset in offsets.items()}
    positions, left = place_groups(wanted, {PLACE: log}, {})
    assert [(p.group, p.offset) for p in positions] == [("new", 64)]
    assert [(one.name, one.reason) for one in left] == [
        ("group old, A.orders-3", "before-takeover"),
        ("group lost, A.orders-3", "lost-row"),
    ]
    assert "150" in left[0].why and "210, of which the link's offset map has lost" in left[1].why


def test_groups_whose_offsets_are_no_positions_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink's decision has the number of its micro-batch as its offset: cut to the log's end it is another one."""
    decisions = SinkBatch("orders", "query", "run", 700)
    names = [decisions.group(0), decisions.ended_group, decisions.former_prefix + "0", "tolerant-mirror-x", "billing"]
    asked: list[str] = []

    async def list_groups(cluster: Any) -> Any:
        return {name: ListedGroup(name, "", "Empty", "classic") for name in names}, {}

    async def groups_home(cluster: Any) -> GroupsHome:
        return GroupsHome(())

    async def fetch_offsets(cluster: Any, chosen: Any) -> Any:
        asked.extend(chosen)
        return {name: {PLACE: CommittedOffset(701, "")} for name in chosen}, {}

    async def target_logs(source: Any, target: Any, wanted: Any, link: str) -> Any:
        return {PLACE: TargetLog(0, 80)}, {}

    for module in (group_positions, promotion_view):
        monkeypatch.setattr(module, "list_groups", list_groups)
        monkeypatch.setattr(module, "fetch_offsets", fetch_offsets)
    monkeypatch.setattr(group_positions, "groups_home", groups_home)
    monkeypatch.setattr(group_positions, "_target_logs", target_logs)
    cluster: Any = Named()
    found = drive(read_positions(cluster, cluster, LinkTopics.of("A.orders"), TopicFilter()))
    assert ([(p.group, p.offset) for p in found.positions], found.left, asked) == ([("billing", 80)], (), ["billing"])
    link: Any = SimpleNamespace(target=Named(), is_translated=False)
    places, unknown = drive(promotion_view.group_places(link, TopicFilter(), {PLACE: 80}))
    assert ([place.group for place in places], unknown) == (["billing"], ())


class Named:
    name = "source"


def drive(coroutine: Any) -> Any:
    """Runs what waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


def test_two_duties_share_a_reading_and_none_gets_its_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[Any] = []

    async def read_positions(*_: Any, leave_out: Any, **__: Any) -> Any:
        readings.append(leave_out)
        return GroupPositions((), (), clock[0])

    clock = [100.0]
    monkeypatch.setattr(group_positions, "read_positions", read_positions)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    shared = SharedPositions(LinkTopics.of("t"), TopicFilter())

    def read(duty: str, leave_out: Any = ()) -> Any:
        return drive(shared.read(duty, None, None, leave_out))  # type: ignore[arg-type]

    assert read("groups") is read("checkpoints") and len(readings) == 1
    first = read("groups")
    assert read("groups") is not first and len(readings) == 3
    clock[0] += 60
    assert read("checkpoints") is not None and len(readings) == 4, "it was too old"
    assert read("groups", [PLACE]) is not None and len(readings) == 5, "another partition was stopped since"
