"""What is decided about groups of a link, and how many groups are asked at once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitRequest

from spark_integration.writing.exactly_once import SinkBatch
from support.group_brokers import NEW, PLACE, Brokers, run
from tolerant_client.cluster.admin import groups as admin_groups
from tolerant_client.cluster.admin.groups import (
    CommittedOffset,
    GroupsHome,
    ListedGroup,
)
from tolerant_client.errors import LinkPromotedError
from tolerant_client.mirror.follow import groups
from tolerant_client.mirror.follow.groups import (
    GroupMove,
    GroupPosition,
    GroupPositions,
    SharedPositions,
    TargetLog,
    decide_moves,
    position_of,
    read_positions,
)
from tolerant_client.mirror.life import promotion_view
from tolerant_client.mirror.state.offset_map import MapRow, OffsetMap, RowKey, Run
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_groups, "_READ_PATIENCE_MS", 150)
    monkeypatch.setattr(admin_groups, "_COMMIT_PATIENCE_MS", 150)


@pytest.mark.parametrize(
    ("committed", "log", "offset", "is_behind"),
    [
        (50, TargetLog(0, 100), 50, False),
        (100, TargetLog(0, 100), 100, False),
        (130, TargetLog(0, 100), 100, True),  # not copied yet
        (5, TargetLog(40, 100), 40, False),  # deleted by the target's retention
        (0, TargetLog(0, 0), 0, False),
        (7, TargetLog(0, 0), 0, True),
        (900, TargetLog(0, 100, {900: (45, False)}), 45, False),  # translated
        (999, TargetLog(0, 100, {999: (100, True)}), 100, True),
        (1, TargetLog(40, 100, {1: (12, False)}), 40, False),
        (900, TargetLog(0, 30, {900: (45, False)}), 30, False),
    ],
)
def test_an_offset_is_kept_within_what_the_target_has(
    committed: int, log: TargetLog, offset: int, is_behind: bool
) -> None:
    position = position_of("g", PLACE, CommittedOffset(committed, "m"), log)
    assert position == GroupPosition(
        "g", PLACE, committed, offset, "m", is_behind, is_deleted=offset == log.start == 40
    )


@pytest.mark.parametrize(
    ("wanted", "before", "state", "may_rewind", "moved", "reason"),
    [
        (50, None, "Dead", False, True, None),
        (50, None, "Empty", False, True, None),
        (50, 20, "Empty", False, True, None),
        (50, 50, "Empty", False, False, None),
        (50, 80, "Empty", False, False, "ahead"),
        (50, 80, "Empty", True, True, None),
        (50, 20, "Stable", False, False, "members"),
        (50, None, "Stable", False, False, "members"),
        (50, 80, "Stable", True, False, "members"),
        (50, 20, "PreparingRebalance", False, False, "members"),
        (50, 20, "Assigning", True, False, "members"),
        (50, 20, "Reconciling", False, False, "members"),
        (50, 20, "Unknown", False, False, "members"),
        (50, 50, "Stable", False, False, None),
    ],
)
def test_a_group_is_moved_forward_while_nobody_consumes(
    wanted: int, before: int | None, state: str, may_rewind: bool, moved: bool, reason: str | None
) -> None:
    position = GroupPosition("g", PLACE, wanted, wanted, "", False)
    there = {} if before is None else {PLACE: CommittedOffset(before, "")}
    moves, left, unchanged = decide_moves([position], {"g": there}, {"g": state}, may_rewind=may_rewind)
    assert moves == ([GroupMove(position, -1 if before is None else before)] if moved else [])
    assert [x.reason for x in left] == ([reason] if reason else [])
    assert unchanged == (before == wanted)


def test_a_group_at_what_another_mirror_has_copied_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. MirrorMaker 2 copies source offsets up to 200, 2. the link takes over, 3. groups stand before and behind that."""

    async def list_groups(cluster: Any) -> Any:
        return {name: ListedGroup(name, "consumer", "Empty", "classic") for name in ("old", "new")}, {}

    async def groups_home(cluster: Any) -> GroupsHome:
        return GroupsHome(())

    async def fetch_offsets(cluster: Any, names: Any) -> Any:
        at = {"old": 150, "new": 203}
        return {name: {PLACE: CommittedOffset(at[name], "")} for name in names}, {}

    async def target_logs(target: Any, wanted: Any, link: str) -> Any:
        row = MapRow(RowKey(PLACE, 0), "A.orders", ("", ""), 210, 0, (Run(200, 61, 10),))
        known = groups._translated(OffsetMap([row], 200), [150, 203])
        return {PLACE: TargetLog(0, 80, known)}, {}

    for function in (list_groups, groups_home, fetch_offsets):
        monkeypatch.setattr(groups, function.__name__, function)
    monkeypatch.setattr(groups, "_target_logs", target_logs)
    topics = LinkTopics.of("A.orders")
    found = drive(read_positions(Named(), Named(), topics, TopicFilter(), link="A-B"))  # type: ignore[arg-type]
    assert [(p.group, p.offset) for p in found.positions] == [("new", 64)]
    (left,) = found.left
    assert (left.name, left.reason) == ("group old, A.orders-3", "before-takeover") and "150" in left.why


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

    async def target_logs(target: Any, wanted: Any, link: str) -> Any:
        return {PLACE: TargetLog(0, 80)}, {}

    for module in (groups, promotion_view):
        monkeypatch.setattr(module, "list_groups", list_groups)
        monkeypatch.setattr(module, "fetch_offsets", fetch_offsets)
    monkeypatch.setattr(groups, "groups_home", groups_home)
    monkeypatch.setattr(groups, "_target_logs", target_logs)
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
    monkeypatch.setattr(groups, "read_positions", read_positions)
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


