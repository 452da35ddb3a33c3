"""Kafka's APIs and their rows: what happens when the response to a request is lost (T3).

Where the row depends on the request, the request provides it (`row`, requests.py) or sets
`resend_safe`; otherwise the API's last row applies, which assumes least.  A new API gets
its key and its line here, and a row in api_rows.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules import api_rows as rows
from tolerant_client.tracker.rules.api_rows import Action as Action
from tolerant_client.tracker.rules.api_rows import ApiRow as ApiRow

Buffer = bytes | bytearray | memoryview

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 11, 12, 13, 14, 15, 16
SASL_HANDSHAKE, API_VERSIONS = 17, 18
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH = 19, 20, 21, 22, 23
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, WRITE_TXN_MARKERS, TXN_OFFSET_COMMIT = 24, 25, 26, 27, 28
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS = 32, 33, 34, 35
SASL_AUTHENTICATE, CREATE_PARTITIONS, DELETE_GROUPS, ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS = 36, 37, 42, 43, 44
ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS, OFFSET_DELETE = 45, 46, 47
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS = 50, 51
DESCRIBE_QUORUM, UPDATE_FEATURES, DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS = 55, 57, 60, 61
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS, LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 65, 66, 74, 75

FETCH_BY_ID_VERSION = 13  # from which on Fetch names topics by id (KIP-516, Kafka 3.1)

SETUP = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})  # the requests that make a connection ready


@dataclass(frozen=True, slots=True)
class Api:
    """An API's name and its rows; of several, the last one assumes least about the request."""

    name: str
    rows: tuple[ApiRow, ...]


