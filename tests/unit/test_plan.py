"""What a link decides before it writes anything."""

from __future__ import annotations

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.plan import TopicSpec, plan_topics, select_topics

AVAILABLE = {"orders": 1, "orders.v2": 1, "payments": 1}
STAMPED = {"message.timestamp.type": "LogAppendTime"}


def spec(name: str = "orders", partitions: int = 3, replicas: int = 3, **config: str) -> TopicSpec:
    return TopicSpec(name, partitions, replicas, {key.replace("_", "."): value for key, value in config.items()})


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders.v2"]),
        (".*", ["orders", "orders.v2", "payments"]),
        ("payments|orders", ["orders", "payments"]),
    ],
)
def test_whole_names_are_matched_and_sorted(pattern: str, chosen: list[str]) -> None:
    assert select_topics(pattern, AVAILABLE) == chosen


def test_no_match_suggests_what_is_near() -> None:
    with pytest.raises(OptionError, match="No topic of the source matches 'ordres'; did you mean orders"):
        select_topics("ordres", AVAILABLE)
    with pytest.raises(OptionError, match="the source has 3 topics"):
        select_topics("zzz", AVAILABLE)
    with pytest.raises(OptionError, match="the source has 0 topics"):
        select_topics(".*", {})


def test_bad_expression_is_named() -> None:
    with pytest.raises(OptionError, match=r"'\*orders' is not a regular expression"):
        select_topics("*orders", AVAILABLE)


def test_missing_topic_is_created_like_the_source() -> None:
    plan = plan_topics({"orders": spec(cleanup_policy="compact")}, {}, 3)
    (created,) = plan.create
    assert plan.existing == ()
    assert (created.name, created.partitions, created.replication_factor) == ("orders", 3, 3)
    assert created.config["cleanup.policy"] == "compact"


def test_created_topic_keeps_timestamps_whatever_the_brokers_default_is() -> None:
    (created,) = plan_topics({"orders": spec()}, {}, 3).create
    assert created.config["message.timestamp.type"] == "CreateTime"


def test_small_target_gets_fewer_replicas_and_a_minimum_that_it_can_reach() -> None:
    (created,) = plan_topics({"orders": spec(min_insync_replicas="2")}, {}, 1).create
    assert created.replication_factor == 1
    assert created.config["min.insync.replicas"] == "1"
    (created,) = plan_topics({"orders": spec(min_insync_replicas="2")}, {}, 2).create
    assert created.config["min.insync.replicas"] == "2"


def test_throttled_replicas_of_the_sources_brokers_are_not_copied() -> None:
    config = {"leader.replication.throttled.replicas": "0:1", "follower.replication.throttled.replicas": "0:2"}
    (created,) = plan_topics({"orders": TopicSpec("orders", 1, 1, config)}, {}, 1).create
    assert not config.keys() & created.config.keys()


def test_existing_topic_with_as_many_or_more_partitions_is_used() -> None:
    for partitions in (3, 4):
        plan = plan_topics({"orders": spec()}, {"orders": spec(partitions=partitions)}, 1)
        assert plan.create == ()
        assert plan.existing == (spec(),)


def test_existing_topic_with_fewer_partitions_is_refused() -> None:
    with pytest.raises(OptionError, match="Topic orders has 2 partitions on the target and 3 on the source; add partitions"):
        plan_topics({"orders": spec()}, {"orders": spec(partitions=2)}, 1)


def test_log_append_time_is_refused_on_either_side() -> None:
    stamped = TopicSpec("orders", 3, 1, STAMPED)
    with pytest.raises(OptionError, match="Topic orders of the source has"):
        plan_topics({"orders": stamped}, {}, 1)
    with pytest.raises(OptionError, match="Topic orders of the target has .*set it to CreateTime"):
        plan_topics({"orders": spec()}, {"orders": stamped}, 1)
