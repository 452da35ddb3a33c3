"""Names of mirrored topics, as MirrorMaker 2 has them: its own test classes are the facts."""

from __future__ import annotations

import pickle

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
    is_cycle,
)

DEFAULT = DefaultReplicationPolicy()
IDENTITY = IdentityReplicationPolicy()


@pytest.mark.parametrize(
    ("topic", "is_internal"),
    [
        # ReplicationPolicyTest.testInternalTopic
        ("__consumer_offsets", True),
        (".hiddentopic", True),
        ("mm2-offsets.CLUSTER.internal", True),
        ("mm2-offsets_CLUSTER_internal", False),
        ("A.checkpoints.internal", True),
        # KAFKA-17200: users have such topics, too
        ("mm2-offsets-CLUSTER-internal", False),
        ("orders.internal", False),
        ("connect-offsets-internal", False),
        ("orders", False),
        ("_schemas", False),
    ],
)
def test_hidden_topics_and_those_of_kafka_and_mirror_maker_are_internal(topic: str, is_internal: bool) -> None:
    assert DEFAULT.is_internal(topic) is is_internal


@pytest.mark.parametrize(
    ("policy", "offset_syncs", "checkpoints"),
    [
        (DEFAULT, "mm2-offset-syncs.CLUSTER.internal", "CLUSTER.checkpoints.internal"),
        # ReplicationPolicyTest.offsetSyncsTopic_..., checkpointsTopic_shouldBeEffectedByInternalTopicSeparatorEnabled
        (DefaultReplicationPolicy("__", False), "mm2-offset-syncs.CLUSTER.internal", "CLUSTER.checkpoints.internal"),
        (DefaultReplicationPolicy("__", True), "mm2-offset-syncs__CLUSTER__internal", "CLUSTER__checkpoints__internal"),
        (IdentityReplicationPolicy("_"), "mm2-offset-syncs_CLUSTER_internal", "CLUSTER_checkpoints_internal"),
    ],
)
def test_internal_topics_have_the_separator_unless_it_is_switched_off(
    policy: DefaultReplicationPolicy, offset_syncs: str, checkpoints: str
) -> None:
    assert policy.checkpoints_topic("CLUSTER") == checkpoints
    assert policy.heartbeats_topic() == "heartbeats"
    assert policy.is_checkpoints(checkpoints) and not policy.is_checkpoints(offset_syncs)
    assert policy.is_mm2_internal(checkpoints) and policy.is_mm2_internal(offset_syncs)


@pytest.mark.parametrize(
    ("separator", "topic", "source", "upstream", "original"),
    [
        (".", "orders", None, None, "orders"),
        (".", "A.orders", "A", "orders", "orders"),
        (".", "B.A.orders", "B", "A.orders", "orders"),
        # What String.split of Java leaves of them.
        (".", "orders.", None, None, "orders."),
        (".", "orders..", None, None, "orders.."),
        (".", ".orders", "", "orders", "orders"),
        (".", "A..orders", "A", ".orders", "orders"),
        ("_", "A.orders", None, None, "A.orders"),
        ("__", "A__B_orders", "A", "B_orders", "B_orders"),
        ("", "ab", "a", "b", "b"),
    ],
)
def test_name_tells_where_a_topic_comes_from(
    separator: str, topic: str, source: str | None, upstream: str | None, original: str
) -> None:
    policy = DefaultReplicationPolicy(separator)
    assert (policy.topic_source(topic), policy.upstream_topic(topic)) == (source, upstream)
    assert policy.original_topic(topic) == original


def test_identity_keeps_every_name_but_those_of_heartbeats() -> None:
    policy = IdentityReplicationPolicy(source_alias="A")
    assert policy.remote_topic("A", "orders") == "orders"
    assert policy.remote_topic("A", "heartbeats") == "A.heartbeats"
    assert (policy.topic_source("B.orders"), policy.upstream_topic("B.orders")) == ("A", "B.orders")
    assert (policy.topic_source("B.heartbeats"), policy.upstream_topic("B.heartbeats")) == ("B", "heartbeats")
    assert IDENTITY.topic_source("orders") is None
    assert policy.original_topic("B.orders") == "B.orders"