APIS: dict[int, Api] = {
    PRODUCE: Api("Produce", (rows.PRODUCE_IDEMPOTENT, rows.PRODUCE_PLAIN)),
    FETCH: Api("Fetch", (rows.FETCH_ALONE, rows.FETCH_IN_SESSION)),
    LIST_OFFSETS: Api("ListOffsets", (rows.READ_ONLY,)),
    METADATA: Api("Metadata", (rows.METADATA_REFRESH,)),
    OFFSET_COMMIT: Api("OffsetCommit", (rows.COMMIT,)),
    OFFSET_FETCH: Api("OffsetFetch", (rows.READ_ONLY,)),
    FIND_COORDINATOR: Api("FindCoordinator", (rows.READ_ONLY,)),
    JOIN_GROUP: Api("JoinGroup", (rows.JOIN_KNOWN, rows.JOIN_STATIC, rows.JOIN_NEW, rows.JOIN_GHOST)),
    HEARTBEAT: Api("Heartbeat", (rows.BEAT,)),
    LEAVE_GROUP: Api("LeaveGroup", (rows.LEAVE,)),
    SYNC_GROUP: Api("SyncGroup", (rows.SYNC,)),
    DESCRIBE_GROUPS: Api("DescribeGroups", (rows.READ_ONLY,)),
    LIST_GROUPS: Api("ListGroups", (rows.READ_ONLY,)),
    SASL_HANDSHAKE: Api("SaslHandshake", (rows.AUTHENTICATION,)),
    API_VERSIONS: Api("ApiVersions", (rows.FIRST_REQUEST,)),
    CREATE_TOPICS: Api("CreateTopics", (rows.NOTHING_CHANGED, rows.TOPIC_CREATE)),
    DELETE_TOPICS: Api("DeleteTopics", (rows.TOPIC_DELETE_BY_ID, rows.TOPIC_DELETE_BY_NAME)),
    DELETE_RECORDS: Api("DeleteRecords", (rows.RECORDS_DELETE_TO_OFFSET, rows.RECORDS_DELETE_TO_END)),
    INIT_PRODUCER_ID: Api("InitProducerId", (rows.INIT_IDEMPOTENT, rows.INIT_SAME_EPOCH, rows.INIT_NEXT_EPOCH)),
    OFFSET_FOR_LEADER_EPOCH: Api("OffsetForLeaderEpoch", (rows.READ_ONLY,)),
    ADD_PARTITIONS_TO_TXN: Api("AddPartitionsToTxn", (rows.TXN_ADD,)),
    ADD_OFFSETS_TO_TXN: Api("AddOffsetsToTxn", (rows.TXN_ADD,)),
    END_TXN: Api("EndTxn", (rows.END_KNOWN, rows.END_BLIND)),
    WRITE_TXN_MARKERS: Api("WriteTxnMarkers", (rows.MARKERS,)),
    TXN_OFFSET_COMMIT: Api("TxnOffsetCommit", (rows.TXN_COMMIT,)),
    DESCRIBE_ACLS: Api("DescribeAcls", (rows.READ_ONLY,)),
    CREATE_ACLS: Api("CreateAcls", (rows.ACLS_CREATE,)),
    DELETE_ACLS: Api("DeleteAcls", (rows.ACLS_DELETE,)),
    DESCRIBE_CONFIGS: Api("DescribeConfigs", (rows.READ_ONLY,)),
    ALTER_CONFIGS: Api("AlterConfigs", (rows.CONFIGS_ALTER,)),
    ALTER_REPLICA_LOG_DIRS: Api("AlterReplicaLogDirs", (rows.LOG_DIRS_ALTER,)),
    DESCRIBE_LOG_DIRS: Api("DescribeLogDirs", (rows.READ_ONLY,)),
    SASL_AUTHENTICATE: Api("SaslAuthenticate", (rows.AUTHENTICATION,)),
    CREATE_PARTITIONS: Api("CreatePartitions", (rows.NOTHING_CHANGED, rows.PARTITIONS_CREATE)),
    DELETE_GROUPS: Api("DeleteGroups", (rows.GROUP_DELETE,)),
    ELECT_LEADERS: Api("ElectLeaders", (rows.ELECT_PREFERRED, rows.ELECT_UNCLEAN)),
    INCREMENTAL_ALTER_CONFIGS: Api("IncrementalAlterConfigs", (rows.CONFIGS_ALTER,)),
    ALTER_PARTITION_REASSIGNMENTS: Api("AlterPartitionReassignments", (rows.REASSIGN, rows.REASSIGN_CANCEL)),
    LIST_PARTITION_REASSIGNMENTS: Api("ListPartitionReassignments", (rows.READ_ONLY,)),
    OFFSET_DELETE: Api("OffsetDelete", (rows.COMMIT_DELETE,)),
    DESCRIBE_CLIENT_QUOTAS: Api("DescribeClientQuotas", (rows.READ_ONLY,)),
    ALTER_CLIENT_QUOTAS: Api("AlterClientQuotas", (rows.QUOTAS_ALTER,)),
    DESCRIBE_USER_SCRAM_CREDENTIALS: Api("DescribeUserScramCredentials", (rows.READ_ONLY,)),
    ALTER_USER_SCRAM_CREDENTIALS: Api("AlterUserScramCredentials", (rows.SCRAM_UPSERT, rows.SCRAM_DELETE)),
    DESCRIBE_QUORUM: Api("DescribeQuorum", (rows.READ_ONLY,)),
    UPDATE_FEATURES: Api("UpdateFeatures", (rows.FEATURES_UPDATE,)),
    DESCRIBE_CLUSTER: Api("DescribeCluster", (rows.READ_ONLY,)),
    DESCRIBE_PRODUCERS: Api("DescribeProducers", (rows.READ_ONLY,)),
    DESCRIBE_TRANSACTIONS: Api("DescribeTransactions", (rows.READ_ONLY,)),
    LIST_TRANSACTIONS: Api("ListTransactions", (rows.READ_ONLY,)),
    LIST_CONFIG_RESOURCES: Api("ListConfigResources", (rows.READ_ONLY,)),
    DESCRIBE_TOPIC_PARTITIONS: Api("DescribeTopicPartitions", (rows.READ_ONLY,)),
}


