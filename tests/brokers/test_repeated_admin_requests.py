"""What a broker answers to the same bytes sent twice: administration, reading, and the start of a connection."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    DeleteAclsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest,
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListGroupsRequest,
    ListPartitionReassignmentsRequest,
    ListTransactionsRequest,
    UpdateFeaturesRequest,
)
from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.sasl import SaslHandshakeRequest

from support.repeats import TIMEOUT_MS, Wire, assert_same, code_of, create, error, new
from support.settled import until
from tolerant_client.testing import KafkaCluster
from tolerant_client.tracker.rules import api_rows as rows
from tolerant_client.tracker.rules.api_rows import ApiRow

# -- administration -----------------------------------------------------------


def test_repeated_create_says_that_the_topic_exists_unless_it_only_validates(wire: Wire) -> None:
    name = new("created")
    answers = wire.twice(rows.NOTHING_CHANGED, create(name, validate_only=True))
    assert [a.topics[0].error_code for a in answers] == [0, 0]
    answers = wire.twice(rows.TOPIC_CREATE, create(name))
    assert [a.topics[0].error_code for a in answers] == [0, code_of(rows.TOPIC_CREATE)]


def test_repeated_delete_of_a_topic_says_that_it_is_not_there(wire: Wire) -> None:
    name = new("deleted")
    wire.ask(create(name))
    kind = DeleteTopicsRequest.DeleteTopicState
    by_name = DeleteTopicsRequest(topics=[kind(name=name)], timeout_ms=TIMEOUT_MS)
    answers = wire.twice(rows.TOPIC_DELETE_BY_NAME, by_name)
    assert [a.responses[0].error_code for a in answers] == [0, code_of(rows.TOPIC_DELETE_BY_NAME)]
    topic_id = wire.ask(create(name)).topics[0].topic_id
    by_id = DeleteTopicsRequest(topics=[kind(topic_id=topic_id)], timeout_ms=TIMEOUT_MS)
    answers = wire.twice(rows.TOPIC_DELETE_BY_ID, by_id)
    assert [a.responses[0].error_code for a in answers] == [0, code_of(rows.TOPIC_DELETE_BY_ID)]


def test_delete_by_name_deletes_a_newer_topic_of_that_name(wire: Wire) -> None:
    name = new("again")
    delete = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS)
    for _ in range(2):
        assert wire.ask(create(name)).topics[0].error_code == 0
        assert wire.ask(delete).responses[0].error_code == 0


def test_repeated_growth_says_that_the_partitions_are_there(wire: Wire) -> None:
    name = new("grown")
    wire.ask(create(name))

    def grow(validate_only: bool) -> Any:
        return CreatePartitionsRequest(topics=[(name, 3, None)], timeout_ms=TIMEOUT_MS, validate_only=validate_only)

    assert_same(rows.NOTHING_CHANGED, wire.twice(rows.NOTHING_CHANGED, grow(True)))
    answers = wire.twice(rows.PARTITIONS_CREATE, grow(False))
    assert [a.results[0].error_code for a in answers] == [0, code_of(rows.PARTITIONS_CREATE)]


def settings(wire: Wire, topic: str, *names: str) -> dict[str, str]:
    answer = wire.ask(DescribeConfigsRequest(resources=[(2, topic, list(names))], include_synonyms=False))
    return {config.name: config.value for config in answer.results[0].configs}


@pytest.mark.parametrize(
    ("operation", "name", "value", "after"),
    [
        (0, "retention.ms", "1000000", "1000000"),
        (1, "retention.ms", None, "-1"),
        (2, "cleanup.policy", "compact", "delete,compact"),
        (3, "cleanup.policy", "compact", "delete"),
    ],
    ids=["set", "delete", "append", "subtract"],
)
def test_repeated_change_of_a_setting_leaves_what_the_first_left(
    wire: Wire, topic: str, operation: int, name: str, value: str | None, after: str
) -> None:
    kind = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = kind.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = kind(resource_type=2, resource_name=topic, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answers = wire.twice(rows.CONFIGS_ALTER, request)
    assert_same(rows.CONFIGS_ALTER, answers)
    assert answers[0].responses[0].error_code == 0
    until(lambda: settings(wire, topic, name), lambda found: found == {name: after})


def test_repeated_replacement_of_settings_leaves_what_the_first_left(wire: Wire) -> None:
    name = new("configured")
    wire.ask(create(name))
    kind = AlterConfigsRequest.AlterConfigsResource
    config = kind.AlterableConfig(name="retention.ms", value="7")
    resource = kind(resource_type=2, resource_name=name, configs=[config])
    answers = wire.twice(rows.CONFIGS_ALTER, AlterConfigsRequest(resources=[resource], validate_only=False))
    assert_same(rows.CONFIGS_ALTER, answers)
    until(lambda: settings(wire, name, "retention.ms"), lambda found: found == {"retention.ms": "7"})


def test_repeated_create_of_an_acl_leaves_one_and_a_repeated_delete_matches_nothing(wire: Wire, topic: str) -> None:
    kind = CreateAclsRequest.AclCreation
    acl = kind(
        resource_type=2,
        resource_name=topic,
        resource_pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    pattern: dict[str, Any] = {
        "resource_type_filter": 2,
        "resource_name_filter": topic,
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    answers = wire.twice(rows.ACLS_CREATE, CreateAclsRequest(creations=[acl]))
    assert_same(rows.ACLS_CREATE, answers)
    assert answers[0].results[0].error_code == 0
    described = until(
        lambda: wire.twice(rows.READ_ONLY, DescribeAclsRequest(**pattern)), lambda found: found[0].resources
    )
    assert_same(rows.READ_ONLY, described)
    assert [len(resource.acls) for resource in described[0].resources] == [1]
    request = DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**pattern)])
    answers = wire.twice(rows.ACLS_DELETE, request)
    assert [len(a.filter_results[0].matching_acls) for a in answers] == [1, 0]
    assert [a.filter_results[0].error_code for a in answers] == [0, 0]


def test_repeated_reassignment_is_answered_alike_and_a_cancel_finds_nothing(wire: Wire, topic: str) -> None:
    kind = AlterPartitionReassignmentsRequest.ReassignableTopic

    def reassign(replicas: list[int] | None) -> Any:
        partition = kind.ReassignablePartition(partition_index=0, replicas=replicas)
        return AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=[kind(name=topic, partitions=[partition])]
        )

    answers = wire.twice(rows.REASSIGN, reassign([1]))
    assert_same(rows.REASSIGN, answers)
    assert answers[0].responses[0].partitions[0].error_code == 0
    answers = wire.twice(rows.REASSIGN_CANCEL, reassign(None))
    # One broker has nothing to move, so there is nothing to cancel the first time either.
    assert [a.responses[0].partitions[0].error_code for a in answers] == [code_of(rows.REASSIGN_CANCEL)] * 2


@pytest.mark.parametrize(("kind", "row"), [(0, rows.ELECT_PREFERRED), (1, rows.ELECT_UNCLEAN)])
def test_repeated_election_is_not_needed(wire: Wire, topic: str, kind: int, row: ApiRow) -> None:
    asked = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0, 1])
    answers = wire.twice(row, ElectLeadersRequest(election_type=kind, topic_partitions=[asked], timeout_ms=TIMEOUT_MS))
    codes = {p.error_code for a in answers for t in a.replica_election_results for p in t.partition_result}
    assert codes == {code_of(row)} == {84}


def test_repeated_upsert_of_credentials_is_answered_alike_and_a_delete_finds_nothing(wire: Wire) -> None:
    user = new("user")
    kind = AlterUserScramCredentialsRequest
    upsert = kind.ScramCredentialUpsertion(
        name=user, mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32
    )
    answers = wire.twice(rows.SCRAM_UPSERT, kind(deletions=[], upsertions=[upsert]))
    assert_same(rows.SCRAM_UPSERT, answers)
    assert answers[0].results[0].error_code == 0
    delete = kind(deletions=[kind.ScramCredentialDeletion(name=user, mechanism=1)], upsertions=[])
    answers = wire.twice(rows.SCRAM_DELETE, delete)
    assert [a.results[0].error_code for a in answers] == [0, code_of(rows.SCRAM_DELETE)]


def test_repeated_quota_is_answered_alike(wire: Wire) -> None:
    kind = AlterClientQuotasRequest.EntryData
    entity = [kind.EntityData(entity_type="user", entity_name=new("user"))]
    for op in (
        kind.OpData(key="producer_byte_rate", value=1e6, remove=False),
        kind.OpData(key="producer_byte_rate", value=0.0, remove=True),
    ):
        answers = wire.twice(
            rows.QUOTAS_ALTER, AlterClientQuotasRequest(entries=[kind(entity=entity, ops=[op])], validate_only=False)
        )
        assert_same(rows.QUOTAS_ALTER, answers)
        assert answers[0].entries[0].error_code == 0


def test_repeated_feature_level_is_answered_alike(wire: Wire) -> None:
    supported = wire.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    if "group.version" not in {feature.name for feature in supported.supported_features}:
        pytest.skip("this broker has no feature whose level a test may change")
    for level, upgrade_type in ((0, 2), (1, 1)):
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature="group.version", max_version_level=level, upgrade_type=upgrade_type
        )
        request = UpdateFeaturesRequest(timeout_ms=TIMEOUT_MS, feature_updates=[update], validate_only=False)
        answers = wire.twice(rows.FEATURES_UPDATE, request, 1)
        assert_same(rows.FEATURES_UPDATE, answers)
        assert error(answers[0]) == 0


def test_repeated_move_to_a_log_directory_is_answered_alike(wire: Wire, topic: str) -> None:
    wanted = DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])
    (described,) = wire.ask(DescribeLogDirsRequest(topics=[wanted])).results
    kind = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    replica = kind.AlterReplicaLogDirTopic(name=topic, partitions=[0])
    request = AlterReplicaLogDirsRequest(dirs=[kind(path=described.log_dir, topics=[replica])])
    answers = wire.twice(rows.LOG_DIRS_ALTER, request)
    assert_same(rows.LOG_DIRS_ALTER, answers)
    assert answers[0].results[0].partitions[0].error_code == 0


# -- reading, and the start of a connection -----------------------------------


def readers(topic: str, group: str) -> list[Any]:
    listed = ListOffsetsRequest.ListOffsetsTopic
    epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    quorum = DescribeQuorumRequest.TopicData
    return [
        ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[listed(name=topic, partitions=[listed.ListOffsetsPartition(partition_index=9, timestamp=-1)])],
        ),
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=name,
                    topics=[
                        OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics(
                            name=topic, partition_indexes=[0, 1]
                        )
                    ],
                )
                for name in (group, "no-such-group")
            ],
            require_stable=False,
        ),
        FindCoordinatorRequest(key_type=0, coordinator_keys=[group, "other"]),
        DescribeGroupsRequest(groups=[group, "no-such-group"], include_authorized_operations=False),
        ListGroupsRequest(states_filter=[], types_filter=[]),
        OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                epochs(
                    topic=topic,
                    partitions=[
                        epochs.OffsetForLeaderPartition(partition=p, current_leader_epoch=-1, leader_epoch=0)
                        for p in (0, 9)
                    ],
                )
            ],
        ),
        DescribeConfigsRequest(
            resources=[(2, topic, ["retention.ms"]), (2, "no-such-topic", None)], include_synonyms=False
        ),
        ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None),
        DescribeClientQuotasRequest(components=[], strict=False),
        DescribeUserScramCredentialsRequest(users=[DescribeUserScramCredentialsRequest.UserName(name="nobody")]),
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        DescribeProducersRequest(topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[1, 9])]),
        DescribeTransactionsRequest(transactional_ids=["nobody"]),
        ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1),
        ListConfigResourcesRequest(resource_types=[]),
        DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=topic)], response_partition_limit=1, cursor=None
        ),
        DescribeQuorumRequest(
            topics=[quorum(topic_name="__cluster_metadata", partitions=[quorum.PartitionData(partition_index=0)])]
        ),
        DescribeLogDirsRequest(topics=[DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0, 1])]),
    ]


LAST_BY_NAME = {OffsetFetchRequest.API_KEY: 9}
MOVING = ("DescribeQuorumRequest", "DescribeLogDirsRequest")  # their answers hold clocks and free space


def test_reading_twice_shows_the_same(wire: Wire, group: str, topic: str) -> None:
    different, unsupported = [], []
    for request in readers(topic, group):
        if request.API_KEY not in wire.versions:
            unsupported.append(request.name)
            continue
        version = min(wire.versions[request.API_KEY], LAST_BY_NAME.get(request.API_KEY, request.max_version))
        first, second = wire.twice(rows.READ_ONLY, request, version)
        if request.name not in MOVING and first != second:
            different.append(request.name)
    assert different == []
    assert len(unsupported) <= 3


def test_metadata_twice_shows_the_same(wire: Wire, topic: str) -> None:
    names = [MetadataRequest.MetadataRequestTopic(name=name) for name in (topic, "no-such-topic")]
    for topics in (names, None, []):
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        assert_same(rows.METADATA_REFRESH, wire.twice(rows.METADATA_REFRESH, request))


def test_the_start_of_a_connection_is_not_repeated(authorized_cluster: KafkaCluster) -> None:
    wire = Wire(authorized_cluster.bootstrap_servers)
    try:
        assert_same(rows.FIRST_REQUEST, wire.twice(rows.FIRST_REQUEST, ApiVersionsRequest(), 0))
        answers = wire.twice(rows.AUTHENTICATION, SaslHandshakeRequest(mechanism="PLAIN"), 1)
        # A listener without SASL refuses the first one already.
        assert [error(answer) for answer in answers] == [code_of(rows.AUTHENTICATION)] * 2
    finally:
        wire.socket.close()
