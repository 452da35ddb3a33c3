"""cluster/leaders.py: what the last Metadata says that a cluster does not have; no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.leaders import Leaders

TOPICS: dict[str, dict[int, Any]] = {"orders": {0: None, 1: None}, "half": {0: None, 2: None}, "none": {}}


@pytest.fixture
def leaders() -> Leaders:
    metadata = SimpleNamespace(
        unauthorized_topics={"hidden"},
        partitions_for_topic=lambda topic: set(TOPICS[topic]) if topic in TOPICS else None,
    )
    made = Leaders.__new__(Leaders)
    vars(made).update(names=None, name="source", manager=SimpleNamespace(cluster=metadata))
    return made


@pytest.mark.parametrize(
    "topic, number, is_lacking, why",
    [
        ("orders", 1, False, "it has no leader on the source"),
        ("orders", 2, True, "the source has no such partition (any more)"),
        ("half", 1, False, "it has no leader on the source"),  # the broker was not told of all partitions yet
        ("none", 0, False, "it has no leader on the source"),
        ("gone", 0, True, "the source has no such topic (any more)"),
        ("hidden", 5, False, "it may not be described on the source; grant Describe on its topic"),
    ],
)
def test_a_partition_above_those_that_the_topic_has_is_gone_and_any_other_has_no_leader(
    leaders: Leaders, topic: str, number: int, is_lacking: bool, why: str
) -> None:
    assert leaders.lacks(topic, number) is is_lacking
    assert leaders.why_leaderless(TopicPartition(topic, number)) == why