def test_a_group_of_which_the_target_says_nothing_is_not_moved() -> None:
    position = GroupPosition("g", PLACE, 5, 5, "", False)
    assert decide_moves([position], {}, {"g": "Empty"}) == ([], [], 0)
    assert decide_moves([position], {"g": {}}, {}) == ([], [], 0)


def test_a_round_passes_on_what_asks_whether_it_may_still_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def respond(name: str, value: Any) -> None:
        async def tell(*_: Any) -> Any:
            return value

        monkeypatch.setattr(groups, name, tell)

    async def may_write() -> None:
        raise LinkPromotedError("promoted")

    respond("groups_home", GroupsHome(()))
    respond("fetch_offsets", ({"g": {}}, {}))
    respond("group_states", ({"g": "Empty"}, {}))
    cluster = Brokers(NEW)
    positions = groups.GroupPositions((GroupPosition("g", PLACE, 5, 5, "", False),), (), 0.0)

    async def round_of(target: Any) -> None:
        await groups.sync_groups(target, positions, may_write=may_write)

    with pytest.raises(LinkPromotedError):
        run(cluster, round_of)
    assert not cluster.count(OffsetCommitRequest)


@pytest.mark.parametrize(
    ("codes", "is_written", "reason", "why", "sent"),
    [
        ([0], True, None, "", ["m"]),
        ([25], False, "members", "in use", ["m"]),
        ([27], False, "members", "in use", ["m"]),
        ([12, 0], True, None, "", ["m", ""]),  # the metadata is too large for the target
        ([12], False, "error", "OffsetMetadataTooLarge", ["m", ""]),
        ([29], False, "error", "A.orders-3: TopicAuthorizationFailedError; grant Read", ["m"]),
        ([30], False, "error", "grant Read", ["m"]),
        ([15], False, "error", "next round", None),
    ],
)
def test_what_the_target_makes_of_a_commit(
    codes: list[int], is_written: bool, reason: str | None, why: str, sent: list[str] | None
) -> None:
    cluster = Brokers(NEW, {"g": codes})
    move = GroupMove(GroupPosition("g", PLACE, 5, 5, "m", False), -1)
    written, left = run(cluster, groups._write, [move])
    assert written == ([move] if is_written else [])
    assert [x.reason for x in left] == ([reason] if reason else []) and all(why in x.why for x in left)
    commits = [request for _, request in cluster.requests if isinstance(request, OffsetCommitRequest)]
    assert sent is None or [c.topics[0].partitions[0].committed_metadata for c in commits] == sent
