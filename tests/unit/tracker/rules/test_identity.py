"""Responses that decode but name something else than their request are refused, and no others."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest

from support.messages import REQUESTS, answer, asked, numbers, tp
from tolerant_client.tracker.rules.apis import OtherSubject
from tolerant_client.tracker.rules.identity import SUBJECTS

ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)
RESOURCE = {"resource_type": 2, "resource_name": "a", "configs": []}
ACL_FILTER = {"resource_type_filter": 2, "operation": 1, "permission_type": 1}
ACL = {"resource_type": 2, "resource_name": "a", "principal": "u", "host": "*", "operation": 3, "permission_type": 3}
NO_ERROR = {"error_code": 0, "error_message": None}


def codes(topic: str, *partitions: int) -> dict[str, Any]:
    return tp(topic, *partitions, error_code=0)


def offsets(topic: str, *partitions: int) -> dict[str, Any]:
    return tp(topic, *partitions, committed_offset=5, metadata="", error_code=0)


def found(topic: str, *partitions: int) -> dict[str, Any]:
    return tp(topic, *partitions, error_code=0, timestamp=1, offset=2)


def epochs(topic: str, *partitions: int) -> dict[str, Any]:
    return tp(topic, *partitions, name="topic", index="partition", error_code=0, leader_epoch=1, end_offset=2)


def elected(topic: str, *partitions: int) -> dict[str, Any]:
    return tp(topic, *partitions, name="topic", inner="partition_result", index="partition_id", error_code=0)


def resource(kind: int, name: str, **more: Any) -> dict[str, Any]:
    return {"error_code": 0, "error_message": None, "resource_type": kind, "resource_name": name, **more}


def described(group: str) -> dict[str, Any]:
    return {"error_code": 0, "group_id": group, "members": []}


def user(name: str) -> dict[str, Any]:
    return {"user": name, "error_code": 0, "error_message": None}


def entity(name: str | None) -> list[dict[str, Any]]:
    return [{"entity_type": "user", "entity_name": name}]


# API, version, request, its own responses, responses of others.
IDENTITIES: list[tuple[str, int, dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    (
        "ListOffsets",
        7,
        {"topics": [("a", [(0, -1, -1)]), ("b", [(1, -1, -1)])]},
        [{"topics": [found("b", 1), found("a", 0)]}],
        [{"topics": []}, {"topics": [found("a", 0)]}, {"topics": [found("a", 0), found("b", 2)]}],
    ),
    (
        "Metadata",
        9,
        {"topics": [{"name": "a"}, {"name": "b"}]},
        [{"topics": [{"name": "b"}, {"name": "a", "error_code": 3}]}],
        [{"topics": [{"name": "a"}, {"name": "c"}]}, {"topics": [{"name": "a"}]}, {"topics": []}],
    ),
    ("Metadata", 9, {"topics": None}, [{"topics": [{"name": "c"}]}, {"topics": []}], []),
    # A probe: the response to a request for a topic by id is not its own.
    *(("Metadata", v, {"topics": []}, [{"topics": []}], [{"topics": [{"name": "c"}]}]) for v in (1, 9, 12)),
    ("Metadata", 0, {"topics": []}, [{"topics": [{"name": "c"}]}], []),
    ("Metadata", 0, {"topics": [{"name": "a"}]}, [{"topics": [{"name": "a"}]}], [{"topics": []}]),
    ("Metadata", 12, {"topics": [{"topic_id": ID, "name": None}]}, [{"topics": [{"name": "c", "topic_id": ID}]}], []),
    (
        "Metadata",
        12,
        {"topics": [{"name": "a"}]},
        [{"topics": [{"name": "a", "topic_id": ID}]}],
        [{"topics": [{"name": "c", "topic_id": ID}]}, {"topics": []}],
    ),
    (
        "OffsetCommit",
        8,
        {"group_id": "g", "topics": [tp("a", 0, 1)]},
        [{"topics": [codes("a", 1, 0)]}],
        [{"topics": [codes("a", 0)]}, {"topics": [codes("b", 0, 1)]}, {"topics": []}],
    ),
    ("OffsetCommit", 10, {"topics": [{"topic_id": ID, "partitions": []}]}, [{"topics": []}], []),
    (
        "OffsetFetch",
        5,
        {"group_id": "g", "topics": [numbers("a", 0, 1, inner="partition_indexes")]},
        [{"topics": [offsets("a", 0, 1)]}, {"topics": [], "error_code": 16}],
        [{"topics": [offsets("a", 0)]}, {"topics": [offsets("b", 0, 1)], "error_code": 16}, {"topics": []}],
    ),
    (
        "OffsetFetch",
        7,
        {
            "topics": [numbers("a", 0, inner="partition_indexes")],
            "groups": [{"group_id": "g", "topics": [numbers("a", 0, inner="partition_indexes")]}],
        },
        [{"topics": [offsets("a", 0)]}],
        [{"topics": [offsets("b", 0)]}],
    ),
    (
        "OffsetFetch",
        8,
        {
            "topics": [numbers("a", 0, inner="partition_indexes")],
            "groups": [{"group_id": "g", "topics": [numbers("a", 0, inner="partition_indexes")]}],
        },
        [{"groups": [{"group_id": "g", "topics": [offsets("a", 0)]}]}],
        [{"groups": [{"group_id": "h", "topics": [offsets("a", 0)]}]}],
    ),
    ("OffsetFetch", 5, {"group_id": "g", "topics": None}, [{"topics": [offsets("b", 4)]}, {"topics": []}], []),
    (
        "OffsetFetch",
        8,
        {
            "groups": [
                {"group_id": "g", "topics": [numbers("a", 0, inner="partition_indexes")]},
                {"group_id": "h", "topics": [numbers("b", 1, inner="partition_indexes")]},
            ]
        },
        [
            {
                "groups": [
                    {"group_id": "h", "topics": [offsets("b", 1)]},
                    {"group_id": "g", "topics": [offsets("a", 0)]},
                ]
            },
            {
                "groups": [
                    {"group_id": "g", "topics": [], "error_code": 16},
                    {"group_id": "h", "topics": [offsets("b", 1)]},
                ]
            },
        ],
        [
            {"groups": [{"group_id": "g", "topics": [], "error_code": 16}, {"group_id": "h", "topics": []}]},
            {"groups": [{"group_id": "g", "topics": [offsets("a", 0)]}]},
            {"groups": [{"group_id": "g", "topics": [offsets("b", 1)]}, {"group_id": "h", "topics": []}]},
            {"groups": [{"group_id": "x", "topics": []}, {"group_id": "h", "topics": []}]},
        ],
    ),
    (
        "OffsetFetch",
        8,
        {"groups": [{"group_id": "g", "topics": None}]},
        [{"groups": [{"group_id": "g", "topics": [offsets("b", 4)]}]}],
        [{"groups": [{"group_id": "h", "topics": [offsets("b", 4)]}]}, {"groups": []}],
    ),
    (
        "FindCoordinator",
        4,
        {"coordinator_keys": ["g", "h"]},
        [{"coordinators": [{"key": "h"}, {"key": "g"}]}],
        [{"coordinators": [{"key": "g"}]}, {"coordinators": [{"key": "g"}, {"key": "x"}]}],
    ),
    ("FindCoordinator", 3, {"key": "g", "coordinator_keys": ["g"]}, [{"node_id": 1}, {"error_code": 15}], []),
    (
        "JoinGroup",
        7,
        {"group_id": "g", "member_id": "m"},
        [{"member_id": "m"}, {"member_id": "", "error_code": 25}, {"member_id": "x", "error_code": 25}],
        [{"member_id": "x"}],
    ),
    ("JoinGroup", 7, {"member_id": ""}, [{"member_id": "x"}, {"member_id": "x", "error_code": 79}], []),
    (
        "SyncGroup",
        5,
        {"group_id": "g", "protocol_name": "range"},
        [{"protocol_name": "range"}, {"protocol_name": None, "error_code": 22}, {"protocol_name": None}],
        [{"protocol_name": "sticky"}],
    ),
    ("SyncGroup", 3, {"group_id": "g", "protocol_name": "range"}, [{"assignment": b"x"}], []),
    (
        "LeaveGroup",
        3,
        {"members": [{"member_id": "m"}]},
        [{"members": [{"member_id": "m", "error_code": 25}]}, {"members": [], "error_code": 16}],
        [{"members": [{"member_id": "x", "error_code": 0}]}],
    ),
    (
        "LeaveGroup",
        3,
        {"members": [{"member_id": "", "group_instance_id": "i"}]},
        [{"members": [{"member_id": "x", "group_instance_id": "i", "error_code": 0}]}],
        [],
    ),
    (
        "DescribeGroups",
        4,
        {"groups": ["g", "h"]},
        [{"groups": [described("h"), described("g")]}],
        [{"groups": [described("g")]}, {"groups": [described("g"), described("x")]}],
    ),
    (
        "CreateTopics",
        4,
        {"topics": [{"name": "a"}]},
        [{"topics": [{"name": "a", "error_code": 36}]}],
        [{"topics": [{"name": "b", "error_code": 0}]}, {"topics": []}],
    ),
    (
        "DeleteTopics",
        3,
        {"topic_names": ["a"]},
        [{"responses": [{"name": "a", "error_code": 3}]}],
        [{"responses": [{"name": "b", "error_code": 0}]}, {"responses": []}],
    ),
    (
        "DeleteTopics",
        6,
        {"topics": [{"name": "a"}]},
        [{"responses": [{"name": "a", "topic_id": ID, "error_code": 0}]}],
        [{"responses": [{"name": "b", "topic_id": ID, "error_code": 0}]}, {"responses": []}],
    ),
    (
        "DeleteTopics",
        6,
        {"topics": [{"name": None, "topic_id": ID}]},
        [
            {"responses": [{"name": "b", "topic_id": ID, "error_code": 0}]},
            {"responses": [{"name": None, "topic_id": ID, "error_code": 100}]},
        ],
        [{"responses": [{"name": "a", "topic_id": OTHER_ID, "error_code": 0}]}, {"responses": []}],
    ),
    (
        "DeleteRecords",
        1,
        {"topics": [("a", [(0, 5)])]},
        [{"topics": [codes("a", 0)]}],
        [{"topics": [codes("a", 1)]}, {"topics": []}],
    ),
    (
        "OffsetForLeaderEpoch",
        3,
        {"topics": [("a", [(0, -1, 0)])]},
        [{"topics": [epochs("a", 0)]}],
        [{"topics": [epochs("a", 1)]}, {"topics": []}],
    ),
    (
        "AddPartitionsToTxn",
        2,
        {"v3_and_below_topics": [numbers("a", 0, 1)], "transactions": [{"transactional_id": "x", "topics": []}]},
        [{"results_by_topic_v3_and_below": [tp("a", 1, 0, inner="results_by_partition")]}],
        [{"results_by_topic_v3_and_below": [tp("a", 0, inner="results_by_partition")]}],
    ),
    (
        "AddPartitionsToTxn",
        4,
        {"v3_and_below_topics": [numbers("a", 0, 1)], "transactions": [{"transactional_id": "x", "topics": []}]},
        [
            {"results_by_transaction": [{"transactional_id": "x", "topic_results": []}]},
            {"error_code": 31, "results_by_transaction": []},
        ],
        [
            {"results_by_transaction": [{"transactional_id": "y", "topic_results": []}]},
            {"results_by_transaction": []},
        ],
    ),
    (
        "WriteTxnMarkers",
        1,
        {"markers": [{"producer_id": 5, "topics": [numbers("a", 0, inner="partition_indexes")]}]},
        [{"markers": [{"producer_id": 5, "topics": [codes("a", 0)]}]}],
        [
            {"markers": [{"producer_id": 6, "topics": [codes("a", 0)]}]},
            {"markers": [{"producer_id": 5, "topics": [codes("a", 1)]}]},
        ],
    ),
    (
        "TxnOffsetCommit",
        3,
        {"topics": [tp("a", 0)]},
        [{"topics": [codes("a", 0)]}],
        [{"topics": [codes("b", 0)]}, {"topics": []}],
    ),
    ("CreateAcls", 1, {"creations": [ACL, ACL]}, [{"results": [NO_ERROR, NO_ERROR]}], [{"results": [NO_ERROR]}]),
    (
        "DeleteAcls",
        1,
        {"filters": [ACL_FILTER]},
        [{"filter_results": [{**NO_ERROR, "matching_acls": []}]}],
        [{"filter_results": []}],
    ),
    (
        "DescribeConfigs",
        3,
        {"resources": [(2, "a", None), (4, "1", None)]},
        [{"results": [resource(4, "1", configs=[]), resource(2, "a", configs=[])]}],
        [
            {"results": [resource(2, "a", configs=[])]},
            {"results": [resource(2, "1", configs=[]), resource(4, "a", configs=[])]},
        ],
    ),
    (
        "AlterConfigs",
        1,
        {"resources": [RESOURCE]},
        [{"responses": [resource(2, "a")]}],
        [{"responses": [resource(2, "b")]}, {"responses": []}],
    ),
    (
        "IncrementalAlterConfigs",
        0,
        {"resources": [RESOURCE]},
        [{"responses": [resource(2, "a")]}],
        [{"responses": [resource(4, "a")]}, {"responses": []}],
    ),
    (
        "AlterReplicaLogDirs",
        1,
        {"dirs": [{"path": "/p", "topics": [numbers("a", 0)]}, {"path": "/q", "topics": [numbers("a", 1)]}]},
        [{"results": [tp("a", 0, 1, name="topic_name")]}],
        [{"results": [tp("a", 0, name="topic_name")]}, {"results": [tp("b", 0, 1, name="topic_name")]}],
    ),
    (
        "DescribeLogDirs",
        1,
        {"topics": [numbers("a", 0, name="topic")]},
        [{"results": []}, {"results": [{"error_code": 0, "log_dir": "/p", "topics": [tp("a", 0)]}]}],
        [{"results": [{"error_code": 0, "log_dir": "/p", "topics": [tp("a", 1)]}]}],
    ),
    (
        "DescribeLogDirs",
        1,
        {"topics": None},
        [{"results": [{"error_code": 0, "log_dir": "/p", "topics": [tp("a", 1)]}]}],
        [],
    ),
    (
        "CreatePartitions",
        1,
        {"topics": [("a", 3, None)]},
        [{"results": [{"name": "a", **NO_ERROR}]}],
        [{"results": [{"name": "b", **NO_ERROR}]}, {"results": []}],
    ),
    (
        "DeleteGroups",
        1,
        {"groups_names": ["g", "h"]},
        [{"results": [{"group_id": "h", "error_code": 0}, {"group_id": "g", "error_code": 69}]}],
        [{"results": [{"group_id": "g", "error_code": 0}]}],
    ),
    (
        "ElectLeaders",
        1,
        {"topic_partitions": [("a", [0, 1])]},
        [
            {"replica_election_results": [elected("a", 0)]},
            {"error_code": 31, "replica_election_results": []},
        ],
        [{"replica_election_results": [elected("b", 0)]}],
    ),
    (
        "ElectLeaders",
        1,
        {"topic_partitions": None},
        [{"replica_election_results": [elected("b", 0)]}],
        [],
    ),
    (
        "AlterPartitionReassignments",
        0,
        {"topics": [tp("a", 0)]},
        [{"responses": [tp("a", 0)]}, {"error_code": 31, "responses": []}],
        [{"responses": [tp("a", 1)]}, {"responses": []}],
    ),
    (
        "ListPartitionReassignments",
        0,
        {"topics": [numbers("a", 0, inner="partition_indexes")]},
        [{"topics": [tp("a", 0)]}, {"topics": []}],
        [{"topics": [tp("a", 1)]}],
    ),
    ("ListPartitionReassignments", 0, {"topics": None}, [{"topics": [tp("a", 1)]}], []),
    (
        "OffsetDelete",
        0,
        {"group_id": "g", "topics": [tp("a", 0)]},
        [{"topics": [codes("a", 0)]}, {"error_code": 69, "topics": []}],
        [{"topics": [codes("b", 0)]}, {"topics": []}],
    ),
    (
        "AlterClientQuotas",
        0,
        {"entries": [{"entity": entity("u"), "ops": []}]},
        [{"entries": [{**NO_ERROR, "entity": entity("u")}]}],
        [{"entries": [{**NO_ERROR, "entity": entity("v")}]}, {"entries": []}],
    ),
    (
        "AlterClientQuotas",
        0,
        {"entries": [{"entity": entity(None), "ops": []}]},
        [{"entries": [{**NO_ERROR, "entity": entity(None)}]}],
        [],
    ),
    (
        "DescribeUserScramCredentials",
        0,
        {"users": [("u",)]},
        [{"results": [user("u")]}, {"error_code": 31, "results": []}],
        [{"results": [user("v")]}],
    ),
    ("DescribeUserScramCredentials", 0, {"users": []}, [{"results": [user("v")]}], []),
    (
        "AlterUserScramCredentials",
        0,
        {"deletions": [("u", 1)], "upsertions": [("v", 1, 4096, b"", b"")]},
        [{"results": [user("u"), user("v")]}],
        [{"results": [user("u")]}, {"results": [user("u"), user("w")]}],
    ),
    (
        "DescribeQuorum",
        0,
        {"topics": [tp("a", 0, name="topic_name")]},
        [{"topics": [tp("a", 0, name="topic_name")]}, {"error_code": 31, "topics": []}],
        [{"topics": [tp("a", 1, name="topic_name")]}],
    ),
    (
        "UpdateFeatures",
        1,
        {"feature_updates": [{"feature": "f"}]},
        [{"results": [{"feature": "f", **NO_ERROR}]}, {"error_code": 41, "results": []}],
        [{"results": [{"feature": "h", **NO_ERROR}]}],
    ),
    ("UpdateFeatures", 2, {"feature_updates": [{"feature": "f"}]}, [{"error_code": 0}], []),
    (
        "DescribeProducers",
        0,
        {"topics": [numbers("a", 0, inner="partition_indexes")]},
        [{"topics": [tp("a", 0)]}],
        [{"topics": [tp("a", 1)]}, {"topics": []}],
    ),
    (
        "DescribeTransactions",
        0,
        {"transactional_ids": ["x"]},
        [{"transaction_states": [{"transactional_id": "x", "error_code": 105}]}],
        [{"transaction_states": [{"transactional_id": "y"}]}, {"transaction_states": []}],
    ),
    (
        "DescribeTopicPartitions",
        0,
        {"topics": [{"name": "a"}, {"name": "b"}]},
        [{"topics": [{"name": "a"}]}],
        [{"topics": [{"name": "c"}]}],
    ),
]


@pytest.mark.parametrize(("api", "version", "request_", "own", "foreign"), IDENTITIES)
def test_response_that_speaks_of_something_else_is_refused_and_no_other(
    api: str, version: int, request_: dict[str, Any], own: list[dict[str, Any]], foreign: list[dict[str, Any]]
) -> None:
    adapted = asked(api, version, **request_)
    adapted.frame_buffers(1, "test")
    for values in own:
        assert adapted.decode_response(answer(api, version, **values)) is not None
    for values in foreign:
        with pytest.raises(ValueError, match=f"{api} response names something else"):
            adapted.decode_response(answer(api, version, **values))


# Other shapes that kafka-python takes: tuples in the order of the schema, bare values, and some that we cannot read.
SHAPES: list[tuple[str, int, dict[str, Any], dict[str, Any], dict[str, Any] | None]] = [
    ("Metadata", 9, {"topics": ["a"]}, {"topics": [{"name": "a"}]}, {"topics": [{"name": "b"}]}),
    ("Metadata", 12, {"topics": [(None, "a")]}, {"topics": [{"name": "a"}]}, {"topics": [{"name": "b"}]}),
    (
        "DeleteTopics",
        6,
        {"topics": [(None, ID)]},
        {"responses": [{"name": "a", "topic_id": ID, "error_code": 0}]},
        {"responses": [{"name": "a", "topic_id": OTHER_ID, "error_code": 0}]},
    ),
    (
        "AlterReplicaLogDirs",
        1,
        {"dirs": [("/p", [("a", [0])])]},
        {"results": [tp("a", 0, name="topic_name")]},
        {"results": [tp("a", 1, name="topic_name")]},
    ),
    (
        "WriteTxnMarkers",
        1,
        {"markers": [(5, 0, False, [("a", [0])], 0)]},
        {"markers": [{"producer_id": 5, "topics": [codes("a", 0)]}]},
        {"markers": [{"producer_id": 5, "topics": [codes("a", 1)]}]},
    ),
    (
        "OffsetFetch",
        8,
        {"groups": [("g", [("a", [0])])]},
        {"groups": [{"group_id": "g", "topics": [offsets("a", 0)]}]},
        {"groups": [{"group_id": "g", "topics": [offsets("a", 1)]}]},
    ),
    ("DescribeUserScramCredentials", 0, {"users": ["u"]}, {"results": [user("u")]}, {"results": [user("v")]}),
    ("OffsetDelete", 0, {"topics": [("a", [0])]}, {"topics": [codes("a", 0)]}, {"topics": [codes("a", 1)]}),
    ("Metadata", 9, {"topics": [{"name": ("a", [0])}]}, {"topics": [{"name": "a"}]}, None),
    (
        "DescribeConfigs",
        3,
        {"resources": [(4, 1, None)]},
        {"results": [resource(4, "1", configs=[])]},
        {"results": [resource(4, "2", configs=[])]},
    ),
]


@pytest.mark.parametrize(("api", "version", "request_", "own", "foreign"), SHAPES)
def test_requests_are_read_in_every_shape_that_kafka_python_takes(
    api: str, version: int, request_: dict[str, Any], own: dict[str, Any], foreign: dict[str, Any] | None
) -> None:
    adapted = asked(api, version, **request_)
    adapted.frame_buffers(1, "test")
    assert adapted.decode_response(answer(api, version, **own)) is not None
    if foreign is not None:
        with pytest.raises(ValueError, match=f"{api} response names something else"):
            adapted.decode_response(answer(api, version, **foreign))


# Each names one thing twice and another not at all, as after one flipped bit.
REPEATED: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
    ("ListOffsets", 7, {"topics": [("a", [(0, -1, -1), (1, -1, -1)])]}, {"topics": [found("a", 0, 0)]}),
    ("Metadata", 9, {"topics": [{"name": "a"}, {"name": "b"}]}, {"topics": [{"name": "a"}, {"name": "a"}]}),
    ("Metadata", 12, {"topics": [{"name": "a"}, {"name": "b"}]}, {"topics": [{"name": "a"}, {"name": "a"}]}),
    ("OffsetCommit", 8, {"group_id": "g", "topics": [tp("a", 0, 1)]}, {"topics": [codes("a", 0, 0)]}),
    (
        "OffsetFetch",
        5,
        {"group_id": "g", "topics": [numbers("a", 0, 1, inner="partition_indexes")]},
        {"topics": [offsets("a", 0, 0)]},
    ),
    *(
        (
            "OffsetFetch",
            version,
            {"groups": [{"group_id": "g", "topics": [numbers("a", 0, 1, inner="partition_indexes")]}]},
            {"groups": [{"group_id": "g", "topics": [offsets("a", 0, 0)]}]},
        )
        for version in (8, 9)
    ),
    ("FindCoordinator", 4, {"coordinator_keys": ["g", "h"]}, {"coordinators": [{"key": "g"}, {"key": "g"}]}),
    (
        "LeaveGroup",
        3,
        {"members": [{"member_id": "m"}, {"member_id": "n"}]},
        {"members": [{"member_id": "m", "error_code": 0}, {"member_id": "m", "error_code": 0}]},
    ),
    ("OffsetForLeaderEpoch", 3, {"topics": [("a", [(0, -1, 0), (1, -1, 0)])]}, {"topics": [epochs("a", 0, 0)]}),
    (
        "AddPartitionsToTxn",
        4,
        {"transactions": [{"transactional_id": "x", "topics": [numbers("a", 0, 1)]}]},
        {
            "results_by_transaction": [
                {
                    "transactional_id": "x",
                    "topic_results": [
                        tp("a", 0, 0, inner="results_by_partition", partition_error_code=0),
                    ],
                }
            ]
        },
    ),
    (
        "WriteTxnMarkers",
        1,
        {"markers": [{"producer_id": 5, "topics": [numbers("a", 0, 1, inner="partition_indexes")]}]},
        {"markers": [{"producer_id": 5, "topics": [codes("a", 0, 0)]}]},
    ),
    ("ElectLeaders", 1, {"topic_partitions": [("a", [0, 1])]}, {"replica_election_results": [elected("a", 0, 0)]}),
    (
        "ListPartitionReassignments",
        0,
        {"topics": [numbers("a", 0, 1, inner="partition_indexes")]},
        {"topics": [tp("a", 0, 0)]},
    ),
    ("DescribeUserScramCredentials", 0, {"users": [("u",), ("v",)]}, {"results": [user("u"), user("u")]}),
    (
        "DescribeQuorum",
        0,
        {"topics": [tp("a", 0, 1, name="topic_name")]},
        {"topics": [tp("a", 0, 0, name="topic_name")]},
    ),
    (
        "UpdateFeatures",
        1,
        {"feature_updates": [{"feature": "f"}, {"feature": "g"}]},
        {"results": [{"feature": "f", **NO_ERROR}, {"feature": "f", **NO_ERROR}]},
    ),
    (
        "DescribeTopicPartitions",
        0,
        {"topics": [{"name": "a"}, {"name": "b"}]},
        {"topics": [{"name": "a"}, {"name": "a"}]},
    ),
]


@pytest.mark.parametrize(("api", "version", "request_", "twice"), REPEATED)
def test_response_that_speaks_of_one_thing_twice_and_not_of_another_is_refused(
    api: str, version: int, request_: dict[str, Any], twice: dict[str, Any]
) -> None:
    adapted = asked(api, version, **request_)
    adapted.frame_buffers(1, "test")
    with pytest.raises(ValueError, match=f"{api} response names something else"):
        adapted.decode_response(answer(api, version, **twice))


def test_what_was_asked_for_twice_may_be_answered_twice_and_what_lies_in_two_directories_too() -> None:
    markers = {"producer_id": 5, "topics": [numbers("a", 0, inner="partition_indexes")]}
    adapted = asked("WriteTxnMarkers", 1, markers=[markers, markers])
    adapted.frame_buffers(1, "test")
    answered = {"producer_id": 5, "topics": [codes("a", 0)]}
    assert adapted.decode_response(answer("WriteTxnMarkers", 1, markers=[answered, answered])) is not None
    adapted = asked("DescribeLogDirs", 1, topics=[numbers("a", 0, name="topic")])
    adapted.frame_buffers(1, "test")
    results = [{"error_code": 0, "log_dir": path, "topics": [tp("a", 0)]} for path in ("/p", "/q")]
    assert adapted.decode_response(answer("DescribeLogDirs", 1, results=results)) is not None


def test_every_api_that_names_its_subjects_is_tried_with_a_foreign_response() -> None:
    tried = {REQUESTS[api].API_KEY for api, _, _, _, foreign in IDENTITIES if foreign}
    assert tried == set(SUBJECTS)


def test_foreign_response_says_what_it_names_and_not_what_it_tells_of_it() -> None:
    request = asked("ListOffsets", 5, topics=[tp("a", 0)])
    request.frame_buffers(1, "test")
    told = []
    for offset in (7, 8):
        part = {"partition_index": 1, "error_code": 0, "timestamp": -1, "offset": offset}
        with pytest.raises(OtherSubject) as raised:
            request.decode_response(answer("ListOffsets", 5, topics=[{"name": "a", "partitions": [part]}]))
        told.append(raised.value)
    assert told[0].names == told[1].names == Counter([("a", 1)])
    assert told[0].response.topics[0].partitions[0].offset == 7
