"""What is decided about groups of a link, and how many groups are asked at once."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitRequest

from support.group_brokers import NEW, PLACE, Brokers, run
from tolerant_client.cluster.admin import groups as admin_groups
from tolerant_client.cluster.admin.groups import (
    CommittedOffset,
    GroupsHome,
)
from tolerant_client.errors import LinkPromotedError
from tolerant_client.mirror.follow import groups
from tolerant_client.mirror.follow.group_positions import (
    GroupPosition,
)
from tolerant_client.mirror.follow.groups import GroupMove, decide_moves


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_groups, "_READ_PATIENCE_MS", 150)
    monkeypatch.setattr(admin_groups, "_COMMIT_PATIENCE_MS", 150)


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


def test_offsets_of_a_group_in_use_are_counted() -> None:
    positions = [GroupPosition("g", place, 5, 5, "", False) for place in (PLACE, PLACE._replace(partition=7))]
    one, two = (decide_moves(positions[:n], {"g": {}}, {"g": "Stable"})[1] for n in (1, 2))
    assert "1 of its offsets was left" in one[0].why and "2 of its offsets were left" in two[0].why


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
        ([25], False, "members", "in use on the target: 1 of its offsets was left", ["m"]),
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
