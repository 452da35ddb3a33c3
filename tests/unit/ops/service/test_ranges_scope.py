"""Which partitions a running mirror copies, and which wait: leaders that leave and return, topics that are refused or gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.mirror.engine.planned_link import PlannedLink
from tolerant_client.mirror.state.plan import TopicSpec, TopicsPlan
from tolerant_client.ops.service.ranges_scope import Scope

FIRST, SECOND, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)
LEADERLESS = "it has no leader on the source"


def plan(
    topics: Iterable[str],
    ends: Mapping[TopicPartition, int],
    waiting: Mapping[TopicPartition, str] = {},
    **refused: str,
) -> PlannedLink:
    existing = tuple(TopicSpec(name, 2, 1) for name in topics)
    return PlannedLink(TopicsPlan((), existing, refused=refused), ends, waiting)


def started() -> Scope:
    return Scope().after_plan(plan(["orders", "payments"], {FIRST: 10, SECOND: 20, OTHER: 30}), {}, {FIRST: 4})


def test_what_is_copied_has_its_ends_and_what_it_gained() -> None:
    scope = started()
    assert scope.ends == {FIRST: 10, SECOND: 20, OTHER: 30}
    assert scope.gained == {FIRST: 6, SECOND: 20, OTHER: 30}
    assert (scope.blocked, scope.leaderless) == ({}, {})
    later = scope.after_plan(plan(["orders", "payments"], {FIRST: 15, SECOND: 20, OTHER: 30}), {}, {})
    assert later.gained == {FIRST: 5, SECOND: 0, OTHER: 0}


def test_a_partition_without_a_leader_keeps_its_end_and_the_others_go_on() -> None:
    scope = started().after_plan(plan(["orders", "payments"], {FIRST: 11, OTHER: 30}, {SECOND: LEADERLESS}), {}, {})
    assert scope.ends == {FIRST: 11, SECOND: 20, OTHER: 30}
    assert (scope.blocked, scope.leaderless) == ({}, {SECOND: LEADERLESS})
    back = scope.after_look(LedOffsets({FIRST: 12, SECOND: 21, OTHER: 30}, {}))
    assert (back.ends[SECOND], back.leaderless) == (21, {})


def test_a_partition_that_never_had_a_leader_is_copied_once_it_has_one() -> None:
    scope = Scope().after_plan(plan(["orders"], {FIRST: 10}, {SECOND: LEADERLESS}), {}, {})
    assert SECOND not in scope.ends
    assert scope.led == [FIRST, SECOND]
    assert scope.after_look(LedOffsets({FIRST: 10, SECOND: 3}, {})).ends == {FIRST: 10, SECOND: 3}


def test_a_refused_topic_is_left_out_until_it_is_not_and_no_other() -> None:
    why = {FIRST: "may not be described", SECOND: "may not be described"}
    refused = plan(["payments"], {OTHER: 31}, why, orders="may not be described")
    scope = started()
    assert scope.lacking(refused) == set()
    scope = scope.after_plan(refused, {}, {})
    assert (scope.ends, scope.blocked) == ({OTHER: 31}, why)
    assert scope.after_look(LedOffsets({OTHER: 32}, {})).blocked == why  # a look at leaders says nothing of it
    back = scope.after_plan(plan(["orders", "payments"], {FIRST: 10, SECOND: 20, OTHER: 31}), {}, {})
    assert (len(back.ends), back.blocked) == (3, {})


def test_partitions_that_the_target_refuses_to_add_wait_and_the_former_ones_go_on() -> None:
    grown = plan(["orders"], {FIRST: 10}, {SECOND: "no more partitions"}, orders="no more partitions")
    scope = started().after_plan(grown, {}, {})
    assert FIRST in scope.ends
    assert scope.blocked == {SECOND: "no more partitions"}


def test_a_topic_that_the_source_has_deleted_is_told_until_its_copy_is_deleted_too() -> None:
    left = plan(["payments"], {OTHER: 30})
    scope = started()
    assert scope.lacking(left) == {"orders"}
    scope = scope.after_plan(left, {"orders": [0, 1]}, {})
    assert (list(scope.ends), list(scope.blocked)) == ([OTHER], [FIRST, SECOND])
    assert "the source no longer has this topic" in scope.blocked[FIRST]
    assert scope.lacking(left) == {"orders"}
    assert scope.after_plan(left, {}, {}).blocked == {}


def test_a_topic_that_the_source_deleted_before_this_start_is_told_as_well() -> None:
    left = replace(plan(["payments"], {OTHER: 30}), gone={"orders": [0, 1]})
    assert Scope().lacking(left) == {"orders"}
    scope = Scope().after_plan(left, {"orders": [0, 1]}, {})
    assert "the source no longer has this topic" in scope.blocked[FIRST] and list(scope.ends) == [OTHER]


def test_a_topic_that_comes_back_is_copied_again() -> None:
    scope = started().after_plan(plan(["payments"], {OTHER: 30}), {"orders": [0, 1]}, {})
    back = scope.after_plan(plan(["orders", "payments"], {FIRST: 1, SECOND: 0, OTHER: 30}), {}, {})
    assert (back.ends[FIRST], back.blocked) == (1, {})


def test_a_topic_that_is_created_anew_after_it_was_copied_was_deleted_on_the_target() -> None:
    again = plan(["payments"], {FIRST: 10, OTHER: 30})
    again = replace(again, topics=replace(again.topics, create=(TopicSpec("orders", 2, 1),)))
    assert started().made_again(again) == {"orders"}
    assert Scope().made_again(again) == set()


def test_partitions_that_a_topic_of_the_source_has_no_more_are_told_and_the_others_go_on() -> None:
    fewer = replace(plan(["orders", "payments"], {FIRST: 10, OTHER: 30}), gone={"orders": [SECOND.partition]})
    scope = Scope().after_plan(fewer, {}, {})
    assert scope.blocked.keys() == {SECOND} and "no longer has this partition" in scope.blocked[SECOND]
    assert scope.ends.keys() == {FIRST, OTHER} and not scope.lacking(fewer)
