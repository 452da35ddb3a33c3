"""What duties leave is told once."""

from __future__ import annotations

from tolerant_client.mirror.follow.skipped import Left, LeftSoFar


def test_a_failure_is_told_from_what_is_left_by_the_rules() -> None:
    reasons = ("error", "refused", "leaderless", "ahead", "members")
    assert [reason for reason in reasons if Left("x", reason, "").is_failure] == ["error", "refused", "leaderless"]


def test_that_no_group_was_seen_is_a_note() -> None:
    assert [reason for reason in ("none", "error", "members") if Left("x", reason, "").is_note] == ["none"]


def test_what_is_left_is_told_once_and_again_when_it_comes_back() -> None:
    so_far = LeftSoFar()
    ahead, busy = Left("group g", "ahead", "at 5"), Left("group g", "members", "in use")
    assert so_far.news("groups", [ahead]) == [ahead]
    assert so_far.news("groups", [ahead._replace(why="at 6"), busy]) == [busy]
    assert so_far.news("acls", [ahead]) == [ahead]
    assert so_far.news("groups", []) == []
    assert so_far.news("groups", [ahead]) == [ahead]