_DEFAULTS = RecoveryPolicy()

_NOTES = (
    "A request is sent again only on the connection on which a later response proves that the broker is done with it.",
    "When a connection ends, all of its requests are handed up, those with an unknown outcome as such. `*` Handed up",
    "as retriable where a newer request of the same group, transaction or resource has been sent.",
)


class Request(ABC):
    """All that the tracker reads of a request; the defaults assume least.

    `expected_ms` is how long a broker may hold the request by design (a long poll).
    """

    __slots__ = ()

    API_KEY: int
    API_VERSION: int
    name: str
    expected_ms: float

    is_raw = False  # True: neither its frame nor its response's has a correlation id
    resend_safe: bool | None = None  # chooses among its API's rows where the request has no row of its own

    @property
    def order_keys(self) -> tuple[Any, ...]:
        """What it shares with other requests that it must not overtake."""
        return ()

    @property
    def yields_to_newer(self) -> bool:
        """Whether a repeat could undo a newer request that shares an order key."""
        return False

    @property
    def row(self) -> ApiRow:
        """What a lost response means; a request of an unknown API is handed up as retriable."""
        if self.resend_safe is None or self.API_KEY not in APIS:
            return row_of_api(self.API_KEY)
        fitting = [row for row in APIS[self.API_KEY].rows if row.action.is_resend is self.resend_safe]
        return fitting[-1] if fitting else rows.NOT_KNOWN

    @property
    def is_repeated_above(self) -> bool:
        """Whether its owner may send it again at any time."""
        return False

    @abstractmethod
    def expect_response(self) -> bool: ...

    @abstractmethod
    def frame_buffers(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """The whole frame, length prefix included."""

    @abstractmethod
    def decode_response(self, body: memoryview) -> Any:
        """Raises any error where the body is not whole, OtherSubject where it names something else."""

    def is_out_of_turn(self, response: Any) -> bool:
        """Whether the broker says that it had not seen the request before it, which was lost and sent again."""
        return False

    def is_unmistakable(self, response: Any) -> bool:
        """Whether no short response to another request decodes as this one."""
        return True


def row_of_api(api_key: int) -> ApiRow:
    """The row that assumes least about a request."""
    api = APIS.get(api_key)
    return rows.NOT_KNOWN if api is None else api.rows[-1]


def is_settled_by_silence(request: Request) -> bool:
    """Whether a probe's response alone settles `request`: a read, or one that its owner may send again at any time."""
    return request.row.is_read or request.is_repeated_above


def action_for(request: Request, policy: RecoveryPolicy = _DEFAULTS) -> Action:
    """What settles `request` when its response is lost."""
    row = request.row
    if row is rows.PRODUCE_PLAIN and request.resend_safe is not False:
        if policy.resend_plain_produce:
            return Action.RESEND
        if policy.retries_plain_produce:
            return Action.HAND_UP
    return row.action


def as_markdown() -> str:
    """The table of docs/requests.md; APIs with the same row share a line."""
    names: dict[ApiRow, list[str]] = {}
    for api in APIS.values():
        for row in api.rows:
            names.setdefault(row, []).append(api.name)
    lines = ["| request | its response is lost | why | a repeat shows | source |", "|---|---|---|---|---|"]
    for row, apis in names.items():
        action = row.action.value + ("*" if row.yields_to_newer and row.action.is_resend else "")
        request = f"{', '.join(apis)} {row.when}".rstrip()
        lines.append(f"| {request} | {action} | {row.reason} | {row.repeat_shows} | {row.source} |")
    return "\n".join([*lines, "", *_NOTES])


class OtherSubject(ValueError):
    """A response that decodes but names something else than its request.

    `response` is the decoded response, or None where no caller could act on it.
    `names` is what it names: a repeat whose response names the same confirms it.
    """

    def __init__(self, message: str, response: Any, names: Any) -> None:
        super().__init__(message)
        self.response = response
        self.names = names


if __name__ == "__main__":
    print(as_markdown())