@pytest.mark.parametrize(
    ("policy", "topic", "is_heartbeats"),
    [
        (DEFAULT, "heartbeats", True),
        (DEFAULT, "us-west.heartbeats", True),
        (DEFAULT, "my-heartbeats", False),
        (IDENTITY, "us-west.us-east.heartbeats", True),
        # MirrorSourceConnectorTest.testReplicatesHeartbeatsDespiteFilter
        (DefaultReplicationPolicy("_"), "heartbeats", True),
        (DefaultReplicationPolicy("_"), "us-west.heartbeats", False),
    ],
)
def test_heartbeats_are_known_however_far_they_came(
    policy: DefaultReplicationPolicy, topic: str, is_heartbeats: bool
) -> None:
    assert policy.is_heartbeats(topic) is is_heartbeats


@pytest.mark.parametrize(
    ("policy", "topic", "is_found"),
    [
        # MirrorSourceConnectorTest.testNoCycles
        (DEFAULT, "target.topic1", True),
        (DEFAULT, "target.source.topic1", True),
        (DEFAULT, "source.target.topic1", True),
        (DEFAULT, "target.source.target.topic1", True),
        (DEFAULT, "source.target.source.topic1", True),
        (DEFAULT, "topic1", False),
        (DEFAULT, "source.topic1", False),
        # MirrorSourceConnectorTest.testIdentityReplication
        (IDENTITY, "target.topic1", False),
        (IDENTITY, "source.target.source.topic1", False),
        (IDENTITY, "target.heartbeats", True),
        (IDENTITY, "source.target.source.heartbeats", True),
        (IDENTITY, "othersource.heartbeats", False),
        (IdentityReplicationPolicy(source_alias="source"), "target.topic1", False),
        (DefaultReplicationPolicy("_"), "target.topic1", False),
    ],
)
def test_topic_that_came_from_the_target_is_a_cycle(
    policy: DefaultReplicationPolicy, topic: str, is_found: bool
) -> None:
    assert is_cycle(policy, topic, "target") is is_found


@pytest.mark.parametrize(
    ("names", "topic", "on_target"),
    [
        (TopicNames(DEFAULT, "A"), "orders", "A.orders"),
        (TopicNames(DEFAULT, "A"), "A.orders", "A.A.orders"),
        (TopicNames(DEFAULT, "eu.west"), "orders.v2", "eu.west.orders.v2"),
        (TopicNames(DefaultReplicationPolicy("_"), "A"), "orders", "A_orders"),
        (TopicNames(DefaultReplicationPolicy(""), ""), "orders", "orders"),
        (TopicNames(IDENTITY, "A"), "orders", "orders"),
        (TopicNames(IDENTITY, "A"), "A.orders", "A.orders"),
        (TopicNames(IDENTITY, "A"), "heartbeats", "A.heartbeats"),
    ],
)
def test_names_go_there_and_back(names: TopicNames, topic: str, on_target: str) -> None:
    assert names.to_target(topic) == on_target
    assert names.to_source(on_target) == topic
    assert TopicNames.from_json(names.to_json()) == names
    assert pickle.loads(pickle.dumps(names)) == names


@pytest.mark.parametrize(
    ("names", "topic"), [(TopicNames(DEFAULT, "A"), "orders"), (TopicNames(IDENTITY, "A"), "heartbeats")]
)
def test_name_that_no_copy_has_is_refused(names: TopicNames, topic: str) -> None:
    with pytest.raises(OptionError, match=f"Topic {topic} of the target is no copy from cluster A"):
        names.to_source(topic)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "Other", "policy": {}, "source_alias": "A"}'])
def test_json_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="Not the names of a link's topics"):
        TopicNames.from_json(text)
