"""What a link decides before it writes anything."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.health import counted
from tolerant_client.mirror.state.plan import TopicSpec, fit_config, in_operations, plan_topics, select_topics
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import CONFIG_PROPERTIES_EXCLUDE, LinkTopics, TopicCreation, TopicFilter

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


def test_topics_of_mirrors_are_never_chosen() -> None:
    own = {"tolerant-mirror-ledger": 1, "tolerant-mirror-offsets-a": 1}
    assert select_topics(".*", {**AVAILABLE, **own}) == sorted(AVAILABLE)
    with pytest.raises(
        OptionError, match="the source has orders, orders.v2, payments [(]internal ones are left out[)]"
    ):
        select_topics("tolerant-mirror-.*", {**AVAILABLE, **own})


def test_no_match_suggests_what_is_near() -> None:
    with pytest.raises(OptionError, match="No topic of the source matches 'ordres'; did you mean orders"):
        select_topics("ordres", AVAILABLE)
    offer = (
        "the source has orders, orders.v2, payments and 2 more topics .internal ones are left out.: give a regular expression"
        " for whole names, or create the topic first$"
    )
    with pytest.raises(OptionError, match=offer):
        select_topics("zzz", {**AVAILABLE, "z1": 1, "z2": 1, "__consumer_offsets": 50, "__own": 1})
    with pytest.raises(OptionError, match="the source has heartbeats "):
        select_topics("shared", {"heartbeats": 1})
    with pytest.raises(OptionError, match="; the source has no topics but internal ones, which are not copied$"):
        select_topics("orders", {"__consumer_offsets": 50})


def test_bad_expression_is_named() -> None:
    with pytest.raises(OptionError, match=r"'\*orders' is not a regular expression"):
        select_topics("*orders", AVAILABLE)


def test_topics_of_a_link_are_chosen_by_their_source_names_and_told_by_the_targets() -> None:
    names = TopicNames(DefaultReplicationPolicy(), "A")
    link = LinkTopics(TopicFilter(("orders.*", "B.payments")), names, "B")
    available = dict.fromkeys(
        ("A.orders", "A.orders.v2", "A.B.payments", "A.heartbeats", "A.tolerant-mirror-ledger"), 1
    )
    assert select_topics(link, available) == ["A.heartbeats", "A.orders", "A.orders.v2"]
    other = LinkTopics(TopicFilter(("zzz",)), names, "B")
    with pytest.raises(OptionError, match="No topic of the source matches 'zzz'; the source has orders [(]"):
        select_topics(other, {"A.orders": 1})
    assert select_topics(structs.replace(other, waits_for_topics=True), {"A.orders": 1}) == []


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


@pytest.mark.parametrize(
    ("factor", "brokers", "created", "minimum", "is_warned"),
    [
        (2, 3, 2, "2", False),
        (1, 3, 1, "1", False),
        (2, 1, 1, "1", True),
        (-1, 3, -1, "2", False),
        (-1, 1, -1, "1", False),
    ],
)
def test_replication_factor_of_the_link_counts_not_the_sources(
    factor: int, brokers: int, created: int, minimum: str, is_warned: bool
) -> None:
    wanted = TopicSpec("orders", 1, 3, {"min.insync.replicas": "2"}, {"cleanup.policy": "delete"})
    plan = plan_topics({"orders": wanted}, {}, brokers, TopicCreation(replication_factor=factor))
    assert plan.create[0].replication_factor == created
    assert plan.create[0].config["min.insync.replicas"] == minimum
    assert [f"with {counted(brokers, 'replica')}" in warning for warning in plan.warnings] == [True] * is_warned


def test_excluded_properties_stay_the_targets_own_affair() -> None:
    creation = TopicCreation(config_exclude=CONFIG_PROPERTIES_EXCLUDE + ("max.message.*", "retention.ms"))
    config = {
        "min.insync.replicas": "2",
        "retention.ms": "5",
        "segment.ms": "7",
        "message.timestamp.type": "LogAppendTime",
    }
    wanted = TopicSpec("orders", 1, 1, config, {"max.message.bytes": "9"})
    (created,) = plan_topics({"orders": wanted}, {}, 3, creation).create
    limits = {name for name in created.config if name.startswith("message.timestamp")}
    assert {k: v for k, v in created.config.items() if k not in limits} == {"segment.ms": "7"}
    assert created.config["message.timestamp.type"] == "CreateTime", "a copy cannot do without"


def test_defaults_of_the_sources_brokers_are_set_where_the_link_says_so() -> None:
    effective = {"retention.ms": "3", "segment.ms": "9", "local.retention.ms": "1", "cleanup.policy": "compact"}
    wanted = TopicSpec("orders", 1, 1, {"segment.ms": "7"}, effective)
    (created,) = plan_topics({"orders": wanted}, {}, 1, TopicCreation(use_defaults_from="source")).create
    assert (created.config["retention.ms"], created.config["segment.ms"]) == ("3", "7")
    assert "local.retention.ms" not in created.config
    (created,) = plan_topics({"orders": wanted}, {}, 1).create
    assert "retention.ms" not in created.config and created.is_compacted


def test_throttled_replicas_of_the_sources_brokers_are_not_copied() -> None:
    config = {"leader.replication.throttled.replicas": "0:1", "follower.replication.throttled.replicas": "0:2"}
    (created,) = plan_topics({"orders": TopicSpec("orders", 1, 1, config)}, {}, 1).create
    assert not config.keys() & created.config.keys()


def test_existing_topic_with_as_many_or_more_partitions_is_used() -> None:
    for partitions in (3, 4):
        plan = plan_topics({"orders": spec()}, {"orders": spec(partitions=partitions)}, 1)
        assert plan.create == ()
        assert plan.existing == (spec(),)


def test_existing_topic_with_fewer_partitions_gets_the_missing_ones() -> None:
    plan = plan_topics({"orders": spec()}, {"orders": spec(partitions=2)}, 1)
    assert (plan.create, plan.existing, plan.grow) == ((), (), (spec(),))
    assert "2 partitions on the target and 3 on the source" in plan.warnings[0]


def test_append_times_of_the_source_become_create_times() -> None:
    (created,) = plan_topics({"orders": TopicSpec("orders", 3, 1, STAMPED)}, {}, 1).create
    assert created.config["message.timestamp.type"] == "CreateTime"


@pytest.mark.parametrize("present", [TopicSpec("orders", 3, 1, STAMPED), TopicSpec("orders", 3, 1, {}, STAMPED)])
def test_target_topic_that_would_rewrite_timestamps_is_refused_and_no_other(present: TopicSpec) -> None:
    other = spec("payments")
    plan = plan_topics({"orders": spec(), "payments": other}, {"orders": present}, 1)
    assert re.match("Topic orders of the target has .*set it to CreateTime", plan.refused["orders"])
    assert [topic.name for topic in plan.copied] == ["payments"]


def test_created_topic_takes_records_of_any_time() -> None:
    (created,) = plan_topics(
        {"orders": spec(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")}, {}, 1
    ).create
    assert (
        created.config["message.timestamp.before.max.ms"]
        == created.config["message.timestamp.after.max.ms"]
        == str(2**63 - 1)
    )


def test_settings_that_4_x_brokers_do_not_know_or_that_belong_to_one_cluster_are_left_out() -> None:
    gone = {
        "message.format.version": "2.8-IV1",
        "message.downconversion.enable": "true",
        "message.timestamp.difference.max.ms": "5",
        "remote.storage.enable": "true",
        "local.retention.ms": "10",
    }
    plan = plan_topics({"orders": TopicSpec("orders", 1, 1, {**gone, "retention.ms": "7"})}, {}, 1)
    assert not gone.keys() & plan.create[0].config.keys()
    assert plan.create[0].config["retention.ms"] == "7"
    assert any("without tiered storage" in warning for warning in plan.warnings)


def test_what_is_only_a_default_of_the_sources_brokers_is_set_on_the_created_topic() -> None:
    effective = {"cleanup.policy": "compact", "max.message.bytes": "5000000", "retention.ms": "3"}
    (created,) = plan_topics({"orders": TopicSpec("orders", 1, 1, {}, effective)}, {}, 1).create
    assert created.is_compacted and created.max_message_bytes == 5_000_000
    assert "retention.ms" not in created.config
    own = TopicSpec("orders", 1, 1, {"max.message.bytes": "2000"}, {**effective, "max.message.bytes": "2000"})
    (created,) = plan_topics({"orders": own}, {}, 1).create
    assert created.max_message_bytes == 2000
    older = TopicSpec("orders", 1, 1, {}, {"max.message.bytes": "1000012"})
    assert plan_topics({"orders": older}, {}, 1).create[0].max_message_bytes == 1_048_588  # v2 has larger headers


def test_source_that_cannot_tell_its_configuration_is_mirrored_with_a_warning() -> None:
    plan = plan_topics({"orders": TopicSpec("orders", 1, 1)}, {}, 1)
    assert "cannot tell the configuration of topic orders" in plan.warnings[0]
    assert "cleanup.policy" not in plan.create[0].config


@pytest.mark.parametrize(
    ("on_source", "on_target", "warning"),
    [
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}, "compacted on the source only"),
        ({"cleanup.policy": "delete"}, {"cleanup.policy": "compact,delete"}, "compacted on the target only"),
        ({"max.message.bytes": "3000000"}, {"max.message.bytes": "1048588"}, "takes batches of 1048588 bytes"),
        ({}, {"message.timestamp.before.max.ms": "1000"}, "older than 1000 ms"),
        ({}, {"message.timestamp.after.max.ms": "3600000"}, "further ahead than 3600000 ms"),
        ({"retention.ms": "-1"}, {"retention.ms": "1000"}, "keeps records 1000 ms on the target"),
    ],
)
def test_existing_topic_that_may_hurt_is_warned_about(
    on_source: dict[str, str], on_target: dict[str, str], warning: str
) -> None:
    sound = {"cleanup.policy": "delete", "retention.ms": "-1"}
    source = TopicSpec("orders", 1, 1, {}, {**sound, **on_source})
    plan = plan_topics({"orders": source}, {"orders": TopicSpec("orders", 1, 1, {}, {**sound, **on_target})}, 1)
    assert [warning in said for said in plan.warnings] == [True]
    assert plan_topics({"orders": source}, {"orders": source}, 1).warnings == ()


def test_limit_for_the_future_may_be_as_low_as_the_sources() -> None:
    effective = {"message.timestamp.after.max.ms": "3600000"}
    both = {"orders": TopicSpec("orders", 1, 1, {}, effective)}
    assert plan_topics(both, both, 1).warnings == ()


def test_unknown_names_are_dropped_and_values_below_the_least_are_raised() -> None:
    wanted = TopicSpec("orders", 1, 1, {"acme.speed": "9", "segment.bytes": "14"})
    fitted, warning = fit_config(wanted, "Unknown topic config name: acme.speed")
    assert fitted.config == {"segment.bytes": "14"}
    assert "without acme.speed=9" in warning
    fitted, warning = fit_config(
        fitted, "Invalid value 14 for configuration segment.bytes: Value must be at least 1048576"
    )
    assert fitted.config == {"segment.bytes": "1048576"}
    assert "with segment.bytes=1048576" in warning and "the source has 14" in warning


@pytest.mark.parametrize(
    "refusal",
    [
        "Unknown topic config name: something.else",
        "Invalid value 1048576 for configuration segment.bytes: Value must be at least 1048576",
        "Replication factor: 3 larger than available brokers: 1.",
    ],
)
def test_refusal_that_dropping_does_not_settle_is_the_users(refusal: str) -> None:
    with pytest.raises(OptionError, match="The target refuses to create topic orders: .*create it yourself"):
        fit_config(TopicSpec("orders", 1, 1, {"segment.bytes": "1048576"}), refusal)


def test_topics_are_made_in_operations_that_a_controller_takes() -> None:
    """A KRaft controller keeps at most 10,000 records of one operation: a topic, its partitions, its settings."""
    topics = [TopicSpec(f"t{number}", 100, 1, {"retention.ms": "1"}) for number in range(100)]
    pieces = list(in_operations([*topics, TopicSpec("very-wide", 9_000, 1)]))
    assert [topic.name for some in pieces for topic in some] == [*(topic.name for topic in topics), "very-wide"]
    assert max(sum(2 + topic.partitions for topic in some) for some in pieces[:-1]) <= 2_500
    assert [topic.name for topic in pieces[-1]] == ["very-wide"]
    assert len(pieces) == 6
    assert list(in_operations([])) == []
