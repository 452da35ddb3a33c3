"""What is read from kafka-python's requests: rows, order keys, and how long a broker may hold them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from support.messages import asked, batch, fetch, produce
from tolerant_client.tracker.rules import api_rows as rows
from tolerant_client.tracker.rules import apis
from tolerant_client.tracker.rules.api_rows import ApiRow
from tolerant_client.tracker.rules.requests import KafkaRequest, SaslToken

ID = uuid.UUID(int=7)
RESOURCE = {"resource_type": 2, "resource_name": "a", "configs": []}
TRANSACTION = ("transaction", "x")


def join(version: int, **values: Any) -> KafkaRequest:
    return asked("JoinGroup", version, group_id="g", session_timeout_ms=6_000, rebalance_timeout_ms=9_000, **values)


def init(version: int, transactional_id: str | None, producer_id: int = -1) -> KafkaRequest:
    return asked("InitProducerId", version, transactional_id=transactional_id, producer_id=producer_id)


# Request, row, order keys, expected_ms.
CASES: list[tuple[KafkaRequest, ApiRow, tuple[Any, ...], float]] = [
    (produce(a=batch(5)), rows.PRODUCE_IDEMPOTENT, (("a", 0),), 0),
    (produce(a=batch(5), b=batch(6)), rows.PRODUCE_IDEMPOTENT, (("a", 0), ("b", 0)), 0),
    (produce(a=batch(5), b=batch(-1)), rows.PRODUCE_PLAIN, (("a", 0), ("b", 0)), 0),
    (produce(a=batch(-1)), rows.PRODUCE_PLAIN, (("a", 0),), 0),
    (produce(a=b"\0" * 40), rows.PRODUCE_PLAIN, (("a", 0),), 0),  # a message set from before Kafka 0.11
    (produce(a=None), rows.PRODUCE_PLAIN, (("a", 0),), 0),
    (fetch(6, 0, 0), rows.FETCH_ALONE, (), 400),
    (fetch(11, 0, -1), rows.FETCH_ALONE, (), 400),
    (fetch(11, 0, 0), rows.FETCH_IN_SESSION, (), 400),
    (fetch(13, 7, 3), rows.FETCH_IN_SESSION, (), 400),
    (asked("ListOffsets", 7), rows.READ_ONLY, (), 0),
    (asked("Metadata", 12, topics=None), rows.METADATA_REFRESH, (), 0),
    (asked("OffsetCommit", 8, group_id="g"), rows.COMMIT, (("group", "g"),), 0),
    (asked("OffsetFetch", 8), rows.READ_ONLY, (), 0),
    (asked("FindCoordinator", 4), rows.READ_ONLY, (), 0),
    (join(7, member_id="m"), rows.JOIN_KNOWN, (("member", "g"),), 9_000),
    (join(0, member_id="m"), rows.JOIN_KNOWN, (("member", "g"),), 9_000),
    (join(7, member_id="", group_instance_id="i"), rows.JOIN_STATIC, (("member", "g"),), 9_000),
    (join(7, member_id=""), rows.JOIN_NEW, (("member", "g"),), 6_000),
    (join(4, member_id="", group_instance_id="i"), rows.JOIN_NEW, (("member", "g"),), 6_000),
    (join(3, member_id=""), rows.JOIN_GHOST, (("member", "g"),), 9_000),
    (asked("Heartbeat", 4, group_id="g"), rows.BEAT, (("member", "g"),), 0),
    (asked("LeaveGroup", 5, group_id="g"), rows.LEAVE, (("member", "g"),), 0),
    (asked("SyncGroup", 5, group_id="g", assignments=[]), rows.SYNC, (("member", "g"),), 3_000),
    (asked("SyncGroup", 5, group_id="g", assignments=[{"member_id": "m"}]), rows.SYNC, (("member", "g"),), 0),
    (asked("DescribeGroups", 5), rows.READ_ONLY, (), 0),
    (asked("ListGroups", 4), rows.READ_ONLY, (), 0),
    (asked("SaslHandshake", 1), rows.AUTHENTICATION, (), 0),
    (asked("ApiVersions", 3), rows.FIRST_REQUEST, (), 0),
    (asked("CreateTopics", 5, timeout_ms=70, validate_only=False), rows.TOPIC_CREATE, (), 70),
    (asked("CreateTopics", 5, timeout_ms=70, validate_only=True), rows.NOTHING_CHANGED, (), 70),
    (asked("CreateTopics", 0, timeout_ms=70, validate_only=True), rows.TOPIC_CREATE, (), 70),
    (asked("DeleteTopics", 5, timeout_ms=70, topics=[{"name": "a"}]), rows.TOPIC_DELETE_BY_NAME, (), 70),
    (asked("DeleteTopics", 6, timeout_ms=70, topics=[{"name": "a"}]), rows.TOPIC_DELETE_BY_NAME, (), 70),
    (asked("DeleteTopics", 6, timeout_ms=-1, topics=[{"topic_id": ID}]), rows.TOPIC_DELETE_BY_ID, (), 0),
    (
        asked("DeleteTopics", 6, timeout_ms=70, topics=[{"topic_id": ID}, {"name": "a"}]),
        rows.TOPIC_DELETE_BY_NAME,
        (),
        70,
    ),
    (asked("DeleteRecords", 2, timeout_ms=70, topics=[("a", [(0, 5), (1, 6)])]), rows.RECORDS_DELETE_TO_OFFSET, (), 70),
    (asked("DeleteRecords", 2, timeout_ms=70, topics=[("a", [(0, 5), (1, -1)])]), rows.RECORDS_DELETE_TO_END, (), 70),
    (init(4, None), rows.INIT_IDEMPOTENT, (), 0),
    (init(4, "x"), rows.INIT_NEXT_EPOCH, (TRANSACTION,), 0),
    (init(4, "x", 5), rows.INIT_SAME_EPOCH, (TRANSACTION,), 0),
    (init(2, "x", 5), rows.INIT_NEXT_EPOCH, (TRANSACTION,), 0),
    (asked("OffsetForLeaderEpoch", 4), rows.READ_ONLY, (), 0),
    (asked("AddPartitionsToTxn", 3, v3_and_below_transactional_id="x"), rows.TXN_ADD, (TRANSACTION,), 0),
    (asked("AddPartitionsToTxn", 4, transactions=[{"transactional_id": "x"}]), rows.TXN_ADD, (TRANSACTION,), 0),
    (asked("AddOffsetsToTxn", 3, transactional_id="x"), rows.TXN_ADD, (TRANSACTION,), 0),
    (asked("EndTxn", 3, transactional_id="x"), rows.END_BLIND, (TRANSACTION,), 0),
    (asked("EndTxn", 5, transactional_id="x"), rows.END_KNOWN, (TRANSACTION,), 0),
    (asked("WriteTxnMarkers", 1), rows.MARKERS, (), 0),
    (asked("TxnOffsetCommit", 3, transactional_id="x"), rows.TXN_COMMIT, (TRANSACTION,), 0),
    (asked("DescribeAcls", 2), rows.READ_ONLY, (), 0),
    (asked("CreateAcls", 2), rows.ACLS_CREATE, ("acls",), 0),
    (asked("DeleteAcls", 2), rows.ACLS_DELETE, ("acls",), 0),
    (asked("DescribeConfigs", 4, resources=[(2, "a", None)]), rows.READ_ONLY, (), 0),
    (asked("AlterConfigs", 2, resources=[RESOURCE]), rows.CONFIGS_ALTER, (("config", 2, "a"),), 0),
    (asked("AlterConfigs", 2, resources=[(4, "", [])]), rows.CONFIGS_ALTER, (("config", 4, ""),), 0),  # all brokers
    (asked("IncrementalAlterConfigs", 1, resources=[RESOURCE]), rows.CONFIGS_ALTER, (("config", 2, "a"),), 0),
    (
        asked("AlterReplicaLogDirs", 2, dirs=[{"path": "/p", "topics": [{"name": "a", "partitions": [3]}]}]),
        rows.LOG_DIRS_ALTER,
        (("log directory", "a", 3),),
        0,
    ),
    (asked("DescribeLogDirs", 4), rows.READ_ONLY, (), 0),
    (asked("SaslAuthenticate", 2), rows.AUTHENTICATION, (), 0),
    (asked("CreatePartitions", 3, timeout_ms=70, validate_only=False), rows.PARTITIONS_CREATE, (), 70),
    (asked("CreatePartitions", 3, timeout_ms=70, validate_only=True), rows.NOTHING_CHANGED, (), 70),
    (asked("DeleteGroups", 2), rows.GROUP_DELETE, (), 0),
    (asked("ElectLeaders", 2, timeout_ms=70, election_type=0), rows.ELECT_PREFERRED, (), 70),
    (asked("ElectLeaders", 2, timeout_ms=70, election_type=1), rows.ELECT_UNCLEAN, (), 70),
    (asked("ElectLeaders", 0, timeout_ms=70), rows.ELECT_PREFERRED, (), 70),
    (
        asked("AlterPartitionReassignments", 0, timeout_ms=70, topics=[("a", [(0, [1])])]),
        rows.REASSIGN,
        (("replicas", "a", 0),),
        70,
    ),
    (
        asked("AlterPartitionReassignments", 0, timeout_ms=70, topics=[("a", [(0, None)])]),
        rows.REASSIGN_CANCEL,
        (("replicas", "a", 0),),
        70,
    ),
    (asked("ListPartitionReassignments", 0, timeout_ms=70), rows.READ_ONLY, (), 0),
    (asked("OffsetDelete", 0, group_id="g"), rows.COMMIT_DELETE, (("group", "g"),), 0),
    (asked("DescribeClientQuotas", 1), rows.READ_ONLY, (), 0),
    (
        asked("AlterClientQuotas", 1, entries=[{"entity": [{"entity_type": "user", "entity_name": "u"}]}]),
        rows.QUOTAS_ALTER,
        (("quota", "user", "u"),),
        0,
    ),
    (asked("DescribeUserScramCredentials", 0), rows.READ_ONLY, (), 0),
    (
        asked("AlterUserScramCredentials", 0, deletions=[], upsertions=[("u", 1, 1, b"", b"")]),
        rows.SCRAM_UPSERT,
        (("user", "u"),),
        0,
    ),
    (
        asked("AlterUserScramCredentials", 0, deletions=[("u", 1)], upsertions=[]),
        rows.SCRAM_DELETE,
        (("user", "u"),),
        0,
    ),
    (asked("DescribeQuorum", 0), rows.READ_ONLY, (), 0),
    (
        asked("UpdateFeatures", 1, timeout_ms=70, feature_updates=[{"feature": "f"}]),
        rows.FEATURES_UPDATE,
        (("feature", "f"),),
        70,
    ),
    (asked("DescribeCluster", 0), rows.READ_ONLY, (), 0),
    (asked("DescribeProducers", 0), rows.READ_ONLY, (), 0),
    (asked("DescribeTransactions", 0), rows.READ_ONLY, (), 0),
    (asked("ListTransactions", 0), rows.READ_ONLY, (), 0),
    (asked("ListConfigResources", 1), rows.READ_ONLY, (), 0),
    (asked("DescribeTopicPartitions", 0), rows.READ_ONLY, (), 0),
]


@pytest.mark.parametrize(("request_", "row", "keys", "expected_ms"), CASES, ids=lambda v: getattr(v, "name", ""))
def test_request_tells_its_row_its_order_and_its_wait(
    request_: KafkaRequest, row: ApiRow, keys: tuple[Any, ...], expected_ms: float
) -> None:
    assert request_.row is row
    assert apis.action_for(request_) is row.action
    assert request_.yields_to_newer is row.yields_to_newer
    assert sorted(map(repr, request_.order_keys)) == sorted(map(repr, keys))
    assert request_.expected_ms == expected_ms


def test_every_row_of_every_api_is_reached_by_a_request() -> None:
    reached = {(request.API_KEY, row) for request, row, _, _ in CASES}
    assert reached == {(key, row) for key, api in apis.APIS.items() for row in api.rows}


def test_row_that_yields_to_newer_requests_shares_a_key_with_them() -> None:
    assert [request.name for request, row, keys, _ in CASES if row.yields_to_newer and not keys] == []


def test_requests_without_a_body_of_ours_yield_to_nothing() -> None:
    assert not SaslToken(None).yields_to_newer
    assert SaslToken(None).row is rows.AUTHENTICATION
